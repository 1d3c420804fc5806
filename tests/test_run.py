"""`python -m specresearch.run`: exit codes, output and result folders."""

import csv
import errno
import json
import os
import signal
from pathlib import Path

import pytest
from command_line import Run, Typed, prompts_of

from specresearch import run
from specresearch.bench import ResultsFolder, build
from specresearch.cli import INTERRUPTED
from specresearch.proposers import NGram

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*run.log:ResourceWarning")


@pytest.fixture
def command(target_overrides: list[str], tmp_path: Path, typed: Typed) -> Run:
    """Run `python -m specresearch.run` with a small target and three prompts in an empty folder."""
    base = [
        *target_overrides,
        *prompts_of(tmp_path / "prompts.jsonl", ("abcabcab", "fedfed", "ffffff")),
    ]
    base += ["num_prompts=3", "warmup=0", "sampling.max_new_tokens=6"]
    return lambda *overrides: typed(run.main, [*base, *overrides])


def test_a_run_prints_its_result_and_writes_its_folder(command: Run, tmp_path: Path) -> None:
    outcome = command("+proposer=ngram", "hydra.run.dir=out")
    assert outcome.code == 0, outcome.err
    assert "output unchanged: 3 of 3 greedy outputs equal token for token" in outcome.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.yaml", "results.json", "requests.jsonl", "steps.parquet"} <= names
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    named = "speedup speedup_ci95 tokens_per_second baseline_tokens_per_second "
    named += "mean_acceptance_length draft_acceptance_rate tokens_per_target_forward efficiency "
    named += "host_overhead outputs_equal num_prompts num_generated_tokens"
    assert set(named.split()) <= results["summary"].keys()
    assert results["complete"]
    assert results["provenance"]["dataset"]["kind"] == "file"


def test_a_class_from_the_command_line_is_named_in_the_result(command: Run) -> None:
    settings = ("num_draft_tokens=4", "n_max=3", "n_min=1")
    outcome = command(
        "+proposer._target_=specresearch.proposers.NGram", *(f"+proposer.{s}" for s in settings)
    )
    assert outcome.code == 0, outcome.err
    assert "ngram on prompts: " in outcome.out


def test_a_synthetic_acceptance_and_random_weights_are_named_in_the_result(
    command: Run, tmp_path: Path
) -> None:
    outcome = command(
        "target=rehearsal",
        "target.model=rehearsal/target",
        "+proposer=synthetic",
        "proposer@proposer.drafter=eagle3",
        "proposer.acceptance=1.0",
        "hydra.run.dir=out",
    )
    assert outcome.code == 0, outcome.err
    assert "synthetic on prompts (synthetic acceptance, random weights): " in outcome.out
    assert "rehearsal/target with random weights" in outcome.out
    assert "output unchanged: 3 of 3 greedy outputs equal token for token" in outcome.out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["provenance"]["caveats"] == ["synthetic acceptance", "random weights"]


def test_the_default_folder_names_method_and_dataset(command: Run, tmp_path: Path) -> None:
    assert command().code == 0
    assert len(list(tmp_path.glob("outputs/*/*-plain-prompts/results.json"))) == 1


