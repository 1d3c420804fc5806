"""Batched, ragged drafts through the slot cache equal the head computed from scratch."""

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build
from torch import Tensor

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.metrics import StepRecord
from specresearch.models.draft_vocabulary import DraftVocabulary
from specresearch.models.eagle_format import FORMATS, Eagle3Format
from specresearch.models.eagle_head import EagleHead
from specresearch.proposal import Proposal
from specresearch.proposers import Cascade, Eagle, Eagle3, NGram
from specresearch.request import RequestState

H, LAYERS = 16, 4
TARGET: Any = build("llama", seed=1, num_hidden_layers=LAYERS)
PROMPTS = [(5,), (1, 2, 3, 4, 5, 6, 7), (8, 8), (3, 1, 4, 1, 5)]
CAPTURED = (1, 2, 3)
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"tree": "chain", "num_draft_tokens": 3, "sample": False},
    "static": {"tree": "static", "paths": [[0], [1], [2], [0, 0], [1, 1], [1, 0], [1, 1, 0]]},
    "dynamic": {"tree": "dynamic", "num_draft_tokens": 8, "depth": 3, "top_k": 3},
}


@pytest.fixture
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(TARGET), max_len=40, prefill_chunk=4)


def make_head(version: int, draft_vocab_size: int = VOCAB, **settings: Any) -> EagleHead:
    """Build a head with weights so large that a wrong feature shows."""
    format = FORMATS[version](
        copy.deepcopy(TARGET.config),
        fc_width=(2 if version == 1 else len(CAPTURED)) * H,
        draft_vocab_size=None if version == 1 else draft_vocab_size,
        **settings,
    )
    head = EagleHead.of(format).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator)
                    * 1.5
                    / parameter.shape[-1] ** 0.5
                )
    if draft_vocab_size < VOCAB:
        head.target_ids = torch.randperm(VOCAB, generator=generator)[:draft_vocab_size]
    return head


def make_proposer(version: int, head: EagleHead | None = None, **settings: Any) -> Eagle:
    if version == 1:
        return Eagle(head or make_head(1), **settings)
    return Eagle3(head or make_head(3, draft_vocab_size=12), layer_ids=CAPTURED, **settings)


