"""What `run` and `load` really write is read, complete and while they go on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench import ResultsFolder, Runner, RunSettings
from specresearch.bench.output_verdict import Output, OutputVerdict
from specresearch.data import PromptDataset
from specresearch.loadtest.arrivals import Arrivals, ClosedLoop, Poisson
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.runner import LoadRunner, LoadSettings
from specresearch.loadtest.workload import RequestClass
from specresearch.proposers import NGram
from specresearch.reporting import Requirements, compose, gather
from tests.bench.test_output_check import Gullible

Measure = Callable[..., Path]


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM(build("llama", seed=3), letters_tokenizer(), max_len=60, name="letters")


@pytest.fixture
def dataset(tmp_path: Path) -> PromptDataset:
    file = tmp_path / "prompts.jsonl"
    turns = ("abcabcab", "fedfedfed", "aabbccdd", "ffffff") * 3
    rows = [{"id": f"p{i}", "turns": [turn], "category": ""} for i, turn in enumerate(turns)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PromptDataset("letters", "mtbench", "raw", path=str(file))


@pytest.fixture
def measure_run(target: CausalLM, dataset: PromptDataset, tmp_path: Path) -> Callable[..., Path]:
    def run(sampling: SamplingParams, rule: AcceptanceSampler) -> Path:
        folder = tmp_path / "run"
        settings = {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens}
        results = ResultsFolder(folder, {"batch_size": 1, "sampling": settings})
        Runner(
            target,
            dataset,
            sampling,
            RunSettings(warmup=0),
            results,
            proposer=NGram(4, 3, 1),
            method="ngram",
            acceptance=rule,
        ).run(progress=False)
        return folder

    return run


@pytest.fixture
def measured_run(measure_run: Callable[..., Path]) -> Path:
    return measure_run(SamplingParams(max_new_tokens=10), Rejection())


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect what a run writes before its last results, and write after every group or pass."""
    written: list[dict[str, Any]] = []
    monkeypatch.setattr("specresearch.bench.flush.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("specresearch.bench.flush.MOST_COST", 0)
    for kind in (ResultsFolder, LoadFolder):
        write = kind.write_results

        def keep(folder: Any, results: Any, write: Callable[..., None] = write) -> None:
            write(folder, results)
            written.append(json.loads((folder.path / "results.json").read_text()))

        monkeypatch.setattr(kind, "write_results", keep)
    return written


@pytest.fixture
def measured_load(target: CausalLM, dataset: PromptDataset, tmp_path: Path) -> Callable[..., Path]:
    def run(
        arrivals: Arrivals,
        max_running: int = 2,
        max_waiting: int = 256,
        sampling: SamplingParams | None = None,
        rule: AcceptanceSampler | None = None,
        repeats: int = 1,
    ) -> Path:
        folder = tmp_path / "load"
        sampling = sampling or SamplingParams(max_new_tokens=8)
        settings = LoadSettings(
            num_requests=12,
            max_running=max_running,
            compare=(2,),
            warmup=0,
            max_waiting=max_waiting,
            repeats=repeats,
        )
        LoadRunner(
            target,
            [RequestClass(dataset, sampling)],
            arrivals,
            settings,
            LoadFolder(
                folder,
                {"sampling": {"temperature": sampling.temperature}, "max_running": max_running},
            ),
            proposer=NGram(4, 3, 1),
            method="ngram",
            acceptance=rule or Rejection(),
            controller_name="fixed",
        ).run(progress=False)
        return folder

    return run


def test_a_run(measured_run: Path) -> None:
    summary = json.loads((measured_run / "results.json").read_text())["summary"]
    material = gather([measured_run])
    assert material.notes == []
    (comparison,) = material.comparisons
    assert comparison.gain is not None
    assert (comparison.gain.value, comparison.gain.low) == (
        summary["speedup"],
        summary["speedup_ci95"][0],
    )
    assert comparison.output.verdict is OutputVerdict.SAME
    for name in ("ttft_p50", "tpot_p99", "e2el_p90"):
        own, baseline = comparison.speculative[name], comparison.baseline[name]
        assert own is not None
        assert baseline is not None
        assert (own.value, baseline.value) == pytest.approx(
            (summary[name], summary[f"baseline_{name}"])
        )
        assert own.has_interval == name.endswith(
            "p50"
        )  # a dozen prompts say nothing of the slowest tenth
    acceptance = comparison.speculative.acceptance
    assert acceptance is not None
    assert acceptance.rate is not None
    assert acceptance.rate.value == pytest.approx(summary["draft_acceptance_rate"])
    assert acceptance.p10 is not None
    assert comparison.baseline.step is not None
    assert comparison.baseline.step.tokens == pytest.approx(1)


@pytest.mark.parametrize("is_broken", [False, True])
def test_sampled_output_of_a_run_is_judged_by_its_check(
    measure_run: Callable[..., Path], is_broken: bool
) -> None:
    rule = Gullible() if is_broken else Rejection()
    folder = measure_run(SamplingParams(temperature=0.5, top_k=3, max_new_tokens=20), rule)
    (comparison,) = gather([folder]).comparisons
    output = comparison.output
    assert output.verdict is (OutputVerdict.CHANGED if is_broken else OutputVerdict.SAME)


def test_a_control_that_fails_makes_the_output_wrong() -> None:
    figures = {"output_statement": "", "output_p_value": 0.5, "baseline_output_p_value": 1e-9}
    figures |= {"num_outputs_compared": 0, "num_outputs_equal": None, "num_rounding_ties": 0}
    figures |= {"output_differences": []}
    assert Output.of(figures, lossless=True).is_wrong
    assert not Output.of(figures | {"baseline_output_p_value": 0.4}, lossless=True).is_wrong


def test_a_run_that_goes_on_is_reported(
    measure_run: Callable[..., Path], flushed: list[dict[str, Any]]
) -> None:
    folder = measure_run(SamplingParams(max_new_tokens=10), Rejection())
    begun, first, *_, last, whole = flushed
    assert len(flushed) == 1 + 12  # at the beginning, and after every group
    assert first["sides"]["method"]["num_requests"] == 1
    leave(folder, last)
    material = gather([folder])
    (comparison,) = material.comparisons
    assert comparison.gain is not None
    assert comparison.num_requests == 11
    assert "unfinished" in material.notes[0].text
    leave(folder, begun)
    with pytest.raises(ValueError, match="stopped before both sides had decoded a group"):
        gather([folder])
    leave(folder, whole)
    assert gather([folder]).notes == []


def leave(folder: Path, results: dict[str, Any]) -> None:
    """Put results as they were at some time into the folder."""
    (folder / "results.json").write_text(json.dumps(results))


@pytest.mark.parametrize(
    ("arrivals", "label"),
    [(ClosedLoop(2), "2 requests at a time"), (Poisson(5.0), "5 requests per second")],
)
def test_a_load_run(measured_load: Callable[..., Path], arrivals: Arrivals, label: str) -> None:
    folder = measured_load(arrivals, max_running=12)  # all that come: nobody is overloaded
    results = json.loads((folder / "results.json").read_text())
    material = gather([folder])
    assert [c.load.label for c in material.comparisons] == [label, label]
    by_label = {c.setting.label: c for c in material.comparisons}
    assert set(by_label) == {"ngram, 4 drafts", "ngram, 2 drafts"}
    for comparison in by_label.values():
        assert comparison.gain is not None
        assert comparison.output.verdict is OutputVerdict.SAME
        assert comparison.speculative.acceptance is not None
        assert comparison.baseline.step is not None
        assert comparison.baseline.step.parts["verify"] > 0
    whole = by_label["ngram, 4 drafts"]
    assert whole.gain is not None
    if whole.load.is_closed:
        assert whole.gain.value == pytest.approx(results["summary"]["speedup"])
        names = {section.name for section in compose(material, Requirements()).sections}
        assert {"latency", "steps", "all"} <= names


def test_a_load_run_that_goes_on_is_reported(
    measured_load: Callable[..., Path], flushed: list[dict[str, Any]]
) -> None:
    folder = measured_load(ClosedLoop(2), repeats=2)
    begun, first, whole = flushed
    assert (first["complete"], whole["complete"]) == (False, True)
    assert first["summary"]["num_repeats"] == 1
    assert first.keys() == whole.keys()
    leave(folder, first)
    material = gather([folder])
    assert len(material.comparisons) == 2
    assert all(comparison.gain is not None for comparison in material.comparisons)
    assert any("unfinished" in note.text for note in material.notes)
    leave(folder, begun)
    with pytest.raises(ValueError, match="stopped before a side had decoded all requests once"):
        gather([folder])


@pytest.mark.parametrize("is_broken", [False, True])
def test_sampled_output_of_a_load_is_judged_by_its_check(
    measured_load: Callable[..., Path], is_broken: bool
) -> None:
    rule = Gullible() if is_broken else Rejection()
    sampling = SamplingParams(temperature=0.5, top_k=3, max_new_tokens=20)
    folder = measured_load(ClosedLoop(2), sampling=sampling, rule=rule)
    outputs = [comparison.output for comparison in gather([folder]).comparisons]
    verdict = OutputVerdict.CHANGED if is_broken else OutputVerdict.SAME
    assert [output.verdict for output in outputs] == [verdict] * 2


def test_an_overloaded_load_run_says_why_it_stopped(measured_load: Callable[..., Path]) -> None:
    folder = measured_load(Poisson(2000.0), max_waiting=1)
    material = gather([folder])
    assert all(comparison.any_overloaded for comparison in material.comparisons)
    assert any("the queue grows without bound" in note.text for note in material.notes)


@pytest.mark.parametrize("kind", ["run", "load"])
def test_folders_of_another_version_are_refused(
    measured_run: Path, measured_load: Callable[..., Path], kind: str
) -> None:
    """They are neither reported nor resumed."""
    folder = measured_run if kind == "run" else measured_load(ClosedLoop(2))
    results = json.loads((folder / "results.json").read_text())
    del results["schema"]
    leave(folder, results)
    words = r"written by another version \(schema 1, this is 2\); measure again"
    with pytest.raises(ValueError, match=words):
        gather([folder])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    with pytest.raises(ValueError, match=words):
        (ResultsFolder if kind == "run" else LoadFolder)(folder, config, resume=True)


def test_the_load_is_read_from_the_settings(measured_run: Path) -> None:
    config = yaml.safe_load((measured_run / "config.yaml").read_text())
    assert config["batch_size"] == gather([measured_run]).comparisons[0].load.amount == 1
