"""Who pays for a faster median: the classes of a mixed workload."""

from collections.abc import Sequence
from typing import TypeVar

from specresearch.bench.side_comparison import ClassChange
from specresearch.reporting.decision import Decision
from specresearch.reporting.formatting import inline

CLASSES = "Time per token of each class over plain decoding's, median and 99th percentile."

Item = TypeVar("Item")


def class_tails(decision: Decision) -> tuple[str, ...]:
    """Return which classes get faster and which slower at the lowest and the highest load."""
    lines = []
    for point in ends([point for point in decision.points if point.classes]):
        changes = [class_change(change) for change in point.classes]
        if any(changes):
            lines.append(f"At {point.load.label}: {'; '.join(filter(None, changes))}.")
    return (CLASSES, *lines) if lines else ()


def class_change(change: ClassChange) -> str:
    """Return a clause such as `creative slower (1.10, 1.05 to 1.15; 1.30, 1.10 to 1.52)`.

    It is empty if a side lacks its figures.
    """
    if change.median is None or change.slowest is None:
        return ""
    ratios = (change.median, change.slowest)
    is_better = any(ratio.is_below(1.0) for ratio in ratios)
    is_worse = any(ratio.is_above(1.0) for ratio in ratios)
    words = "no clear change"
    if change.has_signature:
        words = "faster at the median and slower among its slowest requests"
    elif is_better and is_worse:
        words = "slower at the median and faster among its slowest requests"
    elif is_better:
        words = "faster"
    elif is_worse:
        words = "slower"
    return f"{change.name} {words} ({inline(change.median)}; {inline(change.slowest)})"


def ends(items: Sequence[Item]) -> Sequence[Item]:
    """Return the first and the last."""
    return items if len(items) <= 2 else (items[0], items[-1])
