"""A small causal LM with a tokenizer of its own drafts for the target.

Timor et al. (arXiv 2502.05202): token-level intersection and string-level exact match.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.pairing import PairMismatchError, check_models
from specresearch.models.translation import Translation
from specresearch.models.vocabulary import Vocabulary
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers.draft_model import DraftModel
from specresearch.proposers.draft_shape import AUTO, NumDrafts
from specresearch.proposers.foretold import Foretold, Text, foretell
from specresearch.proposers.scored_chain import chance_of
from specresearch.proposers.toy_vocabularies import toy_draft, toy_vocabularies
from specresearch.proposers.transcripts import Spelled, Transcripts
from specresearch.proposers.written import Written
from specresearch.request import RequestState
from specresearch.sampling import DRAFT_STREAM, argmax
from specresearch.sampling_params import SamplingParams

MODES = ("tli", "slem", "hybrid")
IDS_PER_TOKEN = 2  # of the draft for a token of the target, for which its cache has room
LEAST_SHARE = 0.5  # of the draft's distribution on common tokens; with less, `hybrid` spells


class DraftModelOtherTokenizer(DraftModel):
    """Drafts with a draft LM whose tokenizer differs from the target's.

    Args:
        mode: tli draws from the draft's distribution on the tokens that both vocabularies have.
            slem lets the draft write text, and offers the target's tokens for it as point masses.
            hybrid is tli up to the first token for which less than half of the draft's
            distribution, or not its likeliest id, is on common tokens; from there on it is slem.
        num_draft_tokens: As in `DraftModel`, like all other settings. slem and hybrid draft chains
            only, and for so many steps of the draft.
        vocabularies: Those of target and draft; None takes them from the tokenizers.
    """

    def __init__(
        self,
        draft: CausalLM,
        mode: str = "tli",
        num_draft_tokens: NumDrafts | None = None,
        sample: bool = True,
        tree: str = "chain",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 6,
        top_k: int = 8,
        vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"proposer.mode={mode!r} is unknown; choose one of {', '.join(MODES)}")
        if mode != "tli":
            if tree not in ("chain", AUTO):
                raise ValueError(
                    f"proposer.mode={mode} drafts chains, not proposer.tree={tree}; use "
                    "proposer.tree=chain or proposer.mode=tli"
                )
            tree = "chain"
        sample = sample and mode != "slem"
        super().__init__(draft, num_draft_tokens, sample, tree, paths, depth, top_k)
        self.mode, self.vocabularies = mode, vocabularies

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "DraftModelOtherTokenizer":
        """Return a proposer with a random draft and vocabularies that fit the target's size."""
        vocabularies = toy_vocabularies(target.vocab_size)
        draft = toy_draft(target, seed)
        return cls(draft, **settings, vocabularies=vocabularies)

    @property
    def foretells(self) -> bool:
        return True

    def foretell(
        self, target: CausalLM, texts: Sequence[Text], sampling: SamplingParams
    ) -> Foretold | None:
        assert self.translation is not None
        num_drafts = self.shape.max_depth
        return foretell(target, self.draft, self.translation, texts, sampling, num_drafts)

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.vocabularies is None:
            self.vocabularies = (Vocabulary.of(target), Vocabulary.of(self.draft))
        if self.translation is None:
            self.translation = Translation(*self.vocabularies, self.draft.device)
            self._check_common()
            check_models(target, self.draft)
        self._num_columns = min(IDS_PER_TOKEN * target.max_len, self.draft.max_len)
        self.draft.allocate(num_slots, self.max_fed, max_len=self._num_columns)
        self._transcripts = Transcripts(self.translation, self.draft)
        self._spelled: dict[int, Spelled] = {}
        num_choices = target.vocab_size if self.mode == "slem" else self.translation.num_common
        self.bind_shape(num_choices, self.draft.device)

    def _check_common(self) -> None:
        """Refuse vocabularies of which nothing can be drafted."""
        assert self.translation is not None
        target, draft = self.translation.target, self.translation.draft
        if self.mode == "slem":
            fits = any(draft.bytes_of(draft.encode(piece)) == piece for piece in target.ids_of)
        else:
            fits = self.translation.has_common_text
        if not fits:
            raise PairMismatchError(
                f"the target's {target.num_tokens} tokens and the draft's {draft.num_tokens} have "
                "none in common; use a draft that writes the target's languages"
                + ("" if self.mode == "slem" else ", or proposer.mode=slem")
            )

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        self._transcripts.enter(rows)

    def reuse(self, slot: int, source: int, num_tokens: int) -> None:
        self._transcripts.reuse(slot, source)

    def _pending(self, row: RequestState) -> list[int]:
        pending = self._transcripts.pending(row)
        has_room = self._transcripts.length(row) + self.max_fed <= self._num_columns
        return pending if has_room else []

    def _propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if self.mode == "tli":
            return super()._propose(batch, budget)
        assert self.translation is not None
        written = self._write(batch, max(budget))
        proposal, spelled = written.offer(batch, budget, self.translation)
        self._spelled |= dict(zip(batch.slots, spelled, strict=True))
        return proposal

    def _write(self, batch: Batch, num_steps: int) -> Written:
        """Let the draft write, at first tokens that both models have if the mode is hybrid."""
        sampled = self.sample and not batch.sampling.all_greedy
        uniforms: Sequence[Tensor | None] = [None] * num_steps
        if sampled:
            uniforms = batch.sampling.uniforms(DRAFT_STREAM, num_steps).unbind(1)
        pending = [self._pending(row) for row in batch.rows]
        logits = self.draft.extend(batch.slots, pending).logits
        is_spelled = torch.full_like(batch.roots, self.mode == "slem", dtype=torch.bool)
        steps: list[Written] = []
        for i in range(num_steps):
            drawn = [step.tokens for step in steps]
            steps.append(self._next(batch, logits, drawn, is_spelled, uniforms[i]))
            is_spelled = steps[-1].is_spelled
            if i + 1 < num_steps:
                logits = self.draft.append(batch.slots, steps[-1].ids)
        return Written.joined(steps)

    def _next(
        self,
        batch: Batch,
        logits: Float[Tensor, "B 1 _"],
        drawn: Sequence[Int[Tensor, "B 1"]],
        is_spelled: Bool[Tensor, "B 1"],
        uniforms: Float[Tensor, " B"] | None,
    ) -> Written:
        """Choose the next id of every row; whether to spell it is decided before it is drawn."""
        ids = argmax(logits)
        chances = chance_of(logits, ids)
        if self.mode == "slem":
            return Written(ids, ids, is_spelled, chances, None)
        is_spelled = is_spelled | self._leaves_common(batch, logits, ids)
        row = self.to_target(logits, batch.vocab_size)
        tokens, q = self._choose(batch, row, drawn, uniforms)
        return Written(
            ids=torch.where(is_spelled, ids, self.to_draft(tokens)),
            tokens=tokens,
            is_spelled=is_spelled,
            chances=torch.where(is_spelled, chances, chance_of(row, tokens)),
            draft_probs=None if uniforms is None else q,
        )

    def _leaves_common(
        self, batch: Batch, logits: Float[Tensor, "B 1 _"], likeliest: Int[Tensor, "B 1"]
    ) -> Bool[Tensor, "B 1"]:
        """Return where too little of the draft's distribution is on common tokens."""
        assert self.translation is not None
        leaves = ~self.translation.is_common_id(likeliest)
        if not self.sample or batch.sampling.all_greedy:
            return leaves
        share = self.translation.common_share(logits / batch.sampling.column("divisor"))
        is_sampled = batch.sampling.column("is_sampled")[..., 0] > 0
        return torch.where(is_sampled, share < LEAST_SHARE, leaves)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Keep the draft's keys and values of what was accepted as the draft had written it."""
        for row in batch.rows:
            self._transcripts.observe(row, self._spelled.pop(row.slot, None))

    def finish(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._spelled.pop(slot, None)
        self._transcripts.leave(slots)
