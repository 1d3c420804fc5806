"""The callback of a multirun is imported and told of jobs only where there is a multirun."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from specresearch.cli.callbacks import MultirunCallback

MODULE = """
from hydra.experimental.callback import Callback

class Recorder(Callback):
    calls = []

    def on_job_end(self, config, job_return, **kwargs):
        self.calls.append(("job", job_return))

    def on_multirun_end(self, config, **kwargs):
        self.calls.append(("multirun", config.name))
"""


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MultirunCallback:
    (tmp_path / "recorder_of_calls.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "recorder_of_calls", raising=False)
    return MultirunCallback("recorder_of_calls.Recorder")


def test_a_single_run_does_not_import_it(callback: MultirunCallback) -> None:
    config = OmegaConf.create({"hydra": {"mode": RunMode.RUN}})
    callback.on_job_end(config, None)
    assert "recorder_of_calls" not in sys.modules


def test_a_multirun_forwards_its_events_to_one_object(callback: MultirunCallback) -> None:
    config = OmegaConf.create({"hydra": {"mode": RunMode.MULTIRUN}, "name": "sweep"})
    callback.on_job_end(config, "first")
    callback.on_job_end(config, "second")
    callback.on_multirun_end(config)
    recorder: Any = sys.modules["recorder_of_calls"]
    assert recorder.Recorder.calls == [("job", "first"), ("job", "second"), ("multirun", "sweep")]
