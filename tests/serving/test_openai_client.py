"""OpenAI's own client talks to the server, and gets what the engine gives alone."""

import pytest
from live_server import Live, serving
from openai import BadRequestError, NotFoundError

from specresearch import CausalLM, Engine, RequestOutput, SamplingParams
from specresearch.data.templates import render_chat
from specresearch.proposers import NGram
from specresearch.serving.settings import ServeSettings

PROMPT = "Once upon a time there was a little fox who"
MESSAGES = [{"role": "user", "content": "Tell me a story of a fox, a fox and a fox."}]


def alone(target: CausalLM, prompt: str | list[int], sampling: SamplingParams) -> RequestOutput:
    (output,) = Engine(target, NGram(4)).generate([prompt], sampling)
    return output


def test_chat(live: Live, target: CausalLM) -> None:
    answer = live.client().chat.completions.create(
        model="zoo:tiny", messages=MESSAGES, temperature=0, max_completion_tokens=30
    )
    assert target.tokenizer is not None
    ids = render_chat(target.tokenizer, MESSAGES)
    output = alone(target, ids, SamplingParams(max_new_tokens=30))
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content == output.text
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == len(output.token_ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_streamed_pieces_add_up(live: Live, target: CausalLM, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5, max_new_tokens=40)
    output = alone(target, PROMPT, sampling)
    chunks = list(
        live.client().completions.create(
            model="zoo:tiny",
            prompt=PROMPT,
            temperature=temperature,
            seed=5,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == output.text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40


def test_a_stream_may_collect_tokens(target: CausalLM) -> None:
    counts, texts = [], []
    for interval in (1, 16):
        with serving(target, settings=ServeSettings(stream_interval=interval)) as live:
            chunks = live.client().completions.create(
                model="zoo:tiny", prompt=PROMPT, temperature=0, max_tokens=40, stream=True
            )
            pieces = [chunk.choices[0].text for chunk in chunks]
        counts.append(len(pieces))
        texts.append("".join(pieces))
    assert texts[0] == texts[1]
    assert counts[1] <= 4 < counts[0]


def test_streamed_chat(live: Live) -> None:
    client = live.client().chat.completions
    options = {"model": "zoo:tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 20}
    whole = client.create(**options)
    chunks = list(client.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_stop_strings_cut_the_stream(live: Live, target: CausalLM) -> None:
    text = alone(target, PROMPT, SamplingParams(max_new_tokens=40)).text
    stop = text[len(text) // 2 :][:6]
    chunks = live.client().completions.create(
        model="zoo:tiny", prompt=PROMPT, temperature=0, max_tokens=40, stop=[stop], stream=True
    )
    pieces = [chunk.choices[0] for chunk in chunks]
    assert "".join(piece.text for piece in pieces) == text[: text.index(stop)]
    assert pieces[-1].finish_reason == "stop"


def test_several_choices_and_prompts(live: Live, target: CausalLM) -> None:
    answer = live.client().completions.create(
        model="zoo:tiny", prompt=[PROMPT, "def f(x):"], n=2, temperature=1, seed=9, max_tokens=12
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for index, (prompt, seed) in enumerate(
        [(PROMPT, 9), (PROMPT, 10), ("def f(x):", 9), ("def f(x):", 10)]
    ):
        sampling = SamplingParams(temperature=1.0, seed=seed, max_new_tokens=12)
        assert answer.choices[index].text == alone(target, prompt, sampling).text
    assert target.tokenizer is not None
    assert answer.usage is not None
    num_tokens = [len(target.tokenizer(text)["input_ids"]) for text in (PROMPT, "def f(x):")]
    assert answer.usage.prompt_tokens == sum(num_tokens)


def test_logprobs(live: Live, target: CausalLM) -> None:
    sampling = SamplingParams(max_new_tokens=10, logprobs=3)
    output = alone(target, PROMPT, sampling)
    answer = live.client().completions.create(
        model="zoo:tiny", prompt=PROMPT, temperature=0, max_tokens=10, logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    expected = [logprob.logprob for logprob in output.logprobs]
    assert logprobs.token_logprobs == pytest.approx(expected, abs=1e-4)
    assert logprobs.top_logprobs is not None
    assert all(len(top) == 3 for top in logprobs.top_logprobs)
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == output.text
    chat = live.client().chat.completions.create(
        model="zoo:tiny", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=2
    )
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert content is not None
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert bytes(entry.bytes or []).decode() == entry.token


def test_figures_of_speculation(live: Live, target: CausalLM) -> None:
    prompt = "the cat sat on the mat the cat sat on the mat the cat"
    counts = alone(target, prompt, SamplingParams(max_new_tokens=30)).record.counts
    options = {"model": "zoo:tiny", "prompt": prompt, "temperature": 0, "max_tokens": 30}
    client = live.client().completions
    chunks = list(client.create(**options, stream=True))
    for answer in (client.create(**options), chunks[-1]):
        figures = answer.to_dict()["metrics"]["speculative_decoding"]
        assert figures["num_draft_tokens"] == counts.num_draft_tokens
        assert figures["num_accepted_draft_tokens"] == counts.num_accepted_tokens > 0
        assert figures["num_accepted_tokens_per_pos"] == counts.accepted
        histogram = figures["acceptance_histogram"]
        assert sum(histogram) == figures["num_spec_steps"] == counts.num_drafts
        accepted = sum(number * steps for number, steps in enumerate(histogram))
        assert accepted == counts.num_accepted_tokens
    assert all("metrics" not in chunk.to_dict() for chunk in chunks[:-1])


def test_drafting_can_be_switched_off_for_a_request(live: Live) -> None:
    answer = live.client().completions.create(
        model="zoo:tiny",
        prompt="the the the the the",
        temperature=0,
        max_tokens=10,
        extra_body={"num_draft_tokens": 0},
    )
    assert answer.to_dict()["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_who_wrote_each_token(live: Live) -> None:
    chunks = live.client().completions.create(
        model="zoo:tiny",
        prompt="the cat sat on the mat the cat sat on the mat the cat",
        temperature=0,
        max_tokens=30,
        stop=["zebra"],
        stream=True,
        stream_options={"include_speculation": True},
    )
    num_accepted = 0
    for chunk in chunks:
        choice = chunk.to_dict()["choices"][0]
        speculation = choice["speculation"]
        assert "".join(token["text"] for token in speculation["tokens"]) == choice["text"]
        accepted = [token for token in speculation["tokens"] if token["position"] is not None]
        drafted = [
            tree["token_ids"][node] for tree in speculation["trees"] for node in tree["accepted"]
        ]
        assert [token["token_id"] for token in accepted] == drafted
        num_accepted += len(accepted)
    assert num_accepted > 0


def test_models_and_bad_requests(live: Live) -> None:
    client = live.client()
    assert [model.id for model in client.models.list()] == ["zoo:tiny"]
    assert client.models.retrieve("zoo:tiny").id == "zoo:tiny"
    with pytest.raises(NotFoundError, match="has zoo:tiny and no other"):
        client.completions.create(model="gpt-4", prompt="secret words")
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model="zoo:tiny", prompt="secret words", temperature=-1)
    assert caught.value.param == "temperature"
    assert "secret" not in str(caught.value)
    with pytest.raises(BadRequestError, match="room for 255") as caught:
        client.completions.create(model="zoo:tiny", prompt="secret words " * 200)
    assert caught.value.code == "context_length_exceeded"
    assert "secret" not in str(caught.value)
