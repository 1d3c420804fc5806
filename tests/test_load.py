"""The load command, as it is typed: exit codes, what it prints, and the folders it leaves."""

import csv
import json
from pathlib import Path

import pytest
from command_line import BuildLoad, Outcome, Run, Typed, prompts_of

from specresearch import load
from specresearch.acceptance.threshold import WORKLOADS
from specresearch.bench.output_check import CHANGED
from specresearch.loadtest.runner import LoadRunner

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*load.log:ResourceWarning")


@pytest.fixture
def command(target_overrides: list[str], tmp_path: Path, typed: Typed) -> Run:
    """Run the command in an empty folder: small target, three prompts, closed loop of two."""
    base = [
        *target_overrides,
        *prompts_of(tmp_path / "prompts.jsonl", ("abcabcab", "fedfed", "ffffff") * 3),
    ]
    base += [
        "arrivals=closed_loop",
        "arrivals.concurrency=2",
        "num_requests=6",
        "warmup=0",
        "max_running=2",
    ]
    base += ["sampling.max_new_tokens=4"]

    def run(*overrides: str) -> Outcome:
        given = {override.split("=")[0] for override in overrides}
        own = [
            override
            for override in base
            if not ("arrivals" in given and override.startswith("arrivals"))
        ]
        return typed(load.main, [*(o for o in own if o.split("=")[0] not in given), *overrides])

    return run


def test_a_load_run_prints_its_answer_and_leaves_its_folder(command: Run, tmp_path: Path) -> None:
    outcome = command("+proposer=ngram", "compare=[2]", "hydra.run.dir=out")
    assert outcome.code == 0, outcome.err
    assert "ngram with the goodput controller on prompts, closed loop of 2:" in " ".join(
        outcome.out.split()
    )
    assert "greedy outputs equal plain decoding's token for token" in " ".join(outcome.out.split())
    assert [
        line
        for line in outcome.out.splitlines()
        if len(line) > 80 and "results.json" not in line and not line.startswith("INFO")
    ] == []
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "GB resident at the start" in outcome.out
    assert {
        "config.yaml",
        "results.json",
        "requests.jsonl",
        "passes.jsonl",
        "steps.parquet",
    } <= names
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    named = "speedup speedup_over_best best_fixed throughput baseline_throughput "
    named += "tpot_p99_ratio ttft_p50 baseline_ttft_p50"
    named += " goodput concurrency max_running outputs_equal num_requests schedule_share"
    assert set(named.split()) <= results["summary"].keys()
    assert results["provenance"]["command"].startswith("python -m specresearch.load ")
    assert set(results["definitions"]) >= {"window", "intervals", "speedup", "ttft"}
    again = command("+proposer=ngram", "compare=[2]", "hydra.run.dir=out", "resume=true")
    assert again.code == 0
    assert "closed loop of 2" in again.out


def test_classes_are_reported_apart(command: Run, tmp_path: Path) -> None:
    classes = (
        "classes={calm:{share:0.5},warm:{share:0.5,sampling:{temperature:1.0},num_draft_tokens:1}}"
    )
    outcome = command("+proposer=ngram", classes, "num_requests=8", "hydra.run.dir=out")
    assert outcome.code == 0, outcome.err
    assert "calm: baseline" in outcome.out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results["classes"]) == {"calm", "warm"}
    assert results["summary"]["temperature"] is None
    assert results["summary"]["num_outputs_compared"] == 4
    assert (
        results["summary"]["output_p_value"]
        == results["outputs"]["method"]["output_p_value"]
        > CHANGED
    )
    greedy, sampled = results["summary"]["output_statement"].split("; ", 1)
    assert (
        greedy == "output unchanged: 4 of 4 greedy outputs equal plain decoding's token for token"
    )
    assert sampled.startswith("output consistent with the target's distribution (16 tokens, p = ")
    assert results["class_unclear"] == ["calm", "warm"]
    assert "calm, warm: too few requests to tell" in outcome.out


@pytest.mark.filterwarnings("ignore:the target is:UserWarning")
def test_a_class_may_have_the_threshold_of_its_kind_of_text(build_load: BuildLoad) -> None:
    classes = "classes={code:{share:0.2,acceptance:code},prose:{share:0.5,acceptance:prose},"
    classes += "rest:{share:0.3}}"
    method = [
        "+proposer=draft_model",
        "controller=fixed",
        "acceptance=threshold",
        "sampling.temperature=1.0",
    ]
    runner = build_load([*method, classes])
    found = {part.name: part.sampling.draft_threshold for part in runner.classes}
    assert found == {"code": WORKLOADS["code"], "prose": WORKLOADS["prose"], "rest": None}


