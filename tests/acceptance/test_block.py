"""Block verification equals the rule written token by token and enumerated exactly."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from specresearch.acceptance import Block, Greedy
from specresearch.acceptance.block import accept_block
from specresearch.acceptance.rejection import accept_by_rejection
from specresearch.proposal import DraftKind, Proposal
from specresearch.sampling import SamplingBatch, SamplingParams

V, NUM_DRAFTS = 3, 3
Prefix: TypeAlias = tuple[int, ...]
Row: TypeAlias = NDArray[np.float64]
Model: TypeAlias = Callable[[Prefix], Row]


def toy(seed: int, num_zeros: int = 0) -> Model:
    """Draw a distribution for every prefix."""

    @lru_cache
    def probs(prefix: Prefix) -> Row:
        rng = np.random.default_rng([seed, *prefix])
        row = rng.dirichlet(np.ones(V))
        row[rng.permutation(V)[:num_zeros]] = 0
        return row / row.sum()

    return probs


P, Q, SPARSE_P, SPARSE_Q = toy(2), toy(12), toy(3, num_zeros=1), toy(4, num_zeros=1)


def one_hot(q: Model) -> Model:
    return lambda prefix: np.eye(V)[int(q(prefix).argmax())]


def keep_probs(p: Model, q: Model, drafts: Prefix) -> list[float]:
    """Return P_0 to P_k."""
    result = [1.0]
    for i, token in enumerate(drafts):
        result.append(min(1.0, result[-1] * p(drafts[:i])[token] / q(drafts[:i])[token]))
    return result


def residual(p: Model, q: Model, drafts: Prefix, i: int) -> Row:
    return (keep_probs(p, q, drafts)[i] * p(drafts[:i]) - q(drafts[:i])).clip(min=0)


def chances(p: Model, q: Model, drafts: Prefix) -> list[float]:
    """Return h_1 to h_k."""
    reach, result = keep_probs(p, q, drafts), []
    for i in range(1, len(drafts)):
        total = residual(p, q, drafts, i).sum()
        result.append(total / (total + 1 - reach[i]) if total + 1 - reach[i] > 0 else 1.0)
    return [*result, reach[-1]] if drafts else []


def tokenwise_residual(p: Model, q: Model, drafts: Prefix, i: int) -> Row:
    return (p(drafts[:i]) - q(drafts[:i])).clip(min=0)


def num_kept_law(h: Sequence[float], *, first_failure: bool = False) -> list[float]:
    """Return the probability of keeping 0 to k drafts."""
    law = [0.0] * (len(h) + 1)
    for passed in itertools.product([False, True], repeat=len(h)):
        chance = float(np.prod([x if ok else 1 - x for x, ok in zip(h, passed, strict=True)]))
        num = (
            [*passed, False].index(False)
            if first_failure
            else max((i + 1 for i, ok in enumerate(passed) if ok), default=0)
        )
        law[num] += chance
    return law


def stops(prefix: Prefix) -> bool:
    """Return True if a ragged drafter stops after this prefix, which may depend on its drafts."""
    return len(prefix) == NUM_DRAFTS or (len(prefix) > 0 and sum(prefix) % 3 == 2)


def all_drafts(q: Model, ends: Callable[[Prefix], bool]) -> dict[Prefix, float]:
    """Yield every chain of drafts with its probability."""
    done: dict[Prefix, float] = {}
    growing: dict[Prefix, float] = {(): 1.0}
    while growing:
        prefix, mass = growing.popitem()
        if ends(prefix):
            done[prefix] = mass
        else:
            growing |= {(*prefix, t): mass * q(prefix)[t] for t in range(V) if q(prefix)[t] > 0}
    return done


def enumerated_output(
    p: Model,
    q: Model,
    ends: Callable[[Prefix], bool] = lambda prefix: len(prefix) == NUM_DRAFTS,
    *,
    first_failure: bool = False,
    rest: Callable[[Model, Model, Prefix, int], Row] = residual,
) -> Row:
    """Return the probability of every sequence of NUM_DRAFTS + 1 tokens.

    One step of the rule comes first, then the target decodes alone.
    """
    law = dict.fromkeys(itertools.product(range(V), repeat=NUM_DRAFTS + 1), 0.0)
    for drafts, mass in all_drafts(q, ends).items():
        for num, chance in enumerate(
            num_kept_law(chances(p, q, drafts), first_failure=first_failure)
        ):
            if mass * chance < 1e-15:
                continue
            last = (
                p(drafts)
                if num == len(drafts)
                else rest(p, q, drafts, num) / rest(p, q, drafts, num).sum()
            )
            for token in range(V):
                begin = (*drafts[:num], token)
                for later in itertools.product(range(V), repeat=NUM_DRAFTS + 1 - len(begin)):
                    sequence = (*begin, *later)
                    goes_on = np.prod(
                        [p(sequence[:i])[sequence[i]] for i in range(len(begin), len(sequence))]
                    )
                    law[sequence] += mass * chance * float(last[token] * goes_on)
    return np.array(list(law.values()))


def target_output(p: Model) -> Row:
    sequences = itertools.product(range(V), repeat=NUM_DRAFTS + 1)
    return np.array([math.prod(float(p(s[:i])[t]) for i, t in enumerate(s)) for s in sequences])


def total_variation(x: Row, y: Row) -> float:
    return 0.5 * float(np.abs(x - y).sum())


DRAFTERS = {"sampled": Q, "truncated": SPARSE_Q, "point_mass": one_hot(Q)}


class TestTheFormulas:
    @pytest.mark.parametrize("p", [P, SPARSE_P], ids=["full", "with_zeros"])
    @pytest.mark.parametrize("drafter", DRAFTERS)
    @pytest.mark.parametrize("ragged", [False, True])
    def test_output_has_the_targets_distribution(
        self, p: Model, drafter: str, ragged: bool
    ) -> None:
        q = DRAFTERS[drafter]
        law = enumerated_output(p, q, stops) if ragged else enumerated_output(p, q)
        assert total_variation(law, target_output(p)) < 1e-12

    def test_negative_controls(self) -> None:
        exact = target_output(P)
        assert total_variation(enumerated_output(P, Q, first_failure=True), exact) > 0.01
        assert total_variation(enumerated_output(P, Q, rest=tokenwise_residual), exact) > 0.01

    def test_no_fewer_drafts_are_kept_than_token_by_token(self) -> None:
        """At every position, whatever the drafts, and visibly more on average."""
        block = tokenwise = 0.0
        for drafts, mass in all_drafts(Q, lambda prefix: len(prefix) == NUM_DRAFTS).items():
            single = np.cumprod(
                [min(1.0, P(drafts[:i])[t] / Q(drafts[:i])[t]) for i, t in enumerate(drafts)]
            )
            assert all(
                b >= t - 1e-12 for b, t in zip(keep_probs(P, Q, drafts)[1:], single, strict=True)
            )
            law = num_kept_law(chances(P, Q, drafts))
            block += mass * sum(i * chance for i, chance in enumerate(law))
            tokenwise += mass * float(single.sum())
        assert block > 1.1 * tokenwise


def chains(
    p: Model, q: Model, num_rows: int, *, sampled: bool
) -> tuple[Proposal, torch.Tensor, torch.Tensor]:
    """Ragged chains drawn from q, the target's distributions after their nodes, and uniforms."""
    rng = np.random.default_rng(5)
    tokens = np.zeros((num_rows, NUM_DRAFTS + 1), dtype=np.int64)
    p_rows, q_rows = np.full((2, num_rows, NUM_DRAFTS + 1, V), 1 / V)
    for row in range(num_rows):
        for i in range(NUM_DRAFTS + 1):
            prefix = tuple(tokens[row, 1 : i + 1].tolist())
            p_rows[row, i], q_rows[row, i] = p(prefix), q(prefix)
            if i < NUM_DRAFTS:
                tokens[row, i + 1] = rng.choice(V, p=q(prefix))
    lengths = torch.from_numpy(rng.integers(1, NUM_DRAFTS + 2, num_rows))
    probs = torch.from_numpy(q_rows) if sampled else None
    uniforms = torch.from_numpy(rng.random((num_rows, NUM_DRAFTS + 1)))
    return (
        Proposal.chain(torch.from_numpy(tokens), lengths, probs),
        torch.from_numpy(p_rows),
        uniforms,
    )


