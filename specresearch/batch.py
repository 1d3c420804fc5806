"""The batch of one step, and what a step delivers to its requests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from specresearch.clock import Clock
from specresearch.judgement import Judgement
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
        max_width: The most nodes of a level to expand in this step, where the drafter chooses
            them; None sets no limit.
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
        max_width: int | None = None,
    ) -> None:
        self.rows = rows
        self.device = device
        self.vocab_size = vocab_size
        self.decode = decode
        self.clock = clock or Clock()
        self.formed_at = self.clock.now()
        self.slots = tuple(row.slot for row in rows)
        self.max_depth, self.max_width = max_depth, max_width
        self.budget: Sequence[int] = ()
        self._counts = counts

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def roots(self) -> Int[Tensor, "B 1"]:
        """Return the last committed token of each row."""
        return upload([[row.tokens[-1]] for row in self.rows], self.device)

    @cached_property
    def _left(self) -> tuple[int, ...]:
        """Return how many tokens each row may still get beside the one of the target's own."""
        return tuple([max(row.num_remaining - 1, 0) for row in self.rows])

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Return how many drafts each row can still use.

        One token of every step is the target's own, and no path is longer than `max_depth`.
        """
        deepest = self.max_depth
        return self._left if deepest is None else tuple([min(n, deepest) for n in self._left])

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
            self.max_width,
        )

    def limit(self, depth: int | None, width: int | None) -> None:
        """Set `max_depth`, whatever room there is, and `max_width`."""
        if depth != self.max_depth:
            self.__dict__.pop("room", None)
        self.max_depth, self.max_width = depth, width

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

        This brings the verdict and its drafts to the host, in one transfer with `readback`.

        Args:
            faults: For each row a key of `FAULTS`, which fails the row, or 0.
            readback: What else the host needs of this step.
        """
        return self.deliver(
            Judgement.of(proposal, verdict, faults),
            readback or Readback(),
            is_chain=proposal.topology.is_chain,
        )

    def deliver(
        self,
        judgement: Judgement,
        readback: Readback,
        *,
        is_chain: bool,
        faults: Mapping[int, int] | None = None,
    ) -> "Delivery":
        """Append the tokens of a judgement, as `append` does.

        Args:
            faults: Keys of `FAULTS` that the host knows of, by row; they replace what the
                judgement says of these rows.
        """
        packed = readback.add(judgement.packed)
        readback.fetch()
        columns, values = judgement.columns, packed.values.numpy()
        whole = values[:, : columns.acceptable.stop].astype(np.int64)
        scalars, path = whole[:, columns.scalars], whole[:, columns.path]
        tokens, parents = whole[:, columns.tokens], whole[:, columns.parents]
        drafts = HostDrafts(tokens, parents, whole[:, columns.acceptable] > 0, is_chain)
        num_new: list[int] = []
        now = self.clock.now()
        for b, (row, said) in enumerate(zip(self.rows, scalars.tolist(), strict=True)):
            num_drafts, next_token, _, fault = said
            fault = (faults or {}).get(b, fault)
            if fault:
                row.fail(FAULTS[fault])
                num_new.append(0)
            else:
                accepted = tokens[b, path[b, 1 : num_drafts + 1]].tolist()
                num_new.append(row.deliver([*accepted, next_token], self.decode, now))
        num_accepted = np.minimum(scalars[:, 0], num_new)
        path = np.where(np.arange(path.shape[1]) > num_accepted[:, None], -1, path)
        expected = columns.expected and packed.values[:, columns.expected].to(judgement.dtype)
        verdict = Verdict(
            torch.from_numpy(path),
            torch.from_numpy(num_accepted),
            torch.from_numpy(scalars[:, 1]),
            expected,
        )
        return Delivery(verdict, tuple(num_new), tuple(scalars[:, 2].tolist()), drafts)


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
        parts = readback.add_all(
            [proposal.token_ids, proposal.topology.parents, proposal.acceptable]
        )
        readback.fetch()
        tokens, parents, acceptable = (part.values.numpy() for part in parts)
        return HostDrafts(tokens, parents, acceptable, proposal.topology.is_chain)

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
