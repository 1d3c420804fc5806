"""What two vocabularies have in common, and how text of one reads in the other."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.models.vocabulary import Vocabulary
from specresearch.topology import upload


class Translation:
    """Pairs tokens of target and draft that have the same bytes or the same role.

    Args:
        target: The vocabulary of which drafts are made.
        draft: The vocabulary that the draft model predicts.
        device: Where the draft's logits are.

    Attributes:
        num_common: Tokens of the target that the draft can predict.
        has_common_text: Whether one of them is no special token.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary, device: torch.device) -> None:
        self.target, self.draft = target, draft
        partners = _partners(target, draft)
        self.num_common = len(partners)
        self.has_common_text = any(target.pieces[token] is not None for token in partners)
        self._partner = {token: ids[0] for token, ids in partners.items()}
        self._common = upload([*self._partner], device, torch.long)
        self._ids = upload([*self._partner.values()], device, torch.long)
        self._further = []
        for rank in range(1, max(map(len, partners.values()), default=1)):
            pairs = [(token, ids[rank]) for token, ids in partners.items() if len(ids) > rank]
            self._further.append(upload(pairs, device, torch.long).unbind(1))
        to_draft = [0] * len(target.pieces)
        for token, id in self._partner.items():
            to_draft[token] = id
        self._to_draft = upload(to_draft, device, torch.long)
        self._ends = {
            id: token for token in reversed(target.ends) for id in partners.get(token, ())
        }
        used = {id for ids in partners.values() for id in ids}
        self._used = upload(sorted(used), device, torch.long)
        is_used = [id in used for id in range(len(draft.pieces))]
        self._is_used = upload(is_used, device, torch.bool)
        self._spellings: dict[int, list[int]] = {}

    def to_target(self, logits: Float[Tensor, "B M _"]) -> Float[Tensor, "B M V"]:
        """Return logits over the target's vocabulary: tokens that are not common get -inf.

        Their softmax is the draft's distribution on the common tokens, renormalised. If several
        ids of the draft stand for one token, it gets the probability of all of them.
        """
        shape = (*logits.shape[:2], len(self.target.pieces))
        row = logits.new_full(shape, float("-inf"))
        row[..., self._common] = logits[..., self._ids]
        for tokens, ids in self._further:
            row[..., tokens] = torch.logaddexp(row[..., tokens], logits[..., ids])
        return row

    def to_draft(self, tokens: Int[Tensor, "B M"]) -> Int[Tensor, "B M"]:
        """Return the draft's id for common tokens, and any id for others."""
        return self._to_draft[tokens]

    def end_for(self, id: int) -> int | None:
        """Return the target's end token for an end token of the draft; None for other ids."""
        return self._ends.get(id)

    def is_common_id(self, ids: Int[Tensor, "B M"]) -> Bool[Tensor, "B M"]:
        """Return which ids of the draft stand for common tokens."""
        return self._is_used[ids]

    def common_share(self, logits: Float[Tensor, "B 1 _"]) -> Float[Tensor, "B 1"]:
        """Return the draft's probability of all ids that stand for common tokens."""
        return (logits[..., self._used].logsumexp(-1) - logits.logsumexp(-1)).exp()

    def is_common(self, token: int) -> bool:
        return token in self._partner

    def fed_for(self, token: int) -> int:
        """Return the id of `to_draft` on the host."""
        return self._partner.get(token, 0)

    def spelling(self, token: int) -> list[int]:
        """Return the draft's ids for one token of the target, whatever stands beside it."""
        if token not in self._spellings:
            self._spellings[token] = self._spell(token)
        return self._spellings[token]

    def _spell(self, token: int) -> list[int]:
        if token in self._partner:
            return [self._partner[token]]
        if token in self.target.silent:
            return []
        text = self.target.specials.get(token)
        data = self.target.pieces[token] if text is None else text.encode()
        same = self.draft.ids_of.get(data or b"")
        return list(same[:1]) if same else self.draft.spell(data or b"")

    def read(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft's ids for a text, which is split as the draft's tokenizer does it.

        Special tokens keep their place. There is at least one id, and the draft's start token comes
        first if it begins its texts with one.
        """
        start = self.draft.start
        ids = [] if start is None else [start]
        if self.target.start is not None and tokens[0] == self.target.start:
            tokens = tokens[1:]
        stretch = b""
        for token in tokens:
            piece = self.target.pieces[token]
            if piece is None:
                ids += [*self.draft.spell(stretch), *self.spelling(token)]
                stretch = b""
            else:
                stretch += piece
        ids += self.draft.spell(stretch)
        return ids or [self.draft.unknown or 0]


def _partners(target: Vocabulary, draft: Vocabulary) -> dict[int, tuple[int, ...]]:
    """Return the draft's ids for each common token, the one to feed first.

    Of several tokens with the same bytes only the target's own choice is common.
    """
    partners = {}
    for piece, tokens in target.ids_of.items():
        same = draft.ids_of.get(piece)
        if same is not None:
            partners[tokens[0]] = same
    by_text = {text: id for id, text in draft.specials.items() if id not in draft.silent}
    for token, text in target.specials.items():
        if text in by_text and token not in target.silent:
            partners[token] = (by_text[text],)
    for token in target.ends:
        first = partners.get(token, ())
        if draft.ends and token < len(target.pieces):
            partners[token] = tuple(dict.fromkeys([*first, *draft.ends]))
    return dict(sorted(partners.items()))
