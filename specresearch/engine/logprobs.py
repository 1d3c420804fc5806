"""Log-probabilities of delivered tokens, for requests that ask for them."""

from collections.abc import Callable, Sequence
from itertools import islice

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance import node_rows
from specresearch.batch import Batch
from specresearch.judgement import Judgement
from specresearch.proposal import Proposal, upload
from specresearch.readback import Readback
from specresearch.request import TokenLogprob


def read_logprobs(
    batch: Batch,
    proposal: Proposal,
    logits: Float[Tensor, "B N V"],
    judgement: Judgement,
    readback: Readback,
) -> Callable[[Sequence[int]], None] | None:
    """Add to a readback what the requests ask for, if any does.

    The token after node i of the path was predicted by that node.

    Returns:
        A function to call once it is fetched: it takes the number of tokens that each row received,
        and appends their log-probabilities to the rows.
    """
    wanted = [row.request.sampling.logprobs for row in batch.rows]
    asking = [b for b, num_top in enumerate(wanted) if num_top is not None]
    if not asking:
        return None
    index, verdict = upload(asking, logits.device), judgement.verdict
    path, num_accepted = verdict.path[index].clamp(min=0), verdict.num_accepted[index, None]
    accepted = proposal.token_ids[index].gather(1, path)[:, 1:]
    tokens = F.pad(accepted, (0, 1)).scatter(1, num_accepted, verdict.next_token[index, None])
    log_probs = node_rows(logits[index], path).float().log_softmax(-1)
    own = log_probs.gather(2, tokens[:, :, None])[:, :, 0]
    top = log_probs.topk(max(num_top or 0 for num_top in wanted))
    columns = readback.add_all([own, top.values, top.indices])

    def record(num_new: Sequence[int]) -> None:
        values = (column.values.tolist() for column in columns)
        for b, row_own, row_top, row_ids in zip(asking, *values, strict=True):
            row = batch.rows[b]
            for own, top, ids in islice(zip(row_own, row_top, row_ids, strict=True), num_new[b]):
                pairs = zip(ids, top, strict=True)
                likeliest = tuple(islice(pairs, wanted[b]))
                row.logprobs.append(TokenLogprob(own, likeliest))

    return record