def test_too_high_a_rate_is_warned_of_at_the_usual_settings(command: Run, tmp_path: Path) -> None:
    """Of 64 requests and 32 places no more than 32 wait, far fewer than stop a pass."""
    outcome = command(
        "arrivals=constant",
        "arrivals.qps=5000.0",
        "num_requests=null",
        "max_running=32",
        "sampling.max_new_tokens=16",
        "hydra.run.dir=out",
    )
    assert outcome.code == 0, outcome.err
    assert "baseline: requests arrived faster than they were answered" in " ".join(
        outcome.out.split()
    )
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["stopped"] is None
    assert results["summary"]["overloaded"] is True


def test_a_replay_too_short_to_be_measured_says_so(command: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(
        json.dumps({"timestamp": 0, "input_length": 8, "output_length": 4}) + "\n"
    )
    outcome = command(
        "arrivals=replay", "arrivals.path=trace.jsonl", "num_requests=null", "hydra.run.dir=out"
    )
    assert outcome.code == 0, outcome.err
    assert "no figures on prompts, replay: every pass was too short" in " ".join(
        outcome.out.split()
    )
    assert "yet" not in outcome.out


def test_an_experiment_is_a_sweep_with_a_table_and_a_plot(command: Run, tmp_path: Path) -> None:
    overrides = (
        "+experiment=concurrency",
        "arrivals.concurrency=1,2",
        "compare=[]",
        "repeats=1",
        "hydra.sweep.dir=sweep",
    )
    outcome = command(*overrides, "proposer=ngram")
    assert outcome.code == 0, outcome.err
    assert "run 1 of 2: arrivals.concurrency=1" in outcome.err
    assert "concurrency=2" in outcome.out
    with (tmp_path / "sweep" / "summary.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["concurrency"] for row in rows] == ["1", "2"]
    assert (tmp_path / "sweep" / "summary.png").exists()


def test_ctrl_c_exits_130_and_its_own_advice_continues_the_run(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = LoadRunner._measure_group

    def interrupt(self: LoadRunner, keys: object, *rest: object) -> None:
        if self.folder.passes:
            raise KeyboardInterrupt
        measure(self, keys, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(LoadRunner, "_measure_group", interrupt)
        broken = command("+proposer=ngram", "repeats=2", f"hydra.run.dir={tmp_path / 'out'}")
    assert broken.code == 130
    assert "the finished passes are kept" in broken.out
    advice = broken.out.strip().splitlines()[-1].split()
    assert advice[:3] == ["python", "-m", "specresearch.load"]
    refused = command("+proposer=ngram", "repeats=2", f"hydra.run.dir={tmp_path / 'out'}")
    assert refused.code == 2
    assert "add resume=true" in refused.err
    assert (
        command(
            "+proposer=ngram", "repeats=2", f"hydra.run.dir={tmp_path / 'out'}", "resume=true"
        ).code
        == 0
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["arrivals=nope"], "there is no arrivals=nope; there are: closed_loop, constant"),
        (["arrivals=replay"], "arrivals.path is not set; add arrivals.path="),
        (["arrivals=replay", "arrivals.path=nope.csv"], "nope.csv does not exist"),
        (["arrivals.concurrency=0"], "arrivals.concurrency=0 must be a whole number from 1"),
        (["nope=1"], "there is no setting nope; there are: "),
        (["+nope=1"], "there is no setting nope; there are: "),
        (
            ["compare=[0]", "+proposer=ngram"],
            "compare=[0] must be a list of whole numbers of at least 1",
        ),
        (["limits.ttft=0.0"], "limits.ttft=0 must be a number above 0"),
        (["max_waiting=0"], "max_waiting=0 must be a whole number from 1"),
        (
            ["classes={x:{shares:1}}"],
            "there is no setting classes.x.shares; did you mean share?",
        ),
        (["classes={x:{}}"], "classes.x.share is not set; add classes.x.share=0.6"),
        (
            ["classes={x:{share:1.0,acceptance:prose}}"],
            "is for acceptance=threshold; add that, or leave it out",
        ),
        (["resume=true"], "add hydra.run.dir=<folder>"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    command: Run, overrides: list[str], message: str
) -> None:
    outcome = command(*overrides)
    assert outcome.code == 2
    lines = outcome.err.strip().splitlines()
    assert message in lines[-1]
    assert "Traceback" not in outcome.err
