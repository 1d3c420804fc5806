import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from specresearch import CausalLM, SamplingParams
from specresearch.acceptance import Rejection, Typical
from specresearch.batch import Batch
from specresearch.bench import ResultsFolder, Runner, RunSettings
from specresearch.clock import Clock
from specresearch.data import PromptDataset
from specresearch.engine import RequestFailedError, judge, rule_graphs
from specresearch.models.medusa import MedusaHeads
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import Cascade, Medusa, NGram, Proposer, Suffix, TokenRecycling
from specresearch.recording.recorder import Recorder, describe_recording
from specresearch.request import RequestState
from specresearch.rows import BASELINE, METHOD
from specresearch.sampling import SamplingBatch

Make = Callable[..., Runner]
NUM_TOKENS = 10
KEEN = Typical(epsilon=0.01, delta=0.9)
WARM = SamplingParams(temperature=1.0, max_new_tokens=12)


class Gullible(Rejection):
    """Accepts every draft."""

    lossless = False

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        width = proposal.token_ids.shape[1]
        index = torch.arange(width)
        path = torch.where(index < proposal.lengths[:, None], index, -1)
        last = target_logits.argmax(-1).gather(1, proposal.lengths[:, None] - 1)[:, 0]
        return Verdict(path, proposal.lengths - 1, last)


class Interrupted(NGram):
    """Ctrl-C while the fourth request is decoded, the warm-up's counted."""

    num_started = 0

    @property
    def memory(self) -> Literal["cold"]:
        return "cold"  # so that what is decoded again is decoded with the same draws

    def start(self, rows: Sequence[RequestState], output: object) -> None:
        super().start(rows, output)
        self.num_started += len(rows)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if self.num_started == 4 and batch.rows[0].num_generated > 2:
            raise KeyboardInterrupt
        return super().propose(batch, budget)


class Described(NGram):
    def describe(self) -> str:
        return "three heads that read layer 7"


def tokens(results: ResultsFolder, side: str) -> dict[tuple[int, str], tuple[int, ...]]:
    return {
        (row.key.repeat, row.id): row.token_ids for row in results.requests if row.key.side == side
    }


@pytest.mark.parametrize("batch_size", [1, 3])
def test_greedy_output_is_unchanged_and_everything_is_on_disk(
    make_runner: Make, batch_size: int
) -> None:
    runner = make_runner(
        proposer=NGram(4, 3, 1),
        method="ngram",
        settings=RunSettings(batch_size=batch_size, repeats=2),
    )
    results = runner.run()
    summary, folder = results.summary, runner.folder.path
    assert results.complete
    assert summary["outputs_equal"] is True
    assert (
        summary["output_statement"]
        == "output unchanged: 14 of 14 greedy outputs equal token for token"
    )
    assert summary["num_prompts"] == 4
    assert summary["num_requests"] == 14
    assert summary["speedup_basis"] == "wall time, equal token counts"
    assert (
        summary["num_generated_tokens"]
        == summary["baseline_num_generated_tokens"]
        == 14 * NUM_TOKENS
    )
    assert summary["tokens_per_target_forward"] > 1
    assert sum(
        summary[f"fraction_{part}"]
        for part in ("prefill", "propose", "verify", "accept", "commit", "host")
    ) == (pytest.approx(1.0))
    assert all(
        summary[f"fraction_{part}"] >= 0
        for part in ("prefill", "propose", "verify", "accept", "commit", "host")
    )
    written = json.loads((folder / "results.json").read_text())
    assert written["summary"]["speedup"] == summary["speedup"]
    assert "speedup" in written["definitions"]
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == 28
    assert all(len(row["token_ids"]) == NUM_TOKENS for row in rows)
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    assert (
        sum(sum(row["num_new_tokens"]) for row in steps if row["side"] == METHOD)
        == summary["num_generated_tokens"]
    )
    assert sum(sum(row["num_accepted_tokens"]) for row in steps) == summary["num_accepted_tokens"]
    assert not runner.target.in_use


