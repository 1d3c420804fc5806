"""The command, as it is typed: from a recorded run to predicted figures, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from command_line import Typed, call, prompts_of

from specresearch import load, progress, run, simulate
from specresearch.recording.recording import Recording

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*(run|load|simulate).log:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:the target is:UserWarning"),
]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def base(target_overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    prompts = prompts_of(
        tmp_path_factory.mktemp("prompts") / "prompts.jsonl", ("abcabcab", "fedfed", "ffffff")
    )
    told = [*target_overrides, *prompts, "progress=false", "warmup=0", "sampling.max_new_tokens=12"]
    return [*told, "+proposer=ngram", "proposer.n_min=1", "proposer.num_draft_tokens=10"]


@pytest.fixture(scope="session")
def recorded(base: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    with pytest.MonkeyPatch.context() as patch:
        settings = ["num_prompts=3", "batch_size=2", "record=true", f"hydra.run.dir={folder}"]
        assert call(run.main, [*base, *settings], patch) == 0
    return folder


@pytest.fixture
def command(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Exit code, stdout and stderr of an entry point in an empty folder, without progress."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "FIRST_SECONDS", float("inf"))

    def run_it(main: Callable[[], None], *overrides: str) -> tuple[int, str, str]:
        outcome = typed(main, overrides)
        return outcome.code, outcome.out, outcome.err

    return run_it


def test_a_recorded_run_answers_what_if(command: Command, recorded: Path) -> None:
    code, out, err = command(
        simulate.main,
        f"recording={recorded}",
        "compare=[2]",
        "arrivals.concurrency=2",
        "num_requests=12",
        "hydra.run.dir=what",
    )
    assert (code, err) == (0, "")
    results = json.loads(Path("what/results.json").read_text())
    assert (results["kind"], results["complete"]) == ("simulation", True)
    assert list(results["sides"]) == ["baseline", "method", "fixed-2"]
    assert results["summary"]["concurrency"] == 2
    assert (
        results["summary"]["schedule_share"] is results["sides"]["method"]["schedule_share"] is None
    )
    assert results["sides"]["baseline"]["tokens_per_target_forward"] == 1
    assert results["sides"]["method"]["tokens_per_target_forward"] > 1
    assert (
        results["sides"]["fixed-2"]["mean_draft_length"]
        < results["sides"]["method"]["mean_draft_length"]
    )
    assert results["provenance"]["assumption"].endswith("by the proposer itself; exact")
    assert yaml.safe_load(Path("what/config.yaml").read_text())["num_requests"] == 12
    assert "changed" not in out  # the recorded run had batches of 2
    assert "tokens per second" in out
    assert "requests simulated per second" in " ".join(out.split())
    code, _, err = command(simulate.main, f"recording={recorded}", "hydra.run.dir=what")
    assert code == 2
    assert "what already holds a run; choose another hydra.run.dir" in err


def test_another_machine_and_another_load(command: Command, recorded: Path) -> None:
    machine = ["timing=linear", "timing.verify=0.02", "timing.overhead=0.001"]
    code, _, err = command(
        simulate.main,
        f"recording={recorded}",
        *machine,
        "arrivals=poisson",
        "arrivals.qps=2000.0",
        "num_requests=60",
        "controller=goodput",
        "hydra.run.dir=fast",
    )
    assert (code, err) == (0, "")
    results = json.loads(Path("fast/results.json").read_text())
    assert results["sides"]["baseline"]["tpot_p50"] == pytest.approx(0.021)
    assert results["controller"]["method"]
    machine = [
        "timing=roofline",
        "timing.weight_bytes=140e9",
        "timing.parameters=70e9",
        "timing.kv_bytes=327680.0",
    ]
    code, _, err = command(simulate.main, f"recording={recorded}", *machine, "hydra.run.dir=large")
    assert (code, err) == (0, "")
    results = json.loads(Path("large/results.json").read_text())
    assert results["sides"]["baseline"]["tpot_p50"] == pytest.approx(
        140e9 / (0.7 * 3.35e12), rel=0.01
    )


def test_by_default_the_recorded_batches_are_repeated(command: Command, recorded: Path) -> None:
    code, out, err = command(simulate.main, f"recording={recorded}", "hydra.run.dir=same")
    assert (code, err) == (0, "")
    summary = json.loads(Path("same/results.json").read_text())["summary"]
    assert (summary["arrivals"], summary["concurrency"]) == ("closed_loop", 2)
    assert summary["max_running"] == 2
    assert yaml.safe_load(Path("same/config.yaml").read_text())["max_running"] is None
    told = " ".join(out.split())
    assert "simulated: ngram with a fixed draft length on " in told
    assert "load closed loop of 2, up to 2 together, 8 requests a pass" in told
    assert "M parameters, float" in told
    assert "changed" not in told


def test_what_is_not_as_recorded_is_named_in_one_line(command: Command, recorded: Path) -> None:
    settings = ["arrivals.concurrency=3", "acceptance=block", "num_draft_tokens=11"]
    code, out, err = command(
        simulate.main,
        f"recording={recorded}",
        *settings,
        "controller=goodput",
        "hydra.run.dir=other",
    )
    assert (code, err) == (0, "")
    changes = [
        "closed loop of 3 (recorded: closed loop of 2)",
        "up to 3 together (recorded: 2)",
        "acceptance=block (recorded: rejection)",
        "num_draft_tokens=11 (recorded: 10)",
        "controller=goodput (recorded: a fixed number of drafts)",
    ]
    results = json.loads(Path("other/results.json").read_text())
    assert results["provenance"]["not_recorded"] == changes
    assert f"changed {'; '.join(changes)}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["temperature=0.7"],
            "temperature=0.7: the recording has temperature 0, and another one leads to other "
            "texts",
        ),
        (["model=other"], "another target than model=other: model is"),
        (["acceptance=threshold"], "acceptance=threshold moves the output"),
        (["side=fixed-3"], "side=fixed-3 is not in"),
        (["compare=[99]"], "compare=[99] holds 99, and drafts have 1 to 10 tokens"),
        (
            ["num_draft_tokens=999"],
            "num_draft_tokens=999: the largest recorded pass has 12 tokens, and the time of a "
            "longer draft is not known; use 1 to 11, record longer drafts, or give the times",
        ),
        (
            ["arrivals.qps=2.0"],
            "arrivals.qps=2.0: the recorded arrivals (ClosedLoop) have no qps; add "
            "arrivals=poisson",
        ),
        (["max_running=0"], "max_running=0 must be a whole number from 1"),
        (
            ["arrivals.concurrency=8", "num_requests=23"],
            "num_requests=23 is too few for a closed loop of 8",
        ),
        (["+what=1"], "there is no setting what; there are: "),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    command: Command, recorded: Path, overrides: list[str], message: str
) -> None:
    code, _, err = command(simulate.main, f"recording={recorded}", *overrides, "hydra.run.dir=none")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_a_recording_does_not_change_the_run_and_resumes_with_it(
    command: Command, base: list[str]
) -> None:
    command(run.main, *base, "num_prompts=3", "record=true", "hydra.run.dir=with")
    command(run.main, *base, "num_prompts=3", "hydra.run.dir=without")
    told = [
        [
            json.loads(line)["token_ids"]
            for line in (Path(name) / "requests.jsonl").read_text().splitlines()
        ]
        for name in ("with", "without")
    ]
    assert told[0] == told[1]
    assert not Path("without/recording.parquet").exists()
    code, _, err = command(
        run.main, *base, "num_prompts=3", "record=true", "resume=true", "hydra.run.dir=with"
    )
    assert (code, err) == (0, "")
    assert [len(Recording(Path("with")).requests(side)) for side in ("baseline", "method")] == [
        3,
        3,
    ]


def test_a_load_run_records_every_side(command: Command, base: list[str]) -> None:
    code, _, err = command(
        load.main,
        *base,
        "arrivals=closed_loop",
        "arrivals.concurrency=2",
        "num_requests=6",
        "compare=[3]",
        "record=true",
        "hydra.run.dir=load",
    )
    assert (code, err) == (0, "")
    recording = Recording(Path("load"))
    assert sorted(recording.sides) == ["baseline", "fixed-3", "method"]
    assert recording.header.fixed == {"baseline": 0, "method": None, "fixed-3": 3}
    assert recording.header.longest_side == "fixed-3"
    assert len(recording.requests("method")) == 6
    code, _, err = command(simulate.main, "recording=load", "hydra.run.dir=what")
    assert (code, err) == (0, "")
    results = json.loads(Path("what/results.json").read_text())
    assert results["summary"]["concurrency"] == results["summary"]["max_running"] == 2
    assert results["provenance"]["not_recorded"] == []
    code, _, err = command(
        load.main, *base, "arrivals=recorded", "num_requests=6", "hydra.run.dir=none"
    )
    assert code == 2
    assert "arrivals=recorded repeats the load of a recording" in err


def test_a_rate_that_cannot_be_served_is_called_that(command: Command, recorded: Path) -> None:
    machine = ["timing=linear", "timing.verify=0.02", "arrivals=poisson", "arrivals.qps=500.0"]
    code, out, _ = command(
        simulate.main, f"recording={recorded}", *machine, "num_requests=200", "hydra.run.dir=late"
    )
    assert code == 0
    told = " ".join(out.split())
    assert (
        "baseline, method: requests arrived faster than they were answered; throughput is the most"
        in told
    )
    code, out, _ = command(
        simulate.main,
        f"recording={recorded}",
        *machine,
        "num_requests=400",
        "max_waiting=100",
        "hydra.run.dir=stopped",
    )
    told = " ".join(out.split())
    assert "stopped: baseline, repeat 0: the queue grows without bound" in told
    assert "(max_waiting=100)" in told


def test_controllers_are_called_what_their_choice_is(command: Command, recorded: Path) -> None:
    machine = ["timing=linear", "timing.verify=0.02", "controller=batch_size_cutoff"]
    assert command(simulate.main, f"recording={recorded}", *machine, "hydra.run.dir=cutoff")[0] == 0
    assert (
        json.loads(Path("cutoff/results.json").read_text())["summary"]["controller"]
        == "batch_size_cutoff"
    )


def test_a_damaged_recording_is_named_with_its_remedy(command: Command, recorded: Path) -> None:
    whole = (recorded / "recording.parquet").read_bytes()
    Path("damaged").mkdir()
    Path("damaged/recording.parquet").write_bytes(whole[:100] + bytes(200) + whole[300:])
    for overrides in (
        ["recording=damaged"],
        [f"recording={recorded}", "timing.recordings=[damaged]"],
    ):
        code, _, err = command(simulate.main, *overrides, "hydra.run.dir=none")
        assert code == 2
        assert "the recording in damaged is damaged (" in err
        assert "record the run again with record=true" in err


def test_a_recording_of_another_version_is_used_with_a_caution(
    command: Command, recorded: Path
) -> None:
    table = pq.read_table(recorded / "recording.parquet")
    header = replace(Recording(recorded).header, package="0.0.1")
    Path("older").mkdir()
    pq.write_table(table.cast(header.written_into(table.schema)), "older/recording.parquet")
    code, out, err = command(
        simulate.main,
        "recording=older",
        "timing=linear",
        "timing.verify=0.02",
        "hydra.run.dir=what",
    )
    assert (code, err) == (0, "")
    assert "caution: recorded by specresearch 0.0.1 and read by" in " ".join(out.split())
