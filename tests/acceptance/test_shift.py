"""The reported shift of a lossy rule equals its true shift, on a toy model in a table."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from tiny_models import build
from torch import Tensor

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import LossySampler, Rejection, Threshold, Typical, output_shift
from specresearch.acceptance.rejection import accept_by_rejection
from specresearch.acceptance.typical import accept_typical
from specresearch.drawing import draw
from specresearch.metrics import StepRecord
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.proposers import NGram, Proposer, TokenRecycling
from specresearch.sampling import SamplingBatch

V, NUM_DRAFTS, NUM_SAMPLES = 4, 2, 100_000
RULE = Typical(epsilon=0.25, delta=0.8)


def table(seed: int) -> Tensor:
    """Return distributions after the empty prefix, every token and every pair, as a heap."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1 + V + V * V, V, generator=generator, dtype=torch.float64).softmax(-1)


P, Q = table(1), table(5)


@dataclass
class Step:
    proposal: Proposal
    probs: Tensor
    verdict: Verdict


def step(first: Tensor, second: Tensor, seed: int = 0, lengths: Tensor | None = None) -> Step:
    """Run a step of the typical rule on rows of two drafts."""
    tokens = torch.stack([torch.zeros_like(first), first, second], dim=1)
    prefixes = torch.stack([torch.zeros_like(first), 1 + first, 1 + V + V * first + second], dim=1)
    lengths = torch.full_like(first, NUM_DRAFTS + 1) if lengths is None else lengths
    proposal = Proposal.chain(tokens, lengths, Q[prefixes])
    uniforms = torch.rand(
        len(first), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    probs = P[prefixes]
    return Step(
        proposal, probs, accept_typical(proposal, probs, uniforms, RULE.epsilon, RULE.delta)
    )


def sampled_step(lengths: Tensor | None = None) -> Step:
    generator = torch.Generator().manual_seed(3)
    u = torch.rand(2, NUM_SAMPLES, generator=generator, dtype=torch.float64)
    first = draw(Q[:1].expand(NUM_SAMPLES, -1), u[0])
    return step(first, draw(Q[1 + first], u[1]), lengths=lengths)


def distance(tokens: Tensor, p: Tensor) -> tuple[float, float]:
    """Return total variation and KL divergence of the tokens' frequencies from p."""
    share = torch.bincount(tokens, minlength=V).double() / len(tokens)
    return 0.5 * float((share - p).abs().sum()), float(torch.special.xlogy(share, share / p).sum())


def emitted(run: Step, column: int) -> Tensor:
    """Return the token at this position of each output that is long enough."""
    following = (
        run.proposal.token_ids[:, column + 1] if column < NUM_DRAFTS else run.verdict.next_token
    )
    return torch.where(run.verdict.num_accepted > column, following, run.verdict.next_token)


class TestSampledDrafts:
    def test_the_shift_of_the_first_token_is_the_true_one(self) -> None:
        run = sampled_step()
        shift = output_shift(
            run.proposal, run.probs, run.verdict, RULE.accepts(run.proposal, run.probs)
        )
        total_variation, kl = distance(emitted(run, 0), P[0])
        assert float(shift.total_variation[0, 0]) == pytest.approx(total_variation, abs=0.01)
        assert float(shift.kl[0, 0]) == pytest.approx(kl, abs=0.01)
        assert total_variation > 0.05
        assert bool((shift.total_variation[:, 0] == shift.total_variation[0, 0]).all())

    def test_second_token_after_each_first_one_that_was_accepted(self) -> None:
        run = sampled_step()
        shift = output_shift(
            run.proposal, run.probs, run.verdict, RULE.accepts(run.proposal, run.probs)
        )
        num_large = 0
        for token in range(V):
            rows = (run.verdict.num_accepted >= 1) & (run.proposal.token_ids[:, 1] == token)
            if rows.any():
                total_variation, kl = distance(emitted(run, 1)[rows], P[1 + token])
                assert float(shift.total_variation[rows, 1][0]) == pytest.approx(
                    total_variation, abs=0.02
                )
                assert float(shift.kl[rows, 1][0]) == pytest.approx(kl, abs=0.02)
                num_large += total_variation > 0.05
        assert num_large >= 2

    def test_no_shift_without_a_draft_or_past_the_end_of_the_path(self) -> None:
        lengths = torch.arange(NUM_SAMPLES) % 3 + 1
        run = sampled_step(lengths)
        shift = output_shift(
            run.proposal, run.probs, run.verdict, RULE.accepts(run.proposal, run.probs)
        )
        for column in range(NUM_DRAFTS + 1):
            offered = (lengths > column + 1) & (run.verdict.num_accepted >= column)
            assert torch.equal(shift.total_variation[:, column] > 0, offered)

    def test_the_shift_given_the_drafts_overstates_the_true_one(self) -> None:
        run = sampled_step()
        averaged = output_shift(
            run.proposal, run.probs, run.verdict, RULE.accepts(run.proposal, run.probs)
        )
        given_drafts = output_shift(run.proposal, run.probs, run.verdict)
        assert float(given_drafts.total_variation[:, 0].mean()) > 1.3 * float(
            averaged.total_variation[0, 0]
        )
        assert float(given_drafts.kl[:, 0].mean()) > 1.3 * float(averaged.kl[0, 0])

    def test_refusals_equal_those_of_rejection_sampling(self) -> None:
        """Judge the first drafts that the rule accepts again by the exact rule."""
        run = sampled_step()
        shift = output_shift(run.proposal, run.probs, run.verdict)
        generator = torch.Generator().manual_seed(8)
        uniforms = torch.rand(NUM_SAMPLES, NUM_DRAFTS + 1, generator=generator, dtype=torch.float64)
        exact = accept_by_rejection(run.proposal, run.probs, uniforms)
        rows = run.verdict.num_accepted >= 1
        refused = (exact.num_accepted[rows] == 0).double().mean()
        assert float(shift.refusal[rows, 0].mean()) == pytest.approx(float(refused), abs=0.01)
        assert 0.05 < float(refused) < 0.95
        assert not bool(shift.refusal[~rows].any())
        total = float(shift.refusal.sum()) / float(run.verdict.num_accepted.sum())
        assert shift.refused_share == pytest.approx(total)

    def test_kl_bounds_the_divergence_of_whole_outputs(self) -> None:
        """Pairs of drafts are weighted; after the step the target decodes the third token."""
        first, second = torch.arange(V).repeat_interleave(V), torch.arange(V).repeat(V)
        weights = Q[0, first] * Q[1 + first, second]
        run = step(first, second)
        law = torch.zeros(V, V, V, dtype=torch.float64)
        for row, weight in enumerate(weights.tolist()):
            x, y, num = int(first[row]), int(second[row]), int(run.verdict.num_accepted[row])
            after_x = P[1 + x][:, None] * P[1 + V + V * x : 1 + V + V * x + V]
            if num == 0:
                law += weight * target_law()
            elif num == 1:
                law[x] += weight * after_x
            else:
                law[x, y] += weight * P[1 + V + V * x + y]
        assert float(law.sum()) == pytest.approx(1)
        divergence = float(torch.special.xlogy(law, law / target_law()).sum())
        averaged = output_shift(
            run.proposal, run.probs, run.verdict, RULE.accepts(run.proposal, run.probs)
        )
        given_drafts = output_shift(run.proposal, run.probs, run.verdict)
        by_step = float((weights @ averaged.kl).sum())
        assert 0.01 < divergence <= by_step < 1.5 * divergence
        assert by_step < float((weights @ given_drafts.kl).sum())


def target_law() -> Tensor:
    """Return the probability of every sequence of three tokens."""
    return P[0][:, None, None] * P[1 : 1 + V][:, :, None] * P[1 + V :].view(V, V, V)


class TestPointMasses:
    @pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, 0, 0, 2]], ids=["chain", "tree"])
    def test_an_accepted_point_mass_is_a_certain_token(self, parents: list[int]) -> None:
        topology = Topology.from_parents(torch.tensor([parents]))
        num_nodes = len(parents)
        probs = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(1, num_nodes, -1)
        tokens = torch.tensor([[0, 3, 2] if num_nodes == 3 else [0, 3, 2, 1]])
        proposal = Proposal(
            tokens, topology, torch.tensor([num_nodes]), scores=torch.ones(1, num_nodes)
        )
        sampling = SamplingBatch([SamplingParams(temperature=1.0)], [0], [0])
        verdict = Threshold()(proposal, probs.log(), sampling)
        shift = output_shift(proposal, probs, verdict, Threshold().accepts(proposal, probs))
        mass = [0.4, 0.3] if num_nodes == 3 else [0.3, 0.2]
        assert shift.total_variation[0].tolist() == pytest.approx([1 - mass[0], 1 - mass[1], 0])
        assert shift.kl[0].tolist() == pytest.approx([-math.log(mass[0]), -math.log(mass[1]), 0])
        assert shift.refused_share == pytest.approx(1 - sum(mass) / 2)

    def test_a_token_that_the_target_never_emits_has_infinite_kl(self) -> None:
        proposal = Proposal(
            torch.tensor([[0, 2]]), Topology.chain(2), torch.tensor([2]), scores=torch.ones(1, 2)
        )
        logits = torch.tensor([3.0, 0.0, 0.0, 0.0]).expand(1, 2, -1)
        verdict = Threshold()(proposal, logits, SamplingBatch([SamplingParams()], [0], [0]))
        p = torch.eye(V)[:1].expand(1, 2, -1)
        shift = output_shift(proposal, p, verdict)
        assert shift.total_variation.tolist() == [[1.0, 0.0]]
        assert shift.kl.tolist() == [[math.inf, 0.0]]
        assert shift.refused_share == 1.0

    def test_without_accepted_drafts_there_is_no_shift(self) -> None:
        proposal = Proposal.chain(
            torch.zeros(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long)
        )
        verdict = Typical()(
            proposal, torch.zeros(2, 1, V), SamplingBatch([SamplingParams()] * 2, [0, 1], [0, 0])
        )
        shift = output_shift(proposal, torch.full((2, 1, V), 1 / V), verdict)
        assert shift.refused_share == 0.0
        assert not bool(shift.kl.any())


