"""Read wandb's offline runs back from the file that `wandb sync` would upload."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from trackers.records import REQUEST, STEP

from specresearch.trackers import WandbTracker

BLOCK, FILE_HEADER, CHUNK_HEADER = 32768, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def chunks(data: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log: 32 KiB blocks of (checksum, length, type) chunks."""
    position, parts = FILE_HEADER, b""
    while position + CHUNK_HEADER <= len(data):
        if BLOCK - position % BLOCK < CHUNK_HEADER:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + CHUNK_HEADER])
        parts += data[position + CHUNK_HEADER : position + CHUNK_HEADER + length]
        position += CHUNK_HEADER + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def read_back(folder: Path) -> list[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    wandb.teardown()  # its service process writes the end of the file
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    records = []
    for chunk in chunks(file.read_bytes()):
        record = Record()
        record.ParseFromString(chunk)
        records.append(record)
    return records


def items(updates: Any) -> dict[str, Any]:
    return {u.key or "/".join(u.nested_key): json.loads(u.value_json) for u in updates}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name in (
        "HOME",
        "WANDB_CONFIG_DIR",
        "WANDB_CACHE_DIR",
        "WANDB_DATA_DIR",
        "WANDB_ARTIFACT_DIR",
    ):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    return tmp_path / "run"


def test_an_offline_run_holds_config_metrics_and_files(offline: Path) -> None:
    tracker = WandbTracker(mode="offline", tags=["a"], every=2)
    tracker.start({"batch_size": 1, "sampling": {"temperature": 0.0}}, offline)
    for _ in range(5):
        tracker.log_step("method", STEP)
    tracker.log_request("method", REQUEST)
    result = offline / "results.json"
    result.write_text("{}")
    backbone = offline / "backbone"
    backbone.mkdir()
    (backbone / "config.json").write_text("{}")
    tracker.finish(
        {"speedup": 2.0, "speedup_ci95": [1.9, 2.1], "outputs_equal": True}, [result, backbone]
    )

    records = read_back(offline)
    run = next(r.run for r in records if r.HasField("run"))
    assert run.project == "specresearch"
    assert list(run.tags) == ["a"]
    config = items(run.config.update)
    assert config["batch_size"] == 1
    assert config["sampling"] == {"temperature": 0.0}
    history = [items(r.history.item) for r in records if r.HasField("history")]
    steps = [row for row in history if "method/step_ms" in row]
    assert len(steps) == 3
    assert steps[0]["method/accepted_tokens_per_step"] == 3
    assert steps[0]["method/step_ms"] == pytest.approx(4.0)
    assert [row["method/draft_acceptance_rate"] for row in history if "method/ttft" in row] == [
        0.75
    ]
    histogram_row = next(row for row in history if "method/itl/_type" in row)
    assert histogram_row["method/itl/_type"] == "histogram"
    assert sum(histogram_row["method/itl/values"]) == 3
    assert histogram_row["method/request_acceptance_rate/_type"] == "histogram"
    summary: dict[str, Any] = {}
    for record in records:
        if record.HasField("summary"):
            summary |= items(record.summary.update)
    assert summary["speedup"] == 2.0
    assert summary["outputs_equal"] is True
    artifacts = [
        r.request.log_artifact.artifact for r in records if r.request.HasField("log_artifact")
    ]
    artifacts += [r.artifact for r in records if r.HasField("artifact")]
    assert {entry.path for entry in artifacts[0].manifest.contents} == {
        "results.json",
        "backbone/config.json",
    }
    assert artifacts[0].type == "results"


def test_a_run_that_is_resumed_in_its_folder_is_one_run(offline: Path) -> None:
    ids = []
    for step in (1, 2):
        tracker = WandbTracker(mode="offline")
        tracker.start({}, offline)
        tracker.log(step, {"loss": 1.0})
        ids.append(tracker.run.id)
        tracker.finish({}, [])
    assert ids[0] == ids[1]


def test_a_missing_login_is_an_error_with_a_remedy(offline: Path) -> None:
    with pytest.raises(ValueError, match=r"run `wandb login` once, or use tracker.mode=offline"):
        WandbTracker(mode="online").start({}, offline)
    assert not offline.exists()


def test_impossible_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="use one of online"):
        WandbTracker(mode="ofline")
