"""How well a draft foretells a target on given text, token by token, without decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM


@torch.inference_mode()
def logits_on(
    model: CausalLM, prompt: Sequence[int], continuation: Sequence[int]
) -> Float[Tensor, "T V"]:
    """Return the logits that judge each token of a continuation, from one pass."""
    last = model.vocab_size - 1
    token_ids = [min(token, last) for token in (*prompt, *continuation)]
    row = torch.tensor([token_ids], device=model.device)
    states = model.forward_whole(row, (FINAL_NORM,)).hidden[0]
    return model.readout(states[0, len(prompt) - 1 : -1])


def acceptance(
    target: Float[Tensor, "T V"], draft: Float[Tensor, "T W"], temperature: float
) -> list[float]:
    """Return the probability that a draft for each token is accepted.

    That is the sum of min(p, q) over the vocabulary (Leviathan et al., arXiv 2211.17192); at
    temperature 0, 1 where both models prefer the same token.
    """
    if temperature == 0:
        return (target.argmax(-1) == draft.argmax(-1)).double().tolist()
    shared = min(target.shape[-1], draft.shape[-1])
    p, q = (softmax(logits, temperature)[:, :shared] for logits in (target, draft))
    return torch.minimum(p, q).sum(-1).double().clamp(max=1.0).tolist()


@dataclass(frozen=True)
class TargetDivergence:
    """How far a quantised model is from the full one: means over tokens.

    Attributes:
        kl: KL(full || quantised) in nats.
        tv: Total variation.
        agreement: Share of tokens at which both prefer the same.
    """

    kl: float
    tv: float
    agreement: float


def divergence(full: Float[Tensor, "T V"], quantised: Float[Tensor, "T V"]) -> TargetDivergence:
    """Compare two models at temperature 1."""
    log_p, log_q = (logits.float().log_softmax(-1) for logits in (full, quantised))
    p = log_p.exp()
    kl = (p * (log_p - log_q)).nan_to_num(0.0).sum(-1)  # 0 x infinity, where p is 0
    tv = (p - log_q.exp()).abs().sum(-1) / 2
    agreement = (full.argmax(-1) == quantised.argmax(-1)).float()
    kl_mean, tv_mean, agreed = (float(values.mean()) for values in (kl, tv, agreement))
    return TargetDivergence(kl_mean, tv_mean, agreed)


def foretold_tokens(accepted: Sequence[float], num_drafts: int) -> tuple[float, int]:
    """Return the expected tokens of steps with chains, summed over all starts, and their number.

    A step that begins at token t yields 1 + b_t + b_t b_(t+1) + ...: no tokens are assumed to be
    accepted independently of where they stand. Starts with fewer than `num_drafts` tokens behind
    them are left out.
    """
    total = 0.0
    starts = range(len(accepted) - num_drafts + 1)
    for start in starts:
        reached = 1.0
        total += 1.0
        for chance in accepted[start : start + num_drafts]:
            reached *= chance
            total += reached
    return total, len(starts)


def softmax(logits: Float[Tensor, "T V"], temperature: float) -> Float[Tensor, "T V"]:
    """Return probabilities, at least in float32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (wide / temperature).softmax(-1)
