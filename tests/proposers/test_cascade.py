import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import Threshold
from specresearch.acceptance.rejection import accept_by_rejection
from specresearch.batch import Batch
from specresearch.engine import Step
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import DraftKind, Proposal, Topology, Verdict
from specresearch.proposers import (
    Cascade,
    DraftModel,
    Lookahead,
    NGram,
    Proposer,
    Suffix,
    TokenRecycling,
)
from specresearch.proposers.draft_shape import DraftShape
from specresearch.proposers.lazy_prefill import MOST_BEHIND
from specresearch.request import RequestState

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

TARGET = build("llama", seed=1)
DRAFT = build("llama", seed=9, num_hidden_layers=1)
Give = Callable[[Batch, Sequence[int]], Proposal]


class Stub(Proposer):
    """Draft fixed tokens for the requested rows, and record every argument."""

    def __init__(
        self,
        give: Give | None = None,
        kind: DraftKind | None = None,
        num_draft_tokens: int = 9,
        hidden_layers: tuple[int, ...] = (),
    ) -> None:
        self.give = give
        self.kind = kind or DraftKind()
        self.num_draft_tokens = num_draft_tokens
        self.hidden_layers = hidden_layers
        self.asked: list[tuple[tuple[int, ...], list[int]]] = []
        self.seen: list[Any] = []

    def bind(self, target: CausalLM, num_slots: int) -> None:
        self.seen.append((target, num_slots))

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        self.seen.append(output)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        self.asked.append((batch.slots, list(budget)))
        assert self.give is not None
        return self.give(batch, budget)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        self.seen.append((proposal, output))

    def finish(self, slots: Sequence[int]) -> None:
        self.seen.append(list(slots))


def chain_of(*slots: int, length: int = 3, first: int = 0) -> Give:
    """Return chains first, first + 1, ... for some slots, and no drafts for the others."""

    def give(batch: Batch, budget: Sequence[int]) -> Proposal:
        tokens = torch.cat(
            [batch.roots, torch.arange(first, first + length).expand(len(batch), -1)], dim=1
        )
        allowed = [
            min(most, length) if slot in slots else 0
            for slot, most in zip(batch.slots, budget, strict=True)
        ]
        return Proposal.chain(tokens, torch.tensor(allowed) + 1)

    return give


def sampled_chain(batch: Batch, budget: Sequence[int]) -> Proposal:
    proposal = chain_of(*batch.slots, length=2, first=20)(batch, budget)
    probs = torch.rand((len(batch), 3, VOCAB), generator=torch.Generator().manual_seed(1)).softmax(
        -1
    )
    return replace(proposal, draft_probs=probs)


def tree(batch: Batch, budget: Sequence[int]) -> Proposal:
    topology = Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 1, 2]]))
    tokens = torch.cat([batch.roots, torch.arange(10, 15).expand(len(batch), -1)], dim=1)
    return Proposal(tokens, topology, torch.tensor(budget).clamp(max=5) + 1)


def batch_of(num_rows: int, temperature: float = 0.0) -> Batch:
    params = SamplingParams(temperature=temperature)
    rows = [
        RequestState(Request([3, 5 + slot], params), slot, slot, frozenset(), 40)
        for slot in range(num_rows)
    ]
    return Batch(rows, torch.device("cpu"), VOCAB)


