"""The folder of a training run: what it may hold, and how the run in it is resumed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from specresearch.files import check_writable, replace_text
from specresearch.results.fingerprint import DECODING, PACKAGE, describe_software
from specresearch.results.folder import (
    CONFIG,
    PROVENANCE,
    check_settings,
    check_software,
    write_json,
)
from specresearch.results.provenance import git_commit
from specresearch.training.checkpoints import last_checkpoint

METRICS = "metrics.jsonl"
CORPUS_FINGERPRINT = "corpus_fingerprint.txt"
# Settings that a resumed run may change.
MUTABLE_SETTINGS = (
    "resume",
    "force",
    "progress",
    "evaluation",
    "tracker",
    "output",
    "push_to_hub",
    "private",
    "license",
    "train.log_every",
    "train.evaluate_every",
    "train.save_every",
    "train.keep_checkpoints",
)


@dataclass(frozen=True)
class Processes:
    """This process's rank among those that train together."""

    rank: int
    count: int

    @classmethod
    def from_environment(cls) -> "Processes":
        """Read what torchrun sets."""
        return cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))

    def select_device(self) -> None:
        """Give each process of a machine a GPU of its own, if there are any."""
        if self.count > 1 and torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


@dataclass(frozen=True)
class TrainFolder:
    """The folder of a training run.

    Attributes:
        is_named: True if the command line names it or its sweep's.
        is_sweep: True if it is one job's folder in a sweep.
    """

    path: Path
    is_named: bool
    is_sweep: bool

    def open(self, settings: Mapping[str, Any], processes: Processes) -> None:
        """Record settings and code of a run that starts here, or resumes with the same ones."""
        if processes.count > 1 and not self.is_named:
            raise ValueError(
                f"{processes.count} processes need one folder between them: "
                "add hydra.run.dir=<folder>"
            )
        is_resumed = settings["resume"]
        if is_resumed and not self.is_named:
            raise ValueError(
                "resume=true needs the folder of the run to continue: add hydra.run.dir=<folder>"
            )
        if is_resumed and not self.is_sweep and not (self.path / CONFIG).exists():
            raise ValueError(
                f"{self.path} holds no run to resume; set hydra.run.dir to one that does"
            )
        has_started = (self.path / METRICS).exists()
        if has_started and not is_resumed:
            raise ValueError(
                f"{self.path} holds a run already; add resume=true to continue it, or choose "
                "another folder"
            )
        software = describe_software((*DECODING, "training"))
        if has_started and not settings["force"]:
            remedy = "use the same, or continue with these by force=true"
            check_settings(self.path, settings, MUTABLE_SETTINGS, remedy)
            check_software(self.path, software, "continue with this by force=true")
        for key in ("output", "cache"):
            if settings[key]:
                check_writable(Path(settings[key]), key)
        output = settings["output"]
        if output and not is_resumed and Path(output).exists() and any(Path(output).iterdir()):
            raise ValueError(f"output={output} is not empty; choose another folder")
        config = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
        replace_text(self.path / CONFIG, config)
        write_json(self.path / PROVENANCE, software | {"git_commit": git_commit(PACKAGE)})

    def check_corpus(self, fingerprint: str, *, is_resumed: bool, is_forced: bool) -> None:
        """Record the corpus, which must be that of the run to resume."""
        file = self.path / CORPUS_FINGERPRINT
        if is_resumed and not is_forced and file.exists():
            before = file.read_text(encoding="utf-8").strip()
            if before != fingerprint:
                raise ValueError(
                    f"the text has changed since {self.path} was started (its fingerprint was "
                    f"{before} and is now {fingerprint}), although the settings are the same: "
                    "restore its files, or continue with these by force=true"
                )
        replace_text(file, fingerprint + "\n")

    def stopped_remedy(self, resume_command: str, learning_rate: float) -> str:
        """Say how to continue after the weights became non-finite."""
        checkpoint = last_checkpoint(self.path)
        lower_rate = f"train.learning_rate={learning_rate / 10:g}"
        if checkpoint is None:
            return (
                "no checkpoint was saved: start again with a lower rate, such as "
                f"{lower_rate}, or in float32"
            )
        return (
            f"{checkpoint.name} is from before that; continue from it with a lower rate:\n"
            f"  {resume_command} {lower_rate} force=true"
        )
