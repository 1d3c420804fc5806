"""Does a model see a tree of drafts as it sees each of its paths? Asked of every model before it verifies anything."""

from typing import TYPE_CHECKING

import torch

from specresearch.models.hf_adapter import UnsupportedModelError
from specresearch.proposal import Proposal, Topology

if TYPE_CHECKING:
    from specresearch.models.causal_lm import CausalLM

COARSE = 0.1
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: COARSE, torch.float16: 0.05}


def check_tree_is_sequences(lm: "CausalLM") -> None:
    """Compare a branching tree with sequential passes; raises UnsupportedModelError where they differ."""
    prompt = [(7 * i + 3) % lm.vocab_size for i in range(5)]
    nodes = [(11 * i + 5) % lm.vocab_size for i in range(4)]
    tree = Topology.from_parents(torch.tensor([[-1, 0, 0, 1]], device=lm.device))
    ids, length = (
        torch.tensor([nodes], device=lm.device),
        torch.tensor([len(nodes)], device=lm.device),
    )
    worst = 0.0
    with lm.scratch_cache(2, 16):
        lm.extend((1,), [prompt], want_logits=False)
        together = lm.forward((1,), Proposal(ids, tree, length)).logits[0]
        for node in range(len(nodes)):
            path = [nodes[i] for i in tree.ancestors[0, node].nonzero()[:, 0].tolist()]
            lm.truncate((0,), (0,))
            alone = lm.extend((0,), [prompt + path]).logits[0, 0]
            if not (
                together[node].amax().isfinite() and alone.amax().isfinite()
            ):  # -inf rules a token out
                raise UnsupportedModelError(
                    f"{lm.name}: its logits are NaN or infinite; its weights are damaged, or overflow in {lm.dtype}: "
                    "load them again, or in bfloat16 or float32"
                )
            ours, right = (row.masked_fill(row.isneginf(), 0.0) for row in (together[node], alone))
            worst = max(worst, float((ours - right).norm() / right.norm()))
    is_quantized = getattr(
        lm.model, "is_quantized", False
    )  # kernels of 16 bits, whatever the dtype
    if not worst <= (COARSE if is_quantized else TOLERANCE.get(lm.dtype, COARSE)):
        raise UnsupportedModelError(
            f"{lm.name}: logits of a draft tree differ from sequential passes by {worst:.2g} of their norm, so speculation "
            "would change its output; try attention=sdpa or attention=eager, or another model"
        )
