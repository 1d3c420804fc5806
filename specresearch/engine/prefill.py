"""Prompts are read into the target's cache, piece by piece."""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import add

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposers import Proposer


@dataclass(frozen=True)
class Chunk:
    """The next `num_tokens` tokens of a request to be read. The root is one of them, though verification reads it: a chunk
    that ends there is the last, and its request decodes in the same step.
    """

    row: RequestState
    num_tokens: int
    is_last: bool

    @property
    def num_cached(self) -> int:
        return self.num_tokens - self.is_last


@dataclass(frozen=True)
class Reading:
    """seconds: of all reading. num_tokens: of prompts that the target cached. catch_up_seconds, num_caught_up: the proposer's
    part of it, in which it read tokens that it had put off. draft_seconds: all of the proposer's part."""

    seconds: float = 0.0
    num_tokens: int = 0
    catch_up_seconds: float = 0.0
    num_caught_up: int = 0
    draft_seconds: float = 0.0

    def __add__(self, other: "Reading") -> "Reading":
        return Reading(*map(add, astuple(self), astuple(other)))


class Prefill:
    """Caches all of a request's tokens but the last, and tells the proposer once they all are."""

    def __init__(self, target: CausalLM, proposer: Proposer) -> None:
        self.target, self.proposer = target, proposer
        self._spent = Reading()
        self._hidden: dict[
            int, list[tuple[Tensor, ...]]
        ] = {}  # by slot, for each chunk: [n, H] of every layer

    def feed(self, chunks: Sequence[Chunk]) -> None:
        """One pass over all chunks."""
        if not chunks:
            return
        begin = time.perf_counter()
        self._read(chunks)
        ending = [chunk.row for chunk in chunks if chunk.is_last]
        read = self._since(begin)
        if ending:
            self.proposer.start(ending, self._output(ending))
        seconds = self._since(begin)
        for chunk in chunks:
            chunk.row.prefill_time += seconds
            chunk.row.is_prefilled = chunk.is_last
        num_cached = sum(chunk.num_cached for chunk in chunks)
        self._spent += Reading(seconds, num_cached, draft_seconds=seconds - read)

    def catch_up(self, batch: Batch, budget: Sequence[int]) -> bool:
        """The proposer reads what it has put off of the rows that are to draft. Whether there was anything."""
        begin = time.perf_counter()
        rows = [row for row, allowed in zip(batch.rows, budget, strict=True) if allowed > 0]
        num_tokens = self.proposer.catch_up(rows) if rows else 0
        if num_tokens:
            seconds = self._since(begin)
            self._spent += Reading(seconds, 0, seconds, num_tokens, seconds)
        return num_tokens > 0

    def _since(self, begin: float) -> float:
        """Seconds until the device is done."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter() - begin

    def _read(self, chunks: Sequence[Chunk]) -> None:
        slots = [chunk.row.slot for chunk in chunks]
        known = [self.target.lengths[slot] for slot in slots]
        tokens = [
            c.row.tokens[begin : begin + c.num_cached]
            for c, begin in zip(chunks, known, strict=True)
        ]
        self._hidden |= {slot: [] for slot, begin in zip(slots, known, strict=True) if begin == 0}
        if not any(tokens):
            return
        layers = self.proposer.hidden_layers
        output = self.target.extend(slots, tokens, want_logits=False, hidden_layers=layers)
        for b, (slot, new) in enumerate(zip(slots, tokens, strict=True)):
            self._hidden[slot].append(tuple(layer[b, : len(new)] for layer in output.hidden))

    def _output(self, rows: Sequence[RequestState]) -> ModelOutput | None:
        """Hidden states of everything that was read of these requests, right-padded; None where nothing was."""
        parts = [self._hidden.pop(row.slot) for row in rows]
        if not any(len(row.tokens) > 1 for row in rows):
            return None
        nothing = [layer[:0] for layer in next(chunks[0] for chunks in parts if chunks)]
        hidden = tuple(
            pad_sequence(
                [torch.cat([empty, *(chunk[k] for chunk in chunks)]) for chunks in parts],
                batch_first=True,
            )
            for k, empty in enumerate(nothing)
        )
        logits = torch.empty(
            (len(rows), 0, self.target.vocab_size),
            dtype=self.target.dtype,
            device=self.target.device,
        )
        return ModelOutput(logits, hidden)

    def forget(self, slots: Sequence[int]) -> None:
        """These slots are free again."""
        for slot in slots:
            self._hidden.pop(slot, None)

    def take(self) -> Reading:
        """What was read since the last call."""
        taken, self._spent = self._spent, Reading()
        return taken
