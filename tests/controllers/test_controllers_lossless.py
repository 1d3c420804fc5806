"""Under every controller, greedy output is plain decoding's and sampled output has its law."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from shape_checks import unchecked
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.certification.cases import CHUNK_SIZE, SampledSetting
from specresearch.certification.counts import Tally
from specresearch.certification.targets import Toy
from specresearch.controllers import (
    AcceptanceGate,
    BatchSizeCutoff,
    Confidence,
    Controller,
    Fixed,
    Goodput,
    Heuristic,
)
from specresearch.metrics import StepRecord
from specresearch.metrics.times import StepTimes
from specresearch.proposers import DraftModel, NGram, Proposer, Suffix, TokenRecycling

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

MAX_LEN, NUM_TOKENS = 48, 14
CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: Fixed(3),
    "batch_size_cutoff": lambda: BatchSizeCutoff(3),
    "acceptance_gate": lambda: AcceptanceGate(0.6, window=2, probe_every=2),
    "heuristic": lambda: Heuristic(start=2),
    "goodput": lambda: Goodput(2, explore=0.5),
    "confidence": lambda: Confidence(0.5),
}
TRACED = ("acceptance_gate", "heuristic", "goodput", "confidence")


@lru_cache
def target() -> CausalLM:
    return CausalLM(build("llama", seed=1, max_position_embeddings=MAX_LEN), max_len=MAX_LEN)


@lru_cache
def draft() -> CausalLM:
    """The target with a little noise: right often, not always."""
    model = copy.deepcopy(build("llama", seed=1, max_position_embeddings=MAX_LEN))
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return CausalLM(model, max_len=MAX_LEN)


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NGram(4, n_max=2, n_min=1),
    "draft_model": lambda: DraftModel(draft(), 5),
    "suffix": lambda: Suffix(4, offset=1.0, branch=False),
}
CASES = [
    (controller, proposer)
    for controller in CONTROLLERS
    for proposer in ("ngram", "draft_model", "suffix")
    if proposer != ("ngram" if controller == "confidence" else "suffix")
]


@lru_cache
def prompts() -> tuple[tuple[int, ...], ...]:
    generator = torch.Generator().manual_seed(5)
    patterns = [
        torch.randint(0, VOCAB, (1 + i % 4,), generator=generator).tolist() for i in range(9)
    ]
    return tuple(tuple((pattern * 9)[: 3 + 2 * i]) for i, pattern in enumerate(patterns))


def decode(engine: Engine, num_draft_tokens: int | None = None) -> list[tuple[int, ...]]:
    sampling = SamplingParams(max_new_tokens=NUM_TOKENS)
    requests = [
        Request(prompt, sampling, str(i), num_draft_tokens) for i, prompt in enumerate(prompts())
    ]
    outputs = {output.id: output.token_ids for output in engine.generate(requests)}
    return [outputs[request.id] for request in requests]


@lru_cache
def plain() -> list[tuple[int, ...]]:
    return decode(Engine(target()))


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize(("controller", "proposer"), CASES)
def test_greedy_is_plain(controller: str, proposer: str, batch_size: int) -> None:
    steps: list[StepRecord] = []
    chosen = CONTROLLERS[controller]()
    engine = Engine(
        target(),
        PROPOSERS[proposer](),
        controller=chosen,
        max_batch_size=batch_size,
        observers=[lambda step: steps.append(step.record)],
    )
    with nullcontext() if batch_size == 3 else unchecked():
        assert decode(engine) == plain()
    accepted = sum(sum(step.num_accepted_tokens) for step in steps)
    drafted = sum(sum(step.num_draft_tokens) for step in steps)
    assert 0 < accepted <= drafted
    for state in ("_requests", "_gates", "_lengths"):
        assert len(getattr(chosen, state, ())) == 0
    if controller in TRACED:
        assert chosen.trace()
        chosen.reset()
        assert chosen.trace() == []


@pytest.mark.parametrize("name", ["acceptance_gate", "batch_size_cutoff", "fixed", "goodput"])
def test_trees_are_steered_by_those_that_count_no_depth(name: str) -> None:
    engine = Engine(
        target(), TokenRecycling(12, depth=3), controller=CONTROLLERS[name](), max_batch_size=3
    )
    assert decode(engine) == plain()


@pytest.mark.parametrize("name", ["heuristic", "confidence"])
def test_trees_are_refused_by_those_that_do(name: str) -> None:
    with pytest.raises(ValueError, match="steers the length of chains"):
        Engine(target(), TokenRecycling(12, depth=3), controller=CONTROLLERS[name]())


def test_without_a_proposer_there_is_nothing_to_refuse() -> None:
    for make in CONTROLLERS.values():
        assert decode(Engine(target(), controller=make(), max_batch_size=8)) == plain()


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_request_may_set_its_own_number(name: str) -> None:
    steps: list[StepRecord] = []
    proposer = DraftModel(draft(), 5)
    controller = Confidence(0.0) if name == "confidence" else CONTROLLERS[name]()
    engine = Engine(
        target(),
        proposer,
        controller=controller,
        max_batch_size=8,
        observers=[lambda step: steps.append(step.record)],
    )
    sampling = SamplingParams(max_new_tokens=NUM_TOKENS)
    numbers = (0, 2, None, 99)
    requests = [Request(prompts()[i], sampling, str(n), n) for i, n in enumerate(numbers)]
    outputs = {output.id: output.token_ids for output in engine.generate(requests)}
    assert [outputs[str(n)] for n in numbers] == plain()[:4]
    seen = {request.id: [0] for request in requests}
    num_generated = dict.fromkeys(seen, 0)
    for step in steps:
        for id, drafted, new in zip(
            step.request_ids, step.num_draft_tokens, step.num_new_tokens, strict=True
        ):
            if NUM_TOKENS - num_generated[id] > 5:  # has room for all
                seen[id].append(drafted)
            num_generated[id] += new
    assert set(seen["0"]) == {0}
    assert set(seen["2"][1:]) == {2}
    assert set(seen["99"][1:]) == {5}


def test_a_request_may_not_ask_for_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="request 'a' has num_draft_tokens=-1"):
        Request((1,), id="a", num_draft_tokens=-1)


ALPHA, POWER, VISIBLE_TV = 1e-4, 0.95, 0.12
SLOTS, GROUP = 64, 96  # requests that run together, and that come together


class OnAKnownMachine(Goodput):
    """Reads made-up times instead of a clock, so that the test is the same every time."""

    def observe(self, record: StepRecord) -> None:
        propose, verify = 0.01 * (record.num_nodes - 1), 1.0 + 2e-3 * sum(record.num_draft_tokens)
        super().observe(
            replace(record, times=StepTimes(propose, verify, 0.0, 0.0, propose + verify))
        )


STEERING: dict[str, Callable[[], Controller]] = CONTROLLERS | {
    "batch_size_cutoff": lambda: BatchSizeCutoff(GROUP - SLOTS),
    "goodput": lambda: OnAKnownMachine(3),
}


@pytest.mark.parametrize(
    ("name", "tree"), [*((name, "chain") for name in STEERING), ("acceptance_gate", "static")]
)
def test_sampled_output_has_the_enumerated_distribution(name: str, tree: str) -> None:
    toy, sampling = Toy(4, seed=4), SamplingParams(temperature=1.0, max_new_tokens=4)
    setting = SampledSetting.build(
        "plain", 0, sampling, (1, 2), toy=toy, tv=VISIBLE_TV, alpha=ALPHA, power=POWER
    )
    distribution = setting.distribution
    tally, steps, controller = Tally([0] * len(distribution.outputs)), [], STEERING[name]()
    proposer = DraftModel(toy.draft(), 3, tree=tree, depth=2, top_k=2)
    engine = Engine(
        toy.target(),
        proposer,
        controller=controller,
        max_batch_size=SLOTS,
        observers=[lambda step: steps.append(step.record)],
    )
    requests = [
        each
        for chunk in range(-(-setting.num_samples // CHUNK_SIZE))
        for each in setting.requests(chunk, seed=0)
    ]
    with unchecked():
        for begin in range(0, len(requests), GROUP):
            for output in engine.generate(requests[begin : begin + GROUP]):
                tally.add(output, distribution)
    assert tally.fit(distribution).p_value > ALPHA
    assert 0 < tally.num_accepted_tokens < tally.num_draft_tokens
    lengths = [set(step.num_draft_tokens) for step in steps]
    assert any(0 in found and len(found) > 1 for found in lengths), (
        "never some rows without the others"
    )
    if name == "goodput":
        assert set.union(*lengths) == {0, 1, 2, 3}
