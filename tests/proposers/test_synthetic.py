"""Drafts of a set acceptance: what is accepted, what it costs, and that the output is plain."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from shape_checks import unchecked
from tiny_models import VOCAB, build, letters_tokenizer

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.clock import ManualClock
from specresearch.engine import Step
from specresearch.models.eagle_format import FORMATS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.medusa import MedusaHeads
from specresearch.proposers import (
    Cascade,
    DraftModel,
    Eagle3,
    Medusa,
    NGram,
    Proposer,
    Synthetic,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

MAX_LEN = 512
BY_DEPTH = [0.9, 0.6, 0.3]
LEAST_P = 1e-4  # of a binomial test; 12 of them
PROMPTS = [[i % VOCAB, (7 * i) % VOCAB, 3] for i in range(12)]
GREEDY = SamplingParams(max_new_tokens=60)


@lru_cache
def target() -> CausalLM:
    model = build("llama", seed=1, max_position_embeddings=MAX_LEN)
    return CausalLM(model, letters_tokenizer())


@lru_cache
def target_as_draft() -> CausalLM:
    model = build("llama", seed=1, max_position_embeddings=MAX_LEN)
    return CausalLM(model, letters_tokenizer())


@lru_cache
def other_draft() -> CausalLM:
    model = build(
        "llama", seed=9, hidden_size=8, num_hidden_layers=1, max_position_embeddings=MAX_LEN
    )
    return CausalLM(model, letters_tokenizer())


def eagle3(**settings: Any) -> Eagle3:
    config: Any = target().model.config
    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = EagleHead.of(FORMATS[3](config, 48, draft_vocab_size=VOCAB))
    return Eagle3(head, layer_ids=[0, 1, 2], **settings)


DRAFTERS: dict[str, Callable[[], Proposer]] = {
    "chain": lambda: DraftModel(other_draft(), 4),
    "static_tree": lambda: Medusa(MedusaHeads(16, VOCAB, 3), 12),
    "dynamic_tree": lambda: eagle3(num_draft_tokens=10, depth=3, top_k=2),
    "cascade": lambda: Cascade([NGram(4, n_max=1, n_min=1), DraftModel(other_draft(), 4)]),
}


def decode(
    proposer: Proposer | None, sampling: SamplingParams = GREEDY, **settings: Any
) -> list[RequestOutput]:
    requests = [Request(prompt, sampling, str(i)) for i, prompt in enumerate(PROMPTS)]
    with unchecked():
        return Engine(target(), proposer, max_batch_size=5, **settings).generate_all(requests)


@lru_cache
def plain(sampling: SamplingParams = GREEDY) -> list[tuple[int, ...]]:
    return [output.token_ids for output in decode(None, sampling)]


class Counts:
    """Counts how often each depth was reached with room left, and how often accepted there."""

    def __init__(self) -> None:
        self.reached = [0] * 8
        self.accepted = [0] * 8

    def __call__(self, step: Step) -> None:
        topology = step.proposal.topology
        depths = topology.depth.expand_as(step.proposal.token_ids)
        deepest = depths.where(step.proposal.acceptable, 0).amax(1).tolist()
        accepted = step.delivery.verdict.num_accepted.tolist()
        for row, num_new, depth, num in zip(
            step.batch.rows, step.delivery.num_new, deepest, accepted, strict=True
        ):
            room = row.num_remaining + num_new - 1
            for position in range(min(depth, room, num + 1)):
                self.reached[position] += 1
                self.accepted[position] += num > position


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafts_are_accepted_as_often_as_set_and_the_output_is_plain(name: str) -> None:
    counts = Counts()
    proposer = Synthetic(DRAFTERS[name](), BY_DEPTH)
    outputs = decode(proposer, observers=[counts], num_checked=1 << 20)
    assert [output.token_ids for output in outputs] == plain()
    assert proposer.num_departures == 0
    for depth, probability in enumerate(BY_DEPTH):
        reached, accepted = counts.reached[depth], counts.accepted[depth]
        assert reached > 50
        assert binomtest(accepted, reached, probability).pvalue > LEAST_P


def test_negative_control_another_acceptance_is_told_apart() -> None:
    counts = Counts()
    decode(Synthetic(DRAFTERS["chain"](), 0.7), observers=[counts])
    assert binomtest(counts.accepted[0], counts.reached[0], BY_DEPTH[0]).pvalue < LEAST_P


@pytest.mark.parametrize(("name", "num_steps"), [("chain", 12), ("static_tree", 15)])
def test_the_ends_are_exact(name: str, num_steps: int) -> None:
    for acceptance, expected in ((1.0, num_steps), (0.0, 60)):
        for output in decode(Synthetic(DRAFTERS[name](), acceptance)):
            assert output.record.counts.num_target_forwards == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.4, "frequency_penalty": 0.3},
        {"stop_token_ids": (4,)},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
    ],
)
def test_the_oracle_decodes_by_the_settings_of_the_request(changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 40} | changes
    sampling = SamplingParams(**settings)
    proposer = Synthetic(DRAFTERS["chain"](), 1.0)
    outputs = decode(proposer, sampling)
    assert [output.token_ids for output in outputs] == plain(sampling)
    assert proposer.num_departures == 0


def passes(model: CausalLM, decode_with: Callable[[], object]) -> list[tuple[int, int]]:
    """Return the rows and the columns of all tokens that a model is fed, pass by pass."""
    fed: list[tuple[int, int]] = []
    forward = model.adapter.forward

    def record(token_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        fed.append((token_ids.shape[0], token_ids.shape[1]))
        return forward(token_ids, *args, **kwargs)

    model.adapter.forward = record  # pyright: ignore[reportAttributeAccessIssue]
    try:
        decode_with()
    finally:
        del model.adapter.forward
    return fed


@pytest.mark.parametrize("settings", [{}, {"tree": "static", "depth": 4}])
def test_a_drafter_is_fed_as_much_as_alone_with_equal_acceptance(settings: dict[str, Any]) -> None:
    """The target as its own draft accepts everything, as does acceptance 1 on another's cost."""

    def alone() -> Proposer:
        return DraftModel(target_as_draft(), 5, **settings)

    expected = passes(target_as_draft(), lambda: decode(alone()))
    synthetic = passes(target_as_draft(), lambda: decode(Synthetic(alone(), 1.0)))
    assert synthetic == expected