class TestTheCode:
    @pytest.mark.parametrize("p", [P, SPARSE_P], ids=["full", "with_zeros"])
    @pytest.mark.parametrize("drafter", DRAFTERS)
    def test_the_code_decides_like_the_formulas(self, p: Model, drafter: str) -> None:
        q = DRAFTERS[drafter]
        proposal, probs, uniforms = chains(p, q, 400, sampled=drafter != "point_mass")
        verdict = accept_block(proposal, probs, uniforms)
        assert verdict.expected is not None
        for row in range(400):
            drafts = tuple(proposal.token_ids[row, 1 : int(proposal.lengths[row])].tolist())
            u = uniforms[row].tolist()
            passed = [i for i, chance in enumerate(chances(p, q, drafts), start=1) if u[i] < chance]
            num = max(passed, default=0)
            last = p(drafts) if num == len(drafts) else residual(p, q, drafts, num)
            assert int(verdict.num_accepted[row]) == num
            assert int(verdict.next_token[row]) == int((last.cumsum() <= u[0] * last.sum()).sum())
            assert verdict.path[row].tolist() == [*range(num + 1)] + [-1] * (NUM_DRAFTS - num)
            for i, (reach, expected) in enumerate(
                zip(keep_probs(p, q, drafts), verdict.expected[row].tolist(), strict=False)
            ):
                if reach > 0 and i < len(drafts):
                    assert expected == pytest.approx(
                        np.minimum(p(drafts[:i]), q(drafts[:i]) / reach).sum()
                    )

    def test_more_padding_changes_nothing(self) -> None:
        """The last draft is tested at the row's own length, not at the width of the batch."""
        proposal, probs, uniforms = chains(P, Q, 200, sampled=True)
        unpadded = accept_block(proposal, probs, uniforms)
        assert proposal.draft_probs is not None
        for num_nodes in range(1, NUM_DRAFTS + 1):
            rows = proposal.lengths == num_nodes
            cut = Proposal.chain(
                proposal.token_ids[rows, :num_nodes],
                proposal.lengths[rows],
                proposal.draft_probs[rows, :num_nodes],
            )
            alone = accept_block(cut, probs[rows, :num_nodes], uniforms[rows, :num_nodes])
            assert torch.equal(alone.num_accepted, unpadded.num_accepted[rows])
            assert torch.equal(alone.next_token, unpadded.next_token[rows])

    def test_a_probe_ends_the_chain_before_it(self) -> None:
        proposal, probs, uniforms = chains(P, Q, 200, sampled=True)
        probe = torch.tensor([[False, False, True, False]])
        marked = Proposal(
            proposal.token_ids,
            proposal.topology,
            proposal.lengths,
            proposal.draft_probs,
            probe=probe,
        )
        cut = Proposal.chain(
            proposal.token_ids, proposal.lengths.clamp(max=2), proposal.draft_probs
        )
        with_probe, shorter = (accept_block(x, probs, uniforms) for x in (marked, cut))
        assert torch.equal(with_probe.path, shorter.path)
        assert torch.equal(with_probe.next_token, shorter.next_token)

    def test_it_keeps_more_drafts_than_rejection(self) -> None:
        proposal, probs, _ = chains(P, Q, 500, sampled=True)
        uniforms = torch.rand(20, 500, NUM_DRAFTS + 1, dtype=torch.float64)
        block, rejection = (
            np.mean(
                [float(rule(proposal, probs, u).num_accepted.double().mean()) for u in uniforms]
            )
            for rule in (accept_block, accept_by_rejection)
        )
        assert block > 1.1 * rejection

    def test_point_masses_are_kept_as_often_as_by_rejection(self) -> None:
        proposal, probs, uniforms = chains(P, one_hot(Q), 200, sampled=False)
        block, rejection = (
            rule(proposal, probs, uniforms).expected for rule in (accept_block, accept_by_rejection)
        )
        assert block is not None
        assert rejection is not None
        drafted = proposal.acceptable[:, 1:]
        torch.testing.assert_close(block[drafted], rejection[drafted])

    @pytest.mark.parametrize("drafter", ["sampled", "never_sampled", "point_mass"])
    @pytest.mark.parametrize("num_nodes", [2, 4])
    def test_tokens_of_probability_zero_are_never_accepted_or_drawn(
        self, drafter: str, num_nodes: int
    ) -> None:
        p = torch.zeros(1, num_nodes, V)
        p[..., V - 1] = 1.0
        q = {"sampled": torch.full_like(p, 1 / V), "never_sampled": p, "point_mass": None}[drafter]
        drafts = torch.arange(num_nodes)[None] % (V - 1)
        proposal = Proposal.chain(drafts, torch.tensor([num_nodes]), q)
        for first in (0.0, 0.5, 1 - 2**-53):
            uniforms = torch.zeros(1, num_nodes, dtype=torch.float64)
            uniforms[:, 0] = first
            verdict = accept_block(proposal, p, uniforms)
            assert (verdict.num_accepted.item(), verdict.next_token.item()) == (0, V - 1)

    def test_drafts_of_the_target_itself_are_all_kept(self) -> None:
        proposal, probs, _ = chains(P, P, 100, sampled=True)
        uniforms = torch.full((100, NUM_DRAFTS + 1), 1 - 2**-53, dtype=torch.float64)
        assert torch.equal(
            accept_block(proposal, probs, uniforms).num_accepted, proposal.lengths - 1
        )


