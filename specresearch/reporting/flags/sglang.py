"""The flags of SGLang: `--speculative-*`, and a file that says how load decides."""

import json
from collections.abc import Iterator

from specresearch.reporting.flags.missing import chain_note, fixed_note, missing
from specresearch.reporting.flags.server import ServerFlags, servers
from specresearch.reporting.speculation import Speculation

NAME = "sglang"
ALGORITHMS = {
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
}
HEADS = ("eagle", "eagle3")
FILE = "speculative.json"
MOST_RUNNING = (
    "With speculation SGLang runs at most 48 requests at a time unless --max-running-requests says "
    "otherwise."
)
SHARED_TRIE = (
    "SGLang's NGRAM keeps one trie of what all requests generated, matches up to 18 tokens "
    "(--speculative-ngram-max-trie-depth), and has no n_min."
)
ROUNDED_UP = (
    "SGLang rounds the number of running requests up to a captured CUDA graph before it looks at "
    "these bounds."
)
POINT_MASSES = (
    "{} drafts the likeliest tokens, not sampled ones: exact as well, but another acceptance than "
    "was measured. Compare proposer.sample=false."
)
WHOLE_VOCABULARY = (
    "If the head drafts from the whole vocabulary, {} samples its drafts; SGLang refuses that for "
    "heads with a vocabulary of their own."
)
NO_SUFFIX = "Closest is NGRAM, whose trie holds what all requests generated."


def flags(speculation: Speculation) -> ServerFlags:
    """Return the command that starts SGLang with this speculation."""
    server = servers()[NAME]
    if speculation.method not in ALGORITHMS:
        return missing(server, speculation, NO_SUFFIX if speculation.method == "suffix" else "")
    command = ["python", "-m", "sglang.launch_server", "--model-path", speculation.target]
    command += ["--speculative-algorithm", ALGORITHMS[speculation.method]]
    if speculation.draft is not None:
        command += ["--speculative-draft-model-path", speculation.draft]
    command += _shape(speculation)
    files = {}
    if _switches(speculation):
        files[FILE] = adaptive_config(speculation)
        command += ["--speculative-adaptive", "--speculative-adaptive-config", FILE]
    if speculation.samples_drafts and speculation.method == "eagle":
        command.append(_verification(speculation))
    return ServerFlags(server, command, files, list(_notes(speculation)))


def _shape(speculation: Speculation) -> list[str]:
    """Return the flags for the shape of drafts; SGLang counts the root as a draft token."""
    if speculation.method == "ngram":
        num_tokens = str(speculation.length + 1)
        breadth = ["--speculative-ngram-max-bfs-breadth", "1"]
        return ["--speculative-num-draft-tokens", num_tokens, *breadth]
    top_k, num_nodes = 1, speculation.length
    if speculation.tree is not None and speculation.tree.is_dynamic:
        top_k, num_nodes = speculation.tree.top_k, speculation.tree.num_nodes
    shape = {"num-steps": speculation.length, "eagle-topk": top_k}
    words = []
    for name, number in {**shape, "num-draft-tokens": num_nodes + 1}.items():
        words += [f"--speculative-{name}", str(number)]
    return words


def _verification(speculation: Speculation) -> str:
    """Return the flag that samples drafts."""
    is_block = speculation.rule == "block"
    return f"--speculative-use-{'block-verification' if is_block else 'rejection-sampling'}"


def _switches(speculation: Speculation) -> bool:
    is_head = speculation.method in HEADS
    return bool(speculation.stages) and is_head and speculation.tree is None


def adaptive_config(speculation: Speculation) -> str:
    """Return the steps from each number of running requests on, one choice each."""
    first, slots = 1, {}
    for stage in speculation.stages:
        slots[str(first)] = {"candidate_steps": [stage.length]}
        first = stage.most_requests + 1
    return json.dumps(slots)


def _notes(speculation: Speculation) -> Iterator[str]:
    if speculation.tree is not None and not speculation.tree.is_dynamic:
        yield chain_note(servers()[NAME], speculation)
    if speculation.method == "ngram":
        yield SHARED_TRIE
    if speculation.samples_drafts and speculation.method != "eagle":
        yield POINT_MASSES.format(ALGORITHMS[speculation.method])
        if speculation.method == "eagle3":
            yield WHOLE_VOCABULARY.format(_verification(speculation))
    if _switches(speculation):
        yield ROUNDED_UP
    elif speculation.stages:
        yield fixed_note(servers()[NAME], speculation)
    yield MOST_RUNNING
