"""The rules of a decision, as the page states them."""

RULES = {
    "interval of a speedup": "95% for all settings and loads of a decision together (Bonferroni): "
    "the best of many settings looks faster than it is, and so each is held to 5% / (settings x "
    "loads measured). Other workloads and kinds of load are decisions of their own. Runs of one "
    "setting at one load are pooled; those of the same prompts do not make it narrower",
    "faster": "the whole interval of the speedup lies above the least speedup that is worth it (1 "
    "unless set otherwise), or includes it and a limit is kept that plain decoding breaks",
    "slower": "the whole interval lies below it, or a limit is broken that plain decoding keeps, "
    "or the output is wrong",
    "cannot tell": "anything else: the interval includes it, too little was measured for an "
    "interval, or a limit that plain decoding keeps may be broken",
    "overloaded": "requests came faster than a side answered them. What each side can do, its "
    "throughput, is compared there, and not the latencies of the requests that got through; limits "
    "count only where one of the sides keeps up",
    "turn it on": "faster at one load at least, slower at none, and measured with more than one "
    "request at a time",
    "turn it on up to a load": "as above, but slower from some load on; what lies between the last "
    "load at which it is faster and the first at which it is slower is where it crosses over",
    "turn it on at some loads": "faster at some loads and slower at others, in no order that one "
    "bound describes",
    "measure under load": "faster for one request at a time and measured at nothing else, or no "
    "load at which one can tell",
    "turn it off": "slower somewhere and faster nowhere, or its output is wrong",
    "the setting recommended": "of all measured at most loads, the one whose largest loss against "
    "the best choice at any of them, plain decoding included, is smallest; one that breaks a "
    "limit, changes the output, or falls behind where plain decoding does not, is worth nothing "
    "there",
}