class TestTheRule:
    def test_greedy_rows_are_decided_by_the_greedy_rule(self) -> None:
        """This holds alone and beside a sampled row, and for sampled or fixed drafts."""
        generator = torch.Generator().manual_seed(6)
        logits = torch.randn((60, NUM_DRAFTS + 1, V), generator=generator)
        tokens = torch.randint(0, V, (60, NUM_DRAFTS + 1), generator=generator)
        lengths = torch.randint(1, NUM_DRAFTS + 2, (60,), generator=generator)
        q = torch.rand((60, NUM_DRAFTS + 1, V), generator=generator).softmax(-1)
        greedy = [SamplingParams()] * 60
        mixed = [*greedy[:-1], SamplingParams(temperature=1.0)]
        for probs in (None, q):
            proposal = Proposal.chain(tokens, lengths, probs)
            greedy_verdict = Greedy()(proposal, logits, SamplingBatch(greedy, range(60), [0] * 60))
            for params in (greedy, mixed):
                actual = Block()(proposal, logits, SamplingBatch(params, range(60), [0] * 60))
                assert torch.equal(actual.path[:-1], greedy_verdict.path[:-1])
                assert torch.equal(actual.next_token[:-1], greedy_verdict.next_token[:-1])

    def test_trees_are_refused(self) -> None:
        assert Block().refuses(DraftKind(sampled=True)) is None
        assert Block().refuses(DraftKind()) is None
        assert "chains only" in str(Block().refuses(DraftKind(trees=True)))
