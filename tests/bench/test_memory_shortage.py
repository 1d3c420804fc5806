"""Memory that runs out in the middle of a run or a load test."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from specresearch import CausalLM
from specresearch.bench import Runner, RunSettings
from specresearch.bench.memory_fit import shortage_of
from specresearch.data import PromptDataset
from specresearch.loadtest.arrivals import ClosedLoop
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.runner import LoadRunner
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.workload import RequestClass
from specresearch.proposers import NGram
from specresearch.sampling_params import SamplingParams

Make = Callable[..., Runner]


@contextmanager
def scarce(target: CausalLM, fails: Callable[[int], bool]) -> Iterator[None]:
    """Let verification run out of memory in the passes whose number `fails`."""
    forward, num_passes = target.forward, 0

    def limited(*args: object, **settings: object) -> object:
        nonlocal num_passes
        num_passes += 1
        if fails(num_passes):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
        return forward(*args, **settings)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", limited)
        yield


def test_a_run_keeps_what_it_has_measured_and_resumes(make_runner: Make, target: CausalLM) -> None:
    def make(*, resume: bool = False) -> Runner:
        settings = RunSettings(batch_size=2, warmup=0)
        return make_runner(
            proposer=NGram(4, 3, 1), method="ngram", settings=settings, resume=resume
        )

    runner = make()
    with (
        scarce(target, lambda number: number > 50),
        pytest.raises(MemoryError, match=r"out of memory with 1 request running \(CUDA out"),
    ):
        runner.run()
    assert not target.in_use
    num_groups = len(runner.folder.groups)
    assert 0 < num_groups < 4
    path = runner.folder.path
    written = json.loads((path / "results.json").read_text())
    assert written["complete"] is False
    assert len((path / "groups.jsonl").read_text().splitlines()) == num_groups
    del runner
    resumed = make(resume=True)
    assert len(resumed.folder.groups) == num_groups
    results = resumed.run()
    assert results.complete
    assert results.summary["outputs_equal"] is True


def test_a_run_goes_on_with_one_request_fewer(make_runner: Make, target: CausalLM) -> None:
    settings = RunSettings(batch_size=4, warmup=0)
    runner = make_runner(proposer=NGram(4, 3, 1), method="ngram", settings=settings)
    with scarce(target, lambda number: number == 3):
        results = runner.run()
    assert results.complete
    assert results.summary["outputs_equal"] is True
    assert sum(row.num_preemptions for row in runner.folder.requests) == 4


def test_a_load_test_keeps_finished_passes_and_resumes(
    target: CausalLM, prompt_file: Path, tmp_path: Path
) -> None:
    dataset = PromptDataset("letters", "mtbench", "raw", path=str(prompt_file))
    settings = LoadSettings(max_running=2, num_requests=6, warmup=0, turn_seconds=None)

    def make(*, resume: bool = False) -> LoadRunner:
        folder = LoadFolder(tmp_path / "run", {"seed": 0}, resume=resume)
        classes = [RequestClass(dataset, SamplingParams(max_new_tokens=6))]
        return LoadRunner(
            target,
            classes,
            ClosedLoop(2),
            settings,
            folder,
            proposer=NGram(4, 3, 1),
            method="ngram",
        )

    runner = make()
    with (
        scarce(target, lambda number: number > 22),
        pytest.raises(MemoryError, match=r"out of memory with 1 request running"),
    ):
        runner.run()
    assert not target.in_use
    assert [row.key.side for row in runner.folder.passes] == ["baseline"]
    assert json.loads((tmp_path / "run/results.json").read_text())["complete"] is False
    del runner
    results = make(resume=True).run()
    assert results.complete
    assert list(results.sides) == ["baseline", "method"]


def test_a_load_test_goes_on_with_one_request_fewer(
    target: CausalLM, prompt_file: Path, tmp_path: Path
) -> None:
    dataset = PromptDataset("letters", "mtbench", "raw", path=str(prompt_file))
    runner = LoadRunner(
        target,
        [RequestClass(dataset, SamplingParams(max_new_tokens=6))],
        ClosedLoop(2),
        LoadSettings(max_running=2, num_requests=6, warmup=0),
        LoadFolder(tmp_path / "run", {"seed": 0}),
    )
    with scarce(target, lambda number: number == 3):
        results = runner.run()
    assert results.complete
    assert results.sides["baseline"]["num_preemptions"] == 2


def test_other_errors_are_raised_as_they_are() -> None:
    error = RuntimeError("shapes differ")
    with pytest.raises(RuntimeError, match="shapes differ"):
        shortage_of(error)
    shortage = shortage_of(RuntimeError("CUDA error: out of memory\nmore"))
    assert str(shortage).startswith("out of memory (CUDA error: out of memory); lower")
