"""The configuration of TensorRT-LLM: `speculative_config` of a YAML file."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from specresearch.reporting.flags.missing import chain_note, fixed_note, missing
from specresearch.reporting.flags.server import ServerFlags, renamed, servers
from specresearch.reporting.speculation import Speculation

NAME = "tensorrt_llm"
DECODING_TYPES = {
    "ngram": "NGram",
    "suffix": "SA",
    "draft_model": "Draft_Target",
    "eagle3": "Eagle3",
}
WITHOUT_OVERLAP = ("ngram", "draft_model")
FILE = "speculative.yaml"
EAGLE3_ONLY = "It loads EAGLE-3 heads only: train one for the same target."
UPPER_BOUNDS = (
    "The keys of draft_len_schedule are upper bounds in these versions, and lower ones in versions "
    "before. Above the last key nothing is drafted."
)
NOT_FALLING = "Its draft_len_schedule must draft most at the lowest load."
NO_N_MIN = "TensorRT-LLM's NGram has no n_min; is_public_pool: true would share what it saw."
NO_FREQUENCIES = (
    "TensorRT-LLM's suffix automaton drafts the longest match; it has no tree, factor, offset or "
    "least probability."
)
PROTOTYPE = "Rejection sampling is a prototype there, and needs FlashInfer."


def flags(speculation: Speculation) -> ServerFlags:
    """Return the command and the file that start TensorRT-LLM with this speculation."""
    server = servers()[NAME]
    if speculation.method not in DECODING_TYPES:
        return missing(server, speculation, EAGLE3_ONLY if speculation.method == "eagle" else "")
    settings: dict[str, Any] = {"speculative_config": _config(speculation)}
    if speculation.method in WITHOUT_OVERLAP:
        settings["disable_overlap_scheduler"] = True
    text = yaml.safe_dump(settings, sort_keys=False)
    command = ["trtllm-serve", speculation.target, "--config", FILE]
    return ServerFlags(server, command, {FILE: text}, list(_notes(speculation)))


def _config(speculation: Speculation) -> Mapping[str, Any]:
    options = speculation.options
    config: dict[str, Any] = {
        "decoding_type": DECODING_TYPES[speculation.method],
        "max_draft_len": speculation.length,
    }
    if speculation.draft is not None:
        config["speculative_model"] = speculation.draft
    if speculation.method == "ngram":
        config |= renamed(options, {"n_max": "max_matching_ngram_size"})
        config |= {"is_public_pool": False, "is_keep_all": True, "is_use_oldest": False}
    if speculation.method == "suffix":
        config |= renamed(options, {"use_global": "enable_global_pool"})
    if _is_dynamic(speculation):
        assert speculation.tree is not None
        config |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": speculation.tree.top_k}
        config["max_total_draft_tokens"] = speculation.tree.num_nodes
    if speculation.samples_drafts:
        config["use_rejection_sampling"] = True
    if speculation.has_one_length:
        config["max_concurrency"] = speculation.off_above
    elif _has_schedule(speculation):
        drafting = [stage for stage in speculation.stages if stage.length]
        config["draft_len_schedule"] = {stage.most_requests: stage.length for stage in drafting}
    return config


def _is_dynamic(speculation: Speculation) -> bool:
    is_tree = speculation.tree is not None and speculation.tree.is_dynamic
    return is_tree and speculation.method == "eagle3"


def _has_schedule(speculation: Speculation) -> bool:
    """Return whether the lowest load drafts most, as the schedule demands."""
    return bool(speculation.stages) and speculation.stages[0].length == speculation.length


def _notes(speculation: Speculation) -> Iterator[str]:
    if speculation.method == "ngram":
        yield NO_N_MIN
    if speculation.method == "suffix":
        yield NO_FREQUENCIES
    elif speculation.tree is not None and not _is_dynamic(speculation):
        yield chain_note(servers()[NAME], speculation)
    if speculation.samples_drafts:
        yield PROTOTYPE
    if _has_schedule(speculation) and not speculation.has_one_length:
        yield UPPER_BOUNDS
    elif speculation.stages and not speculation.has_one_length:
        yield f"{fixed_note(servers()[NAME], speculation)} {NOT_FALLING}"