def test_sides_take_turns_in_going_first(make_runner: Make) -> None:
    runner = make_runner(proposer=NGram())
    order = [(place.group, place.side) for place in runner.plan.passes()]
    assert order[:4] == [(0, BASELINE), (0, METHOD), (1, METHOD), (1, BASELINE)]


def test_a_rule_that_accepts_anything_is_found_out(make_runner: Make) -> None:
    results = make_runner(proposer=NGram(4, 3, 1), method="ngram", acceptance=Gullible()).run()
    assert results.summary["outputs_equal"] is False
    difference = results.summary["output_differences"][0]
    assert difference["logits"]["is_rounding"] is False
    assert difference["logits"]["gap"] > 0
    assert results.summary["output_statement"].startswith("OUTPUT CHANGED")


@pytest.mark.parametrize("sampling", [SamplingParams(max_new_tokens=12), WARM])
def test_a_request_that_fails_ends_the_run_in_its_sentence(
    make_runner: Make,
    target: CausalLM,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sampling: SamplingParams,
) -> None:
    """Every observer is attached. Finished groups are kept, and a resumed run completes."""
    honest = rule_graphs.find_faults
    calls = 0

    def sometimes(proposal: Proposal, logits: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return honest(proposal, logits) + (calls == 40)

    def make(*, resume: bool = False) -> Runner:
        proposer, recorder = NGram(4, 3, 1), None
        if not resume:
            sides = {BASELINE: None, METHOD: None}
            recorder = Recorder(
                tmp_path / "run",
                describe_recording(target, proposer, Rejection(), "ngram", sides, {}),
            )
        return make_runner(
            resume=resume, recorder=recorder, proposer=proposer, method="ngram", sampling=sampling
        )

    with monkeypatch.context() as patch:
        patch.setattr(rule_graphs, "find_faults", sometimes)
        runner = make()
        with pytest.raises(
            RequestFailedError,
            match=r"failed after \d+ tokens: the target's logits are NaN or infinite",
        ):
            runner.run()
    assert not runner.target.in_use
    assert 0 < len(runner.folder.groups) < 8
    assert make(resume=True).run().complete


def test_without_a_proposer_plain_decoding_is_measured(make_runner: Make) -> None:
    runner = make_runner()
    summary = runner.run().summary
    assert summary["speedup"] is None
    assert summary["tokens_per_second"] > 0
    assert {row.key.side for row in runner.folder.requests} == {BASELINE}


def test_later_turns_hold_the_models_own_replies(make_runner: Make, target: CausalLM) -> None:
    runner = make_runner(proposer=NGram(4, 3, 1))
    runner.run()
    first, second = (
        next(r for r in runner.folder.requests if r.id == f"p1/{turn}") for turn in (0, 1)
    )
    row = runner.rows[1]
    expected = runner.dataset.prompt(target.tokenizer, row, [first.text])  # type: ignore[arg-type]
    assert second.num_prompt_tokens == len(expected.token_ids)
    assert first.text in target.tokenizer.decode(expected.token_ids)  # type: ignore[union-attr]


def test_sampled_runs_are_reproducible_and_state_their_guarantee(
    make_runner: Make, tmp_path: Path
) -> None:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=6)
    settings = RunSettings(seed=11, repeats=2, warmup=0)
    runs = [
        make_runner(
            folder=tmp_path / name, proposer=NGram(4, 3, 1), sampling=sampling, settings=settings
        )
        for name in ("one", "two")
    ]
    results = [runner.run() for runner in runs]
    assert results[0].summary["outputs_equal"] is None
    statement = results[0].summary["output_statement"]
    evidence = r"\(\d+ tokens, p = .*; plain decoding p = "
    assert re.match(f"output consistent with the target's distribution {evidence}", statement)
    assert tokens(runs[0].folder, METHOD) == tokens(runs[1].folder, METHOD)
    outputs = tokens(runs[0].folder, BASELINE)
    assert outputs[0, "p0/0"] != outputs[1, "p0/0"]


