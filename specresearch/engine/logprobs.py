"""How probable the target held what was delivered, for requests that ask."""

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.batch import Batch, Delivery
from specresearch.proposal import upload
from specresearch.request import TokenLogprob


def record_logprobs(batch: Batch, logits: Float[Tensor, "B N V"], delivery: Delivery) -> None:
    """log p of the delivered tokens, into their rows: token i was predicted by node i of the accepted path."""
    for b, row in enumerate(batch.rows):
        num_top, num_new = row.request.sampling.logprobs, delivery.num_new[b]
        if num_top is None or num_new == 0:
            continue
        nodes = delivery.verdict.path[b, :num_new].to(logits.device, non_blocking=True)
        tokens = upload(row.newest(num_new), logits.device)[:, None]
        log_probs = logits[b, nodes].float().log_softmax(-1)
        values, ids = log_probs.topk(num_top)
        table = torch.cat(
            [log_probs.gather(1, tokens), values, ids.double()], dim=1
        ).tolist()  # sync
        for own, *rest in table:
            top = zip(map(int, rest[num_top:]), rest[:num_top], strict=True)
            row.logprobs.append(TokenLogprob(own, tuple(top)))
