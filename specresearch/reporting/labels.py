"""Labels: settings and workloads that would be called the same get names that tell them apart."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from specresearch.reporting.comparisons import Comparison, Trace
from specresearch.reporting.workload import Policy, Workload

DISTINCTIONS = {
    "max_new_tokens": "{} new tokens",
    "max_prompt_tokens": "{} prompt tokens",
    "target": "{}",
    "machine": "{}",
}  # attributes of a workload that its label leaves out

Named = TypeVar("Named", Comparison, Trace)


def name_policies(
    comparisons: Sequence[Comparison], traces: Sequence[Trace]
) -> tuple[list[Comparison], list[Trace]]:
    """Return both with the settings that differ between policies of the same label."""
    groups: dict[tuple[Workload, Policy], list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        groups[comparison.workload, comparison.policy].append(comparison)
    policies: dict[tuple[Any, Policy], Policy] = {}
    named = []
    for comparison in comparisons:
        old = comparison.policy
        words = [old.variant] if old.variant else []
        for key in _differing_settings(groups[comparison.workload, old]):
            words.append(f"{key} {comparison.settings.get(key)}")
        policy = replace(old, variant=", ".join(words))
        policies[comparison.folder, old] = policy
        named.append(replace(comparison, policy=policy))
    renamed = []
    for trace in traces:
        policy = policies.get((trace.folder, trace.policy), trace.policy)
        renamed.append(trace.renamed(policy))
    return named, renamed


def _differing_settings(comparisons: Sequence[Comparison]) -> list[str]:
    keys = {key for comparison in comparisons for key in comparison.settings}
    differing = []
    for key in sorted(keys):
        if len({str(comparison.settings.get(key)) for comparison in comparisons}) > 1:
            differing.append(key)
    return differing


def name_workloads(
    comparisons: Sequence[Comparison], traces: Sequence[Trace]
) -> tuple[list[Comparison], list[Trace]]:
    """Return both with the attributes that differ between workloads of the same label."""
    groups: dict[str, dict[Workload, None]] = defaultdict(dict)
    for part in (*comparisons, *traces):
        groups[part.workload.label][part.workload] = None
    named: dict[Workload, Workload] = {}
    for group in groups.values():
        differing = []
        for attribute in DISTINCTIONS:
            if len({getattr(workload, attribute) for workload in group}) > 1:
                differing.append(attribute)
        for workload in group:
            words = []
            for attribute in differing:
                words.append(DISTINCTIONS[attribute].format(getattr(workload, attribute) or "all"))
            named[workload] = replace(workload, distinction=", ".join(words))
    return _with_workloads(comparisons, named), _with_workloads(traces, named)


def _with_workloads(parts: Sequence[Named], named: dict[Workload, Workload]) -> list[Named]:
    return [replace(part, workload=named[part.workload]) for part in parts]
