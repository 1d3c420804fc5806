"""Exact and broken toy methods and rules, and certificates of them with few samples."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from torch import Tensor

from specresearch import CausalLM, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Greedy, Rejection
from specresearch.acceptance.rejection import accept_by_rejection
from specresearch.batch import Batch
from specresearch.certification.adversaries import Adversary, Attack, shifted
from specresearch.certification.certificate import Certificate
from specresearch.certification.plan import TrialPlan
from specresearch.certification.report import print_certificate
from specresearch.certification.runner import Certifier
from specresearch.certification.targets import Toy
from specresearch.certification.trials import CertifierSettings, Trial, TrialSettings
from specresearch.cli import conf_dir
from specresearch.controllers import Fixed
from specresearch.drawing import draw
from specresearch.engine.settings import SchedulerSettings
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.proposers import (
    DraftModel,
    Lookahead,
    Proposer,
    Suffix,
    TokenRecycling,
)
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch, logits_to_probs

PLAIN = {"plain": SamplingParams(temperature=1.0, max_new_tokens=3)}
SETTINGS = PLAIN | {
    "top_k": SamplingParams(temperature=1.0, top_k=2, max_new_tokens=5),
    "everything": SamplingParams(
        temperature=0.8,
        top_k=3,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.5,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        max_new_tokens=3,
        stop_token_ids=(1,),
    ),
}
GREEDY = {"plain": SamplingParams(max_new_tokens=8)}
TRIAL_SETTINGS = {
    "stress",
    "batch_size",
    "shortest_prompt",
    "max_step_tokens",
    "max_cache_tokens",
    "equal_seeds",
    "coarseness",
}
QUICK = yaml.safe_load((conf_dir() / "strength" / "quick.yaml").read_text(encoding="utf-8"))
FEW = CertifierSettings(visible_tv=QUICK["visible_tv"], num_greedy_prompts=6)


@lru_cache
def toy() -> Toy:
    return Toy(vocab_size=4, seed=2)


@lru_cache
def target() -> CausalLM:
    return toy().target()


class Copycat(Adversary):
    """Sample drafts from the target's probabilities of other tokens; subclasses break this."""

    memory = "cold"  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        super().__init__(toy(), Attack(shifted))


class StopAtUnlikely(Copycat):
    """End a draft at its first token of low probability.

    Attributes:
        num_unlikely: Unlikely tokens to keep: 0 or 1.
    """

    num_unlikely = 0

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        assert proposal.scores is not None
        num_likely = (proposal.scores[:, 1:] >= 0.25).long().cumprod(1).sum(1)
        lengths = torch.minimum(proposal.lengths, num_likely + 1 + self.num_unlikely)
        return replace(proposal, lengths=lengths)


class DropUnlikely(StopAtUnlikely):
    """End a draft before its first token of low probability, after looking at it."""


class StopAfterUnlikely(StopAtUnlikely):
    """End a draft with its first token of low probability, which is allowed."""

    num_unlikely = 1


class Mislabelled(Lookahead):
    """Declare that drafts found in the pool were drawn from a uniform distribution."""

    kind = DraftKind(trees=True, sampled=True)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        vocab_size = toy().vocab_size
        shape = (*proposal.token_ids.shape, vocab_size)
        return replace(proposal, draft_probs=torch.full(shape, 1 / vocab_size, dtype=torch.float64))


class Rule:
    """Base of rules that decide on the probabilities of chains."""

    lossless = True

    def refuses(self, kind: DraftKind) -> str | None:
        return "they branch" if kind.trees else None

    def __call__(
        self, proposal: Proposal, target_logits: Tensor, sampling: SamplingBatch
    ) -> Verdict:
        p = logits_to_probs(target_logits, sampling)
        num_nodes = proposal.topology.num_nodes
        q = (
            torch.full_like(p, 1 / p.shape[2])
            if proposal.draft_probs is None
            else proposal.draft_probs
        )
        return self.decide(proposal, p, q, sampling.uniforms(ACCEPT_STREAM, num_nodes))

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        raise NotImplementedError

    def verdict(self, passes: Tensor, weights: Tensor, u: Tensor) -> Verdict:
        """Accept the longest prefix of `passes` [B, M]; draw from `weights` [B, N, V] after it."""
        num_accepted = passes.long().cumprod(1).sum(1)
        index = torch.arange(weights.shape[1])
        row = weights[torch.arange(len(weights)), num_accepted]
        return Verdict(
            torch.where(index <= num_accepted[:, None], index, -1), num_accepted, draw(row, u[:, 0])
        )


