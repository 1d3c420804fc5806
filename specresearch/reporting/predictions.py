"""Predictions of simulations beside what was measured with the same setting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specresearch.bench.side_comparison import THROUGHPUT
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.workload import WorkloadKey


@dataclass(frozen=True)
class CheckedPrediction:
    """A prediction beside what was measured."""

    predicted: Comparison
    measured: Comparison

    def ratio(self, name: str) -> float | None:
        """Return predicted over measured.

        Returns None if either is unknown, and for latencies that grow for as long as a queue does.
        """
        if self.measured.any_overloaded and name != THROUGHPUT:
            return None
        predicted = self.predicted.speculative.value(name)
        measured = self.measured.speculative.value(name)
        return predicted / measured if predicted is not None and measured else None


def check_predictions(
    predictions: Sequence[Comparison], comparisons: Sequence[Comparison]
) -> list[CheckedPrediction]:
    """Return every prediction beside each measurement of its setting at its load."""
    checked = []
    for predicted in predictions:
        for measured in comparisons:
            if _is_same_case(predicted, measured):
                checked.append(CheckedPrediction(predicted, measured))
    return checked


def _is_same_case(predicted: Comparison, measured: Comparison) -> bool:
    return (
        _is_same_workload(predicted.workload, measured.workload)
        and predicted.load == measured.load
        and replace(predicted.setting, variant="", shape="")
        == replace(measured.setting, variant="", shape="")
        and predicted.details == measured.details
        and _has_same_room(predicted, measured)
    )


def _is_same_workload(predicted: WorkloadKey, measured: WorkloadKey) -> bool:
    """Return whether two workloads are the same.

    Recordings do not know how many threads their machine used.
    """
    is_same_machine = measured.machine.startswith(predicted.machine)
    # Only measurements have been named apart.
    anywhere = replace(measured, machine=predicted.machine, distinction="")
    return is_same_machine and predicted == anywhere


def _has_same_room(predicted: Comparison, measured: Comparison) -> bool:
    """Return whether as many requests may run, or no request ever waits in either."""
    one, other = predicted.max_running, measured.max_running
    if one == other:
        return True
    if one is None or other is None:
        return False
    return predicted.load.is_closed and min(one, other) >= predicted.load.amount
