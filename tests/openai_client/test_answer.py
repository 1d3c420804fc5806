"""An answer's tokens and times, from chunks that hold several tokens."""

from typing import Any

import pytest

from specresearch.openai_client import RequestRefusedError, StreamedAnswer

REPORT = {
    "mean_acceptance_length": 2.5,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 0, 2, 1],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 7,
    "num_draft_tokens": 12,
    "num_spec_tokens": 3,
}


def chunk(text: str, **rest: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}], **rest}


def answer_of(*events: dict[str, Any]) -> StreamedAnswer:
    answer = StreamedAnswer()
    for number, event in enumerate(events):
        answer.add(event, float(number))
    return answer


def test_tokens_are_those_of_usage_and_shared_out_by_the_length_of_chunks() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 6}
    answer = answer_of(chunk(""), chunk("abcd"), chunk("ab"), chunk("abcdef"), {"usage": usage})
    assert answer.token_times == [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]
    assert (answer.text, answer.num_prompt_tokens) == ("abcdababcdef", 5)


def test_counts_in_every_chunk_say_when_each_token_came() -> None:
    events = [chunk("abcdef", usage={"completion_tokens": 1})]
    events += [
        chunk("a", usage={"completion_tokens": 5}),
        chunk("b", usage={"completion_tokens": 6}),
    ]
    assert answer_of(*events).token_times == [0.0, 1.0, 1.0, 1.0, 1.0, 2.0]


def test_more_chunks_than_tokens_and_no_text_at_all_have_times_too() -> None:
    usage = {"usage": {"completion_tokens": 2}}
    assert answer_of(chunk("a"), chunk("b"), chunk("c"), usage).token_times == [0.0, 2.0]
    assert answer_of(usage).token_times == []


def test_texts_and_thoughts_count_as_output() -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    plain = {"choices": [{"text": "yes", "finish_reason": "stop"}]}
    answer = answer_of(thought, plain)
    assert (answer.text, answer.finish_reason, answer.is_done) == ("hmyes", "stop", True)


def test_drafting_is_read_where_vllm_and_tensorrt_llm_report_it() -> None:
    usage = {"completion_tokens": 11}
    root = {"usage": usage, "metrics": {"speculative_decoding": REPORT, "queue_time_ms": 20.0}}
    answer = answer_of(chunk("a"), root)
    assert answer.queue_seconds == 0.02
    counts = answer.counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (4, 12, 7)
    assert (counts.accepted, counts.reached) == ([3, 3, 1], [4, 3, 3])
    assert counts.mean_acceptance_length == 2.75
    renamed = {
        "acceptance_rate": 7 / 12,
        "total_accepted_draft_tokens": 7,
        "total_draft_tokens": 12,
        "num_spec_steps": 4,
        "acceptance_histogram": [1, 0, 2, 1],
        "num_spec_tokens": None,
    }
    choice = {"choices": [{"text": "a", "speculative_decoding": renamed}], "usage": usage}
    assert answer_of(choice).counts == counts


def test_the_steps_of_a_detailed_report_say_how_many_drafts_reached_each_position() -> None:
    steps = {"per_step_accepted": [0, 2, 2, 3], "per_step_drafted": [3, 2, 3, 3]}
    usage = {"completion_tokens": 11}
    event = {"usage": usage, "metrics": {"speculative_decoding": {**REPORT, **steps}}}
    assert answer_of(chunk("a"), event).counts.reached == [4, 3, 2]


def test_an_error_in_the_stream_fails_the_request_and_an_unknown_report_says_nothing() -> None:
    with pytest.raises(RequestRefusedError, match="out of blocks"):
        answer_of(chunk("a"), {"error": {"message": "out of\nblocks"}})
    with pytest.raises(RequestRefusedError, match="no object"):
        StreamedAnswer().add([], 0.0)
    strange = {"metrics": {"speculative_decoding": {"rate": 1}}, "usage": {"completion_tokens": 3}}
    counts = answer_of(chunk("a"), strange).counts
    assert (counts.num_generated_tokens, counts.num_drafts) == (3, 0)
