"""What all trackers share: missing packages, the protocol, and points of averaged steps."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from trackers.records import REQUEST, STEP

from specresearch.trackers import (
    MetricsTracker,
    MlflowTracker,
    NoTracker,
    TensorBoardTracker,
    Tracker,
    WandbTracker,
)

TRACKERS = {"wandb": WandbTracker, "tensorboard": TensorBoardTracker, "mlflow": MlflowTracker}


class ListTracker(MetricsTracker):
    """Keeps everything in lists; an earlier session ended at step 100 of every curve."""

    def __init__(self, every: int) -> None:
        super().__init__(every)
        self.points: list[tuple[int, dict[str, Any]]] = []
        self.histograms: dict[str, Sequence[float]] = {}

    def start(self, config: Mapping[str, Any], folder: Path) -> None: ...

    def log_values(self, values: Mapping[str, Any], step: int) -> None:
        self.points.append((step, dict(values)))

    def log_histograms(self, histograms: Mapping[str, Sequence[float]]) -> None:
        self.histograms = dict(histograms)

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None: ...

    def last_step(self, curve: str) -> int:
        return 100


def test_points_average_steps_and_continue_the_curves_of_an_earlier_session() -> None:
    tracker = ListTracker(every=2)
    for _ in range(5):
        tracker.log_step("method", STEP)
    tracker.log_request("method", REQUEST)
    tracker.finish({}, [])
    points = [(step, values) for step, values in tracker.points if "method/step_ms" in values]
    assert [step for step, _ in points] == [102, 104, 105]
    assert points[0][1]["method/accepted_tokens_per_step"] == 3
    assert points[0][1]["method/step_ms"] == pytest.approx(4.0)
    assert [step for step, values in tracker.points if "method/ttft" in values] == [101]
    assert tracker.histograms == {
        "method/request_acceptance_rate": [0.75],
        "method/itl": [0.01, 0.0, 0.02],
    }


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_an_error_with_a_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    remedy = rf"run `pip install 'specresearch\[{name}\]'`, or use tracker=none"
    with pytest.raises(ValueError, match=f"tracker={name} cannot import {name} .*; {remedy}"):
        TRACKERS[name]()


@pytest.mark.parametrize("build", TRACKERS.values())
def test_a_point_needs_a_step(build: Callable[..., MetricsTracker]) -> None:
    with pytest.raises(ValueError, match=r"tracker.every=0 must be at least 1"):
        build(every=0)


def test_all_trackers_satisfy_the_protocol(tmp_path: Path) -> None:
    for build in TRACKERS.values():
        assert isinstance(build(), Tracker)
    nothing: Tracker = NoTracker()
    nothing.start({}, tmp_path)
    nothing.log_step("method", STEP)
    nothing.log_request("method", REQUEST)
    nothing.finish({}, [])
    assert not list(tmp_path.iterdir())


def test_commands_import_no_service_that_was_not_chosen() -> None:
    code = (
        "import sys\n"
        "import specresearch.run, specresearch.load, specresearch.training.run\n"
        "import specresearch.bench.build, specresearch.loadtest.build\n"
        f"print([name for name in {list(TRACKERS)} if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert process.stdout.decode().splitlines()[-1] == "[]"