class TestRows:
    def test_each_row_takes_the_first_proposer_with_drafts(self) -> None:
        first, second = Stub(chain_of(1, length=4)), Stub(chain_of(0, 1, 3, length=2, first=20))
        proposal = Cascade([first, second]).propose(batch_of(4), [4, 4, 0, 4])
        assert first.asked == [((0, 1, 3), [4, 4, 4])]
        assert second.asked == [((0, 3), [4, 4])]
        assert proposal.topology is Topology.chain(5, torch.device("cpu"))
        assert proposal.lengths.tolist() == [3, 5, 1, 3]
        assert proposal.token_ids[:, 0].tolist() == [5, 6, 7, 8]
        assert proposal.token_ids[0, :3].tolist() == [5, 20, 21]
        assert proposal.token_ids[1].tolist() == [6, 0, 1, 2, 3]

    def test_host_lengths_are_kept(self) -> None:
        rows = [
            RequestState(Request(p, SamplingParams()), i, i, frozenset(), 40)
            for i, p in enumerate([(1, 1), (2,)])
        ]
        batch = Batch(rows, torch.device("cpu"), VOCAB)
        ngram, stub = NGram(3, n_max=1, n_min=1), Stub(chain_of(1))
        ngram.start(rows, None)
        assert Cascade([ngram, stub]).propose(batch, [3, 0]).host_lengths == (4, 1)
        assert Cascade([ngram, stub]).propose(batch, [3, 3]).host_lengths is None

    def test_proposers_are_called_only_for_rows_that_need_drafts(self) -> None:
        first, second = Stub(chain_of(0, 1)), Stub(chain_of(0, 1))
        Cascade([first, second]).propose(batch_of(2), [3, 3])
        assert not second.asked
        assert Cascade([first, second]).propose(batch_of(2), [0, 0]).token_ids.shape == (2, 1)
        assert len(first.asked) == 1

    def test_budgets_fit_each_proposer(self) -> None:
        """The budget of a tree counts nodes; a chain must fit into the room of the request."""
        batch = batch_of(1)
        batch.rows[0].max_new_tokens = 4
        trees = Stub(tree, DraftKind(trees=True), num_draft_tokens=8)
        chains, short = Stub(chain_of()), Stub(chain_of(), num_draft_tokens=2)
        Cascade([chains, short, trees]).propose(batch, [9])
        assert [part.asked[0][1] for part in (chains, short, trees)] == [[3], [2], [8]]

    def test_trees_and_chains_share_a_batch(self) -> None:
        parts = [
            Stub(chain_of(1, length=8), num_draft_tokens=8),
            Stub(tree, DraftKind(trees=True), 5),
        ]
        proposal = Cascade(parts).propose(batch_of(4), [8, 8, 8, 0])
        recomputed = Topology.from_parents(proposal.topology.parents)
        assert proposal.lengths.tolist() == [6, 9, 6, 1]
        assert recomputed.parents[0, :6].tolist() == [-1, 0, 0, 1, 1, 2]
        assert recomputed.parents[1].tolist() == list(range(-1, 8))
        assert proposal.token_ids[2, :6].tolist() == [7, 10, 11, 12, 13, 14]
        assert recomputed.max_depth <= proposal.topology.max_depth
        assert recomputed.max_children <= proposal.topology.max_children

    def test_probes_and_scores_stay_with_their_nodes(self) -> None:
        def scored(probe: bool) -> Give:
            def give(batch: Batch, budget: Sequence[int]) -> Proposal:
                proposal = chain_of(*([0] if probe else [0, 1]))(batch, budget)
                marks = torch.tensor([[False, True, False, False]]) if probe else None
                return replace(
                    proposal,
                    probe=marks,
                    scores=torch.full(proposal.token_ids.shape, 0.25 + 0.5 * probe),
                )

            return give

        proposal = Cascade([Stub(scored(True)), Stub(scored(False))]).propose(batch_of(2), [3, 3])
        assert proposal.probe is not None
        assert proposal.scores is not None
        assert proposal.probe.tolist() == [[False, True, False, False], [False] * 4]
        assert proposal.scores[:, 1].tolist() == [0.75, 0.25]


