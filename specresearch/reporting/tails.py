"""Who pays for a faster median: the slowest requests, and the classes of a mixed workload."""

from collections.abc import Sequence
from typing import TypeVar

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import ClassChange
from specresearch.reporting.decision import Decision
from specresearch.reporting.formatting import inline, seconds_with_interval

FEW = 100  # requests, of which a 99th percentile is an extreme
SLOWEST = "Time per token of the slowest in a hundred (TPOT P99)."
CLASSES = "Time per token of each class over plain decoding's, median and 99th percentile."

Item = TypeVar("Item")


def slowest_requests(decision: Decision) -> tuple[str, ...]:
    """Return the 99th percentile of time per output token at the lowest and the highest load."""
    lines, fewest = [], FEW
    for point in decision.points:
        baseline, own = (side["tpot_p99"] for side in point.sides)
        if point.both_overloaded or baseline is None or own is None:
            continue
        before, after = seconds_with_interval(baseline), seconds_with_interval(own)
        change = _change(baseline, own)
        lines.append(f"At {point.load.label}, {before} became {after}: {change}.")
        fewest = min(fewest, point.num_requests)
    if not lines:
        return ()
    note = ""
    if fewest < FEW:
        note = f" With only {fewest} requests that is nearly the slowest of all."
    return f"{SLOWEST}{note}", *ends(lines)


def _change(baseline: Estimate, own: Estimate) -> str:
    if baseline.interval is None or own.interval is None:
        return "without an interval"
    if own.is_above(baseline.interval[1]):
        return "worse"
    return "better" if own.is_below(baseline.interval[0]) else "no clear change"


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
