"""Matrix 3, the rules alone: any drafts give exactly the target's distribution."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from specresearch import SamplingParams
from specresearch.acceptance import AcceptanceSampler, Rejection, Threshold, Typical, block
from specresearch.acceptance.base import longest_prefix
from specresearch.acceptance.block import accept_block
from specresearch.acceptance.rejection import accept_by_rejection
from specresearch.certification.goodness_of_fit import Fit, visible_tv
from specresearch.drawing import draw
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch

ALPHA = 1e-4  # some 40 tests of this file are statistical: one false alarm in 250 choices of seeds
VISIBLE_TV = 0.01
V, DEPTH = 4, 2
LENGTH = DEPTH + 1
NUM_SAMPLES = 200_000
Tables: TypeAlias = Float[Tensor, "P V"]


def goodness(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    """Return the p-value of the counts; 0 if an impossible sequence occurred."""
    possible = probs > 0
    return Fit.of(counts[possible], probs[possible], int(counts[~possible].sum())).p_value


class Toy:
    """An autoregressive model as a table: one distribution for every prefix of up to DEPTH tokens.

    Prefixes are numbered like a heap: the root is 0 and prefix n followed by token t is V n + 1 +
    t.
    """

    def __init__(self, seed: int, sharpness: float = 1.0, num_zeros: int = 0) -> None:
        num_prefixes = sum(V**d for d in range(LENGTH))
        generator = torch.Generator().manual_seed(seed)
        logits = (
            torch.randn((num_prefixes, V), generator=generator, dtype=torch.float64) * sharpness
        )
        for row in range(num_prefixes):
            logits[row, torch.randperm(V, generator=generator)[:num_zeros]] = float("-inf")
        self.table: Tables = logits.softmax(-1)

    def joint(self) -> NDArray[np.float64]:
        """Return the probability of every sequence of LENGTH tokens."""
        prefixes, joint = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.float64)
        for _ in range(LENGTH):
            joint = (joint[:, None] * self.table[prefixes]).flatten()
            prefixes = (prefixes[:, None] * V + 1 + torch.arange(V)).flatten()
        return joint.numpy()


TARGET = Toy(1, num_zeros=1)
DRAFT = Toy(2)
SPARSE_DRAFT = Toy(3, num_zeros=1)
FAR_DRAFT = Toy(
    19
)  # the residuals of block verification and of single tokens differ by a total variation of 0.05


@dataclass
class Drawn:
    """Drafts of NUM_SAMPLES rows, and the prefix number of each node."""

    proposal: Proposal
    prefixes: Int[Tensor, "B N"]


def static_tree(num_rows: int, generator: torch.Generator) -> Topology:
    return Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 1, 2, 0, 2]]))


def random_trees(num_rows: int, generator: torch.Generator) -> Topology:
    """Draw a tree for each row, no deeper than DEPTH, with at most three children per node."""
    shapes = torch.tensor(
        [[-1, 0, 0, 1, 1, 2], [-1, 0, 1, 1, 0, 4], [-1, 0, 0, 0, 3, 3], [-1, 0, 1, 0, 1, 3]]
    )
    return Topology.from_parents(
        shapes[torch.randint(0, len(shapes), (num_rows,), generator=generator)]
    )


def chain(num_rows: int, generator: torch.Generator) -> Topology:
    return Topology.chain(DEPTH + 1)


SHAPES = {"chain": chain, "static_tree": static_tree, "random_trees": random_trees}
Chooser = Callable[
    [Tables, Float[Tensor, "B N V"], Int[Tensor, " B"], Int[Tensor, " B"], torch.Generator], Tensor
]


def pick(probs: Tables, generator: torch.Generator) -> Int[Tensor, " P"]:
    """Draw a token from each row."""
    cumulative = probs.cumsum(-1)
    point = torch.rand(len(probs), generator=generator, dtype=torch.float64) * cumulative[:, -1]
    return (cumulative <= point[:, None]).sum(-1)


def with_replacement(
    q: Tables, noise: Tensor, parent: Tensor, rank: Tensor, generator: torch.Generator
) -> Tensor:
    return pick(q, generator)


def without_replacement(
    q: Tables, noise: Tensor, parent: Tensor, rank: Tensor, generator: torch.Generator
) -> Tensor:
    """The r-th draw is the r-th largest of log q plus Gumbel noise, which siblings share."""
    rows = torch.arange(len(q))
    order = (q.log() + noise[rows, parent]).argsort(-1, descending=True)
    return order[rows, rank]


def likeliest(
    q: Tables, noise: Tensor, parent: Tensor, rank: Tensor, generator: torch.Generator
) -> Tensor:
    return q.argsort(-1, descending=True).gather(1, rank[:, None])[:, 0]


def duplicates(
    q: Tables, noise: Tensor, parent: Tensor, rank: Tensor, generator: torch.Generator
) -> Tensor:
    return q.argsort(-1, descending=True).gather(1, rank[:, None] // 2)[:, 0]


@lru_cache(maxsize=8)
def draft(
    shape: str,
    choose: Chooser,
    q: Toy,
    *,
    seed: int = 0,
    point_mass: bool = False,
    ragged: bool = True,
) -> Drawn:
    """Draw drafts from `q`; if ragged, a third of the rows stop early, whatever their tokens."""
    generator = torch.Generator().manual_seed(seed)
    topology = SHAPES[shape](NUM_SAMPLES, generator)
    num_nodes = topology.num_nodes
    parents = topology.parents.expand(NUM_SAMPLES, -1)
    ranks = topology._num_siblings_before.expand(NUM_SAMPLES, -1)
    uniform = torch.rand((NUM_SAMPLES, num_nodes, V), generator=generator, dtype=torch.float64)
    noise = -(-uniform.log()).log()
    tokens = torch.zeros((NUM_SAMPLES, num_nodes), dtype=torch.long)
    prefixes = torch.zeros_like(tokens)
    for node in range(1, num_nodes):
        parent = parents[:, node]
        above = prefixes.gather(1, parent[:, None])[:, 0]
        tokens[:, node] = choose(q.table[above], noise, parent, ranks[:, node], generator)
        prefixes[:, node] = above * V + 1 + tokens[:, node]
    lengths = torch.full((NUM_SAMPLES,), num_nodes)
    if ragged:
        cut = torch.rand(NUM_SAMPLES, generator=generator) < 0.3
        lengths[cut] = torch.randint(1, num_nodes, (int(cut.sum()),), generator=generator)
    probs = None if point_mass else q.table[prefixes].float()
    return Drawn(Proposal(tokens, topology, lengths, probs, choose is with_replacement), prefixes)


def uniforms_like(drawn: Drawn, seed: int = 77) -> Float[Tensor, "B N"]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(drawn.prefixes.shape, generator=generator, dtype=torch.float64)


def decide(
    drawn: Drawn,
    p: Toy = TARGET,
    uniforms: Float[Tensor, "B N"] | None = None,
    rule: Callable[
        [Proposal, Float[Tensor, "B N V"], Float[Tensor, "B N"]], Verdict
    ] = accept_by_rejection,
) -> Verdict:
    uniforms = uniforms_like(drawn) if uniforms is None else uniforms
    return rule(drawn.proposal, p.table[drawn.prefixes].float(), uniforms)


def count_sequences(drawn: Drawn, verdict: Verdict, p: Toy = TARGET) -> NDArray[np.int64]:
    """Count each output sequence; after the new token the target samples alone."""
    generator = torch.Generator().manual_seed(99)
    code = torch.zeros(NUM_SAMPLES, dtype=torch.long)
    prefix = torch.zeros_like(code)
    for i in range(LENGTH):
        node = verdict.path[:, min(i + 1, verdict.path.shape[1] - 1)].clamp(min=0)
        accepted = drawn.proposal.token_ids.gather(1, node[:, None])[:, 0]
        later = pick(p.table[prefix], generator)
        token = torch.where(verdict.num_accepted == i, verdict.next_token, later)
        token = torch.where(verdict.num_accepted > i, accepted, token)
        code, prefix = code * V + token, prefix * V + 1 + token
    return torch.bincount(code, minlength=V**LENGTH).numpy()


def p_value(drawn: Drawn, verdict: Verdict | None = None) -> float:
    return goodness(count_sequences(drawn, verdict or decide(drawn)), TARGET.joint())


class TestTheRule:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("choose", [with_replacement, without_replacement])
    def test_sampled_drafts_give_the_target(self, shape: str, choose: Chooser) -> None:
        drawn = draft(shape, choose, DRAFT)
        verdict = decide(drawn)
        assert p_value(drawn, verdict) > ALPHA
        assert 0.2 < float(verdict.num_accepted.double().mean()) < DEPTH

    @pytest.mark.parametrize("shape", SHAPES)
    def test_drafts_from_a_truncated_distribution_give_the_target(self, shape: str) -> None:
        assert p_value(draft(shape, with_replacement, SPARSE_DRAFT)) > ALPHA
        assert p_value(draft(shape, without_replacement, SPARSE_DRAFT)) > ALPHA

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("choose", [likeliest, duplicates])
    def test_point_mass_drafts_give_the_target(self, shape: str, choose: Chooser) -> None:
        assert p_value(draft(shape, choose, DRAFT, point_mass=True)) > ALPHA

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_draft_that_equals_the_target_is_always_accepted(self, shape: str) -> None:
        drawn = draft(shape, with_replacement, TARGET, ragged=False)
        verdict = decide(drawn)
        assert bool((verdict.num_accepted >= 1).all())
        assert p_value(drawn, verdict) > ALPHA

    @pytest.mark.parametrize("choose", [with_replacement, likeliest])
    def test_expected_acceptance_equals_measured_acceptance(self, choose: Chooser) -> None:
        drawn = draft("chain", choose, DRAFT, point_mass=choose is likeliest, ragged=False)
        verdict = decide(drawn)
        assert verdict.expected is not None
        for i in range(DEPTH):
            reached = verdict.num_accepted >= i
            p = float(verdict.expected[reached, i].mean())
            measured = float((verdict.num_accepted[reached] > i).double().mean())
            assert abs(measured - p) < 4 * (p * (1 - p) / int(reached.sum())) ** 0.5

    def test_stopping_after_an_unlikely_draft_changes_nothing(self) -> None:
        """A draft may stop anywhere, as long as it keeps the token that made it stop."""
        drawn = draft("chain", with_replacement, DRAFT, ragged=False)
        assert (
            p_value(
                replace(
                    drawn,
                    proposal=replace(drawn.proposal, lengths=_stop_at_unlikely(drawn, keep=True)),
                )
            )
            > ALPHA
        )

    def test_probes_are_never_accepted(self) -> None:
        drawn = draft("static_tree", with_replacement, DRAFT)
        probe = torch.rand(drawn.prefixes.shape, generator=torch.Generator().manual_seed(4)) < 0.3
        verdict = decide(replace(drawn, proposal=replace(drawn.proposal, probe=probe)))
        accepted_path = verdict.path[:, 1:]
        assert not bool((probe.gather(1, accepted_path.clamp(min=0)) & (accepted_path >= 0)).any())
        assert p_value(drawn, verdict) > ALPHA


def _stop_at_unlikely(drawn: Drawn, keep: bool) -> Int[Tensor, " B"]:
    """Return chain lengths up to the first draft of probability below 0.2, with or without it."""
    assert drawn.proposal.draft_probs is not None
    draft_probs = drawn.proposal.draft_probs[:, :-1].gather(
        2, drawn.proposal.token_ids[:, 1:, None]
    )[:, :, 0]
    sure = (draft_probs >= 0.2).long().cumprod(1).sum(1)
    return (sure + 1 + int(keep)).clamp(max=drawn.proposal.topology.num_nodes)


class TestNegativeControls:
    """The test must reject each of these with NUM_SAMPLES samples."""

    def test_the_test_has_the_power_it_claims(self) -> None:
        possible = TARGET.joint()[TARGET.joint() > 0]
        assert visible_tv(NUM_SAMPLES, possible, ALPHA, power=0.9) < VISIBLE_TV

    def test_a_total_variation_of_one_percent_is_detected(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT)
        counts = count_sequences(drawn, decide(drawn))
        expected = TARGET.joint()
        other = DRAFT.joint() * (expected > 0)
        other /= other.sum()
        share = VISIBLE_TV / (0.5 * np.abs(other - expected).sum())
        mixed = (1 - share) * expected + share * other
        assert 0.5 * np.abs(mixed - expected).sum() == pytest.approx(VISIBLE_TV)
        assert goodness(counts, expected) > ALPHA > goodness(counts, mixed)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_top_k_labelled_as_sampled(self, shape: str) -> None:
        assert p_value(draft(shape, likeliest, DRAFT)) < ALPHA

    def test_dropping_an_unlikely_draft(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT, ragged=False)
        assert (
            p_value(
                replace(
                    drawn,
                    proposal=replace(drawn.proposal, lengths=_stop_at_unlikely(drawn, keep=False)),
                )
            )
            < ALPHA
        )

    def test_p_and_q_swapped(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT)
        labels = TARGET.table[drawn.prefixes].float()
        swapped = replace(drawn, proposal=replace(drawn.proposal, draft_probs=labels))
        assert p_value(drawn, decide(swapped, DRAFT)) < ALPHA

    def test_sampling_with_and_without_replacement_confused(self) -> None:
        with_mistake = draft("static_tree", with_replacement, DRAFT, ragged=False)
        said_without = replace(
            with_mistake, proposal=replace(with_mistake.proposal, with_replacement=False)
        )
        assert p_value(said_without) < ALPHA
        without = draft("static_tree", without_replacement, DRAFT, ragged=False)
        assert (
            p_value(replace(without, proposal=replace(without.proposal, with_replacement=True)))
            < ALPHA
        )

    def test_residual_left_out(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT, ragged=False)
        verdict = decide(drawn)
        end = verdict.path.gather(1, verdict.num_accepted[:, None])
        p_end = TARGET.table[drawn.prefixes.gather(1, end)[:, 0]]
        careless = replace(verdict, next_token=draw(p_end, uniforms_like(drawn, seed=5)[:, 0]))
        assert p_value(drawn, careless) < ALPHA

    def test_accepting_tokens_of_probability_zero(self) -> None:
        """A uniform just below 0 makes the strict comparison pass at p = 0."""
        drawn = draft("chain", likeliest, DRAFT, point_mass=True)
        uniforms = uniforms_like(drawn)
        rare = uniforms < 0.01
        assert p_value(drawn, decide(drawn, uniforms=uniforms.masked_fill(rare, -1e-9))) < ALPHA

    def test_one_uniform_for_two_decisions(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT)
        shared = uniforms_like(drawn)[:, :1].expand(-1, LENGTH)
        assert p_value(drawn, decide(drawn, uniforms=shared)) < ALPHA


def by_block(drawn: Drawn) -> float:
    return p_value(drawn, decide(drawn, rule=accept_block))


class TestBlock:
    @pytest.mark.parametrize(
        "q", [DRAFT, SPARSE_DRAFT, FAR_DRAFT, TARGET], ids=["near", "truncated", "far", "target"]
    )
    @pytest.mark.parametrize("ragged", [True, False])
    def test_sampled_drafts_give_the_target(self, q: Toy, ragged: bool) -> None:
        assert by_block(draft("chain", with_replacement, q, ragged=ragged)) > ALPHA

    def test_point_mass_drafts_give_the_target(self) -> None:
        assert by_block(draft("chain", likeliest, DRAFT, point_mass=True)) > ALPHA

    def test_stopping_after_an_unlikely_draft_changes_nothing(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT, ragged=False)
        lengths = _stop_at_unlikely(drawn, keep=True)
        assert by_block(replace(drawn, proposal=replace(drawn.proposal, lengths=lengths))) > ALPHA

    def test_expected_acceptance_equals_measured_acceptance(self) -> None:
        verdict = decide(draft("chain", with_replacement, DRAFT, ragged=False), rule=accept_block)
        assert verdict.expected is not None
        for i in range(DEPTH):
            reached = verdict.num_accepted >= i
            p = float(verdict.expected[reached, i].mean())
            measured = float((verdict.num_accepted[reached] > i).double().mean())
            assert abs(measured - p) < 4 * (p * (1 - p) / int(reached.sum())) ** 0.5

    def test_it_keeps_more_drafts_than_rejection(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT)
        more = decide(drawn, rule=accept_block).num_accepted - decide(drawn).num_accepted
        assert float(more.double().mean()) > 4 * float(more.double().std()) / NUM_SAMPLES**0.5

    def test_negative_control_stopping_at_the_first_failure(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(block, "up_to_last", longest_prefix)
        assert by_block(draft("chain", with_replacement, DRAFT)) < ALPHA

    def test_negative_control_the_residual_of_single_tokens(self) -> None:
        drawn = draft("chain", with_replacement, FAR_DRAFT, ragged=False)
        verdict = decide(drawn, rule=accept_block)
        end = verdict.path.gather(1, verdict.num_accepted[:, None])
        p, q = (toy.table[drawn.prefixes.gather(1, end)[:, 0]] for toy in (TARGET, FAR_DRAFT))
        other = draw((p - q).clamp(min=0), uniforms_like(drawn)[:, 0])
        next_token = torch.where(verdict.num_accepted < DEPTH, other, verdict.next_token)
        assert p_value(drawn, replace(verdict, next_token=next_token)) < ALPHA

    def test_negative_control_the_width_of_the_batch_for_the_length_of_a_row(self) -> None:
        """The rule for the last draft concerns each row's own last draft, not the last column."""
        drawn = draft("chain", with_replacement, DRAFT)
        as_wide = replace(drawn.proposal, lengths=torch.full_like(drawn.proposal.lengths, LENGTH))
        verdict = accept_block(as_wide, TARGET.table[drawn.prefixes].float(), uniforms_like(drawn))
        cut = verdict.num_accepted.minimum(drawn.proposal.lengths - 1)
        assert p_value(drawn, replace(verdict, num_accepted=cut)) < ALPHA

    def test_negative_control_top_k_labelled_as_sampled(self) -> None:
        assert by_block(draft("chain", likeliest, DRAFT)) < ALPHA

    def test_negative_control_dropping_an_unlikely_draft(self) -> None:
        drawn = draft("chain", with_replacement, DRAFT, ragged=False)
        lengths = _stop_at_unlikely(drawn, keep=False)
        assert by_block(replace(drawn, proposal=replace(drawn.proposal, lengths=lengths))) < ALPHA


