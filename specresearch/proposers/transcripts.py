"""What a draft model with a tokenizer of its own has read of every request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from specresearch.models.slot_model import SlotModel
from specresearch.models.translation import Translation
from specresearch.proposers.kept_columns import KeptColumns
from specresearch.request import RequestState

Unit: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Spelled:
    """Drafts that the draft model wrote in ids of its own.

    Attributes:
        fed: The draft's ids since the root, whether or not the last one is cached.
        units: The shortest stretches that both tokenizers end at the same byte, from the root on:
            the target's tokens, and the draft's ids for them.
    """

    fed: Sequence[int]
    units: Sequence[Unit]


@dataclass
class _Transcript:
    """The draft's ids of a request's tokens, which only grow.

    Attributes:
        num_tokens: The request's tokens that `ids` stand for.
    """

    ids: list[int]
    num_tokens: int


@dataclass
class Transcripts:
    """Keeps the draft's ids of every running request, and how many of them are cached.

    A prompt is read as the draft's tokenizer splits its text. Each later token appends ids of its
    own, so what is cached stays valid however the text goes on.
    """

    translation: Translation
    model: SlotModel
    columns: KeptColumns = field(init=False)
    _of: dict[int, _Transcript] = field(default_factory=dict, init=False)
    _kept: dict[int, list[int]] = field(default_factory=dict, init=False)  # ids of old columns

    def __post_init__(self) -> None:
        self.columns = KeptColumns(self.model)

    def enter(self, rows: Sequence[RequestState]) -> None:
        """Begin the transcripts of new requests, on the columns that are kept for them."""
        for row in rows:
            ids = self.translation.read(row.tokens[: row.num_prompt_tokens])
            self._of[row.slot] = _Transcript(ids, row.num_prompt_tokens)
            self._append(self._of[row.slot], row.tokens)
            kept = self._kept.pop(row.slot, []) if row.num_reused else []
            self.columns.fill(row.slot, min(_num_equal(kept, ids), len(ids) - 1))

    def reuse(self, slot: int, source: int) -> None:
        """Take over the columns of another request with the same first tokens."""
        transcript = self._of.get(source)
        ids = self._kept.get(source, []) if transcript is None else transcript.ids
        num_columns = min(len(ids), self.columns.length(source))
        self.columns.reuse(slot, source, num_columns)
        self._kept[slot] = ids[:num_columns]

    def leave(self, slots: Sequence[int]) -> None:
        for slot in slots:
            transcript = self._of.pop(slot, None)
            self._kept[slot] = [] if transcript is None else transcript.ids
        self.columns.leave(slots)

    def pending(self, row: RequestState) -> list[int]:
        """Return the ids of a row that the cache does not hold, of which there is at least one."""
        transcript = self._of[row.slot]
        self._append(transcript, row.tokens)
        return transcript.ids[self.model.lengths[row.slot] :]

    def length(self, row: RequestState) -> int:
        """Return the number of ids of a row."""
        return len(self._of[row.slot].ids)

    def observe(self, row: RequestState, spelled: Spelled | None) -> None:
        """Append what a step has added to a row, and keep the columns that agree with it.

        Args:
            spelled: The drafts, unless all of them were tokens that both models have.
        """
        transcript, slot = self._of[row.slot], row.slot
        begin, new = len(transcript.ids), row.tokens[transcript.num_tokens :]
        if spelled is None:
            fed: Sequence[int] = [self.translation.fed_for(token) for token in new[:-1]]
        else:
            fed = spelled.fed
        self._append(transcript, row.tokens, spelled)
        num_cached = begin + _num_equal(fed, transcript.ids[begin:])
        num_cached = min(num_cached, len(transcript.ids) - 1, self.model.lengths[slot])
        self.model.truncate([slot], [num_cached])

    def _append(
        self, transcript: _Transcript, tokens: Sequence[int], spelled: Spelled | None = None
    ) -> None:
        """Append tokens as the draft has spelled them, and others one by one."""
        for unit, ids in spelled.units if spelled else ():
            end = transcript.num_tokens + len(unit)
            if tuple(tokens[transcript.num_tokens : end]) != unit:
                break
            transcript.ids += ids
            transcript.num_tokens = end
        for token in tokens[transcript.num_tokens :]:
            transcript.ids += self.translation.spelling(token)
        transcript.num_tokens = len(tokens)


def _num_equal(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many first ids are the same."""
    num = 0
    for one, other in zip(ids, others, strict=False):
        if one != other:
            break
        num += 1
    return num
