"""Log-probabilities of delivered tokens, for requests that ask for them."""

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.batch import Batch, Delivery
from specresearch.proposal import upload
from specresearch.request import TokenLogprob


def record_logprobs(batch: Batch, logits: Float[Tensor, "B N V"], delivery: Delivery) -> None:
    """Append the log-probabilities of the delivered tokens to their rows.

    Token i was predicted by node i of the accepted path.
    """
    for b, row in enumerate(batch.rows):
        num_top, num_new = row.request.sampling.logprobs, delivery.num_new[b]
        if num_top is None or num_new == 0:
            continue
        nodes = delivery.verdict.path[b, :num_new].to(logits.device, non_blocking=True)
        tokens = upload(row.newest(num_new), logits.device)[:, None]
        log_probs = logits[b, nodes].float().log_softmax(-1)
        values, ids = log_probs.topk(num_top)
        columns = [log_probs.gather(1, tokens), values, ids.double()]
        for logprob, *top in torch.cat(columns, dim=1).tolist():  # sync
            top_ids = map(int, top[num_top:])
            pairs = zip(top_ids, top[:num_top], strict=True)
            row.logprobs.append(TokenLogprob(logprob, tuple(pairs)))
