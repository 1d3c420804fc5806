"""Turns what a draft wrote in its own ids into tokens of the target: string-level exact match.

Timor et al. (arXiv 2502.05202).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.models.translation import Translation
from specresearch.proposers.transcripts import Unit

NUM_BEFORE = 8  # tokens before a draft that decide, with it, where the target's tokens end


@dataclass(frozen=True)
class SpelledDrafts:
    """Drafts in tokens of the target.

    Attributes:
        scores: The draft's probability of each: of all its ids that begin in the token.
        units: As in `Spelled`.
    """

    tokens: list[int]
    scores: list[float]
    units: list[Unit]


def spell_drafts(
    translation: Translation,
    before: Sequence[int],
    ids: Sequence[int],
    chances: Sequence[float],
) -> SpelledDrafts:
    """Return the target's tokens for the bytes of the draft's ids, up to a special one.

    The tokens are those of the text with what stands before it, unless that would change tokens
    that are committed already. An end token of the draft ends the drafts by the target's own.

    Args:
        before: The committed tokens, and drafts after them.
        chances: The draft's probability of each id.
    """
    target, draft = translation.target, translation.draft
    written = []
    for id in ids:
        if draft.pieces[id] is None:
            break
        written.append(id)
    data = draft.bytes_of(written)
    tokens = _encode_after(translation, before, data)
    units = _units(translation, tokens, written)
    scores = _scores(translation, tokens, written, chances)
    end = translation.end_for(ids[len(written)]) if len(written) < len(ids) else None
    if end is not None and target.bytes_of(tokens) == data:
        tokens.append(end)
        scores.append(chances[len(written)])
        units.append(((end,), (ids[len(written)],)))
    return SpelledDrafts(tokens, scores, units)


def _encode_after(translation: Translation, before: Sequence[int], data: bytes) -> list[int]:
    target = translation.target
    tail: list[int] = []
    for token in reversed(before[-NUM_BEFORE:]):
        if target.pieces[token] is None:
            break
        tail.insert(0, token)
    ids = target.encode(target.bytes_of(tail) + data)
    if ids[: len(tail)] == tail:
        return ids[len(tail) :]
    return target.encode(data)


def _units(translation: Translation, tokens: Sequence[int], ids: Sequence[int]) -> list[Unit]:
    """Return the shortest stretches of both that end at the same byte."""
    units: list[Unit] = []
    rest = iter(ids)
    unit: list[int] = []
    spelled: list[int] = []
    ahead = 0  # bytes of the tokens beyond those of the ids
    for token in tokens:
        unit.append(token)
        ahead += len(translation.target.pieces[token] or b"")
        while ahead > 0:
            id = next(rest, None)
            if id is None:
                return units
            spelled.append(id)
            ahead -= len(translation.draft.pieces[id] or b"")
        if ahead == 0:
            units.append((tuple(unit), tuple(spelled)))
            unit, spelled = [], []
    return units


def _scores(
    translation: Translation, tokens: Sequence[int], ids: Sequence[int], chances: Sequence[float]
) -> list[float]:
    scores = []
    begins = []  # of every id, in bytes
    position = 0
    for id in ids:
        begins.append(position)
        position += len(translation.draft.pieces[id] or b"")
    begin = 0
    for token in tokens:
        end = begin + len(translation.target.pieces[token] or b"")
        score = 1.0
        for first, chance in zip(begins, chances, strict=False):
            if begin <= first < end:
                score *= chance
        scores.append(score)
        begin = end
    return scores
