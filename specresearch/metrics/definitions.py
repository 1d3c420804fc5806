"""The standard name of every figure, with the definition that results and reports print."""

DEFINITIONS = {
    "num_drafts": "verify steps in which a request had at least one draft token",
    "num_target_forwards": "verify steps of a request, prefill excluded",
    "num_draft_tokens": "draft tokens verified (in a tree, every node but the root)",
    "num_unjudged_tokens": "draft tokens verified that could not be accepted, because the output "
    "ended before them: they come after a drafted end token, or after the token at which a limit "
    "or a stop string ended the output",
    "num_accepted_tokens": "accepted draft tokens; bonus and recovered tokens not included",
    "draft_acceptance_rate": "accepted / (draft tokens - unjudged ones); a tree's rate is not "
    "comparable with a chain's",
    "mean_acceptance_length": "1 + accepted / num_drafts",
    "tokens_per_target_forward": "generated tokens / target forwards of the request, prefill "
    "excluded",
    "acceptance_at_position": "probability that a draft is accepted down to depth i "
    "(unconditional): product of the conditional rates up to i (Kaplan and Meier 1958), so that "
    "shorter drafts count as far as they go; it equals accepted at depth i / num_drafts if all "
    "drafts are equally long and no output ends inside one",
    "conditional_acceptance_at_position": "accepted at depth i / drafts with depth i-1 accepted "
    "and a token judged at depth i",
    "expected_acceptance": "sum over the vocabulary of min(p, q), averaged over the drafts whose "
    "predecessors were accepted",
    "output_tv": "total variation between the distribution of a generated token under a lossy rule "
    "and the target's after the same tokens, averaged over generated tokens; at position i, over "
    "the drafts that reached depth i",
    "output_kl": "KL divergence of the first of these two distributions from the second, in nats, "
    "averaged in the same way; null where it is infinite, because the rule emits tokens that the "
    "target never would",
    "num_infinite_kl": "generated tokens at which output_kl is infinite",
    "refused_rate": "expected share of accepted drafts that rejection sampling would have rejected",
    "ttft": "seconds from a request's arrival to its first token, queueing included",
    "tpot": "(last token - first token) / (tokens - 1) of a request, seconds",
    "itl": "seconds between consecutive tokens as delivered; speculation delivers in bursts",
    "e2el": "seconds from a request's arrival to its last token",
    "queue_time": "seconds from a request's arrival to when it first got a slot of the cache; part "
    "of ttft",
    "num_preemptions": "times a request was preempted for lack of cache room; its prompt and its "
    "output so far are prefilled again",
    "num_reused_tokens": "tokens of a request that were in the cache when it was admitted, left by "
    "an earlier one, so that they were not prefilled",
    "speedup": "baseline wall time / method wall time, same prompts, interleaved in one run",
    "decode_speedup": "speedup without any prefill, neither the target's nor the drafter's",
    "draft_prefill_speedup": "speedup without the target's prefill: the drafter's prefill counts, "
    "which plain decoding does not need",
    "ideal_speedup": "tau x t_forward(1) / (t_propose + t_forward(N)) from this run's own measured "
    "times",
    "efficiency": "decode speedup / ideal speedup: what the host and bookkeeping leave",
    "host_overhead": "1 - (propose + verify time) / decode wall time",
    "cost_ratio": "t_propose per draft token of the longest draft in the batch / t_forward(1)",
}
