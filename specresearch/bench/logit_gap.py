"""The gap between the target's two likeliest tokens, in units of rounding."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.models import CausalLM

SHAPES = ((1, 1), (1, 5), (1, 11), (2, 1), (2, 11))  # requests and nodes of a pass
TAIL = 24  # tokens
MAX_ROUNDINGS = 4  # a gap within so many of the largest change seen is a tie
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class LogitGap:
    """The gap between the target's two likeliest tokens at some position.

    Attributes:
        scale: The largest logit there.
        is_rounding: The gap is so small that another order of summation may swap the two tokens.
        rounding: By how much such a gap changes with the shape of the pass, if that was measured.
    """

    gap: float
    scale: float
    dtype: str
    is_rounding: bool
    rounding: float | None = None

    @staticmethod
    def after(
        target: CausalLM, token_ids: Sequence[int], rounding: float | None = None
    ) -> "LogitGap":
        """Return the gap after these tokens.

        Args:
            rounding: As measured; by default what is usual for the data type decides.
        """
        slot = target.acquire()
        assert slot is not None
        try:
            logits = target.extend([slot], [list(token_ids)]).logits[0, 0].double()
        finally:
            target.release(slot)
        first, second = logits.topk(2).values.tolist()
        scale = float(logits.abs().max())
        if rounding is None:
            limit = ROUNDING.get(target.dtype, 3e-2) * scale
        else:
            limit = MAX_ROUNDINGS * max(rounding, torch.finfo(target.dtype).eps * scale)
        gap = first - second
        dtype = str(target.dtype).removeprefix("torch.")
        return LogitGap(gap, scale, dtype, gap <= limit, rounding)

    def __str__(self) -> str:
        text = f"the target's two best logits are {self.gap:.2g} apart there"
        if self.rounding is None:
            cause = "more than rounding explains"
            return f"{text}, {f'within {self.dtype} rounding' if self.is_rounding else cause}"
        units = self.gap / self.rounding if self.rounding else math.inf
        cause = "a tie" if self.is_rounding else "NOT A TIE: an error"
        return (
            f"{text}, {units:.2g} times what the shape of a pass changes in {self.dtype}: {cause}"
        )


@torch.inference_mode()
def measure_rounding(target: CausalLM, contexts: Iterable[Sequence[int]]) -> float:
    """Return the most that the gap between the two likeliest tokens changes with a pass's shape.

    The end of every context is fed one token at a time, several at a time, and beside a second
    request if there is a slot for one.
    """
    worst = 0.0
    for context in contexts:
        slots = [slot for slot in (target.acquire(), target.acquire()) if slot is not None]
        tail = min(TAIL, len(context) - 1)
        logits = []
        try:
            target.extend(slots, [list(context[:-tail])] * len(slots), want_logits=False)
            for num_requests, num_nodes in SHAPES:
                if num_requests <= len(slots):
                    used = slots[:num_requests]
                    logits.append(_logits_after(target, used, context[-tail:], num_nodes))
        finally:
            for slot in slots:
                target.release(slot)
        first, second = logits[0].topk(2).indices
        gaps = torch.stack([row[first] - row[second] for row in logits])
        worst = max(worst, float(gaps.max() - gaps.min()))
    return worst


def _logits_after(
    target: CausalLM, slots: Sequence[int], tokens: Sequence[int], num_nodes: int
) -> Float[Tensor, " V"]:
    """Return the logits after tokens fed `num_nodes` at a time; the slots stay as they were."""
    lengths = [target.lengths[slot] for slot in slots]
    logits = torch.empty(0)
    for begin in range(0, len(tokens), num_nodes):
        chunk = list(tokens[begin : begin + num_nodes])
        logits = target.extend(slots, [chunk] * len(slots)).logits
    target.truncate(slots, lengths)
    return logits[0, 0].double()
