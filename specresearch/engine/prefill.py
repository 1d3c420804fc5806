"""Prefill: prompts go into the target's cache, in chunks that the scheduler chooses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specresearch.batch import Batch
from specresearch.clock import Clock, Lap
from specresearch.metrics.times import DRAFT_PREFILL, LAZY_PREFILL, PREFILL
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposers import Proposer
from specresearch.request import RequestState


@dataclass(frozen=True)
class PrefillChunk:
    """The next tokens of a request to prefill.

    Attributes:
        num_tokens: Tokens of the chunk. The root is one of them, although it is verification that
            caches it: a chunk that ends there is the last, and its request decodes in that step.
    """

    row: RequestState
    num_tokens: int
    is_last: bool

    @property
    def num_cached(self) -> int:
        return self.num_tokens - self.is_last


@dataclass
class PrefillCounts:
    """Tokens that the target prefilled, and tokens that the proposer prefilled lazily."""

    num_tokens: int = 0
    num_lazy_tokens: int = 0


class Prefill:
    """Caches all of a request's tokens but the last, then starts the request with the proposer."""

    def __init__(self, target: CausalLM, proposer: Proposer, clock: Clock) -> None:
        self.target = target
        self.proposer = proposer
        self.clock = clock
        self._counts = PrefillCounts()
        self._untimed: list[tuple[Lap, list[RequestState]]] = []
        # The hidden states of each chunk so far, by slot: a tensor [n, H] for every layer.
        self._hidden: dict[int, list[tuple[Tensor, ...]]] = {}

    def run(self, chunks: Sequence[PrefillChunk]) -> None:
        """Prefill all chunks in one pass."""
        if not chunks:
            return
        with self.clock.lap(PREFILL) as lap:
            self._copy_prefixes(chunks)
            self._extend(chunks)
            complete = [chunk.row for chunk in chunks if chunk.is_last]
            if complete:
                with self.clock.lap(DRAFT_PREFILL):
                    self.proposer.start(complete, self._output(complete))
        for chunk in chunks:
            chunk.row.is_prefilled = chunk.is_last
        self._untimed.append((lap, [chunk.row for chunk in chunks]))
        self._counts.num_tokens += sum(chunk.num_cached for chunk in chunks)

    def run_lazily(self, batch: Batch, budget: Sequence[int]) -> list[int]:
        """Let the proposer prefill what it had put off, for the rows that are about to draft.

        Returns:
            The budget without that of rows that could not be prefilled whole.
        """
        rows = [row for row, allowed in zip(batch.rows, budget, strict=True) if allowed > 0]
        if not rows:
            return list(budget)
        with self.clock.lap(LAZY_PREFILL) as lap:
            num_tokens = self.proposer.lazy_prefill(rows)
        if num_tokens == 0:
            self.clock.discard(lap)
        self._counts.num_lazy_tokens += num_tokens
        behind = {row.slot for row in rows if self.proposer.is_behind(row)}
        return [
            0 if slot in behind else allowed
            for slot, allowed in zip(batch.slots, budget, strict=True)
        ]

    def pop_counts(self) -> PrefillCounts:
        """Return what was prefilled since the last call, and bring the rows' times up to date."""
        untimed: list[tuple[Lap, list[RequestState]]] = []
        for lap, rows in self._untimed:
            if lap.is_done:
                for row in rows:
                    row.prefill_time += lap.seconds
            else:
                untimed.append((lap, rows))
        self._untimed = untimed
        counts, self._counts = self._counts, PrefillCounts()
        return counts

    def forget_counts(self) -> None:
        """Drop what the next `pop_counts` would return."""
        self._untimed.clear()
        self._counts = PrefillCounts()

    def release(self, slots: Sequence[int]) -> None:
        """Drop the hidden states of slots that are free again."""
        for slot in slots:
            self._hidden.pop(slot, None)

    def _copy_prefixes(self, chunks: Sequence[PrefillChunk]) -> None:
        """Copy what admitted rows reuse, in order of admission: a slot may be given away again."""
        for row in (chunk.row for chunk in chunks):
            source, row.reused_from = row.reused_from, None
            if source is None:
                continue
            if source != row.slot:
                self.target.cache.copy(source, row.slot, row.num_reused)
            self.proposer.reuse(row.slot, source, row.num_reused)

    def _extend(self, chunks: Sequence[PrefillChunk]) -> None:
        slots, tokens = [], []
        for chunk in chunks:
            slot = chunk.row.slot
            begin = self.target.lengths[slot]
            if begin == chunk.row.num_reused:
                self._hidden[slot] = []
            slots.append(slot)
            tokens.append(chunk.row.tokens[begin : begin + chunk.num_cached])
        if not any(tokens):
            return
        layers = self.proposer.hidden_layers
        output = self.target.extend(slots, tokens, want_logits=False, hidden_layers=layers)
        for b, (slot, new) in enumerate(zip(slots, tokens, strict=True)):
            self._hidden[slot].append(tuple(layer[b, : len(new)] for layer in output.hidden))

    def _output(self, rows: Sequence[RequestState]) -> ModelOutput | None:
        """Return the hidden states of these requests' prefill, right-padded, or None if empty."""
        chunks_of_rows = [self._hidden.pop(row.slot) for row in rows]
        if not any(len(row.tokens) > row.num_reused + 1 for row in rows):
            return None
        first_chunk = next(chunks[0] for chunks in chunks_of_rows if chunks)
        hidden = []
        for k, layer in enumerate(first_chunk):
            parts = [_joined([c[k] for c in chunks], layer) for chunks in chunks_of_rows]
            is_one = len(parts) == 1
            hidden.append(parts[0][None] if is_one else pad_sequence(parts, batch_first=True))
        shape = (len(rows), 0, self.target.vocab_size)
        logits = torch.empty(shape, dtype=self.target.dtype, device=self.target.device)
        return ModelOutput(logits, tuple(hidden))


def _joined(chunks: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the states of a prompt [n, H], which may have had no chunk that needed a pass.

    Those of a single chunk are not copied, so they hold the whole tensor of its pass.
    """
    return chunks[0] if len(chunks) == 1 else torch.cat([like[:0], *chunks])