def test_an_interrupted_run_resumes_to_the_same_outputs(make_runner: Make, tmp_path: Path) -> None:
    whole = make_runner(folder=tmp_path / "whole", proposer=NGram(4, 3, 1))
    whole.run()
    broken = make_runner(folder=tmp_path / "broken", proposer=Interrupted(4, 3, 1), method="ngram")
    results = broken.run()
    written = json.loads((tmp_path / "broken" / "results.json").read_text())
    assert not results.complete
    assert written["complete"] is False
    assert 0 < results.summary["num_prompts"] < 4
    assert not broken.target.in_use
    before = [row for row in broken.folder.requests if row.key in broken.folder.done]
    again = make_runner(
        folder=tmp_path / "broken", resume=True, proposer=NGram(4, 3, 1), method="ngram"
    )
    assert again.folder.requests == before
    results = again.run()
    assert results.complete
    assert results.provenance["num_sessions"] == 2
    assert all(row in again.folder.requests for row in before)
    for side in (BASELINE, METHOD):
        assert tokens(again.folder, side) == tokens(whole.folder, side)
    num_steps = len(pq.read_table(tmp_path / "broken" / "steps.parquet"))
    assert num_steps == len(pq.read_table(tmp_path / "whole" / "steps.parquet"))


def test_a_lossy_rule_says_how_far_it_moved_the_output(make_runner: Make) -> None:
    runner = make_runner(proposer=NGram(4, 2, 1), method="ngram", acceptance=KEEN, sampling=WARM)
    results = runner.run()
    summary = results.summary
    assert 0 < summary["output_tv"] < 1
    assert summary["output_kl"] > 0
    assert 0 < summary["refused_rate"] < 1
    assert summary["output_tv_ci95"] is None  # of four prompts
    reached = [at["num_reached"] * at["output_tv"] for at in results.per_position]
    assert sum(reached) == pytest.approx(summary["output_tv"] * summary["num_generated_tokens"])
    steps = pq.read_table(runner.folder.path / "steps.parquet").to_pylist()
    shifts = [
        token
        for row in steps
        if row["side"] == METHOD
        for token in row["shift"]["rows"][0]["total_variation"]
    ]
    assert len(shifts) == summary["num_generated_tokens"]
    assert sum(shifts) == pytest.approx(sum(reached))
    assert all(row["shift"] is None for row in steps if row["side"] == BASELINE)


def test_a_lossy_rule_is_exact_where_it_is(make_runner: Make) -> None:
    summary = make_runner(proposer=NGram(4, 2, 1), method="ngram", acceptance=KEEN).run().summary
    assert summary["outputs_equal"] is True
    assert summary["num_accepted_tokens"] > 0
    assert summary["output_tv"] == summary["output_kl"] == summary["refused_rate"] == 0


@pytest.mark.parametrize(
    "rule", [Rejection(), Gullible()], ids=["lossless", "lossy that does not say what it accepts"]
)
def test_other_rules_have_no_shift(make_runner: Make, rule: Rejection) -> None:
    results = make_runner(proposer=NGram(4, 2, 1), method="ngram", acceptance=rule).run()
    assert results.summary["output_tv"] is None
    assert "output_tv" not in results.per_position[0]


def test_the_shift_survives_an_interruption(make_runner: Make, tmp_path: Path) -> None:
    own: dict[str, Any] = {"method": "ngram", "acceptance": KEEN, "sampling": WARM}
    whole = make_runner(folder=tmp_path / "whole", proposer=NGram(4, 2, 1), **own).run()
    broken = make_runner(folder=tmp_path / "broken", proposer=Interrupted(4, 2, 1), **own).run()
    assert not broken.complete
    again = make_runner(
        folder=tmp_path / "broken", resume=True, proposer=NGram(4, 2, 1), **own
    ).run()
    for name in ("output_tv", "output_kl", "refused_rate"):
        assert again.summary[name] == pytest.approx(whole.summary[name])
        assert broken.summary[name] != again.summary[name]
    assert again.per_position == [pytest.approx(at) for at in whole.per_position]


