"""What `run` and `load` really leave behind is read, whole and after a kill."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench import ResultsFolder, Runner, RunSettings
from specresearch.data import PromptDataset
from specresearch.loadtest.arrivals import Arrivals, ClosedLoop, Poisson
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.runner import LoadRunner, LoadSettings
from specresearch.loadtest.summary import LoadFigures
from specresearch.loadtest.workload import RequestClass
from specresearch.proposers import NGram
from specresearch.reporting import Limits, compose, gather
from specresearch.reporting.comparisons import Output
from specresearch.reporting.load_folder import _Reader
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
        told = {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens}
        results = ResultsFolder(folder, {"batch_size": 1, "sampling": told})
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


def leave_as_a_kill_would(folder: Path) -> None:
    """Take the figures out of a folder's results."""
    results = json.loads((folder / "results.json").read_text())
    bare = {name: type(value)() for name, value in results.items()} | {"complete": False}
    (folder / "results.json").write_text(json.dumps(bare | {"provenance": results["provenance"]}))


@pytest.fixture
def measured_load(target: CausalLM, dataset: PromptDataset, tmp_path: Path) -> Callable[..., Path]:
    def run(
        arrivals: Arrivals,
        max_running: int = 2,
        max_waiting: int = 256,
        sampling: SamplingParams | None = None,
        rule: AcceptanceSampler | None = None,
    ) -> Path:
        folder = tmp_path / "load"
        sampling = sampling or SamplingParams(max_new_tokens=8)
        settings = LoadSettings(
            num_requests=12,
            max_running=max_running,
            compare=(2,),
            warmup=0,
            max_waiting=max_waiting,
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
            acceptance=rule,
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
    assert comparison.output.is_same
    for name in ("ttft_p50", "tpot_p99", "e2el_p90"):
        own, plain = comparison.own[name], comparison.plain[name]
        assert own is not None
        assert plain is not None
        assert (own.value, plain.value) == pytest.approx(
            (summary[name], summary[f"baseline_{name}"])
        )
        assert own.has_interval == name.endswith(
            "p50"
        )  # a dozen prompts say nothing of the slowest tenth
    told = comparison.own.acceptance
    assert told is not None
    assert told.rate is not None
    assert told.rate.value == pytest.approx(summary["draft_acceptance_rate"])
    assert told.p10 is not None
    assert comparison.plain.tokens_per_step == pytest.approx(1)


@pytest.mark.parametrize("is_broken", [False, True])
def test_sampled_output_of_a_run_is_judged_by_its_check(
    measure_run: Callable[..., Path], is_broken: bool
) -> None:
    """Whole, and from the rows that a kill left."""
    rule = Gullible() if is_broken else Rejection()
    folder = measure_run(SamplingParams(temperature=0.5, top_k=3, max_new_tokens=20), rule)
    (whole,) = gather([folder]).comparisons
    assert (whole.output.is_same, whole.output.is_wrong) == (not is_broken, is_broken)
    leave_as_a_kill_would(folder)
    (killed,) = gather([folder]).comparisons
    assert killed.output == whole.output


def test_a_control_that_fails_makes_the_output_wrong() -> None:
    told = {"output_statement": "", "output_p_value": 0.5, "baseline_output_p_value": 1e-9}
    assert Output.of(told, lossless=True).is_wrong
    assert not Output.of(told | {"baseline_output_p_value": 0.4}, lossless=True).is_wrong


def test_a_killed_run_is_reported_from_its_rows(measured_run: Path) -> None:
    whole = gather([measured_run]).comparisons[0].gain
    leave_as_a_kill_would(measured_run)
    material = gather([measured_run])
    (comparison,) = material.comparisons
    assert comparison.gain == whole
    assert "unfinished" in material.notes[0].text
    groups = (measured_run / "groups.jsonl").read_text().splitlines(keepends=True)
    (measured_run / "groups.jsonl").write_text(groups[0])
    with pytest.raises(ValueError, match="stopped before both sides had decoded a group"):
        gather([measured_run])


@pytest.mark.parametrize(
    ("arrivals", "label"),
    [(ClosedLoop(2), "2 requests at a time"), (Poisson(5.0), "5 requests per second")],
)
def test_a_load_run_and_what_a_kill_leaves_of_it(
    measured_load: Callable[..., Path], arrivals: Arrivals, label: str
) -> None:
    folder = measured_load(arrivals, max_running=12)  # all that come: nobody is overloaded
    results = json.loads((folder / "results.json").read_text())
    material = gather([folder])
    assert [c.load.label for c in material.comparisons] == [label, label]
    by_label = {c.policy.label: c for c in material.comparisons}
    assert set(by_label) == {"ngram, 4 drafts", "ngram, 2 drafts"}
    for comparison in by_label.values():
        assert comparison.gain is not None
        assert comparison.output.is_same
        assert comparison.own.acceptance is not None
        assert comparison.own.acceptance.histogram is not None
        assert comparison.plain.step["verify"] > 0
    whole = by_label["ngram, 4 drafts"]
    assert whole.gain is not None
    if whole.load.is_closed:
        assert whole.gain.value == pytest.approx(results["summary"]["speedup"])
        names = {section.name for section in compose(material, Limits()).sections}
        assert {"speedup", "latency", "acceptance", "steps", "predicted", "controllers"} <= names

    bare: dict[str, Any] = {"kind": "load", "complete": False, "provenance": results["provenance"]}
    (folder / "results.json").write_text(json.dumps(bare))
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {
        "limits": {"ttft": 0.5, "tpot": 0.05}
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    killed = gather([folder])
    assert {c.policy.label: c.gain for c in killed.comparisons} == {
        label: c.gain for label, c in by_label.items()
    }
    assert killed.limits == [{"ttft": 0.5, "tpot": 0.05}]


@pytest.mark.parametrize("is_broken", [False, True])
def test_sampled_output_of_a_load_is_judged_by_its_check(
    measured_load: Callable[..., Path], is_broken: bool
) -> None:
    """Whole, and from the passes that a kill left."""
    rule = Gullible() if is_broken else Rejection()
    sampling = SamplingParams(temperature=0.5, top_k=3, max_new_tokens=20)
    folder = measured_load(ClosedLoop(2), sampling=sampling, rule=rule)
    whole = {c.policy.label: c.output for c in gather([folder]).comparisons}
    assert [(output.is_same, output.is_wrong) for output in whole.values()] == [
        (not is_broken, is_broken)
    ] * 2
    results = json.loads((folder / "results.json").read_text())
    bare = {"kind": "load", "complete": False, "provenance": results["provenance"]}
    (folder / "results.json").write_text(json.dumps(bare))
    killed = {c.policy.label: c.output for c in gather([folder]).comparisons}
    assert {k: output.words for k, output in killed.items()} == {
        k: output.words for k, output in whole.items()
    }
    assert [output.is_wrong for output in killed.values()] == [is_broken] * 2


def test_rows_of_another_version_cost_the_intervals_only(
    measured_load: Callable[..., Path],
) -> None:
    folder = measured_load(ClosedLoop(2))
    rows = (folder / "requests.jsonl").read_text().replace('"e2el"', '"latency"')
    (folder / "requests.jsonl").write_text(rows)
    material = gather([folder])
    assert len(material.comparisons) == 2
    assert any("of another version" in note.text for note in material.notes)


def test_nothing_is_lost_of_a_killed_load_run(measured_load: Callable[..., Path]) -> None:
    """What a whole run wrote into results.json is what is made of its rows."""
    folder = measured_load(Poisson(2000.0), max_waiting=1)
    whole = json.loads((folder / "results.json").read_text())
    bare = {"kind": "load", "complete": False, "provenance": whole["provenance"]}
    told = json.loads(json.dumps(_Reader(folder, bare).results))
    for name in (part.name for part in fields(LoadFigures)):
        if name != "summary":
            assert told[name] == whole[name], name
    assert {
        key: value for key, value in told["summary"].items() if value is not None
    }.items() <= whole["summary"].items()
    assert {"method", "arrivals", "qps", "max_running", "overloaded"} <= told["summary"].keys()
    assert "the queue grows without bound" in told["stopped"]
    (folder / "results.json").write_text(json.dumps(bare))
    assert any(note.text.startswith("stopped early") for note in gather([folder]).notes)


@pytest.mark.parametrize("content", ["damaged", "old"])
def test_steps_that_cannot_be_read_cost_the_step_times_only(
    measured_load: Callable[..., Path], content: str
) -> None:
    folder = measured_load(ClosedLoop(2))
    whole = gather([folder])
    if content == "damaged":
        (folder / "steps.parquet").write_bytes(b"PAR1 torn")
    else:
        table = pq.read_table(folder / "steps.parquet")
        pq.write_table(
            table.rename_columns([n.replace("verify", "forward") for n in table.column_names]),
            folder / "steps.parquet",
        )
    material = gather([folder])
    assert "steps.parquet cannot be read: no step times" in [note.text for note in material.notes]
    for own, before in zip(material.comparisons, whole.comparisons, strict=True):
        assert own.policy == before.policy
        assert own.gain is not None
        assert own.own["tpot_p99"] == before.own["tpot_p99"]
        assert own.own.acceptance == before.own.acceptance
        assert own.own.step == {}


def test_config_is_read_from_the_folder(measured_run: Path) -> None:
    config = yaml.safe_load((measured_run / "config.yaml").read_text())
    assert config["batch_size"] == gather([measured_run]).comparisons[0].load.amount == 1
