"""Read TensorBoard's event files back, as its server does."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackers.records import REQUEST, STEP

from specresearch.trackers import TensorBoardTracker


def read_back(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "tensorboard"), {"scalars": 0}).Reload()


def text(events: EventAccumulator, name: str) -> str:
    return events.Tensors(f"{name}/text_summary")[-1].tensor_proto.string_val[0].decode()


def measure(folder: Path) -> None:
    tracker = TensorBoardTracker(every=2)
    tracker.start({"batch_size": 1, "sampling": {"temperature": 0.0}}, folder)
    for _ in range(5):
        tracker.log_step("method", STEP)
    tracker.log_request("method", REQUEST)
    tracker.finish({"speedup": 2.0, "speedup_ci95": [1.9, 2.1]}, [])


def test_a_run_holds_config_curves_histograms_and_summary(tmp_path: Path) -> None:
    measure(tmp_path)
    events = read_back(tmp_path)
    points = events.Scalars("method/step_ms")
    assert [point.step for point in points] == [2, 4, 5]
    assert points[0].value == pytest.approx(4.0)
    assert [point.value for point in events.Scalars("method/draft_acceptance_rate")] == [0.75]
    assert events.Histograms("method/itl")[0].histogram_value.num == 3
    assert "temperature: 0.0" in text(events, "config")
    assert '"speedup": 2.0' in text(events, "summary")


def test_a_run_that_is_resumed_in_its_folder_continues_its_curves(tmp_path: Path) -> None:
    measure(tmp_path)
    measure(tmp_path)
    points = read_back(tmp_path).Scalars("method/step_ms")
    assert [point.step for point in points] == [2, 4, 5, 7, 9, 10]


def test_training_that_is_resumed_hides_the_steps_after_its_checkpoint(tmp_path: Path) -> None:
    for first, last, loss in ((0, 5, 1.0), (3, 6, 2.0)):
        tracker = TensorBoardTracker()
        tracker.start({}, tmp_path)
        for step in range(first, last):
            tracker.log(step, {"loss": loss, "sample": f"text {step}"})
        tracker.finish({}, [])
    events = read_back(tmp_path)
    points = [(point.step, point.value) for point in events.Scalars("loss")]
    assert points == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    assert text(events, "sample") == "text 5"
