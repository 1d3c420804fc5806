"""The batch of one step, and what a step delivers to its requests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.clock import Clock
from specresearch.proposal import Proposal, Verdict, upload
from specresearch.readback import Readback
from specresearch.request import RequestState
from specresearch.sampling import SamplingBatch
from specresearch.token_counts import TokenCounts

TARGET_FAULT, DRAFTER_FAULT, GRAMMAR_FAULT = 1, 2, 3
FAULTS = {
    TARGET_FAULT: "the target's logits are NaN or infinite; check its weights and its dtype "
    "(float16 overflows where bfloat16 and float32 do not)",
    DRAFTER_FAULT: "the drafter's probabilities are NaN or infinite; check its weights and "
    "its dtype",
    GRAMMAR_FAULT: "the output left its grammar, or llguidance reached a limit; simplify the "
    "grammar",
}


class Batch:
    """The rows of one step, with their tokens as tensors.

    Args:
        counts: The token counts of all slots, for penalties; None counts the rows' tokens anew.

    Attributes:
        formed_at: When the batch was formed, on the clock.
        budget: The drafts that each row was granted; empty before the engine has decided.
        max_depth: The longest path to draft in this step; None sets no limit but the room.
    """

    def __init__(
        self,
        rows: Sequence[RequestState],
        device: torch.device,
        vocab_size: int,
        decode: Callable[[list[int]], str] | None = None,
        clock: Clock | None = None,
        counts: TokenCounts | None = None,
        max_depth: int | None = None,
    ) -> None:
        self.rows = rows
        self.device = device
        self.vocab_size = vocab_size
        self.decode = decode
        self.clock = clock or Clock()
        self.formed_at = self.clock.now()
        self.slots = tuple(row.slot for row in rows)
        self.max_depth = max_depth
        self.budget: Sequence[int] = ()
        self._counts = counts

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def roots(self) -> Int[Tensor, "B 1"]:
        """Return the last committed token of each row."""
        return upload([[row.tokens[-1]] for row in self.rows], self.device)

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Return how many drafts each row can still use.

        One token of every step is the target's own, and no path is longer than `max_depth`.
        """
        room = tuple([max(row.num_remaining - 1, 0) for row in self.rows])
        deepest = self.max_depth
        return room if deepest is None else tuple([min(left, deepest) for left in room])

    def select(self, rows: Sequence[int]) -> "Batch":
        """Return the batch of these rows."""
        if len(rows) == len(self):
            return self
        chosen = [self.rows[row] for row in rows]
        return Batch(
            chosen,
            self.device,
            self.vocab_size,
            self.decode,
            self.clock,
            self._counts,
            self.max_depth,
        )

    def limit_depth(self, depth: int | None) -> None:
        """Let no path be longer than this in this step, whatever room there is."""
        self.max_depth = depth
        self.__dict__.pop("room", None)

    @cached_property
    def sampling(self) -> SamplingBatch:
        """Return the rows' sampling settings and the state of their draws."""
        params = [row.request.sampling for row in self.rows]
        prompt_counts = output_counts = None
        if any(param.has_penalty for param in params):
            counts = self._counts or TokenCounts(max(self.slots) + 1, self.vocab_size, self.device)
            prompt_counts, output_counts = counts.of(self.rows, self.slots)
        return SamplingBatch(
            params=params,
            seeds=[row.seed for row in self.rows],
            positions=[row.num_generated for row in self.rows],
            device=self.device,
            prompt_counts=prompt_counts,
            output_counts=output_counts,
        )

    def append(
        self,
        proposal: Proposal,
        verdict: Verdict,
        faults: Int[Tensor, " B"] | None = None,
        readback: Readback | None = None,
    ) -> "Delivery":
        """Append accepted and new tokens, cut at end tokens, stop strings and limits.

        This brings the verdict and the drafts to the host, in one transfer with `readback`.

        Args:
            faults: For each row a key of `FAULTS`, which fails the row, or 0.
            readback: What else the host needs of this step.
        """
        readback = readback or Readback()
        scalars = [verdict.num_accepted, verdict.next_token, proposal.lengths]
        if faults is not None:
            scalars.append(faults)
        packed = readback.add(torch.stack(scalars, dim=1))
        path = readback.add(verdict.path)
        expected = None if verdict.expected is None else readback.add(verdict.expected)
        drafts = HostDrafts.pending(proposal, readback)
        readback.fetch()
        return self._deliver(
            drafts(), packed.values, path.values, None if expected is None else expected.values
        )

    def _deliver(
        self,
        drafts: "HostDrafts",
        scalars: Int[Tensor, "B _"],
        path: Int[Tensor, "B D"],
        expected: Float[Tensor, "B M"] | None,
    ) -> "Delivery":
        """Give the rows their tokens; everything lies on the host."""
        num_new: list[int] = []
        now = self.clock.now()
        for b, (row, values) in enumerate(zip(self.rows, scalars.tolist(), strict=True)):
            num_drafts, next_token, _, *fault = values
            if any(fault):
                row.fail(FAULTS[fault[0]])
                num_new.append(0)
            else:
                accepted = drafts.tokens[b, path[b, 1 : num_drafts + 1].numpy()].tolist()
                num_new.append(row.deliver([*accepted, next_token], self.decode, now))
        num_accepted = scalars[:, 0].clamp(max=torch.tensor(num_new))
        is_cut_off = torch.arange(path.shape[1]) > num_accepted[:, None]
        on_host = Verdict(path.masked_fill(is_cut_off, -1), num_accepted, scalars[:, 1], expected)
        return Delivery(on_host, tuple(num_new), tuple(scalars[:, 2].tolist()), drafts)


