"""What a folder's settings and provenance say of the workload, the load and the policy."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specresearch.reporting.workload import BATCH, CONCURRENCY, FIXED, Load, Policy, Workload
from specresearch.rows import FIXED as FIXED_SIDE
from specresearch.rows import METHOD

SAMPLING = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}  # defaults
NAMED_ELSEWHERE = ("_target_", "draft", "num_draft_tokens")  # keys of a proposer
NO_SETTINGS = ("_target_", "trace_every")  # keys of a controller that decide nothing


def section(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a section of the settings; empty if it is left out or null."""
    value: Any = config
    for key in keys:
        value = value.get(key) or {}
    return value


def class_name(part: Mapping[str, Any]) -> str:
    """Return the name of the class that a section of the settings constructs, or ""."""
    return str(part.get("_target_", "")).rpartition(".")[2]


def workload_of(config: Mapping[str, Any], provenance: Mapping[str, Any]) -> Workload:
    """Return what was decoded; the requests of a load test may be of several classes."""
    target, machine = provenance["target"], provenance["machine"]
    sampling, classes = section(config, "sampling"), list(section(config, "classes"))
    words = [f"temperature {sampling['temperature']:g}"]
    for name, default in SAMPLING.items():
        if sampling.get(name, default) != default:
            words.append(f"{name} {sampling[name]}")
    size = f"{target['num_parameters'] / 1e6:,.1f}M parameters, {target['dtype']}"
    device = machine["device"]
    num_threads = machine.get("num_torch_threads")
    if target.get("device") == "cpu" and num_threads:
        device += f", {num_threads} thread{'' if num_threads == 1 else 's'}"
    dataset = provenance.get("dataset") or config["dataset"]
    workload = Workload(
        data=dataset["name"],
        sampling=", ".join(words),
        max_new_tokens=sampling.get("max_new_tokens"),
        max_prompt_tokens=section(config, "dataset").get("max_prompt_tokens"),
        target=f"{target['model']} ({size})",
        machine=device,
    )
    if len(classes) < 2:
        return workload
    return replace(
        workload, data=f"mix of {' and '.join(classes)}", sampling="temperature by class"
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
    """Return the settings of a side, which may be a variant of the controller."""
    controller = section(config, "controller") | section(config, "variants", side)
    return {**config, "controller": controller}


def policy_of(
    config: Mapping[str, Any],
    method: Mapping[str, Any],
    side: str,
    controller: str | None = None,
) -> Policy:
    """Return how a side drafts.

    Args:
        method: Name of the method, and the most drafts that it makes in a step.
        controller: The controller's name; None to take it from its class.
    """
    length = fixed_length(side)
    if length is not None:
        return Policy(method["name"], FIXED, length)
    own = config_of(config, side)
    has_own_class = "_target_" in section(config, "variants", side)
    if controller is None or has_own_class:
        controller = controller_of(own)
    if controller == FIXED:
        length = section(own, "controller").get("num_draft_tokens") or method["num_draft_tokens"]
    return Policy(method["name"], controller, length, "" if side == METHOD else side)


def fixed_length(side: str) -> int | None:
    """Return the draft length of a side such as `fixed-3`."""
    length = re.fullmatch(rf"{FIXED_SIDE}(\d+)", side)
    return int(length[1]) if length else None


def controller_of(config: Mapping[str, Any]) -> str:
    """Return a controller's name in the settings, such as `batch_size_cutoff`."""
    name = class_name(section(config, "controller")) or "Fixed"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def distinguishing_settings(
    config: Mapping[str, Any], policy: Policy, num_draft_tokens: int
) -> dict[str, Any]:
    """Return the settings that may differ between policies with the same label.

    Args:
        num_draft_tokens: The most drafts of a step, which the label of a fixed length names.
    """
    proposer = section(config, "proposer")
    settings = {key: value for key, value in proposer.items() if key not in NAMED_ELSEWHERE}
    draft = section(proposer, "draft").get("model")
    settings |= {"draft": draft} if draft else {}
    rule = class_name(section(config, "acceptance"))
    settings |= {"rule": rule.lower()} if rule else {}
    if policy.is_fixed:
        return settings
    settings["num_draft_tokens"] = num_draft_tokens
    for key, value in section(config, "controller").items():
        if key not in NO_SETTINGS:
            settings[f"controller.{key}"] = value
    return settings