class TestProbabilities:
    def test_point_masses_beside_sampled_drafts_are_judged_as_before(self) -> None:
        cascade = Cascade([Stub(chain_of(0, 2)), Stub(sampled_chain, DraftKind(sampled=True))])
        merged = cascade.propose(batch_of(3, temperature=1.0), [3, 3, 3])
        assert merged.draft_probs is not None
        assert merged.draft_probs[0, :3].argmax(1).tolist() == merged.token_ids[0, 1:].tolist()
        generator = torch.Generator().manual_seed(0)
        point_masses = replace(merged, draft_probs=None)
        q = sampled_chain(batch_of(1), [2]).draft_probs
        assert q is not None
        assert merged.draft_probs[1, :3].equal(q[0])
        lengths = set()
        for _ in range(200):
            p = torch.rand((3, 4, VOCAB), generator=generator, dtype=torch.float64).pow(9)
            p[:, :, [0, 1, 2]] += 2
            p = p / p.sum(-1, keepdim=True)
            uniforms = torch.rand((3, 4), generator=generator, dtype=torch.float64)
            actual, expected = (
                accept_by_rejection(proposal, p, uniforms) for proposal in (merged, point_masses)
            )
            for row in (0, 2):
                assert actual.path[row].equal(expected.path[row])
                assert actual.next_token[row] == expected.next_token[row]
                lengths.add(int(actual.num_accepted[row]))
        assert len(lengths) > 2

    def test_greedy_rows_of_a_tree_beside_sampled_drafts(self) -> None:
        """The target is one-hot in greedy rows, which the draft probabilities must not disturb."""
        batch = batch_of(2, temperature=1.0)
        greedy = replace(batch.rows[0].request, sampling=SamplingParams())
        batch = Batch(
            [RequestState(greedy, 0, 0, frozenset(), 40), batch.rows[1]], batch.device, VOCAB
        )

        def only_first(b: Batch, budget: Sequence[int]) -> Proposal:
            return tree(b, [n if slot == 0 else 0 for slot, n in zip(b.slots, budget, strict=True)])

        sampled = DraftKind(trees=True, sampled=True)
        merged = Cascade([Stub(only_first, sampled), Stub(sampled_chain, sampled)]).propose(
            batch, [5, 5]
        )
        for choice, path in ((10, [0, 1]), (11, [0, 2]), (4, [0])):
            p = torch.zeros(2, 6, VOCAB, dtype=torch.float64)
            p[:, 0, choice], p[:, 1:, 4] = 1.0, 1.0
            verdict = accept_by_rejection(
                merged, p, torch.full((2, 6), 1 - 2**-53, dtype=torch.float64)
            )
            assert verdict.path[0, : len(path)].tolist() == path
            assert int(verdict.num_accepted[0]) == len(path) - 1
            assert int(verdict.next_token[0]) == 4


class Compare:
    """Check after every step that a draft's cache equals a fresh computation."""

    def __init__(self, draft: CausalLM) -> None:
        self.draft, self.fresh = draft, CausalLM(copy.deepcopy(DRAFT), max_len=48)
        self.fresh.allocate(1)
        self.worst, self.num_behind = 0.0, 0

    def __call__(self, rows: Sequence[RequestState]) -> None:
        for row in rows:
            num_cached = self.draft.lengths[row.slot]
            if not num_cached:
                continue
            self.num_behind += num_cached < len(row.tokens) - 2
            self.fresh.truncate([0], [0])
            self.fresh.extend([0], [row.tokens[:num_cached]], want_logits=False)
            for cached, recomputed in zip(
                self.draft.cache.buffers, self.fresh.cache.buffers, strict=True
            ):
                for a, b in zip(cached, recomputed, strict=True):
                    self.worst = max(
                        self.worst,
                        float((a[row.slot, :num_cached] - b[0, :num_cached]).abs().max()),
                    )


class NotSplit(Cascade):
    """Let the draft model draft for rows of other proposers too."""

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        part = self.proposers[1]
        assert isinstance(part, DraftModel)
        passed_over = [row for row in batch.rows if part.draft.lengths[row.slot] < len(row.tokens)]
        if passed_over:
            part.propose(Batch(passed_over, batch.device, batch.vocab_size), [4] * len(passed_over))
        return proposal


