"""Drafts with a set acceptance, at the cost of a real drafter: for speed without trained weights.

The drafter really drafts; its tokens are then replaced by the target's own next tokens, or by wrong
ones, so that verification accepts as many as it is told to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict, upload
from specresearch.proposers.base import Proposer
from specresearch.proposers.draft_shape import DraftShape
from specresearch.proposers.oracle import Oracle
from specresearch.request import RequestState
from specresearch.sampling import DRAFT_STREAM
from specresearch.sampling_params import SamplingParams

AHEAD = 64  # tokens that the oracle is asked for at once


class Synthetic(Proposer):
    """Costs what a drafter costs, and has the acceptance that it is given.

    Along the deepest path of a draft tree, every draft whose predecessors are right is right with
    the probability of its depth; all other drafts are wrong. What is right is known from an oracle,
    the target itself, which decodes ahead while the clock is paused. Verification and acceptance
    are the real ones, so the output is the target's own.

    The drafter observes what was verified. Where its cache holds tokens of its own, it keeps as
    many as a drafter of this acceptance would, and so feeds and catches up on just as many. That
    these are other tokens changes what it drafts, which is replaced, and not what that costs.

    Args:
        drafter: The proposer whose passes are run.
        acceptance: The probability that a draft is accepted once all before it were; a list gives
            it by depth, and its last entry holds from there on.

    Attributes:
        num_departures: Outputs that left the oracle's continuation, which rounding causes where
            two tokens are about equally likely; the oracle was then asked anew.

    Raises:
        ValueError: If a probability lies outside 0 to 1.
    """

    def __init__(self, drafter: Proposer, acceptance: float | Sequence[float] = 0.8) -> None:
        by_depth = [acceptance] if isinstance(acceptance, (int, float)) else list(acceptance)
        if not by_depth or not all(0 <= probability <= 1 for probability in by_depth):
            raise ValueError(
                f"proposer.acceptance={acceptance} must be a probability from 0 to 1, or a list of "
                "them by depth"
            )
        self.drafter, self.acceptance = drafter, acceptance
        self.proposers = (drafter,)
        self._by_depth = np.array(by_depth, dtype=float)
        self._known: dict[tuple[int, ...], list[int]] = {}  # continuations, by prompt
        self._outputs: dict[int, _Output] = {}  # by slot
        self.num_departures = 0
        self._adopt()

    def _adopt(self) -> None:
        """Take over what the drafter declares."""
        self.num_draft_tokens = self.drafter.num_draft_tokens
        self.num_probe_nodes = self.drafter.num_probe_nodes
        self.hidden_layers = self.drafter.hidden_layers
        self.kind = DraftKind(trees=self.drafter.kind.trees)
        self.shapes, self.is_num_auto = self.drafter.shapes, self.drafter.is_num_auto

    def draft_as(self, shape: DraftShape) -> None:
        self.drafter.draft_as(shape)
        self.chosen = shape
        self._adopt()

    def describe(self) -> str:
        parts = [
            f"synthetic acceptance {self.acceptance}",
            f"costs what {type(self.drafter).__name__} costs",
            self.drafter.describe(),
        ]
        return "; ".join(filter(None, parts))

    def bind(self, target: CausalLM, num_slots: int) -> None:
        self.drafter.bind(target, num_slots)
        self._adopt()
        self._oracle = Oracle(target)
        self._known.clear()
        self._outputs.clear()

    def refuses_sampling(self, sampling: SamplingParams) -> str | None:
        if sampling.is_greedy:
            return None
        return (
            f"a request has temperature {sampling.temperature:g}, and synthetic acceptance is for "
            "greedy decoding, whose next tokens can be known; use sampling.temperature=0"
        )

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        for row in rows:
            prompt = tuple(row.tokens[: row.num_prompt_tokens])
            self._outputs[row.slot] = _Output(self._known.setdefault(prompt, []))
        self.drafter.start(rows, output)

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        return self.drafter.lazy_prefill(rows)

    def is_behind(self, row: RequestState) -> bool:
        return self.drafter.is_behind(row)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if any(budget):
            self._look_ahead(batch, budget)
        proposal = self.drafter.propose(batch, budget)
        return self._replaced(batch, proposal)

    def _look_ahead(self, batch: Batch, budget: Sequence[int]) -> None:
        """Ask the oracle for the rows whose continuation is not known far enough."""
        asked: list[RequestState] = []
        known: list[list[int]] = []
        nums: list[int] = []
        for row, allowed in zip(batch.rows, budget, strict=True):
            output = self._outputs[row.slot]
            self.num_departures += output.follow(row)
            ahead = output.known[row.num_generated :]
            if len(ahead) < min(allowed, row.num_remaining):
                asked.append(row)
                known.append(ahead)
                nums.append(min(max(allowed, AHEAD), row.num_remaining) - len(ahead))
        if asked:
            with batch.clock.paused(wait=True):
                found = self._oracle.foresee(batch, asked, known, nums)
            for row, tokens in zip(asked, found, strict=True):
                self._outputs[row.slot].known.extend(tokens)

    def _replaced(self, batch: Batch, proposal: Proposal) -> Proposal:
        """Return the proposal with right drafts on its deepest paths, and wrong ones elsewhere.

        Probes keep their tokens, which are the drafter's own business.
        """
        topology, old = proposal.topology, proposal.token_ids
        if topology.num_nodes == 1:
            return proposal
        num_right, coming = self._plan(batch, topology.max_depth)
        depth = topology.depth.clamp(max=topology.max_depth).expand_as(old)  # padding lies deeper
        leaf = depth.where(proposal.acceptable, -1).argmax(1)
        row = torch.arange(len(batch), device=batch.device)
        on_path = topology.ancestors.expand(len(batch), -1, -1)[row, leaf]
        node = torch.arange(topology.num_nodes, device=batch.device)
        off_by = (1 + node % (batch.vocab_size - 1)).where(~on_path | (depth > num_right), 0)
        tokens = (coming.gather(1, depth) + off_by) % batch.vocab_size
        tokens = tokens.where(proposal.acceptable & (node > 0), old)
        return replace(proposal, token_ids=tokens, draft_probs=None, scores=None)

    def _plan(self, batch: Batch, max_depth: int) -> tuple[Int[Tensor, "B 1"], Int[Tensor, "B D"]]:
        """Return how many drafts of each row are right, [B, 1], and the next token by depth."""
        index = np.minimum(np.arange(max_depth), len(self._by_depth) - 1)
        is_right = batch.sampling.host_uniforms(DRAFT_STREAM, max_depth) < self._by_depth[index]
        num_right = is_right.cumprod(1).sum(1)  # [B]
        table = np.zeros((len(batch), max_depth + 2), dtype=np.int64)
        for b, row in enumerate(batch.rows):
            known = self._outputs[row.slot].known
            coming = known[row.num_generated : row.num_generated + max_depth]
            table[b, 0] = min(num_right[b], len(coming))
            table[b, 2 : 2 + len(coming)] = coming
        uploaded = upload(table, batch.device)
        return uploaded[:, :1], uploaded[:, 1:]

    def num_reusable(self, slot: int, num_tokens: int) -> int:
        return self.drafter.num_reusable(slot, num_tokens)

    def reuse(self, slot: int, source: int, num_tokens: int) -> None:
        self.drafter.reuse(slot, source, num_tokens)

    def readback(
        self, batch: Batch, proposal: Proposal, output: ModelOutput
    ) -> Sequence[Shaped[Tensor, "..."]]:
        return self.drafter.readback(batch, proposal, output)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        self.drafter.observe(batch, proposal, output, verdict)

    def finish(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._outputs.pop(slot, None)
        self.drafter.finish(slots)

    def reset(self) -> None:
        self.drafter.reset()


@dataclass
class _Output:
    """A request's output beside what the oracle said of it.

    Attributes:
        known: The oracle's continuation of the prompt, shared by all requests with this prompt.
        num_followed: Tokens of the output that agree with it.
    """

    known: list[int]
    num_followed: int = 0

    def follow(self, row: RequestState) -> bool:
        """Take in the row's new tokens; return whether they leave what the oracle said."""
        new = row.newest(row.num_generated - self.num_followed)
        expected = self.known[self.num_followed : row.num_generated]
        departs = expected != new[: len(expected)]
        if departs or len(expected) < len(new):
            self.known[self.num_followed :] = new
        self.num_followed = row.num_generated
        return departs
