"""What the figures of a load test mean, as results.json repeats it."""

from specresearch.bench.memory_use import MEMORY_DEFINITIONS
from specresearch.bench.output_check import SCORE_DEFINITIONS
from specresearch.loadtest.side import MIN_ANSWERED
from specresearch.loadtest.window import NUM_BLOCKS, RULE
from specresearch.metrics import DEFINITIONS
from specresearch.statistics import (
    INTERVALS,
    LEAST_UNITS,
    PERCENTILE_INTERVALS,
    SERIES_INTERVALS,
)

LOAD_DEFINITIONS = DEFINITIONS | {
    "window": RULE,
    "throughput": "generated tokens per second of the windows of all passes",
    "request_throughput": "requests finished per second of the windows",
    "goodput": "the part of request_throughput that met limits.ttft and limits.tpot",
    "speedup": "throughput of the method / throughput of plain decoding, in passes side by side. "
    "It is 1 for open arrivals that both can serve: compare latencies then",
    "speedup_over_best": "throughput of the method / throughput of the better of plain decoding "
    "and best_fixed",
    "speedup_best_fixed, speedup_worst_fixed": "the highest and the lowest throughput of a fixed "
    "length / plain decoding's",
    "speedup_NAME, speedup_over_best_NAME": "speedup and speedup_over_best of a side of "
    "`variants`, by its name",
    "best_fixed": "the fixed draft length of `compare` with the highest throughput, known in "
    "hindsight only",
    "tpot_p99_ratio": "99th percentile of tpot, a ratio of times: method / plain decoding, below 1 "
    "is faster; other *_ratio likewise",
    "comparisons.*.gain": "speedup of a side, above 1 is faster: throughput / plain decoding's, "
    "or, with basis latency (open arrivals that both can serve), plain decoding's mean e2el / the "
    "side's, over the requests that both answered",
    "acceptance_p10": "10th percentile of a request's draft acceptance rate",
    "mean_draft_length": "draft tokens per target forward of a request, requests without drafts "
    "included",
    "waiting_*, running_mean": "requests, averaged over the time of the windows; waiting_max over "
    "whole passes",
    "schedule_share": "seconds of the scheduler / seconds of steps, prefill included",
    "overloaded": "requests arrived faster than they were answered: a pass was stopped with a "
    f"growing queue; or, with open arrivals, less than {MIN_ANSWERED:.0%} of all requests were "
    "answered by the last arrival, requests were waiting throughout the last third of the window, "
    "and more in its second half than in its first",
    "too_short": "open arrivals with a window shorter than a median request takes after it has "
    "left the queue: the run never reached steady state",
    "class_signature": "classes whose median tpot is better than plain decoding's and whose 99th "
    "percentile is worse, both with their whole interval",
    "class_unclear": "classes with too few requests to tell: no interval of the 99th percentile, "
    "or one that contains 1",
    "num_failed": "requests that a server did not answer to their end: failures.jsonl has them",
    "unpaired": "why a speedup compares times that lie apart; null if one session measured all "
    "sides of a repeat",
    **SCORE_DEFINITIONS,
    "memory_start, memory_end, memory_peak": "resident bytes of this process at the beginning of "
    "the first pass, at the end of the last one, and at most; passes.jsonl has them about once a "
    "second",
    **MEMORY_DEFINITIONS,
    "intervals": f"{INTERVALS}; none from fewer than {LEAST_UNITS} units. Acceptance: over "
    "requests, all repeats of one together. Rates and their ratios: over stretches of time, each "
    f"1/{NUM_BLOCKS} of a window or, if a pass has fewer requests to count, as many as these, "
    "paired with the same stretch of the compared side and added up over repeats; "
    f"{SERIES_INTERVALS}. Latencies: {PERCENTILE_INTERVALS}; over stretches of the workload "
    "likewise. ITL: none",
}