class TestLossyRules:
    """Lossy rules declare that they are, and the test tells them from the target."""

    @pytest.mark.parametrize("rule", [Typical(), Threshold()], ids=["typical", "threshold"])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_lossy_rules_miss_the_targets_distribution(
        self, rule: AcceptanceSampler, shape: str
    ) -> None:
        class Warm(SamplingBatch):
            def uniforms(self, stream: int, num: int) -> Float[Tensor, "B N"]:
                return uniforms_like(drawn)[:, :num]

        drawn = draft(shape, with_replacement, DRAFT)
        sampling = Warm([SamplingParams(temperature=1.0)], [0], [0])
        verdict = rule(drawn.proposal, TARGET.table[drawn.prefixes].float().log(), sampling)
        assert not rule.lossless
        assert p_value(drawn, verdict) < ALPHA


class TestProbabilityZero:
    @pytest.mark.parametrize("num_children", [1, 2])
    @pytest.mark.parametrize("sampled", [True, False])
    def test_such_tokens_are_never_accepted_or_drawn_even_at_u_zero(
        self, num_children: int, sampled: bool
    ) -> None:
        parents = torch.tensor([[-1] + [0] * num_children])
        tokens = torch.tensor([[0, *range(1, num_children + 1)]])
        q = torch.full((1, num_children + 1, V), 1 / V) if sampled else None
        p = torch.zeros(1, num_children + 1, V)
        p[..., V - 1] = 1.0
        proposal = Proposal(
            tokens, Topology.from_parents(parents), torch.tensor([num_children + 1]), q
        )
        for first in (0.0, 0.5, 1 - 2**-53):
            uniforms = torch.zeros(1, num_children + 1, dtype=torch.float64)
            uniforms[:, 0] = first
            verdict = accept_by_rejection(proposal, p, uniforms)
            assert (verdict.num_accepted.item(), verdict.next_token.item()) == (0, V - 1)

    def test_draw_skips_weightless_tokens(self) -> None:
        weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]]).expand(4, -1)
        u = torch.tensor([0.0, 0.3 - 1e-9, 0.3 + 1e-6, 1 - 2**-53], dtype=torch.float64)
        assert draw(weights, u).tolist() == [1, 1, 3, 3]

    def test_certain_tokens_are_always_accepted(self) -> None:
        p = torch.zeros(1, 2, V)
        p[..., 2] = 1.0
        proposal = Proposal.chain(torch.tensor([[0, 2]]), torch.tensor([2]), p.clone())
        uniforms = torch.full((1, 2), 1 - 2**-53, dtype=torch.float64)
        assert accept_by_rejection(proposal, p, uniforms).num_accepted.item() == 1