def drafts_of(probs: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of every draft of a chain, given the node before it."""
    return probs[:, :-1].gather(2, tokens[:, 1:, None])[:, :, 0]


class Swapped(Rule):
    """Confuse p with q."""

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        last = torch.arange(p.shape[1]) == proposal.lengths[:, None] - 1
        q = torch.where(last[:, :, None], p, q)
        return accept_by_rejection(replace(proposal, draft_probs=p), q, u)


class AboveAFloor(Rule):
    """Accept every draft that the target gives more than 0.2."""

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        return self.verdict(
            (drafts_of(p, proposal.token_ids) > 0.2) & proposal.acceptable[:, 1:], p, u
        )


class DeclaredFloor(AboveAFloor):
    lossless = False


class BlockByHand(Rule):
    """Block verification (arXiv 2403.10444): keep all up to the last draft that passes."""

    def __init__(self, stop_at_first_failure: bool) -> None:
        self.stop_at_first_failure = stop_at_first_failure

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        num_drafts = proposal.lengths - 1
        keep_probs = [torch.ones(len(p), dtype=p.dtype)]
        for ratio in (drafts_of(p, proposal.token_ids) / drafts_of(q, proposal.token_ids)).unbind(
            1
        ):
            keep_probs.append((keep_probs[-1] * ratio).clamp(max=1))
        keep = torch.stack(keep_probs, 1)
        left = (keep[:, :, None] * p - q).clamp(min=0)
        total = left.sum(2)
        chance = torch.where(total + 1 - keep > 0, total / (total + 1 - keep), 1.0)
        node = torch.arange(p.shape[1])
        is_last = node == num_drafts[:, None]
        chance = torch.where(is_last, keep, chance)
        passes = ((u <= chance) & (node <= num_drafts[:, None]))[:, 1:]
        if not self.stop_at_first_failure:
            passes = passes.flip(1).cummax(1).values.flip(1)
        return self.verdict(
            passes, torch.where(is_last[:, :, None] | (left.sum(2, keepdim=True) == 0), p, left), u
        )


class OffAtTheFourth(Greedy):
    """Greedy acceptance, except that the token at index 3 is the neighbour of the likeliest one."""

    def __call__(
        self, proposal: Proposal, target_logits: Tensor, sampling: SamplingBatch
    ) -> Verdict:
        verdict = super().__call__(proposal, target_logits, sampling)
        is_fourth = torch.tensor(sampling.positions) + verdict.num_accepted == 3
        neighbour = (verdict.next_token + 1) % target_logits.shape[2]
        return replace(verdict, next_token=torch.where(is_fourth, neighbour, verdict.next_token))


WARM: dict[str, Callable[[], Proposer]] = {
    "suffix": lambda: Suffix(4, offset=2.0, use_global=True),
    "token_recycling": lambda: TokenRecycling(24, top_k=5, depth=3, warm=True),
}
WARM_CASES = [
    pytest.param(name, marks=[pytest.mark.slow] if name == "suffix" else []) for name in WARM
]


class Seldom(Fixed):
    """Draft in every fortieth step, or as often as `every` says."""

    every = 40
    num_steps = 0

    def budget(self, batch: Batch) -> list[int | None]:
        self.num_steps += 1
        return [None if self.num_steps % self.every == 0 else 0] * len(batch)


CROWD: dict[str, Any] = {
    "sampled": {"top_k": SamplingParams(temperature=1.0, top_k=2, max_new_tokens=7)},
    "batch_size": 24,
    "shortest_prompt": 14,
    "max_step_tokens": 30,
    "max_cache_tokens": 110,
    "max_draft_tokens": 8,
}
FIVE_TOKENS = Toy()
WAVES: dict[str, Any] = {
    "toy": FIVE_TOKENS,
    "target": FIVE_TOKENS.target(),
    "sampled": {
        "brief": SamplingParams(temperature=1.0, max_new_tokens=2),
        "pairs": SamplingParams(temperature=1.0, top_k=2, max_new_tokens=4),
    },
    "equal_seeds": True,
    "visible_tv": QUICK["visible_tv"] * QUICK["seeds_coarseness"],
}


def certify_it(
    folder: Path, proposer: Proposer, rule: AcceptanceSampler | None = None, **changes: Any
) -> Certificate:
    """Certify a method in one trial with few samples.

    Args:
        changes: fields of `CertifierSettings`, `TrialSettings`, `Trial` or `TrialPlan` to change.
    """

    def pop_changes(names: Iterable[str]) -> dict[str, Any]:
        return {name: changes.pop(name) for name in names if name in changes}

    settings = pop_changes(vars(FEW))
    trial_settings = pop_changes(TRIAL_SETTINGS)
    parts: dict[str, Any] = {
        "toy": toy(),
        "target": target(),
        "controller": Fixed(),
        "scheduling": SchedulerSettings(),
    }
    parts |= pop_changes(parts)
    trial = Trial("only", TrialSettings(**trial_settings), proposer=proposer, **parts)
    groups: dict[str, Any] = {"sampled": PLAIN, "greedy": {}} | changes
    plan = TrialPlan(
        "it", rule or Rejection(), [trial], settings=replace(FEW, **settings), **groups
    )
    return Certifier(plan, folder).run(progress=False)


class FullPrecisionRow(DraftModel):
    """Draw drafts from rounded weights, and declare the probabilities of the full ones."""

    def __init__(self, rounded: CausalLM, full: CausalLM) -> None:
        super().__init__(rounded, 3, tree="chain")
        self.full = full

    def bind(self, target: CausalLM, num_slots: int) -> None:
        super().bind(target, num_slots)
        self.full.allocate(num_slots, self.max_fed, max_len=target.max_len)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        if proposal.draft_probs is None:
            return proposal
        declared = proposal.draft_probs.clone()
        for depth in range(proposal.token_ids.shape[1] - 1):
            drawn = proposal.token_ids[:, 1 : 1 + depth].tolist()
            known = [[*row.tokens, *path] for row, path in zip(batch.rows, drawn, strict=True)]
            self.full.truncate(batch.slots, [0] * len(batch))
            logits = self.full.extend(batch.slots, known).logits
            declared[:, depth] = logits_to_probs(logits, batch.sampling)[:, 0]
        return replace(proposal, draft_probs=declared)


def printed(certificate: Certificate) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    print_certificate(certificate, Path("certificate.json"), console)
    return console.export_text()