def test_measuring_the_shift_costs_no_time(
    make_runner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is moved on by an hour whenever it is measured."""
    measured, read, skipped = judge.read_shift, Clock._read, [0.0]
    monkeypatch.setattr(Clock, "_read", lambda self: read(self) + skipped[0])

    def slowly(*args: Any) -> Any:
        skipped[0] += 3600.0
        return measured(*args)

    monkeypatch.setattr(judge, "read_shift", slowly)
    settings = RunSettings(warmup=0, num_prompts=1)
    runner = make_runner(proposer=NGram(4, 2, 1), acceptance=KEEN, sampling=WARM, settings=settings)
    runner.run()
    (group,) = (row for row in runner.folder.groups if row.key.side == METHOD)
    (request,) = (row for row in runner.folder.requests if row.key.side == METHOD)
    assert skipped[0] == 3600.0 * group.num_steps > 3600.0
    assert group.wall < 600
    assert request.e2el <= group.wall
    assert sum(request.itl) < request.e2el


def test_shuffled_prompts_are_the_same_prompts_with_the_same_seeds(
    make_runner: Make, tmp_path: Path
) -> None:
    runners = {
        name: make_runner(
            folder=tmp_path / name,
            proposer=NGram(4, 3, 1),
            sampling=WARM,
            settings=RunSettings(num_prompts=3, warmup=0, order=name.split()[0], seed=seed),
        )
        for name, seed in (
            ("dataset", 1),
            ("shuffled", 1),
            ("shuffled again", 1),
            ("shuffled otherwise", 4),
        )
    }
    ids = {name: [row.id for row in runner.rows] for name, runner in runners.items()}
    assert ids["dataset"] == ["p0", "p1", "p2"]
    assert ids["shuffled"] == ids["shuffled again"] != ids["dataset"]
    assert ids["shuffled otherwise"] != ids["shuffled"]
    assert all(set(order) == {"p0", "p1", "p2"} for order in ids.values())
    results = {name: runners[name].run() for name in ("dataset", "shuffled")}
    for side in (BASELINE, METHOD):
        assert tokens(runners["dataset"].folder, side) == tokens(runners["shuffled"].folder, side)
    assert {name: told.provenance["order"] for name, told in results.items()} == {
        n: n for n in results
    }


@pytest.mark.parametrize(
    ("proposer", "memory"),
    [
        (NGram(), None),
        (Suffix(), "cold"),
        (Suffix(use_global=True), "warm"),
        (TokenRecycling(4, depth=2), "cold"),
        (TokenRecycling(4, depth=2, warm=True), "warm"),
        (Cascade([NGram(), Suffix()]), "cold"),
        (Cascade([NGram(), Suffix(use_global=True)]), "warm"),
        (Cascade([NGram(), NGram(3)]), None),
    ],
)
def test_results_say_what_requests_start_with(
    make_runner: Make, proposer: Proposer, memory: str | None
) -> None:
    results = make_runner(
        proposer=proposer, method="own", settings=RunSettings(num_prompts=1, warmup=0)
    ).run()
    assert results.provenance["method"]["memory"] == memory
    assert results.provenance["order"] == "dataset"


@pytest.mark.parametrize(
    "proposer", [Described(4), Cascade([Described(4), NGram(3)])], ids=["alone", "in a cascade"]
)
def test_what_a_proposer_says_of_itself_is_logged_and_kept(
    make_runner: Make, proposer: Proposer, caplog: pytest.LogCaptureFixture
) -> None:
    runner = make_runner(
        proposer=proposer, method="own", settings=RunSettings(num_prompts=1, warmup=0)
    )
    with caplog.at_level(logging.INFO):
        results = runner.run()
    assert "drafter: three heads that read layer 7" in caplog.text
    written = json.loads((runner.folder.path / "results.json").read_text())
    assert written["provenance"]["method"]["description"] == "three heads that read layer 7"
    assert results.provenance["method"]["acceptance"] == "rejection"


def test_heads_say_how_they_read_the_target(make_runner: Make) -> None:
    proposer = Medusa(MedusaHeads(16, None, 2, base_model="letters"), 4)
    results = make_runner(
        proposer=proposer, method="medusa", settings=RunSettings(num_prompts=1, warmup=0)
    ).run()
    description = results.provenance["method"]["description"]
    assert description.startswith("2 Medusa heads of letters; ")
    assert "read the final norm of the target" in description


def test_a_complete_run_resumes_without_decoding(make_runner: Make, tmp_path: Path) -> None:
    first = make_runner(proposer=NGram(4, 3, 1)).run()
    again = make_runner(resume=True, proposer=NGram(4, 3, 1)).run()
    peak = "memory_device_peak"  # of this process, which keeps growing
    assert again.summary | {peak: 0} == first.summary | {peak: 0}


def test_long_prompts_are_cut_to_leave_room_for_the_output(
    make_runner: Make, target: CausalLM, tmp_path: Path
) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(
        json.dumps({"prompt": "abcdef " * 40}) + "\n" + json.dumps({"prompt": "abc"}) + "\n"
    )
    runner = make_runner(proposer=NGram())
    runner = replace(runner, dataset=PromptDataset("long", "prompts", "raw", path=str(file)))
    assert runner.run().summary["num_prompts_cut"] == 1
    assert (
        max(row.num_prompt_tokens for row in runner.folder.requests) <= target.max_len - NUM_TOKENS
    )


def test_no_room_for_a_prompt(make_runner: Make) -> None:
    with pytest.raises(
        ValueError, match=r"max_new_tokens=60 leaves no room for a prompt in target.max_len=60"
    ):
        make_runner(sampling=SamplingParams(max_new_tokens=60))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_prompts": 0}, "num_prompts=0"),
        ({"repeats": 0}, "repeats=0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"order": "random"}, "order=random is not known; use one of dataset, shuffled"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunSettings(**settings)


def test_progress_shows_the_first_pair_at_once(
    make_runner: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_runner(proposer=NGram(2), method="ngram").run()
    lines = capsys.readouterr().err.splitlines()
    first = next(line for line in lines if "speedup" in line)
    assert re.match(
        r"\w+: 1 of \d+ prompts, plain tokens/s [\d,]+, ngram tokens/s [\d,]+, speedup [\d.]+, "
        r"acceptance length [\d.]+, about \d+ s to go",
        first,
    )
    make_runner(proposer=NGram(2), folder=tmp_path / "silent").run(progress=False)
    assert not capsys.readouterr().err


def test_showing_progress_takes_no_measured_time(
    make_runner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is shown after every step, and each time the clock is moved on by an hour."""
    read, skipped = Clock._read, [0.0]
    monkeypatch.setattr(Clock, "_read", lambda self: read(self) + skipped[0])

    def slowly(*_: object) -> dict[str, str]:
        skipped[0] += 3600.0
        return {}

    monkeypatch.setattr("specresearch.bench.runner.figures_so_far", slowly)
    monkeypatch.setattr("specresearch.progress.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("specresearch.progress.LINE_SECONDS", 0.0)
    runner = make_runner(proposer=NGram(2), settings=RunSettings(warmup=0, num_prompts=1))
    runner.run()
    assert skipped[0] > 3600.0 * len(runner.folder.groups)
    assert all(row.wall < 600 for row in runner.folder.groups)
