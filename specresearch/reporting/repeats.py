"""Several runs of one setting at one load, as one comparison."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from specresearch.bench.estimate import Estimate
from specresearch.reporting.comparison import Comparison, SideFigures
from specresearch.reporting.estimates import pooled
from specresearch.reporting.workload import Load, Setting


def pooled_by_setting(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return one comparison per setting and load, in the order first measured."""
    runs: dict[tuple[Setting, Load], list[Comparison]] = defaultdict(list)
    for comparison in sorted(comparisons, key=lambda c: (c.num_requests, c.started)):
        runs[comparison.setting, comparison.load].append(comparison)
    return [_pooled(group) for group in runs.values()]


def _pooled(runs: Sequence[Comparison]) -> Comparison:
    """Return the largest run, the latest of equals, with the figures of all runs like it.

    A run with wrong output makes the whole wrong. Runs that differ in kind, such as overloaded
    ones, are not averaged. Neither are runs too short for an interval, if others have one.
    """
    wrong = next((run.output for run in runs if run.output.is_wrong), None)
    measured = [run for run in runs if run.gain is not None and run.gain.has_interval] or runs
    main = measured[-1]
    alike = [run for run in measured if _kind(run) == _kind(main)]
    if len(alike) == 1:
        return replace(main, output=wrong or main.output)
    num_equal = sum(run.output.num_equal for run in alike) if main.output.num_equal else 0
    # A run without requests on record still counts as one.
    weights = [run.num_requests or 1 for run in alike]
    same_units = len({run.fingerprint for run in alike}) == 1

    def pool(estimates: Sequence[Estimate]) -> Estimate:
        return pooled(estimates, weights, same_units=same_units)

    gains = [run.gain for run in alike if run.gain is not None]
    return replace(
        main,
        gain=pool(gains) if len(gains) == len(alike) else main.gain,
        baseline=_pooled_side([run.baseline for run in alike], pool),
        speculative=_pooled_side([run.speculative for run in alike], pool),
        output=wrong or replace(main.output, num_equal=num_equal),
        is_complete=all(run.is_complete for run in alike),
        num_requests=sum(run.num_requests for run in alike),
        pooled_with=tuple(run.folder for run in alike if run is not main),
    )


def _kind(run: Comparison) -> tuple[str, bool, bool]:
    return run.basis, run.is_overloaded, run.is_baseline_overloaded


def _pooled_side(
    sides: Sequence[SideFigures], pool: Callable[[Sequence[Estimate]], Estimate]
) -> SideFigures:
    """Return the last side with the figures that all of them have."""
    figures = {}
    for name in sides[-1].figures:
        if all(name in side.figures for side in sides):
            figures[name] = pool([side.figures[name] for side in sides])
    return replace(sides[-1], figures=figures)