class FromScratch:
    """Compute logits without a cache, on the target's features and then on the head's own."""

    def __init__(self, head: EagleHead) -> None:
        self.head = copy.deepcopy(head).double()
        self.head.format.layer._attn_implementation = "eager"
        self.embedding, self.lm_head = (
            TARGET.get_input_embeddings(),
            self.head.lm_head or TARGET.get_output_embeddings(),
        )
        self.known: dict[
            tuple[tuple[int, ...], tuple[int, ...]], tuple[Tensor, Tensor, Tensor]
        ] = {}

    @torch.no_grad()
    def after(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> Tensor:
        return self._after(tuple(tokens), tuple(drafts))[0]

    def _after(
        self, tokens: tuple[int, ...], drafts: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        key = (tokens, drafts)
        if key not in self.known:
            if drafts:
                _, features, fed_back = self._after(tokens, drafts[:-1])
                features = torch.cat([features, fed_back], dim=1)
            else:
                output = TARGET.model(torch.tensor([tokens[:-1]]), output_hidden_states=True)
                captured = [output.last_hidden_state]
                if isinstance(self.head.format, Eagle3Format):
                    captured = [output.hidden_states[k] for k in CAPTURED]
                features = self.head.fuse(captured)
            self.known[key] = self._last(torch.tensor([[*tokens[1:], *drafts]]), features)
        return self.known[key]

    def _last(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        num = ids.shape[1]
        mask = torch.full((1, 1, num, num), float("-inf"), dtype=torch.float64).triu(1)
        out = self.head(
            self.embedding(ids), features, torch.arange(num)[None], attention_mask=mask
        )[:, -1:]
        logits = self.lm_head(self.head.readable(out))[0, 0]
        if self.head.target_ids is not None:
            full = torch.full((VOCAB,), float("-inf"), dtype=logits.dtype)
            logits = full.index_copy(0, self.head.target_ids, logits)
        return logits, features, self.head.fed_back(out)


class Watched:
    """Record each proposal and the tokens before it."""

    def __init__(self, proposer: Eagle) -> None:
        self.proposer, self.seen = proposer, []
        self.original = proposer.propose
        proposer.propose = self.propose

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = self.original(batch, budget)
        self.seen.append(([tuple(row.tokens) for row in batch.rows], list(budget), proposal))
        return proposal


class Pattern(Controller):
    """Change the budget in every step and row."""

    def __init__(self, *pattern: int) -> None:
        self.pattern, self.num_steps = pattern, 0

    def budget(self, batch: Batch) -> list[int | None]:
        return [self.pattern[(self.num_steps + b) % len(self.pattern)] for b in range(len(batch))]

    def observe(self, record: StepRecord) -> None:
        self.num_steps += 1


def decode(engine: Engine, **sampling: Any) -> list[RequestOutput]:
    params = [SamplingParams(max_new_tokens=6 + i, **sampling) for i in range(len(PROMPTS))]
    requests = [Request(p, s, str(i)) for i, (p, s) in enumerate(zip(PROMPTS, params, strict=True))]
    return sorted(engine.generate(requests), key=lambda output: int(output.id))


@lru_cache
def baseline() -> list[tuple[int, ...]]:
    return [
        output.token_ids
        for output in decode(Engine(CausalLM(copy.deepcopy(TARGET), max_len=40), max_batch_size=3))
    ]


def count_right_drafts(watched: Watched, scratch: FromScratch) -> int:
    """Count the drafts; each must have the probability that the head gives it from scratch."""
    num_checked = 0
    for contexts, budget, proposal in watched.seen:
        ancestors = proposal.topology.ancestors
        assert proposal.draft_probs is None
        for b, tokens in enumerate(contexts):
            num_drafts = int(proposal.lengths[b]) - 1
            assert num_drafts <= budget[b]
            assert (num_drafts > 0) == (budget[b] > 0 and len(tokens) > 1)
            for node in range(1, num_drafts + 1):
                path = proposal.token_ids[b, ancestors[b % len(ancestors), node]].tolist()[1:]
                q = scratch.after(tokens, path[:-1]).softmax(-1)
                assert proposal.scores is not None
                assert float(proposal.scores[b, node]) == pytest.approx(
                    float(q[path[-1]]), rel=1e-4, abs=1e-9
                )
                if proposal.topology.is_chain:
                    assert path[-1] == int(q.argmax())
                num_checked += 1
    return num_checked


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", [1, 3])
def test_every_draft_equals_the_head_from_scratch(
    target: CausalLM, version: int, shape: str
) -> None:
    """Covers acceptance, rejection, steps without drafts, reused slots and uneven lengths."""
    proposer = make_proposer(version, **SHAPES[shape])
    watched = Watched(proposer)
    engine = Engine(target, proposer, controller=Pattern(8, 0, 5, 0, 2), max_batch_size=3)
    assert proposer.model is not None
    scratch = FromScratch(proposer.model.head)
    assert [output.token_ids for output in decode(engine)] == baseline()
    assert count_right_drafts(watched, scratch) > 30
    assert not proposer._unread
    assert not proposer._columns._entered  # whoever comes next begins with empty slots


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
@pytest.mark.parametrize("version", [1, 3])
def test_drafts_are_right_after_steps_of_another_proposer(
    target: CausalLM, version: int, shape: str
) -> None:
    """In a cascade the head drafts only some rows, and prefills what was accepted meanwhile."""
    proposer = make_proposer(version, **SHAPES[shape])
    watched = Watched(proposer)
    engine = Engine(target, Cascade([NGram(3, n_max=1, n_min=1), proposer]), max_batch_size=3)
    outputs = decode(engine)
    assert [output.token_ids for output in outputs] == baseline()
    assert proposer.model is not None
    assert count_right_drafts(watched, FromScratch(proposer.model.head)) > 15
    num_passed_over = sum(output.record.counts.num_target_forwards for output in outputs)
    num_passed_over -= sum(len(contexts) for contexts, _, _ in watched.seen)
    assert num_passed_over > 5


def test_negative_control_features_of_the_wrong_token_are_noticed(target: CausalLM) -> None:
    proposer = make_proposer(1, **SHAPES["chain"])
    watched = Watched(proposer)
    decode(Engine(target, proposer, max_batch_size=3))
    assert proposer.model is not None
    scratch = FromScratch(proposer.model.head)
    contexts, _, proposal = watched.seen[1]
    assert proposal.scores is not None
    errors = [
        scratch.after((0, *tokens[1:])).softmax(-1)[proposal.token_ids[b, 1]]
        for b, tokens in enumerate(contexts)
    ]
    assert max(abs(float(proposal.scores[b, 1] - q)) for b, q in enumerate(errors)) > 1e-3


@pytest.mark.parametrize("version", [1, 3])
def test_a_sampled_chain_reports_the_distribution_it_was_drawn_from(
    target: CausalLM, version: int
) -> None:
    proposer = make_proposer(version, tree="chain", num_draft_tokens=3)
    assert proposer.kind.sampled
    watched = Watched(proposer)
    decode(Engine(target, proposer, max_batch_size=3), temperature=0.8, top_k=6)
    assert proposer.model is not None
    scratch = FromScratch(proposer.model.head)
    for contexts, _, proposal in watched.seen:
        assert (proposal.draft_probs is None) == (proposal.topology.num_nodes == 1)
        for b, tokens in enumerate(contexts):
            for node in range(int(proposal.lengths[b]) - 1):
                assert proposal.draft_probs is not None
                logits = scratch.after(tokens, proposal.token_ids[b, 1 : node + 1].tolist()) / 0.8
                logits = logits.masked_fill(logits < logits.topk(6).values[-1], float("-inf"))
                torch.testing.assert_close(
                    proposal.draft_probs[b, node], logits.softmax(-1), rtol=1e-4, atol=1e-9
                )
                assert proposal.draft_probs[b, node, proposal.token_ids[b, node + 1]] > 0


@pytest.mark.parametrize("shape", ["static", "dynamic"])
def test_trees_are_point_masses_at_every_temperature(target: CausalLM, shape: str) -> None:
    proposer = make_proposer(1, **SHAPES[shape])
    assert not proposer.kind.sampled
    watched = Watched(proposer)
    decode(Engine(target, proposer, max_batch_size=3), temperature=1.0)
    assert all(proposal.draft_probs is None for _, _, proposal in watched.seen)


def test_tokens_outside_a_reduced_vocabulary_are_never_drafted(target: CausalLM) -> None:
    proposer = make_proposer(3, **SHAPES["dynamic"])
    watched = Watched(proposer)
    decode(Engine(target, proposer, max_batch_size=3))
    assert proposer.model is not None
    has_features = (
        set(proposer.model.target_ids.tolist()) if proposer.model.target_ids is not None else set()
    )
    assert len(has_features) == 12
    for _, _, proposal in watched.seen:
        drafted = proposal.token_ids[proposal.acceptable][1:]
        roots = proposal.token_ids[:, 0].tolist()
        assert set(drafted.tolist()) <= has_features | set(roots)


@pytest.mark.parametrize(
    ("shape", "params", "is_needed"),
    [
        ("chain", {"temperature": 0.0}, False),
        ("static", {"temperature": 1.0}, False),
        ("dynamic", {"temperature": 1.0}, False),
        ("chain", {"temperature": 1.0}, True),
        ("chain", {"temperature": 0.0, "repetition_penalty": 1.3}, True),
    ],
)
def test_point_masses_of_a_reduced_vocabulary_need_no_pass_over_the_whole_one(
    target: CausalLM,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    params: dict[str, float],
    is_needed: bool,
) -> None:
    whole, sizes = DraftVocabulary.whole, []

    def watched(self: DraftVocabulary, logits: Tensor) -> Tensor:
        sizes.append(self.size)
        return whole(self, logits)

    monkeypatch.setattr(DraftVocabulary, "whole", watched)
    settings: dict[str, Any] = SHAPES[shape] | {"sample": True}
    proposer = make_proposer(3, **settings)
    engine = Engine(target, proposer, max_batch_size=3)
    assert any(output.record.counts.num_draft_tokens for output in decode(engine, **params))
    assert set(sizes) == ({12} if is_needed else set())


def rigged() -> tuple[CausalLM, EagleHead]:
    """Make a target whose hidden state is the last embedding, and a head that predicts it."""
    model = copy.deepcopy(TARGET)
    head = make_head(1)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding.div_(
            embedding.pow(2).mean(-1, keepdim=True).sqrt()
        )  # so that the final norm changes nothing
        for layer in [*model.model.layers, *head.layers]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        head.fc.weight.copy_(torch.eye(H, 2 * H))
    return CausalLM(model, max_len=40), head


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_perfect_head_is_always_accepted(temperature: float) -> None:
    target, head = rigged()
    proposer = make_proposer(1, head, tree="chain", num_draft_tokens=4)
    for output in decode(Engine(target, proposer, max_batch_size=3), temperature=temperature):
        counts = output.record.counts
        assert counts.num_accepted_tokens == counts.num_draft_tokens > 0


def test_the_tree_of_a_perfect_head_holds_the_whole_path() -> None:
    target, head = rigged()
    proposer = make_proposer(1, head, tree="static", paths=[[0], [1], [0, 0], [0, 0, 0]])
    for output, prompt in zip(
        decode(Engine(target, proposer, max_batch_size=3)), PROMPTS, strict=True
    ):
        without_drafts = 1 if len(prompt) == 1 else 0
        steps = without_drafts + -(-(len(output.token_ids) - without_drafts) // 4)
        assert output.record.counts.num_target_forwards == steps
    for output in decode(
        Engine(target, make_proposer(1, head, **SHAPES["dynamic"]), max_batch_size=3)
    ):
        assert output.record.counts.accepted[0] == output.record.counts.reached[0] > 0


def test_a_prompt_of_one_token_drafts_from_its_second_step(target: CausalLM) -> None:
    proposer = make_proposer(1, **SHAPES["chain"])
    watched = Watched(proposer)
    list(Engine(target, proposer).generate([(5,)], SamplingParams(max_new_tokens=6)))
    assert [int(proposal.lengths[0]) > 1 for _, _, proposal in watched.seen][:2] == [False, True]


def test_requests_dropped_midway_leave_nothing_behind(target: CausalLM) -> None:
    proposer = make_proposer(3, **SHAPES["dynamic"])
    engine = Engine(target, proposer, max_batch_size=3)
    outputs = engine.generate(
        [Request(p, SamplingParams(max_new_tokens=5 + i)) for i, p in enumerate(PROMPTS)]
    )
    next(outputs)
    assert proposer._unread
    engine.abort()
    assert not proposer._unread
    assert proposer.model is not None
    assert not proposer._columns._entered  # whoever comes next begins with empty slots
    watched = Watched(proposer)
    assert [output.token_ids for output in decode(engine)] == baseline()
    assert count_right_drafts(watched, FromScratch(proposer.model.head)) > 30


def test_an_engine_goes_on_after_another_one_was_made_with_its_proposer(target: CausalLM) -> None:
    """What the head has not read yet is lost: that request drafts no more."""
    proposer = make_proposer(3, **SHAPES["dynamic"])
    engine = Engine(target, proposer, max_batch_size=3)
    outputs = engine.generate(
        [Request(p, SamplingParams(max_new_tokens=6 + i)) for i, p in enumerate(PROMPTS)]
    )
    first = next(outputs)
    Engine(target, proposer, max_batch_size=3)
    tokens = {output.token_ids for output in [first, *outputs]}
    assert tokens == set(baseline())


def test_a_head_is_loaded_again_only_for_another_target(target: CausalLM) -> None:
    proposer = make_proposer(1, **SHAPES["chain"])
    Engine(target, proposer)
    first = proposer.model
    assert "EAGLE-1, reads the final norm" in str(proposer.describe())
    Engine(target, proposer)
    assert proposer.model is first
    Engine(CausalLM(copy.deepcopy(TARGET)), proposer)
    assert proposer.model is not first


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Eagle(), "names no EAGLE head"),
        (lambda: Eagle(make_head(3), **SHAPES["chain"]), "EAGLE-3 head; use proposer=eagle3"),
        (
            lambda: Eagle3(make_head(1), **SHAPES["chain"]),
            "is an EAGLE-1 head; use proposer=eagle$",
        ),
        (lambda: Eagle(make_head(1), tree="bush"), "choose one of chain, static, dynamic"),
        (lambda: Eagle(make_head(1), 0), "must be at least 1"),
        (
            lambda: make_proposer(3, tree="static", paths=[[12]] + [[i] for i in range(12)]),
            "the vocabulary 12 tokens",
        ),
    ],
)
def test_settings_that_cannot_work_are_rejected_before_decoding(
    target: CausalLM, make: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Engine(target, make())


def test_the_default_number_of_drafts_depends_on_the_shape() -> None:
    assert [Eagle(tree=tree).num_draft_tokens for tree in ("chain", "static", "dynamic")] == [
        5,
        24,
        60,
    ]
    assert Eagle(depth=2, top_k=3).num_draft_tokens == 12
    with pytest.raises(ValueError, match="has 12 nodes to choose from"):
        Eagle(num_draft_tokens=13, depth=2, top_k=3)


def test_rows_without_features_get_no_drafts(target: CausalLM) -> None:
    """In one batch no row has a hidden state yet, in the other some have."""
    proposer = make_proposer(1, **SHAPES["dynamic"])
    engine = Engine(target, proposer, max_batch_size=2)
    rows = [
        RequestState(Request(p), slot, 3, frozenset(), 40) for slot, p in enumerate([(5,), (6,)])
    ]
    batch = Batch(rows, torch.device("cpu"), VOCAB)
    proposer.start(rows, None)
    assert proposer.propose(batch, [8, 8]).token_ids.shape == (2, 1)
    rows[1].tokens = [1, 2, 6]
    output = engine.target.extend(
        (0, 1), [[], [1, 2]], want_logits=False, hidden_layers=proposer.hidden_layers
    )
    proposer.start(rows, output)
    proposal = proposer.propose(Batch(rows, torch.device("cpu"), VOCAB), [8, 8])
    assert proposal.lengths.tolist() == [1, 9]
    assert proposer.model is not None
    assert proposer.model.lengths == [0, 2]