class Scripted(DraftModel):
    """A real drafter whose drafts are accepted as often as the tokens it is given allow."""

    def __init__(self, truth: Sequence[tuple[int, ...]], num_right: int) -> None:
        super().__init__(other_draft(), 4)
        self.truth = {tuple(p): [*p, *t] for p, t in zip(PROMPTS, truth, strict=True)}
        self.num_right = num_right

    def _choose(self, batch: Any, logits: Any, drafts: Any, uniforms: Any) -> Any:
        """Draft the right token up to `num_right`, so that the drafter's cache holds it."""
        _, likeliest = super()._choose(batch, logits, drafts, uniforms)
        tokens = []
        for row in batch.rows:
            whole = self.truth[tuple(row.request.prompt_ids)]
            position = len(row.tokens) + len(drafts)
            token = whole[position] if position < len(whole) else 0
            tokens.append([(token + (len(drafts) >= self.num_right)) % VOCAB])
        return torch.tensor(tokens), likeliest


@pytest.mark.parametrize("num_right", [0, 2, 3])
def test_a_drafter_is_fed_as_much_as_one_that_earns_its_acceptance(num_right: int) -> None:
    truth = plain()
    acceptance = [1.0] * num_right + [0.0]
    earned = passes(other_draft(), lambda: decode(Scripted(truth, num_right)))
    synthetic = Synthetic(DraftModel(other_draft(), 4), acceptance)
    assert passes(other_draft(), lambda: decode(synthetic)) == earned


def test_the_oracle_takes_no_time_and_is_asked_once_for_a_prompt() -> None:
    clock = ManualClock()
    extend = target().extend
    num_rows: list[int] = []

    def slow(slots: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("want_logits", True):
            num_rows.append(len(slots))
            clock.advance(1.0)
        return extend(slots, *args, **kwargs)

    proposer = Synthetic(DRAFTERS["chain"](), 0.8)
    engine = Engine(target(), proposer, clock=clock)
    target().extend = slow
    try:
        outputs = engine.generate_all([PROMPTS[0]] * 3, GREEDY)
    finally:
        del target().extend
    assert sum(num_rows) == GREEDY.max_new_tokens
    assert clock.now() == 0.0
    assert all(output.record.e2el == 0.0 for output in outputs)


def test_a_departing_output_asks_the_oracle_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rounding would: the continuation that the oracle foresaw is made wrong."""
    proposer = Synthetic(DRAFTERS["chain"](), 1.0)
    engine = Engine(target(), proposer)
    foresee = proposer._oracle.foresee
    num_asked = 0

    def mistaken(*args: Any) -> list[list[int]]:
        nonlocal num_asked
        num_asked += 1
        found = foresee(*args)
        if num_asked == 1:
            found[0][5] = (found[0][5] + 1) % VOCAB
        return found

    monkeypatch.setattr(proposer._oracle, "foresee", mistaken)
    (output,) = engine.generate_all([PROMPTS[0]], GREEDY)
    assert output.token_ids == plain()[0]
    assert proposer.num_departures == 1
    assert output.record.counts.num_target_forwards <= 60 // 5 + 2


def test_the_drafts_of_a_request_do_not_depend_on_the_batch() -> None:
    def accepted(max_batch_size: int) -> list[int]:
        engine = Engine(
            target(), Synthetic(DRAFTERS["chain"](), 0.6), max_batch_size=max_batch_size
        )
        requests = [Request(prompt, SamplingParams(seed=i)) for i, prompt in enumerate(PROMPTS)]
        with unchecked():
            outputs = engine.generate_all(requests)
        return [output.record.counts.num_accepted_tokens for output in outputs]

    assert accepted(1) == accepted(7)


def test_sampling_is_refused() -> None:
    engine = Engine(target(), Synthetic(DRAFTERS["chain"](), 0.8))
    with pytest.raises(ValueError, match=r"temperature 0\.7.*use sampling"):
        engine.generate_all([PROMPTS[0]], SamplingParams(temperature=0.7))


@pytest.mark.parametrize("acceptance", [1.5, -0.1, [], [0.5, 2.0], float("nan")])
def test_an_acceptance_that_is_no_probability_is_refused(acceptance: Any) -> None:
    with pytest.raises(ValueError, match=r"proposer\.acceptance="):
        Synthetic(NGram(), acceptance)


def test_it_says_what_it_is() -> None:
    proposer = Synthetic(eagle3(), [0.9, 0.5])
    Engine(target(), proposer)
    said = "synthetic acceptance [0.9, 0.5]; costs what Eagle3 costs; the head: EAGLE-3, reads"
    assert proposer.describe().startswith(said)
    assert proposer.models == proposer.drafter.models
