"""The workload, the load and the setting of a folder, from its configuration and provenance."""

import re
from collections.abc import Mapping
from typing import Any

from specresearch.bench.formatting import describe_target
from specresearch.reporting.workload import (
    BATCH,
    CONCURRENCY,
    FIXED,
    Load,
    Setting,
    WorkloadKey,
)
from specresearch.results.caveats import caveats_of
from specresearch.rows import FIXED as FIXED_SIDE
from specresearch.rows import METHOD

CHAIN = "chain"
SAMPLING = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}  # defaults
NAMED_ELSEWHERE = ("_target_", "draft", "num_draft_tokens")  # keys of a proposer
NO_SETTINGS = ("_target_", "trace_every")  # keys of a controller that decide nothing


def section(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a section of the configuration; empty if it is left out or null."""
    value: Any = config
    for key in keys:
        value = value.get(key) or {}
    return value


def class_name(part: Mapping[str, Any]) -> str:
    """Return the name of the class that a section of the configuration constructs, or ""."""
    return str(part.get("_target_", "")).rpartition(".")[2]


def workload_of(config: Mapping[str, Any], provenance: Mapping[str, Any]) -> WorkloadKey:
    """Return what was decoded; the requests of a load test may be of several classes."""
    target, machine = provenance["target"], provenance["machine"]
    sampling, classes = section(config, "sampling"), list(section(config, "classes"))
    words = [f"temperature {sampling['temperature']:g}"]
    for name, default in SAMPLING.items():
        if sampling.get(name, default) != default:
            words.append(f"{name} {sampling[name]}")
    device = f"the server at {target['url']}" if target.get("url") else machine["device"]
    num_threads = machine.get("num_torch_threads")
    # Threads decide how fast a CPU is, and nothing on a GPU.
    if target.get("device") == "cpu" and num_threads:
        device += f", {num_threads} thread{'' if num_threads == 1 else 's'}"
    dataset = provenance.get("dataset") or config["dataset"]
    is_mixed = len(classes) > 1
    return WorkloadKey(
        data=f"mix of {' and '.join(classes)}" if is_mixed else dataset["name"],
        sampling="temperature by class" if is_mixed else ", ".join(words),
        max_new_tokens=sampling.get("max_new_tokens"),
        max_prompt_tokens=section(config, "dataset").get("max_prompt_tokens"),
        target=describe_target(target),
        machine=device,
        num_parameters=target["num_parameters"],
        is_greedy=not is_mixed and sampling["temperature"] == 0,
        caveats=", ".join(caveats_of(config)),
    )


def load_of(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Load:
    """Return the load of a run, or of a load test, whose summary describes its arrivals."""
    if "arrivals" not in summary:
        return Load(BATCH, float(config["batch_size"]))
    if summary.get("concurrency"):
        return Load(CONCURRENCY, float(summary["concurrency"]))
    spread = f", cv {summary['cv']:g}" if summary.get("cv") else ""
    return Load(f"{summary['arrivals']}{spread}", float(summary["qps"]))


def config_of(config: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Return the configuration of a side, which may be a variant of the controller."""
    controller = section(config, "controller") | section(config, "variants", side)
    return {**config, "controller": controller}


def setting_of(
    config: Mapping[str, Any],
    method: Mapping[str, Any],
    side: str,
    controller: str | None,
) -> Setting:
    """Return how a side drafts.

    Args:
        method: Name of the method, and the most drafts that it makes in a step.
        controller: The controller's name; None to take it from its class.
    """
    shape = draft_shape(resolved_proposer(config, method), branches=method.get("trees", False))
    length = fixed_length(side)
    if length is not None:
        return Setting(method["name"], FIXED, length, shape)
    settings = section(config_of(config, side), "controller")
    if controller is None or "_target_" in section(config, "variants", side):
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", class_name(settings) or "Fixed")
        controller = words.lower()  # such as batch_size_cutoff for BatchSizeCutoff
    if controller == FIXED:
        length = settings.get("num_draft_tokens") or method["num_draft_tokens"]
    return Setting(
        method["name"],
        controller,
        length,
        shape,
        variant="" if side == METHOD else side,
    )


def resolved_proposer(config: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the proposer, with the shape of drafts that `auto` stands for."""
    chosen = (method.get("shape") or {}).get("shape") or {}
    known = {key: value for key, value in chosen.items() if value is not None}
    return section(config, "proposer") | known


def draft_shape(proposer: Mapping[str, Any], *, branches: bool) -> str:
    """Return the name of the drafts' tree, or "" for a chain.

    Args:
        branches: Whether the method declared that it drafts trees; folders of earlier versions do
            not say.
    """
    tree = proposer.get("tree", CHAIN)
    if tree != CHAIN:
        return f"{tree} tree"
    return "tree" if branches else ""


def fixed_length(side: str) -> int | None:
    """Return the draft length of a side such as `fixed-3`."""
    length = re.fullmatch(rf"{FIXED_SIDE}(\d+)", side)
    return int(length[1]) if length else None


def distinguishing_details(
    config: Mapping[str, Any], setting: Setting, method: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what may differ between settings with the same label.

    Args:
        method: Name of the method, and the most drafts that it makes in a step, which the label of
            a fixed length names.
    """
    proposer = resolved_proposer(config, method)
    details = _own_details(proposer)
    drafter = section(proposer, "drafter")
    if drafter:
        details["drafter"] = class_name(drafter)
        details |= {f"drafter.{key}": value for key, value in _own_details(drafter).items()}
    rule = class_name(section(config, "acceptance"))
    if rule:
        details["rule"] = rule.lower()
    if setting.is_fixed:
        return details
    details["num_draft_tokens"] = method["num_draft_tokens"]
    for key, value in section(config, "controller").items():
        if key not in NO_SETTINGS:
            details[f"controller.{key}"] = value
    return details


def _own_details(proposer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a proposer, and the name of its draft model."""
    details = {key: value for key, value in proposer.items() if key not in NAMED_ELSEWHERE}
    draft = section(proposer, "draft").get("model")
    return details | {"draft": draft} if draft else details