def test_a_multirun_writes_a_row_per_job_and_continues_after_a_failure(
    command: Run, tmp_path: Path
) -> None:
    outcome = command(
        "-m", "+proposer=ngram", "proposer.num_draft_tokens=0,2,4", "hydra.sweep.dir=sweep"
    )
    assert outcome.code == 2
    assert "error: job 0" in outcome.err
    assert "num_draft_tokens=0 must be a whole number from 1 to 1,024" in outcome.err
    with (tmp_path / "sweep" / "summary.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["job"] for row in rows] == ["1-ngram-prompts", "2-ngram-prompts"]
    assert all(float(row["speedup"]) > 0 and row["outputs_equal"] == "True" for row in rows)
    assert "num_draft_tokens=4" in outcome.out
    assert "per forward" in outcome.out


def test_ctrl_c_exits_with_130_and_its_advice_resumes_the_run(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = NGram.start

    def interrupt(self: NGram, rows: list, output: object) -> None:
        if rows[0].id.startswith("1/"):
            raise KeyboardInterrupt
        start(self, rows, output)

    with monkeypatch.context() as patched:
        patched.setattr(NGram, "start", interrupt)
        outcome = command("+proposer=ngram", "proposer.num_draft_tokens=10", "hydra.run.dir=out")
    assert outcome.code == INTERRUPTED
    assert json.loads((tmp_path / "out" / "results.json").read_text())["complete"] is False
    advice = outcome.out.strip().splitlines()[-1]
    assert advice.endswith("resume=true")
    assert f"hydra.run.dir={tmp_path / 'out'}" in advice
    refused = command("+proposer=ngram", "proposer.num_draft_tokens=10", "hydra.run.dir=out")
    assert refused.code == 2
    assert "already holds a run; add resume=true" in refused.err
    outcome = command(
        "+proposer=ngram",
        "proposer.num_draft_tokens=10",
        f"hydra.run.dir={tmp_path / 'out'}",
        "resume=true",
    )
    assert outcome.code == 0
    assert "3 of 3" in outcome.out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset=nope", "there is no dataset=nope; there are: cnndm, gsm8k"),
        ("target=nope", "there is no target=nope; there are: "),
        ("+proposer=nope", "there is no proposer=nope; there are: cascade, draft_model"),
        ("nope=1", "there is no setting nope; there are: "),
        ("+nope=1", "there is no setting nope; there are: "),
        ("+sampling.nope=1", "there is no setting sampling.nope; there are: "),
        (
            "sampling.temperature=-1.0",
            "sampling.temperature=-1 must be 0 or a number from 1e-05 to 100000",
        ),
        ("sampling.top_p=0.0", "sampling.top_p=0 must be a number above 0 and at most 1"),
        ("num_prompts=0", "num_prompts=0 must be a whole number from 1 to 10,000,000 or null"),
        ("order=sorted", "order=sorted must be one of dataset, shuffled"),
        ("target.model=zoo:nope", "'zoo:nope' is not in the zoo"),
        ("target.model=???", "target.model is not set"),
        ("+proposer=draft_model draft=''", "proposer.draft.model= must be text that is not empty"),
        ("dataset.path=nope.jsonl", "nope.jsonl does not exist"),
        (
            "dataset=sharegpt dataset.path=null dataset.streaming=true",
            "dataset.streaming=true cannot read a single file (ShareGPT_V3_unfiltered_cleaned",
        ),
        ("resume=true", "add hydra.run.dir=<folder>"),
        ("tracker=wandb", "wandb has no login"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, override: str, message: str
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    outcome = command(*override.split())
    assert outcome.code == 2
    lines = outcome.err.strip().splitlines()
    assert message in lines[-1]
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_like_ctrl_c(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    start = NGram.start

    def stop(self: NGram, rows: list, output: object) -> None:
        if rows[0].id.startswith("1/"):
            os.kill(os.getpid(), number)
        start(self, rows, output)

    with monkeypatch.context() as patched:
        patched.setattr(NGram, "start", stop)
        outcome = command("+proposer=ngram", "proposer.num_draft_tokens=10", "hydra.run.dir=out")
    assert outcome.code == 128 + number
    assert json.loads((tmp_path / "out" / "results.json").read_text())["complete"] is False
    assert outcome.out.strip().endswith("resume=true")
    assert (
        command(
            "+proposer=ngram", "proposer.num_draft_tokens=10", "hydra.run.dir=out", "resume=true"
        ).code
        == 0
    )


def test_a_signal_before_any_output_prints_one_word(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "build_runner", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    outcome = command()
    assert (outcome.code, outcome.err) == (128 + signal.SIGTERM, "interrupted\n")


def test_a_full_disk_is_one_line_that_says_how_to_resume(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ResultsFolder, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ResultsFolder, "add_group", full)
        outcome = command("hydra.run.dir=out")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    folder = tmp_path / "out"
    assert f"error: no room to write {folder}, whose disk has " in outcome.err
    assert (
        f"make room, then give the same command with hydra.run.dir={folder} resume=true"
        in outcome.err
    )
    assert command("hydra.run.dir=out", "resume=true").code == 0


def test_a_folder_that_hydra_cannot_create_is_one_line(command: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = command("hydra.run.dir=file/run")
    assert outcome.code == 2
    assert outcome.err.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in outcome.err
