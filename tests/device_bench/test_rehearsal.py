"""The whole measurement, rehearsed on the CPU as a user would."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specresearch import bench_gpu
from specresearch.device_bench.report import COLUMNS, WARNING
from specresearch.device_bench.runner import PARTS
from specresearch.device_bench.scale import REHEARSAL
from specresearch.device_bench.speculation import METHODS

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rehearsal")
    command = [sys.executable, "-m", "specresearch.bench_gpu", "--rehearse", "--output", folder]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "min of the time limit left" in ended.stderr
    assert sorted(ended.stdout.split()) == sorted(map(str, folder.iterdir()))
    return folder


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.json")
    return json.loads(file.read_text())


def figures(content: dict[str, Any], part: str, **chosen: str) -> Rows:
    rows = [row for row in content["measurements"] if row["part"] == part]
    return [row for row in rows if all(row[key] == value for key, value in chosen.items())]


def test_every_figure_is_present_and_finite(content: dict[str, Any]) -> None:
    rows = content["measurements"]
    assert [row for row in rows if row["value"] is None] == []
    assert all(math.isfinite(row[key]) for row in rows for key in ("value", "low", "high"))
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
    assert all(row["how"] for row in rows)
    assert list(dict.fromkeys(row["part"] for row in rows)) == [part.name for part in PARTS]


def test_what_the_rehearsal_proves_on_a_cpu_is_right(content: dict[str, Any]) -> None:
    """The figures of correctness hold on every device; those of time say nothing here."""
    for row in figures(content, "correctness"):
        bound = re.fullmatch(r"(at least|at most) (\S+)", row["expectation"])
        if bound:
            limit, value = float(bound[2]), row["value"]
            assert value >= limit if bound[1] == "at least" else value <= limit, row


def test_every_shape_and_method_is_measured(content: dict[str, Any]) -> None:
    num_variants = len(REHEARSAL.variants)
    num_shapes = len(REHEARSAL.batches) * len(REHEARSAL.contexts)
    graphs = "graphs over passes without"
    for name in (
        "share of the roofline",
        "over generate",
        "over generate_batch",
        "host gap",
        graphs,
    ):
        assert len(figures(content, "decoding", name=name)) == num_variants * num_shapes
    num_methods = len(METHODS) * len(REHEARSAL.acceptances)
    for name in ("efficiency", "speedup over assisted generation", "kernels a step", graphs):
        assert len(figures(content, "speculation", name=name)) == num_variants * num_methods
    assert len(figures(content, "attention", name="fastest other over two_part")) == 6


def test_higher_acceptance_gives_more_tokens_a_step(content: dict[str, Any]) -> None:
    rows = figures(content, "speculation", name="tokens a step")
    for low, high in zip(rows[::2], rows[1::2], strict=True):
        assert 1 <= low["value"] < high["value"]


def test_no_figure_can_be_taken_for_that_of_a_gpu(folder: Path, content: dict[str, Any]) -> None:
    assert content["rehearsal"]
    assert all(row["rehearsal"] and row["met"] is None for row in content["measurements"])
    (page,) = folder.glob("*-rehearsal.md")
    text = page.read_text()
    assert WARNING in text
    table = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")][2:]
    assert len(table) == len(content["measurements"])
    value, met = COLUMNS.index("value"), COLUMNS.index("met")
    assert all("(rehearsal)" in row[value] and not row[met].strip() for row in table)


def test_provenance_says_what_was_measured_with(content: dict[str, Any]) -> None:
    provenance = content["provenance"]
    assert provenance["command"].startswith("python -m specresearch.bench_gpu --rehearse")
    assert provenance["packages"].keys() >= {"torch", "transformers"}
    assert provenance.keys() >= {"git_commit", "machine", "device", "date"}


def test_the_command_knows_the_parts() -> None:
    assert tuple(part.name for part in PARTS) == bench_gpu.PARTS
