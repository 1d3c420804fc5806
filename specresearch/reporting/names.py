"""Settings and workloads that would be called the same get names that tell them apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specresearch.reporting.comparison import Comparison
from specresearch.reporting.workload import Setting, WorkloadKey

DISTINCTIONS = {
    "max_new_tokens": "{} new tokens",
    "max_prompt_tokens": "{} prompt tokens",
    "target": "{}",
    "machine": "{}",
}  # attributes of a workload that its label leaves out


def name_settings(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Add what differs between settings with the same label to their variants."""
    groups: dict[tuple[WorkloadKey, Setting], list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        groups[comparison.workload, comparison.setting].append(comparison)
    named = []
    for comparison in comparisons:
        setting = comparison.setting
        words = [setting.variant] if setting.variant else []
        namesakes = groups[comparison.workload, setting]
        for key in _differing_keys([namesake.details for namesake in namesakes]):
            words.append(f"{key} {comparison.details.get(key)}")
        named.append(replace(comparison, setting=replace(setting, variant=", ".join(words))))
    return named


def name_workloads(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Add what differs between workloads with the same label to their names."""
    groups: dict[str, set[WorkloadKey]] = defaultdict(set)
    for comparison in comparisons:
        groups[comparison.workload.label].add(comparison.workload)
    named = []
    for comparison in comparisons:
        namesakes = groups[comparison.workload.label]
        differing = _differing_keys([vars(workload) for workload in namesakes])
        words = []
        for key, template in DISTINCTIONS.items():
            if key in differing:
                words.append(template.format(getattr(comparison.workload, key) or "all"))
        workload = replace(comparison.workload, distinction=", ".join(words))
        named.append(replace(comparison, workload=workload))
    return named


def _differing_keys(namesakes: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = {key for namesake in namesakes for key in namesake}
    differing = []
    for key in sorted(keys):
        if len({str(namesake.get(key)) for namesake in namesakes}) > 1:
            differing.append(key)
    return differing