class TestSeeds:
    def test_first_uniforms_do_not_depend_on_how_many_are_drawn(self) -> None:
        batch = SamplingBatch(
            [SamplingParams(temperature=1.0)] * 3, [5, 2**64 - 1, 2**63], [0, 7, 100]
        )
        long = batch.uniforms(ACCEPT_STREAM, 100)
        assert long.dtype == torch.float64
        for num in (1, 2, 15, 16, 17, 63):
            assert torch.equal(batch.uniforms(ACCEPT_STREAM, num), long[:, :num])

    def test_uniforms_are_uniform_and_uncorrelated(self) -> None:
        num = 4000
        params = [SamplingParams()] * num
        by_seed = SamplingBatch(params, range(num), [3] * num)
        by_position = SamplingBatch(params, [3] * num, range(num))
        columns = [
            b.uniforms(stream, 2)[:, c]
            for b in (by_seed, by_position)
            for stream in (0, 1)
            for c in (0, 1)
        ]
        for column in columns:
            assert stats.kstest(column.numpy(), "uniform").pvalue > ALPHA
            assert abs(np.corrcoef(column[1:].numpy(), column[:-1].numpy())[0, 1]) < 0.08
        related = np.corrcoef(np.stack([column.numpy() for column in columns]))
        assert np.abs(related - np.eye(len(columns))).max() < 0.08

    def test_the_rule_is_a_pure_function(self) -> None:
        params = SamplingBatch([SamplingParams(temperature=1.0)], [9], [4])
        proposal = Proposal.chain(torch.tensor([[0, 1, 2]]), torch.tensor([3]))
        logits = torch.randn(1, 3, V)
        first, second = Rejection()(proposal, logits, params), Rejection()(proposal, logits, params)
        assert torch.equal(first.path, second.path)
        assert torch.equal(first.next_token, second.next_token)
