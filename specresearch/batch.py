"""The batch of one step, and what a step delivers to its requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.clock import Clock
from specresearch.proposal import Proposal, Verdict, upload
from specresearch.request import RequestState
from specresearch.sampling import SamplingBatch

TARGET_FAULT, DRAFTER_FAULT = 1, 2
FAULTS = {
    TARGET_FAULT: "the target's logits are NaN or infinite; check its weights and its dtype "
    "(float16 overflows where bfloat16 and float32 do not)",
    DRAFTER_FAULT: "the drafter's probabilities are NaN or infinite; check its weights and "
    "its dtype",
}


class Batch:
    """The rows of one step, with their tokens as tensors.

    Attributes:
        formed_at: When the batch was formed, on the clock.
    """

    def __init__(
        self,
        rows: Sequence[RequestState],
        device: torch.device,
        vocab_size: int,
        decode: Callable[[list[int]], str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.rows = rows
        self.device = device
        self.vocab_size = vocab_size
        self.decode = decode
        self.clock = clock or Clock()
        self.formed_at = self.clock.now()
        self.slots = tuple(row.slot for row in rows)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def roots(self) -> Int[Tensor, "B 1"]:
        """Return the last committed token of each row."""
        return upload([[row.tokens[-1]] for row in self.rows], self.device)

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Return how many drafts each row can still use.

        One token of every step is the target's own.
        """
        return tuple([max(row.num_remaining - 1, 0) for row in self.rows])

    @cached_property
    def sampling(self) -> SamplingBatch:
        """Return the rows' sampling settings and the state of their draws."""
        params = [row.request.sampling for row in self.rows]
        prompt_counts = output_counts = None
        if any(param.has_penalty for param in params):
            prompts: list[list[int]] = [[] for _ in params]
            outputs: list[list[int]] = [[] for _ in params]
            for b, row in enumerate(self.rows):
                if params[b].has_penalty:
                    prompts[b] = row.tokens[: row.num_prompt_tokens]
                    outputs[b] = row.output_ids
            prompt_counts, output_counts = self._counts(prompts), self._counts(outputs)
        return SamplingBatch(
            params=params,
            seeds=[row.seed for row in self.rows],
            positions=[row.num_generated for row in self.rows],
            device=self.device,
            prompt_counts=prompt_counts,
            output_counts=output_counts,
        )

    def _counts(self, tokens: Sequence[list[int]]) -> Int[Tensor, "B V"]:
        """Count the occurrences of every token in each row."""
        row = np.repeat(np.arange(len(tokens)), [len(part) for part in tokens])
        flat = np.fromiter(chain.from_iterable(tokens), np.int64, len(row))
        num_bins = len(tokens) * self.vocab_size
        counts = np.bincount(row * self.vocab_size + flat, minlength=num_bins)
        return upload(counts.reshape(len(tokens), self.vocab_size), self.device)

    def append(
        self, proposal: Proposal, verdict: Verdict, faults: Int[Tensor, " B"] | None = None
    ) -> "Delivery":
        """Append accepted and new tokens, cut at end tokens, stop strings and limits.

        This brings the verdict to the host.

        Args:
            faults: For each row a key of `FAULTS`, which fails the row, or 0.
        """
        width = verdict.path.shape[1]
        packed, expected = _to_host(proposal, verdict, faults)
        num_new: list[int] = []
        now = self.clock.now()
        for row, values in zip(self.rows, packed.tolist(), strict=True):
            num_drafts, next_token, _, fault, *path_and_tokens = values
            drafts = path_and_tokens[width + 1 :]  # the path's first token is the root
            if fault:
                row.fail(FAULTS[fault])
                num_new.append(0)
            else:
                tokens = [*drafts[:num_drafts], next_token]
                num_new.append(row.deliver(tokens, self.decode, now))
        num_accepted = packed[:, 0].clamp_(max=torch.tensor(num_new))
        is_cut_off = torch.arange(width) > num_accepted[:, None]
        path = packed[:, 4 : 4 + width].masked_fill_(is_cut_off, -1)
        on_host = Verdict(path, num_accepted, packed[:, 1], expected)
        return Delivery(on_host, tuple(num_new), tuple(packed[:, 2].tolist()))


def _to_host(
    proposal: Proposal, verdict: Verdict, faults: Int[Tensor, " B"] | None
) -> tuple[Int[Tensor, "B W"], Float[Tensor, "B D"] | None]:
    """Return everything that the host needs of a verdict, in one transfer.

    Columns: number accepted, next token, number of nodes, fault, the path, and its tokens.
    """
    tokens = proposal.token_ids.gather(1, verdict.path.clamp(min=0))
    faults = torch.zeros_like(verdict.num_accepted) if faults is None else faults
    scalars = [verdict.num_accepted, verdict.next_token, proposal.lengths, faults]
    packed = torch.cat([torch.stack(scalars, dim=1), verdict.path, tokens], dim=1)
    if verdict.expected is None:
        return packed.cpu(), None  # sync
    # Doubles hold every token id exactly.
    both = torch.cat([packed.double(), verdict.expected.double()], dim=1).cpu()  # sync
    num_columns = packed.shape[1]
    return both[:, :num_columns].long(), both[:, num_columns:]


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
