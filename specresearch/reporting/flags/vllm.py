"""The flags of vLLM: one JSON, `--speculative-config`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specresearch.reporting.flags.missing import chain_note, fixed_note, missing
from specresearch.reporting.flags.server import ServerFlags, renamed, servers
from specresearch.reporting.speculation import Speculation

NAME = "vllm"
OTHER_TOKENIZER = "draft_model_other_tokenizer"
METHODS = {name: name for name in ("ngram", "suffix", "draft_model", "eagle", "eagle3")} | {
    OTHER_TOKENIZER: "draft_model"
}
NGRAM_SETTINGS = {"n_max": "prompt_lookup_max", "n_min": "prompt_lookup_min"}
SUFFIX_SETTINGS = {
    "max_depth": "suffix_decoding_max_tree_depth",
    "max_factor": "suffix_decoding_max_spec_factor",
    "min_probability": "suffix_decoding_min_token_prob",
}
NEEDS_ARCTIC = "Suffix decoding needs `pip install arctic-inference==0.1.1`."
NO_BRANCHES = "vLLM's suffix decoding drafts no trees and has no offset."
NO_DATA_PARALLEL = "vLLM ignores num_speculative_tokens_per_batch_size with data parallelism."
NO_MIN_P = "Model Runner V1 ignores min_p (and logit_bias) while it speculates."
SAME_VOCABULARY = (
    "Draft and target must have vocabularies of one size, and run with the same tensor parallelism."
)


BY_IDS = (
    "vLLM drafts greedily among the tokens that both vocabularies have. Measure that first: "
    "proposer.mode=tli proposer.sample=false."
)


def flags(speculation: Speculation) -> ServerFlags:
    """Return the command that starts vLLM with this speculation."""
    server = servers()[NAME]
    if speculation.method not in METHODS:
        return missing(server, speculation)
    config = json.dumps(_config(speculation))
    command = ["vllm", "serve", speculation.target, "--speculative-config", config]
    return ServerFlags(server, command, notes=list(_notes(speculation)))


def _config(speculation: Speculation) -> Mapping[str, Any]:
    config: dict[str, Any] = {"method": METHODS[speculation.method]}
    if speculation.draft is not None:
        config["model"] = speculation.draft
    config["num_speculative_tokens"] = speculation.length
    options = speculation.options
    if speculation.method == "ngram":
        config |= renamed(options, NGRAM_SETTINGS)
    if speculation.method == "suffix":
        config |= renamed(options, SUFFIX_SETTINGS)
        if not options.get("use_global"):
            config["suffix_decoding_max_cached_requests"] = 0
    if speculation.method == OTHER_TOKENIZER:
        config["use_heterogeneous_vocab"] = True
    elif speculation.samples_drafts:
        config["draft_sample_method"] = "probabilistic"
        if speculation.rule == "block":
            config["rejection_sample_method"] = "block"
    if speculation.stages and speculation.method != "suffix":
        config["num_speculative_tokens_per_batch_size"] = schedule(speculation)
    return config


def schedule(speculation: Speculation) -> list[list[int]]:
    """Return [first, last, length] for each stretch of numbers of running requests."""
    first, rows = 1, []
    for stage in speculation.stages:
        rows.append([first, stage.most_requests, stage.length])
        first = stage.most_requests + 1
    return rows


def _notes(speculation: Speculation) -> Iterator[str]:
    if speculation.tree is not None and speculation.method != "suffix":
        yield chain_note(servers()[NAME], speculation)
    if speculation.method == "suffix":
        yield NEEDS_ARCTIC
        yield NO_BRANCHES
        if speculation.stages:
            yield fixed_note(servers()[NAME], speculation)
    elif speculation.stages:
        yield NO_DATA_PARALLEL
    if speculation.method == OTHER_TOKENIZER:
        yield BY_IDS
    if speculation.method == "draft_model":
        yield SAME_VOCABULARY
    if "min_p" in speculation.sampling:
        yield NO_MIN_P
