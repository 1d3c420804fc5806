"""NaN or infinite logits fail their own request and no other."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenarios import MAX_LEN, MODEL, PROPOSERS, _head, _medusa_heads, tokens_of
from tiny_models import letters_tokenizer

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.engine import RequestFailedError, SchedulerSettings, checks
from specresearch.models.hf_adapter import UnsupportedModelError
from specresearch.proposers import Cascade, DraftModel, Eagle, Eagle3, Medusa, NGram, Proposer

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

POISON = 29  # a token whose embedding is not a number
PROMPTS = {"first": (1, 2, 1, 2), "bad": (3, POISON, 4), "last": (5, 6, 5, 6, 5)}


def poisoned(value: float = float("nan")) -> CausalLM:
    """Return the usual target with one broken token, which it never generates by itself."""
    model: Any = copy.deepcopy(MODEL)
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = value
        model.get_output_embeddings().weight[POISON] = 0
    return CausalLM(model, letters_tokenizer(), max_len=MAX_LEN, self_test=False)


def decode(engine: Engine, temperature: float = 0.0) -> dict[str, RequestOutput]:
    sampling = SamplingParams(temperature=temperature, max_new_tokens=12, seed=3, logprobs=2)
    requests = [Request(prompt, sampling, id) for id, prompt in PROMPTS.items()]
    return {output.id: output for output in engine.generate(requests)}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch, _checked: None) -> None:
    """Leave proposals unchecked as in production, so that NaN scores reach the engine."""
    monkeypatch.setattr(checks, "OWN_CHECKS", 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", PROPOSERS)
def test_a_row_of_nan_fails_alone(name: str, temperature: float) -> None:
    """The other rows, and the next request in its slot, generate what they do without it."""
    target = poisoned()
    expected = decode(Engine(target, PROPOSERS[name](), max_batch_size=3), temperature)
    bad = expected.pop("bad")
    assert (bad.finish_reason, bad.token_ids) == ("error", ())
    assert bad.error is not None
    assert (
        "request 'bad' failed after 0 tokens: the target's logits are NaN or infinite" in bad.error
    )
    with pytest.raises(RequestFailedError, match="'bad' failed"):
        bad.checked()
    healthy = CausalLM(
        copy.deepcopy(target.model), letters_tokenizer(), max_len=MAX_LEN, self_test=False
    )
    engine = Engine(healthy, PROPOSERS[name](), max_batch_size=3)
    sampling = SamplingParams(temperature=temperature, max_new_tokens=12, seed=3)
    others = [Request(PROMPTS[id], sampling, id) for id in expected]
    assert tokens_of(expected) == tokens_of(
        {output.id: output for output in engine.generate(others)}
    )


def test_a_slot_that_held_nan_is_clean_for_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short row reads masked columns past its end; the control leaves NaN there."""
    target = poisoned()
    long = Request((1,) * 40, SamplingParams(max_new_tokens=2), "long")
    bad = Request((POISON,) * 30, SamplingParams(max_new_tokens=2), "bad")
    short = Request((5, 6), SamplingParams(max_new_tokens=2), "short")

    def reasons() -> dict[str, str]:
        target.free_cache()
        engine = Engine(target, max_batch_size=2)
        list(engine.generate([long, bad]))
        return {output.id: output.finish_reason for output in engine.generate([long, short])}

    assert reasons() == {"long": "length", "short": "length"}
    monkeypatch.setattr(Engine, "_scrub", lambda self, batch: None)
    assert reasons()["short"] == "error"


def drafter(value: float) -> dict[str, Callable[[], Proposer]]:
    """Return drafters whose output is not finite after the broken token only."""
    medusa, eagle, eagle3 = _medusa_heads(), _head(1, 32), _head(3, 48)
    for head in (medusa, eagle, eagle3):
        with torch.no_grad():
            next(iter(head.parameters())).fill_(value)
    return {
        "draft_model": lambda: DraftModel(poisoned(value), 3),
        "tree": lambda: DraftModel(
            poisoned(value), tree="dynamic", num_draft_tokens=6, depth=2, top_k=3
        ),
        "static_tree": lambda: DraftModel(poisoned(value), tree="static", num_draft_tokens=5),
        "cascade": lambda: Cascade([NGram(3, n_max=3, n_min=3), DraftModel(poisoned(value), 3)]),
        "medusa": lambda: Medusa(medusa, 5),
        "eagle": lambda: Eagle(eagle, 3, tree="chain"),
        "eagle3": lambda: Eagle3(eagle3, 6, depth=2, top_k=3, layer_ids=[0, 1, 2]),
    }


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", drafter(0.0))
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_drafter_of_nan_fails_its_requests(name: str, temperature: float, value: float) -> None:
    target = CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=MAX_LEN)
    outputs = decode(Engine(target, drafter(value)[name](), max_batch_size=3), temperature)
    assert outputs["bad"].error is not None
    assert "the drafter's probabilities are NaN or infinite" in outputs["bad"].error
    assert {output.finish_reason for output in outputs.values()} <= {"length", "error"}


def test_a_row_fails_alone_under_preemption_and_chunks() -> None:
    scheduling = SchedulerSettings(max_step_tokens=9, max_cache_tokens=24)
    outputs = decode(Engine(poisoned(), NGram(3), max_batch_size=3, scheduling=scheduling))
    assert {id: output.finish_reason for id, output in outputs.items()} == {
        "first": "length",
        "bad": "error",
        "last": "length",
    }


def test_a_tokenizer_that_cannot_decode_fails_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    target = CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=MAX_LEN)
    engine = Engine(target, max_batch_size=2)

    def decode(ids: list[int]) -> str:
        raise UnicodeError("no such character")

    monkeypatch.setattr(engine, "_decode", decode)
    requests = [
        Request((1, 2), SamplingParams(max_new_tokens=4, stop=("zz",)), "stops"),
        Request((1, 2), SamplingParams(max_new_tokens=4), "plain"),
    ]
    for request in requests:
        engine.submit(request)
    while engine.scheduler.running or engine.scheduler.waiting:
        engine.step()
    rows = {row.id: row for row, _ in engine.scheduler.finished}
    assert rows["plain"].finish_reason == "length"
    assert (
        rows["stops"].error
        == "request 'stops' failed after 1 tokens: UnicodeError: no such character"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_target_of_nan_is_rejected(value: float) -> None:
    model: Any = copy.deepcopy(MODEL)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = value
    with pytest.raises(
        UnsupportedModelError, match="its logits are NaN or infinite; its weights are damaged"
    ):
        CausalLM(model, max_len=MAX_LEN)


def test_logits_of_minus_infinity_are_allowed() -> None:
    """A model may forbid tokens: it passes the self-test and every step."""
    model: Any = copy.deepcopy(MODEL)
    head = model.get_output_embeddings()

    class Forbidding(torch.nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return head(states).index_fill(-1, torch.tensor([0, 7]), float("-inf"))

        weight = head.weight

    model.set_output_embeddings(Forbidding())
    target = CausalLM(model, letters_tokenizer(), max_len=MAX_LEN)
    for temperature in (0.0, 1.0):
        outputs = decode(Engine(target, NGram(3), max_batch_size=2), temperature)
        assert {output.finish_reason for output in outputs.values()} == {"length"}
        assert not {0, 7} & {token for output in outputs.values() for token in output.token_ids}
