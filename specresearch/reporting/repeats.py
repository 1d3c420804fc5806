"""Several runs of one setting at one load, as one comparison."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from specresearch.reporting.comparisons import Comparison, Load, Policy, Side
from specresearch.reporting.estimates import Estimate, pooled


def pooled_by_setting(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return one comparison for every policy and load, in the order in which they were measured first."""
    found: dict[tuple[Policy, Load], list[Comparison]] = defaultdict(list)
    for comparison in sorted(comparisons, key=lambda c: (c.num_requests, c.started)):
        found[comparison.policy, comparison.load].append(comparison)
    return [_pooled(runs) for runs in found.values()]


def _pooled(runs: Sequence[Comparison]) -> Comparison:
    """Return the largest run, the latest of equals, with the figures of all that compare the same.

    A run with wrong output makes the whole wrong. What differs in kind, e.g. overload, is not averaged: then the largest counts.
    """
    main = runs[-1]
    wrong = next((run.output for run in runs if run.output.is_wrong), None)
    alike = [run for run in runs if _kind(run) == _kind(main)]
    if len(alike) == 1:
        return main if wrong is None else replace(main, output=wrong)
    num_equal = sum(run.output.num_equal for run in alike)
    weights = [run.num_requests or 1 for run in alike]
    same_units = len({run.fingerprint for run in alike}) == 1
    gains = [run.gain for run in alike if run.gain is not None]
    return replace(
        main,
        gain=pooled(gains, weights, same_units=same_units)
        if len(gains) == len(alike)
        else main.gain,
        plain=_pooled_side([run.plain for run in alike], weights, same_units=same_units),
        own=_pooled_side([run.own for run in alike], weights, same_units=same_units),
        output=wrong or replace(main.output, num_equal=num_equal if main.output.num_equal else 0),
        is_complete=all(run.is_complete for run in alike),
        num_requests=sum(run.num_requests for run in alike),
        pooled_with=tuple(run.folder for run in alike if run is not main),
    )


def _kind(run: Comparison) -> tuple[str, bool, bool]:
    return run.basis, run.is_behind, run.is_plain_behind


def _pooled_side(sides: Sequence[Side], weights: Sequence[int], *, same_units: bool) -> Side:
    """Return the last side with the figures that all of them have."""
    figures: Mapping[str, Estimate] = {
        name: pooled([side.figures[name] for side in sides], weights, same_units=same_units)
        for name in sides[-1].figures
        if all(name in side.figures for side in sides)
    }
    return replace(sides[-1], figures=figures)