def test_threshold_reports_a_shift_only_with_draft_probs() -> None:
    run = sampled_step()
    scored = replace(run.proposal, scores=torch.ones(NUM_SAMPLES, NUM_DRAFTS + 1))
    assert Threshold().accepts(scored, run.probs) is None
    mask = Threshold(0.3).accepts(run.proposal, run.probs)
    assert mask is not None
    assert run.proposal.draft_probs is not None
    assert torch.equal(mask, run.proposal.draft_probs > 0.3)


MODEL = build("llama", seed=1)
KEEN = Typical(epsilon=0.01, delta=0.9)
PROMPTS = ((1, 2, 1, 2, 1), (5, 5, 5), (3, 4, 3, 4))


class TestThroughTheEngine:
    def decode(
        self, proposer: Proposer, rule: Rejection | Typical, *, measure_shift: bool = True
    ) -> tuple[list, list[StepRecord]]:
        records: list[StepRecord] = []
        sampling = SamplingParams(temperature=1.25, max_new_tokens=14, stop_token_ids=(7,))
        target = CausalLM(copy.deepcopy(MODEL), max_len=48)
        engine = Engine(
            target,
            proposer,
            rule,
            max_batch_size=2,
            observers=[lambda step: records.append(step.record)],
            measure_shift=measure_shift,
        )
        requests = [
            Request(prompt, replace(sampling, seed=seed), str(seed))
            for seed, prompt in enumerate(PROMPTS)
        ]
        return list(engine.generate(requests)), records

    def probabilities(self, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
        """Return p of every output token, from a plain pass."""
        with torch.inference_mode():
            logits = MODEL(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        return (logits / 1.25).softmax(-1)[range(len(output)), list(output)].tolist()

    @pytest.mark.parametrize(
        "proposer", [NGram(5, 2, 1), TokenRecycling(8, top_k=4, depth=3)], ids=["chain", "tree"]
    )
    def test_the_shift_of_an_accepted_point_mass_is_one_minus_its_probability(
        self, proposer: Proposer
    ) -> None:
        outputs, records = self.decode(proposer, KEEN)
        num_accepted = 0
        for output in outputs:
            p = self.probabilities(PROMPTS[int(output.id)], output.token_ids)
            expected, reported = [], []
            for record in records:
                if output.id in record.request_ids and record.shift is not None:
                    b = record.request_ids.index(output.id)
                    accepted, new = record.num_accepted_tokens[b], record.num_new_tokens[b]
                    expected += [1 - value for value in p[len(expected) :][:accepted]] + [0.0] * (
                        new - accepted
                    )
                    reported += record.shift.rows[b].total_variation
                    num_accepted += accepted
            assert reported == pytest.approx(expected, abs=1e-9)
            counts = output.record.counts
            assert counts.output_tv == pytest.approx(sum(expected) / len(p))
            assert counts.refused_rate == pytest.approx(
                sum(expected) / max(counts.num_accepted_tokens, 1)
            )
        assert num_accepted > 5

    @pytest.mark.parametrize(
        ("rule", "measure_shift"),
        [(Rejection(), True), (KEEN, False)],
        ids=["lossless", "not asked"],
    )
    def test_no_shift_is_reported_for_exact_rules_or_unless_measured(
        self, rule: Rejection | Typical, measure_shift: bool
    ) -> None:
        outputs, records = self.decode(NGram(5, 2, 1), rule, measure_shift=measure_shift)
        assert {record.shift for record in records} == {None}
        assert {output.record.counts.shift for output in outputs} == {None}

    def test_lossy_rules_report_the_shift_of_what_they_accept(self) -> None:
        assert isinstance(Typical(), LossySampler)
        assert isinstance(Threshold(), LossySampler)
        assert not isinstance(Rejection(), LossySampler)
