"""Checks that a model sees a draft tree as it sees each of the tree's paths."""

from typing import TYPE_CHECKING

import torch

from specresearch.models.hf_adapter import UnsupportedModelError
from specresearch.proposal import Proposal, Topology

if TYPE_CHECKING:
    from specresearch.models.causal_lm import CausalLM

COARSE = 0.1
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: COARSE, torch.float16: 0.05}


def check_tree_is_sequences(lm: "CausalLM") -> None:
    """Compare a branching tree with sequential passes.

    Raises:
        UnsupportedModelError: If their logits differ.
    """
    prompt = [(7 * i + 3) % lm.vocab_size for i in range(5)]
    nodes = [(11 * i + 5) % lm.vocab_size for i in range(4)]
    tree = Topology.from_parents(torch.tensor([[-1, 0, 0, 1]], device=lm.device))
    ids = torch.tensor([nodes], device=lm.device)
    length = torch.tensor([len(nodes)], device=lm.device)
    worst = 0.0
    with lm.scratch_cache(2, 16):
        lm.extend((1,), [prompt], want_logits=False)
        tree_logits = lm.forward((1,), Proposal(ids, tree, length)).logits[0]
        for node, logits in enumerate(tree_logits):
            path = [nodes[i] for i in tree.ancestors[0, node].nonzero()[:, 0].tolist()]
            lm.truncate((0,), (0,))
            expected = lm.extend((0,), [prompt + path]).logits[0, 0]
            # -inf alone is fine: it rules a token out
            if not (logits.amax().isfinite() and expected.amax().isfinite()):
                raise UnsupportedModelError(
                    f"{lm.name}: its logits are NaN or infinite; its weights are damaged, or "
                    f"overflow in {lm.dtype}: load them again, or in bfloat16 or float32"
                )
            logits = logits.masked_fill(logits.isneginf(), 0.0)
            expected = expected.masked_fill(expected.isneginf(), 0.0)
            worst = max(worst, float((logits - expected).norm() / expected.norm()))
    tolerance = TOLERANCE.get(lm.dtype, COARSE)
    if getattr(lm.model, "is_quantized", False):
        tolerance = COARSE  # kernels of 16 bits, whatever the dtype
    if not worst <= tolerance:
        raise UnsupportedModelError(
            f"{lm.name}: logits of a draft tree differ from sequential passes by {worst:.2g} of "
            "their norm, so speculation would change its output; try attention=slot, "
            "sdpa or eager, or another model"
        )
