"""What a text that the target wrote foretells of a draft with another tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.models.causal_lm import CausalLM
from specresearch.models.translation import Translation
from specresearch.proposal import Proposal, upload
from specresearch.sampling import SamplingBatch, logits_to_probs
from specresearch.sampling_params import SamplingParams


@dataclass(frozen=True)
class Text:
    """A prompt, and how the target continued it."""

    prompt: Sequence[int]
    output: Sequence[int]


@dataclass(frozen=True)
class Foretold:
    """How the vocabularies and distributions of a pair agree on texts of the target.

    Attributes:
        num_common: Tokens of the target that are among the draft's.
        num_target: All tokens of the target.
        num_draft: All tokens of the draft.
        num_tokens: Tokens of the texts.
        share_outside: Share of these that are not common.
        acceptance: Mean probability that a common token that was drafted at one of them is
            accepted: the sum of min(p, q), greedily whether both have the same likeliest token.
        num_drafts: The longest chain.
        tokens_per_step: Mean tokens of a step with that chain, the target's own included.
    """

    num_common: int
    num_target: int
    num_draft: int
    num_tokens: int
    share_outside: float
    acceptance: float
    num_drafts: int
    tokens_per_step: float

    def __str__(self) -> str:
        return (
            f"{self.num_common:,} of the target's {self.num_target:,} tokens are among the draft's "
            f"{self.num_draft:,}; of {self.num_tokens} tokens that the target wrote, "
            f"{self.share_outside:.0%} are not; foretold acceptance of common tokens "
            f"{self.acceptance:.2f}, {self.tokens_per_step:.2f} tokens a step with "
            f"{self.num_drafts} drafts"
        )


@torch.inference_mode()
def foretell(
    target: CausalLM,
    draft: CausalLM,
    translation: Translation,
    texts: Sequence[Text],
    sampling: SamplingParams,
    num_drafts: int,
) -> Foretold:
    """Let both models predict the texts, token by token. Neither may hold a request."""
    batch = SamplingBatch([sampling], seeds=[0], positions=[0], device=target.device)
    outside: list[bool] = []
    overlaps: list[Tensor] = []
    for text in texts:
        rows = [_after(target, text.prompt, [[token] for token in text.output])]
        spellings = [translation.spelling(token) for token in text.output]
        q_logits = _after(draft, translation.read(text.prompt), spellings)
        rows.append(translation.to_target(q_logits).to(target.device))
        p, q = (logits_to_probs(row, batch) for row in rows)
        overlaps.append(torch.minimum(p, q).sum(-1)[0].double().cpu())
        outside += [not translation.is_common(token) for token in text.output]
    return Foretold(
        num_common=translation.num_common,
        num_target=translation.target.num_tokens,
        num_draft=translation.draft.num_tokens,
        num_tokens=len(outside),
        share_outside=sum(outside) / len(outside),
        acceptance=float(torch.cat(overlaps).mean()),
        num_drafts=num_drafts,
        tokens_per_step=1 + float(torch.cat([_runs(row, num_drafts) for row in overlaps]).mean()),
    )


def _after(
    lm: CausalLM, prompt: Sequence[int], pieces: Sequence[Sequence[int]]
) -> Float[Tensor, "1 N V"]:
    """Return the logits before each of the pieces that follow a prompt."""
    chain = [prompt[-1]]
    rows = []
    for piece in pieces:
        rows.append(len(chain) - 1)
        chain += piece
    chain = chain[: rows[-1] + 1]
    with lm.scratch_cache(1, len(prompt) + len(chain)):
        if len(prompt) > 1:
            lm.extend((0,), [prompt[:-1]], want_logits=False)
        nodes = upload([chain], lm.device)
        length = upload([len(chain)], lm.device)
        logits = lm.forward((0,), Proposal.chain(nodes, length)).logits
    return logits[:, upload(rows, lm.device)]


def _runs(overlaps: Float[Tensor, " N"], num_drafts: int) -> Float[Tensor, " N"]:
    """Return how many drafts are accepted on average that begin at each token."""
    total = torch.zeros_like(overlaps)
    chance = torch.ones_like(overlaps)
    for ahead in range(min(num_drafts, len(overlaps))):
        later = torch.zeros_like(overlaps)
        later[: len(overlaps) - ahead] = overlaps[ahead:]
        chance = chance * later
        total += chance
    return total