@pytest.mark.parametrize("kind", [Cascade, NotSplit])
def test_a_skipped_draft_model_keeps_its_cache_correct(kind: type[Cascade]) -> None:
    """The negative control breaks the cache."""
    draft = CausalLM(copy.deepcopy(DRAFT), max_len=48)
    compare = Compare(draft)
    cascade = kind([NGram(3, n_max=1, n_min=1), DraftModel(draft, 4)])

    def check(step: Step) -> None:
        compare(engine.scheduler.running)

    engine = Engine(
        CausalLM(copy.deepcopy(TARGET), max_len=48), cascade, max_batch_size=3, observers=[check]
    )
    prompts = [(5,), (1, 2, 3, 4, 5, 6, 7), (8, 8), (3, 1, 4, 1, 5)]
    outputs = list(engine.generate(prompts, SamplingParams(max_new_tokens=16)))
    assert sum(output.record.counts.num_accepted_tokens for output in outputs) > 5
    if kind is Cascade:
        assert compare.worst < 1e-9
        assert compare.num_behind > 5
    else:
        assert compare.worst > 1e-3


class TestForwarding:
    def test_each_proposer_gets_its_own_hidden_states(self) -> None:
        parts = [Stub(chain_of(0), hidden_layers=layers) for layers in ((2, 0), (), (1, 2))]
        cascade = Cascade(parts)
        assert cascade.hidden_layers == (2, 0, 1)
        hidden = tuple(torch.full((1, 4, 1), float(layer)) for layer in cascade.hidden_layers)
        batch = batch_of(1)
        cascade.start(batch.rows, ModelOutput(torch.zeros(1, 0, VOCAB), hidden))
        proposal = cascade.propose(batch, [3])
        single = torch.ones(1, dtype=torch.long)
        cascade.observe(
            batch,
            proposal,
            ModelOutput(torch.zeros(1, 4, VOCAB), hidden),
            Verdict(single[:, None] - 1, single, single),
        )
        for part, layers in zip(parts, ((2, 0), (), (1, 2)), strict=True):
            started, (observed, output) = part.seen
            assert observed is proposal
            for received in (started, output):
                assert tuple(int(states[0, 0]) for states in received.hidden) == layers
        cascade.start(batch.rows, None)
        assert all(part.seen[-1] is None for part in parts)

    def test_only_the_first_proposer_is_prefilled_in_advance(self) -> None:
        draft = CausalLM(copy.deepcopy(DRAFT), max_len=48)
        first, later = (
            Cascade([DraftModel(draft, 4), NGram()]),
            Cascade([NGram(), DraftModel(draft, 4)]),
        )
        first.bind(CausalLM(copy.deepcopy(TARGET), max_len=48, self_test=False), 1)
        batch = batch_of(1)
        batch.rows[0].tokens = [1] * 30
        assert later.lazy_prefill(batch.rows) == 0
        assert first.lazy_prefill(batch.rows) == 29

    def test_bind_and_finish_are_forwarded(self) -> None:
        parts, target = [Stub(), Stub()], CausalLM(copy.deepcopy(TARGET), self_test=False)
        cascade = Cascade(parts)
        cascade.bind(target, 3)
        cascade.finish([2, 0])
        assert [part.seen for part in parts] == [[(target, 3), [2, 0]]] * 2

    def test_hidden_layers_may_be_known_only_after_binding(self) -> None:
        class Late(Stub):
            def bind(self, target: CausalLM, num_slots: int) -> None:
                self.hidden_layers = (1,)

        cascade = Cascade([Stub(hidden_layers=(0,)), Late()])
        cascade.bind(CausalLM(copy.deepcopy(TARGET), self_test=False), 1)
        assert cascade.hidden_layers == (0, 1)


