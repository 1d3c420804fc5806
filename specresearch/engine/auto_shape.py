"""The shape of a proposer that left it to `auto`, where nobody has chosen one."""

import logging
from dataclasses import replace

from specresearch.models.causal_lm import CausalLM
from specresearch.proposers import Autoregressive, Proposer
from specresearch.proposers.draft_shape import FALLBACK_LENGTH, DraftShape
from specresearch.shape_store import Identity, ShapeStore

logger = logging.getLogger(__name__)


def settled(proposer: Proposer, target: CausalLM, batch_size: int) -> Proposer:
    """Return what drafts in the shape that was chosen, which is plain decoding if that was faster.

    A proposer without a choice takes the newest that is kept for these models and this machine.
    Without one it drafts a chain of `FALLBACK_LENGTH`, or as small a tree.
    """
    if proposer.shapes and proposer.chosen is None:
        proposer.bind(target, 0)
        choice = ShapeStore(Identity.of(target, proposer, batch_size)).newest()
        if choice is not None:
            choice.take_effect(proposer)
        else:
            shape = _fallback(proposer)
            proposer.draft_as(shape)
            logger.warning(
                "no measurement says how much %s should draft here, so it drafts %s; "
                "specresearch.calibrate measures it",
                type(proposer).__name__,
                shape,
            )
    chosen = proposer.chosen
    return proposer if chosen is None or chosen.num_draft_tokens else Autoregressive()


def _fallback(proposer: Proposer) -> DraftShape:
    """Return a small shape of the first kind, which is a chain if there are chains."""
    first = proposer.shapes[0]
    num_drafts = first.num_draft_tokens
    if proposer.is_num_auto:
        num_drafts = min(num_drafts, FALLBACK_LENGTH)
    return replace(first, num_draft_tokens=num_drafts)
