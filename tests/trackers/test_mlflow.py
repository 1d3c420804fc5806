"""Read runs back through MLflow's client from a database that its migrations made."""

import json
import logging
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from trackers.records import REQUEST, STEP

from specresearch.trackers import MlflowTracker

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow puts the artifacts of a database's runs in ./mlruns."""
    monkeypatch.chdir(tmp_path)


def measure(uri: str, folder: Path, *, num_steps: int = 5) -> MlflowTracker:
    tracker = MlflowTracker(uri, every=2)
    tracker.start({"batch_size": 1, "sampling": {"temperature": 0.0, "stop": ["a"]}}, folder)
    for _ in range(num_steps):
        tracker.log_step("method", STEP)
    tracker.log_request("method", REQUEST)
    result = folder / "results.json"
    result.write_text("{}")
    backbone = folder / "backbone"
    backbone.mkdir(exist_ok=True)
    (backbone / "config.json").write_text("{}")
    tracker.finish({"speedup": 2.0, "speedup_ci95": [1.9, 2.1]}, [result, backbone])
    return tracker


def test_a_run_holds_parameters_curves_histograms_and_files(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "ngram"
    tracker = measure(uri, folder)
    client = MlflowClient(uri)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "ngram"
    experiment = client.get_experiment_by_name("specresearch")
    assert experiment is not None
    assert run.info.experiment_id == experiment.experiment_id
    assert run.data.params == {
        "batch_size": "1",
        "sampling.temperature": "0.0",
        "sampling.stop": "['a']",
    }
    points = client.get_metric_history(tracker.run_id, "method/step_ms")
    assert [point.step for point in points] == [2, 4, 5]
    assert points[0].value == pytest.approx(4.0)
    assert run.data.metrics["speedup"] == 2.0
    names = {file.path for file in client.list_artifacts(tracker.run_id)}
    assert names == {"histograms", "summary.json", "results.json", "backbone"}
    histograms = client.list_artifacts(tracker.run_id, "histograms/method")
    assert {Path(file.path).name for file in histograms} == {
        "itl.png",
        "request_acceptance_rate.png",
    }
    summary = client.download_artifacts(tracker.run_id, "summary.json", str(tmp_path))
    assert json.loads(Path(summary).read_text())["speedup_ci95"] == [1.9, 2.1]


def test_a_run_that_is_resumed_in_its_folder_is_one_run(uri: str, tmp_path: Path) -> None:
    first, second = measure(uri, tmp_path), measure(uri, tmp_path, num_steps=2)
    assert first.run_id == second.run_id
    points = MlflowClient(uri).get_metric_history(first.run_id, "method/step_ms")
    assert [point.step for point in points] == [2, 4, 5, 7]


def test_training_logs_samples_of_text_as_files(uri: str, tmp_path: Path) -> None:
    tracker = MlflowTracker(uri)
    tracker.start({}, tmp_path)
    tracker.log(3, {"loss": 1.5, "t0/sample": "a drafted text"})
    tracker.finish({}, [])
    client = MlflowClient(uri)
    (point,) = client.get_metric_history(tracker.run_id, "loss")
    assert (point.step, point.value) == (3, 1.5)
    file = client.download_artifacts(tracker.run_id, "t0/sample/step_3.txt", str(tmp_path))
    assert Path(file).read_text() == "a drafted text"


def test_figures_wait_for_a_server_that_does_not_answer(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = MlflowTracker(uri)
    tracker.start({}, tmp_path)

    def unreachable(*args: object, **kwargs: object) -> None:
        raise MlflowException("connection refused")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(tracker.client, "log_batch", unreachable)
        tracker.log(1, {"loss": 1.5})
    assert "gets these figures later: connection refused" in caplog.text
    tracker.finish({}, [])
    (point,) = MlflowClient(uri).get_metric_history(tracker.run_id, "loss")
    assert (point.step, point.value) == (1, 1.5)


def test_results_survive_a_server_that_is_gone_at_the_end(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = MlflowTracker(uri)
    tracker.start({}, tmp_path)

    def unreachable(*args: object, **kwargs: object) -> None:
        raise MlflowException("connection refused")

    monkeypatch.setattr(tracker.client, "log_dict", unreachable)
    with caplog.at_level(logging.WARNING):
        tracker.finish({"speedup": 2.0}, [])
    assert "(connection refused); the results folder holds it all" in caplog.text


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "ftp://nowhere"])
def test_a_missing_server_is_an_error_with_a_remedy(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"MLflow cannot start: .*tracker.uri={uri}, or use"):
        MlflowTracker(uri).start({}, tmp_path / "run")
    assert not (tmp_path / "run").exists()
