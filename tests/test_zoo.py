"""The pair that ships with the package loads, fits together and quotes its prompt."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import specresearch
from specresearch import CausalLM, Engine, SamplingParams
from specresearch.cli import conf_dir
from specresearch.data.templates import SUMMARY, render
from specresearch.proposers import Eagle, Eagle3, Proposer

ZOO = Path(specresearch.__file__).parent / "zoo"
NUM_PARAMETERS = {
    "tiny": 11_474_240,
    "deep": 10_168_480,
    "tiny_draft": 918_144,
    "tiny_draft_distilled": 918_144,
}
MAX_BYTES = 60_000_000
ARTICLE = (
    "The harbour at Castle Brennock will stay shut until Friday after a dredger struck the old "
    "stone pier on Monday evening. Nobody was hurt, but the town council said that divers must "
    "look at the damage before any ferry can land. Islanders who had planned to shop on the "
    "mainland were told to telephone the ferry office for news. A baker on the quay, Moira "
    "Tennant, said she had given away two hundred loaves because nobody came to buy them."
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(ZOO / "tiny")


def load(name: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        ZOO / name, dtype=torch.float32, use_safetensors=True
    ).eval()


def vocabulary_hash(folder: Path) -> str:
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    return hashlib.sha256(repr(sorted(vocabulary.items())).encode()).hexdigest()


@pytest.mark.parametrize("name", sorted(NUM_PARAMETERS))
def test_the_pair_loads_with_the_stated_number_of_parameters(name: str) -> None:
    assert sum(parameter.numel() for parameter in load(name).parameters()) == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(NUM_PARAMETERS))
def test_weights_are_half_precision_safetensors(name: str) -> None:
    assert [path.suffix for path in (ZOO / name).glob("model.*")] == [".safetensors"]
    assert AutoModelForCausalLM.from_pretrained(ZOO / name, dtype="auto").dtype in (
        torch.float16,
        torch.bfloat16,
    )


def test_the_pair_is_small() -> None:
    assert sum(path.stat().st_size for path in ZOO.rglob("*") if path.is_file()) < MAX_BYTES


@pytest.mark.parametrize("draft", ["tiny_draft", "tiny_draft_distilled"])
def test_a_pair_shares_one_tokenizer(draft: str) -> None:
    assert vocabulary_hash(ZOO / "tiny") == vocabulary_hash(ZOO / draft)
    assert vocabulary_hash(ZOO / "deep") == vocabulary_hash(ZOO / draft)
    assert load(draft).config.vocab_size == load("tiny").config.vocab_size == 4096


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny", dtype="float32")


def decode(target: CausalLM, proposer: Proposer | None) -> tuple[tuple[int, ...], float]:
    """Return the summary's first tokens and the number of tokens per step."""
    assert target.tokenizer is not None
    prompt = render(target.tokenizer, SUMMARY, [ARTICLE])
    (output,) = Engine(target, proposer).generate([prompt], SamplingParams(max_new_tokens=32))
    return output.token_ids, output.record.counts.tokens_per_target_forward


@pytest.mark.parametrize(
    "method", sorted(path.stem for path in (conf_dir() / "proposer").glob("*.yaml"))
)
def test_every_proposer_drafts_for_the_target_out_of_the_box(target: CausalLM, method: str) -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("run", [f"+proposer={method}"])
    assert decode(target, instantiate(cfg.proposer, _convert_="all"))[0] == decode(target, None)[0]


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_trained_head_saves_steps(target: CausalLM, method: str) -> None:
    """Random heads deliver one token per step."""
    proposers = {"eagle": Eagle("zoo:tiny_eagle"), "eagle3": Eagle3("zoo:tiny_eagle3")}
    assert decode(target, proposers[method])[1] > 1.15


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_the_deep_target_has_heads_of_its_own(method: str) -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("run", [f"+proposer={method}", "target=deep"])
    deep = instantiate(cfg.target)
    tokens, tokens_per_step = decode(deep, instantiate(cfg.proposer, _convert_="all"))
    assert tokens == decode(deep, None)[0]
    assert tokens_per_step > 1.5


def test_a_head_holds_no_path_of_the_machine_that_trained_it() -> None:
    for config in ZOO.glob("*/config.json"):
        metadata = (
            json.loads(config.read_text(encoding="utf-8"))
            .get("specresearch", {})
            .get("provenance", {})
        )
        assert not [
            value
            for value in map(str, metadata.values())
            if re.search(r"/root|/home|(?<!\w)/(opt|tmp|work)/", value)
        ]


def test_the_chat_template_round_trips(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [
        {"role": "user", "content": "What is 12 + 30?"},
        {"role": "assistant", "content": "It is 42."},
        {"role": "user", "content": "And twice that?"},
    ]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    expected = (
        "<|endoftext|><|user|>What is 12 + 30?<|end|><|assistant|>It is 42.<|end|>"
        "<|user|>And twice that?<|end|><|assistant|>"
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert text == expected
    assert tokenizer.decode(ids) == expected
    assert tokenizer.convert_tokens_to_ids(["<|end|>", "<|endoftext|>"]) == [
        tokenizer.eos_token_id,
        tokenizer.bos_token_id,
    ]


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "caf\u00e9 \u20ac 1,024.50\n\tdef f(x):\r\n  \u4f60\u597d \U0001f600"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_the_target_quotes_the_opening_of_an_unseen_article(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    prompt = torch.tensor([render(tokenizer, SUMMARY, [ARTICLE])])
    opening = tokenizer(ARTICLE, add_special_tokens=False)["input_ids"][:40]
    generate: Callable[..., torch.Tensor] = load("tiny").generate  # pyright: ignore[reportAssignmentType]
    out = generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False
    )
    new = out[0, prompt.shape[1] :].tolist()
    num_right = sum(token == quoted for token, quoted in zip(new, opening, strict=False))
    assert num_right >= 0.9 * len(opening)
