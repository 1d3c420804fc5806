"""The commands that the fault tests disturb: real processes on small models."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from command_line import prompts_of
from safetensors.torch import load_file

TIMED = ("tokens_per_second", "peak_memory_gb")  # figures of training that no two runs share
LONGEST = 240.0  # seconds of one command
LEFT_OUT = (  # to save time
    *(f"~sampled.{name}" for name in ("cool", "top_p", "min_p", "penalties", "everything")),
    *(f"~trials.{name}" for name in ("crowded", "equal_seeds", "wide", "float32", "bfloat16")),
)
PROGRAMS = ("run", "load", "distill", "certify")


@dataclass(frozen=True)
class Command:
    """`python -m specresearch.<program>` in `cwd`.

    Attributes:
        rows: File of its folder that grows while it runs.
    """

    program: str
    overrides: tuple[str, ...]
    rows: str
    outputs: Callable[[Path], Any]
    cwd: Path

    def start(self, folder: Path, *more: str) -> "subprocess.Popen[str]":
        words = [
            sys.executable,
            "-m",
            f"specresearch.{self.program}",
            *self.overrides,
            f"hydra.run.dir={folder}",
            *more,
        ]
        return subprocess.Popen(
            words,
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def finish(self, folder: Path, *more: str) -> "Ended":
        return ended(self.start(folder, *more))

    def whole(self, folder: Path) -> Any:
        """Run to the end and return what was decoded or trained."""
        done = self.finish(folder)
        assert done.code == 0, done.err
        return self.outputs(folder)

    def num_rows(self, folder: Path) -> int:
        return sum(file.read_bytes().count(b"\n") for file in folder.glob(self.rows))

    def wait_for(self, process: "subprocess.Popen[str]", folder: Path, num_rows: int) -> bool:
        """Wait for that many rows; return True if the process still runs."""
        end = time.monotonic() + LONGEST
        while process.poll() is None and self.num_rows(folder) < num_rows:
            assert time.monotonic() < end, (
                f"{self.program} wrote {self.num_rows(folder)} of {num_rows} rows"
            )
            time.sleep(0.002)
        return process.poll() is None


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def is_a_sentence(self) -> bool:
        """Return True if it ended like bad input: exit code 2 and one line that says why."""
        last = self.err.strip().splitlines()[-1]
        return self.code == 2 and last.startswith("error: ") and "Traceback" not in self.err


def ended(process: "subprocess.Popen[str]") -> Ended:
    out, err = process.communicate(timeout=LONGEST)
    return Ended(process.returncode, out, err)


def commands(target: Sequence[str], cwd: Path) -> dict[str, Command]:
    """Return a command of every program, with overrides that select the target."""
    letters = random.Random(0)
    texts = ["".join(letters.choices("abcdef", k=10)) for _ in range(12)]
    model = next(word for word in target if word.startswith("target.model=")).removeprefix(
        "target.model="
    )
    decode = [
        *target,
        *prompts_of(cwd / "prompts.jsonl", texts),
        "+proposer=ngram",
        "sampling.max_new_tokens=40",
    ]
    train = {
        "draft": model,
        "corpus.max_len": 40,
        "corpus.heldout_fraction": 0.3,
        "corpus.generation.max_new_tokens": 8,
        "train.steps": 24,
        "train.batch_size": 4,
        "train.warmup_steps": 0,
        "train.log_every": 1,
        "train.evaluate_every": 12,
        "train.save_every": 3,
        "evaluation.num_prompts": 2,
        "evaluation.num_draft_tokens": 3,
        "evaluation.max_new_tokens": 8,
    }
    command_parts: dict[str, tuple[list[str], str, Callable[[Path], Any]]] = {
        "run": (
            [*decode, "num_prompts=12", "repeats=2", "warmup=0"],
            "requests.jsonl",
            run_outputs,
        ),
        "load": (
            [
                *decode,
                "num_requests=12",
                "repeats=3",
                "warmup=0",
                "max_running=4",
                "arrivals.qps=200",
                "arrivals=poisson",
            ],
            "requests.jsonl",
            load_outputs,
        ),
        "distill": (
            [
                *decode[:-2],
                "+proposer=draft_model",
                *(f"{key}={value}" for key, value in train.items()),
            ],
            "metrics.jsonl",
            training_results,
        ),
        "certify": (
            [
                "+proposer=ngram",
                "visible_tv=0.04",
                "trials.mixed.stress=[]",
                "num_greedy_prompts=2",
                *LEFT_OUT,
            ],
            "counts/*.jsonl",
            certified,
        ),
    }
    return {
        name: Command(name, tuple(words), rows, outputs, cwd)
        for name, (words, rows, outputs) in command_parts.items()
    }


def _unique(
    rows: Sequence[dict[str, Any]], key: Sequence[str], value: str
) -> dict[tuple[Any, ...], Any]:
    values = {tuple(row[name] for name in key): row[value] for row in rows}
    assert len(values) == len(rows), "a row is there twice"
    return values


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def run_outputs(folder: Path) -> Any:
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["complete"]
    assert results["summary"]["num_prompts"] == 12
    return _unique(
        _rows(folder / "requests.jsonl"), ("repeat", "group", "side", "row", "turn"), "token_ids"
    )


def load_outputs(folder: Path) -> Any:
    assert json.loads((folder / "results.json").read_text(encoding="utf-8"))["complete"]
    assert len(_unique(_rows(folder / "passes.jsonl"), ("repeat", "side"), "num_finished")) == 6
    return _unique(_rows(folder / "requests.jsonl"), ("repeat", "side", "id"), "token_ids")


def training_results(folder: Path) -> Any:
    """Return the training curve without times, and the weights, as numbers."""
    curve = [
        {key: value for key, value in row.items() if key not in TIMED}
        for row in _rows(folder / "metrics.jsonl")
    ]
    state = load_file(folder / "student" / "model.safetensors")
    weights = {name: weight.to(torch.float64).flatten().tolist() for name, weight in state.items()}
    return curve, weights


def certified(folder: Path) -> Any:
    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    return certificate["verdict"], certificate["sampled"], certificate["greedy"]