@dataclass(frozen=True)
class HostDrafts:
    """The drafts of a proposal on the host.

    Attributes:
        parents: -1 for the root.
        acceptable: As in `Proposal`.
    """

    tokens: Int[np.ndarray, "B N"]
    parents: Int[np.ndarray, "#B N"]
    acceptable: Bool[np.ndarray, "B N"]
    is_chain: bool

    @staticmethod
    def of(proposal: Proposal) -> "HostDrafts":
        """Bring the drafts of a proposal to the host."""
        readback = Readback()
        drafts = HostDrafts.pending(proposal, readback)
        readback.fetch()
        return drafts()

    @staticmethod
    def pending(proposal: Proposal, readback: Readback) -> "Callable[[], HostDrafts]":
        """Add what is needed to a readback; return a function to call once it is fetched."""
        parts = readback.add_all(
            [proposal.token_ids, proposal.topology.parents, proposal.acceptable]
        )

        def make() -> HostDrafts:
            tokens, parents, acceptable = (part.values.numpy() for part in parts)
            return HostDrafts(tokens, parents, acceptable, proposal.topology.is_chain)

        return make

    def ancestors(self) -> "Iterator[Int[np.ndarray, 'B N']]":
        """Yield the parent of every node, then its grandparent and so on; -1 above the root."""
        parents = np.broadcast_to(self.parents, self.tokens.shape)
        node = parents
        while (node >= 0).any():
            yield node
            node = np.where(node < 0, -1, np.take_along_axis(parents, np.maximum(node, 0), 1))

    @cached_property
    def depth(self) -> Int[np.ndarray, "B N"]:
        """Edges between the root and each node."""
        depth = np.zeros(self.tokens.shape, np.int64)
        for node in self.ancestors():
            depth += node >= 0
        return depth


@dataclass(frozen=True)
class Delivery:
    """The verdict on the host, without accepted drafts after the end of an output.

    Attributes:
        num_new: Tokens that each row received, the target's own included; 0 if the row failed.
        lengths: Nodes that each row proposed, root included.
    """

    verdict: Verdict
    num_new: tuple[int, ...]
    lengths: tuple[int, ...]
    drafts: HostDrafts