class TestShapes:
    def test_auto_chooses_a_length_and_how_many_proposers_are_asked(self) -> None:
        cascade = Cascade([Stub(num_draft_tokens=4), Stub(num_draft_tokens=9)], "auto")
        assert cascade.shapes == (DraftShape(4, num_proposers=1), DraftShape(9, num_proposers=2))

    def test_proposers_that_were_not_chosen_are_not_asked_but_learn(self) -> None:
        first, second = Stub(chain_of(1)), Stub(chain_of(0, 1, 2))
        cascade = Cascade([first, second], "auto")
        cascade.draft_as(DraftShape(4, num_proposers=1))
        proposal = cascade.propose(batch_of(3), [4, 4, 4])
        assert proposal.lengths.tolist() == [1, 4, 1]
        assert second.asked == []
        cascade.finish([0])
        assert second.seen == [[0]]

    def test_a_number_limits_every_proposer(self) -> None:
        cascade = Cascade([Stub(num_draft_tokens=4), Stub(num_draft_tokens=9)], 3)
        assert cascade.num_draft_tokens == 3
        assert cascade.shape_now == DraftShape(3, num_proposers=2)

    def test_an_impossible_number_of_proposers_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"proposer\.num_proposers=3 must be 1 to 2"):
            Cascade([Stub(), Stub()], num_proposers=3)


class TestDeclared:
    def test_kinds_and_sizes_are_combined(self) -> None:
        mixed = Cascade([Suffix(12), NGram(30)])
        assert mixed.kind == DraftKind(trees=True, sampled=False, scored=False)
        assert mixed.num_draft_tokens == 30
        assert mixed.max_nodes == 31
        scored = Cascade([Suffix(12, branch=False), Suffix(30, branch=False)])
        assert scored.kind == DraftKind(scored=True)

    def test_probabilities_of_only_some_drafts_are_not_declared(self) -> None:
        """Threshold would have nothing to compare for n-gram drafts."""
        sampling = Stub(kind=DraftKind(sampled=True))
        assert not Cascade([NGram(), sampling]).kind.sampled
        assert Cascade([sampling, sampling]).kind.sampled
        assert Threshold().refuses(Cascade([NGram(), sampling]).kind) is not None

    def test_a_single_proposer_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="a cascade needs at least two proposers; got 1"):
            Cascade([NGram()])

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_fixed_tree_beside_sampled_drafts_is_rejected(self, order: int) -> None:
        parts = [TokenRecycling(8), Stub(kind=DraftKind(sampled=True))][::order]
        with pytest.raises(
            ValueError, match="TokenRecycling drafts trees that are not sampled, Stub samples"
        ):
            Cascade(parts)

    def test_proposers_with_probes_are_rejected(self) -> None:
        with pytest.raises(ValueError, match="Lookahead verifies probe nodes"):
            Cascade([NGram(), Lookahead()])


def test_a_later_proposer_reads_long_prompts_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = CausalLM(copy.deepcopy(DRAFT), max_len=64, prefill_chunk=8)
    read: list[int] = []
    extend = draft.extend

    def noted(slots: Sequence[int], chunks: Sequence[Sequence[int]], **rest: Any) -> Any:
        read.append(sum(map(len, chunks)))
        return extend(slots, chunks, **rest)

    monkeypatch.setattr(draft, "extend", noted)
    cascade = Cascade([Stub(lambda batch, _: Proposal.empty(batch.roots)), DraftModel(draft, 3)])
    engine = Engine(CausalLM(copy.deepcopy(TARGET), max_len=64), cascade)
    prompt = [number % VOCAB for number in range(1, 42)]
    sampling = SamplingParams(max_new_tokens=6, ignore_eos=True)
    (output,) = engine.generate_all([prompt], sampling)
    assert output.record.counts.num_draft_tokens
    assert read[:4] == [8] * 4
    assert max(read) <= MOST_BEHIND
