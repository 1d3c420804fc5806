import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, SamplingParams
from specresearch.acceptance import Rejection
from specresearch.batch import Batch
from specresearch.bench import output_check
from specresearch.bench.output_check import CHANGED
from specresearch.clock import Clock
from specresearch.controllers import Fixed, Goodput, Heuristic
from specresearch.data import PromptDataset
from specresearch.engine import Step
from specresearch.loadtest import one_pass
from specresearch.loadtest.arrivals import Arrivals, ClosedLoop, Constant
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.report import print_load
from specresearch.loadtest.runner import LoadRunner
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.workload import RequestClass
from specresearch.models.memory import resident_bytes
from specresearch.proposal import Proposal
from specresearch.proposers import DraftModel, NGram, Suffix
from specresearch.recording.recorder import Recorder
from specresearch.recording.recording import Recording
from specresearch.rows import PassKey
from tests.bench.test_full_collections import Littering
from tests.bench.test_output_check import Gullible as Claiming
from tests.bench.test_runner import Gullible

Make = Callable[..., LoadRunner]
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=6)
SMALL = LoadSettings(max_running=3, num_requests=6, warmup=1, turn_seconds=1e-3)


class InterruptedLater(NGram):
    """Ctrl-C in its second repeat; the engine resets it once, as it is made."""

    num_resets = -1

    def reset(self) -> None:
        self.num_resets += 1

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if self.num_resets == 2:
            raise KeyboardInterrupt
        return super().propose(batch, budget)


@pytest.fixture
def make(target: CausalLM, prompt_file: Path, tmp_path: Path) -> Make:
    """A closed loop of two on a handful of prompts."""

    def build(
        *,
        settings: LoadSettings = SMALL,
        arrivals: Arrivals | None = None,
        sampling: SamplingParams | None = None,
        folder: Path = tmp_path / "run",
        resume: bool = False,
        config: dict[str, Any] | None = None,
        **parts: Any,
    ) -> LoadRunner:
        dataset = PromptDataset("letters", "mtbench", "raw", path=str(prompt_file))
        part = RequestClass(dataset, sampling or SamplingParams(max_new_tokens=6))
        results = LoadFolder(folder, {"seed": settings.seed, **(config or {})}, resume=resume)
        return LoadRunner(target, [part], arrivals or ClosedLoop(2), settings, results, **parts)

    return build


def test_long_pauses_of_the_collector_are_kept_out(make: Make) -> None:
    controller = Littering()
    make(proposer=NGram(2), controller=controller).run(progress=False)
    assert len(set(controller.num_full[-5:])) == 1


def requests_of(runner: LoadRunner) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (runner.folder.path / "requests.jsonl").read_text().splitlines()
    ]


def test_every_side_decodes_the_same_requests_and_everything_is_on_disk(make: Make) -> None:
    settings = LoadSettings(max_running=3, num_requests=6, warmup=1, repeats=2, compare=(3,))
    runner = make(
        settings=settings,
        proposer=NGram(4, 3, 1),
        method="ngram",
        controller=Goodput(trace_every=5),
    )
    results = runner.run()
    assert results.complete
    assert results.summary["outputs_equal"] is True
    assert results.summary["output_statement"].startswith(
        "output unchanged: 24 of 24 greedy outputs equal"
    )
    assert list(results.sides) == ["baseline", "method", "fixed-3"]
    assert results.summary["best_fixed"] == "fixed-3"
    assert results.sides["fixed-3"]["tokens_per_target_forward"] > 1
    assert results.sides["baseline"]["mean_draft_length"] == 0
    assert results.sides["fixed-3"]["mean_draft_length"] > 0
    assert 0 < results.summary["schedule_share"] < 1
    rows = requests_of(runner)
    assert len(rows) == 2 * 3 * 6
    for repeat in range(2):
        told = [
            {
                (row["id"], row["row"], tuple(row["token_ids"]))
                for row in rows
                if row["side"] == side
            }
            for side in results.sides
        ]
        assert all(each == told[0] for each in told), repeat
    written = json.loads((runner.folder.path / "results.json").read_text())
    assert written["kind"] == "load"
    assert written["summary"]["speedup"] == results.summary["speedup"]
    assert {row["repeat"] for row in written["controller"]["method"]} == {0, 1}
    assert sum(bin["tokens_per_second"] or 0 for bin in written["timeline"]["method"]) > 0
    steps = pq.read_table(runner.folder.path / "steps.parquet").to_pandas()
    assert set(steps["side"]) == set(results.sides)
    assert steps["num_new_tokens"].map(sum).sum() == sum(
        row["num_generated_tokens"] for row in rows
    )
    assert not (runner.folder.path / "steps").exists()
    assert not runner.target.in_use


def test_sides_go_first_in_turns(make: Make) -> None:
    settings = LoadSettings(max_running=3, num_requests=6, repeats=3, compare=(2,))
    runner = make(settings=settings, proposer=NGram(), method="ngram")
    order = [[place.side for place in group] for group in runner.passes()]
    assert [sides[0] for sides in order] == ["baseline", "method", "fixed-2"]
    assert all(sorted(sides) == ["baseline", "fixed-2", "method"] for sides in order)


def test_sides_take_turns_where_nothing_forbids_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The side with the fewest tokens goes next, so that all finish at about the same time."""
    turns: list[str] = []
    take_turn = one_pass.LoadPass.take_turn

    def noted(self: one_pass.LoadPass, seconds: float) -> None:
        turns.append(self.key.side)
        take_turn(self, seconds)

    monkeypatch.setattr(one_pass.LoadPass, "take_turn", noted)
    runner = make(proposer=NGram(4, 3, 1), method="ngram")
    assert runner.whole_passes is None
    assert runner.run().summary["turn_seconds"] == 1e-3
    assert len(turns) > 4
    assert set(turns[:2]) == {"baseline", "method"}
    assert len(set(turns[-4:])) == 2


def test_passes_that_cannot_share_the_target_follow_one_another(make: Make, tmp_path: Path) -> None:
    def why(**parts: Any) -> str:
        runner = make(
            proposer=parts.pop("proposer", NGram()),
            method="ngram",
            folder=tmp_path / "one",
            **parts,
        )
        assert all(len(group) == 1 for group in runner.passes())
        assert all(engine.scheduler.slots == range(2) for engine in runner.engines.values())
        return runner.whole_passes or ""

    assert why(settings=replace(SMALL, turn_seconds=None)) == "turn_seconds=null"
    assert "ngram learns from request to request" in why(proposer=Suffix(use_global=True))
    with pytest.raises(ValueError, match=r"turn_seconds=0.0 must be above 0; null"):
        LoadSettings(turn_seconds=0.0)


def test_a_cache_for_one_side_only_is_enough(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = CausalLM.allocate

    def little(self: CausalLM, num_slots: int, *num_nodes: int) -> None:
        if num_slots > 2:
            raise MemoryError("too large")
        allocate(self, num_slots, *num_nodes)

    monkeypatch.setattr(CausalLM, "allocate", little)
    runner = make(proposer=NGram(4, 3, 1), method="ngram")
    assert runner.whole_passes == "memory is short (too large)"
    assert runner.run().summary["turn_seconds"] is None


def test_the_controller_is_measured_beside_variants_of_itself(make: Make, tmp_path: Path) -> None:
    variants = {"bounded": Goodput(max_slowdown=1.05)}
    settings = replace(SMALL, compare=(2,))
    results = make(
        proposer=NGram(4, 3, 1),
        method="ngram",
        controller=Goodput(),
        variants=variants,
        settings=settings,
    ).run()
    assert list(results.sides) == ["baseline", "method", "fixed-2", "bounded"]
    summary, sides = results.summary, results.sides
    assert summary["best_fixed"] == summary["worst_fixed"] == "fixed-2"
    better = max(sides["baseline"]["throughput"], sides["fixed-2"]["throughput"])
    assert summary["speedup_over_best_bounded"] == pytest.approx(
        sides["bounded"]["throughput"] / better
    )
    for name in ("baseline", "fixed-3", "two words", "over_best"):
        with pytest.raises(
            ValueError, match=rf"variants.{name}: this cannot be the name of a side"
        ):
            make(
                proposer=NGram(), method="ngram", variants={name: Goodput()}, folder=tmp_path / name
            )


def test_sides_that_draft_need_a_method(make: Make, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"compare=\[2\] is a way of drafting, and nothing drafts; add \+proposer"
    ):
        make(settings=replace(SMALL, compare=(2,)), folder=tmp_path / "fixed")
    with pytest.raises(ValueError, match=r"variants\.free is a way of drafting"):
        make(variants={"free": Goodput()}, folder=tmp_path / "variant")


def test_a_rule_that_accepts_anything_is_found_out(make: Make) -> None:
    results = make(proposer=NGram(4, 3, 1), method="ngram", acceptance=Gullible()).run()
    assert results.summary["outputs_equal"] is False
    assert results.summary["outputs_equal_but_for_ties"] is False
    assert "OUTPUT CHANGED" in results.summary["output_statement"]


def test_a_sampled_load_states_what_the_check_found_and_keeps_it(make: Make) -> None:
    parts: dict[str, Any] = {
        "settings": replace(SMALL, repeats=2, compare=(2,)),
        "sampling": SAMPLED,
    }
    parts |= {"proposer": NGram(4, 3, 1), "method": "ngram"}
    runner = make(**parts)
    results = runner.run()
    summary = results.summary
    assert summary["outputs_equal"] is None
    assert summary["output_statement"].startswith(
        "output consistent with the target's distribution ("
    )
    assert "; plain decoding p = " in summary["output_statement"]
    assert (
        summary["output_p_value"]
        == min(told["output_p_value"] for told in results.outputs.values())
        > CHANGED
    )
    assert summary["baseline_output_p_value"] > CHANGED
    assert {"output_p_value", "output_z"} <= results.definitions.keys()
    rows = requests_of(runner)
    for side in results.sides:
        scores = [row.scores for row in runner.folder.passes if row.key.side == side]
        generated = sum(row["num_generated_tokens"] for row in rows if row["side"] == side)
        assert sum(own.num_tokens for own in scores if own is not None) == generated
    again = make(resume=True, **parts)
    assert again.folder.passes == runner.folder.passes
    assert again.run().summary["output_p_value"] == summary["output_p_value"]


def test_a_sampled_load_with_a_broken_rule_says_so(make: Make) -> None:
    """The rule claims to be lossless, as some that are broken do."""
    sampling = replace(SAMPLED, temperature=0.5, top_k=3, max_new_tokens=20)
    results = make(
        proposer=NGram(4, 2, 1), method="broken", acceptance=Claiming(), sampling=sampling
    ).run()
    summary = results.summary
    assert summary["output_statement"].startswith("OUTPUT DISTRIBUTION CHANGED: ")
    assert summary["output_p_value"] < CHANGED < summary["baseline_output_p_value"]
    stream = io.StringIO()
    print_load(
        results,
        Path("run"),
        Console(file=stream, width=200, color_system="standard", force_terminal=True),
    )
    assert "\x1b[1;31mOUTPUT DISTRIBUTION CHANGED" in stream.getvalue()


def test_the_check_takes_no_time_of_a_load(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking a step takes an hour; no row and no recording has that hour in its times."""
    read, skipped = Clock._read, [0.0]
    monkeypatch.setattr(Clock, "_read", lambda self: read(self) + skipped[0])
    score_step = output_check.score_step

    def slow(*parts: Any) -> output_check.OutputScores:
        skipped[0] += 3600.0
        return score_step(*parts)

    monkeypatch.setattr(output_check, "score_step", slow)
    runner = make(proposer=NGram(4, 3, 1), method="ngram", sampling=SAMPLED, record=True)
    results = runner.run()
    assert results.stopped is None
    assert skipped[0] > 3600.0
    assert all(row.wall < 600 for row in runner.folder.passes)
    assert all(0 <= row["arrival"] < 600 and row["e2el"] < 600 for row in requests_of(runner))
    steps = pq.read_table(runner.folder.path / "steps.parquet").to_pandas()
    assert steps["start"].max() < 600
    rows = pq.read_table(runner.folder.path / "recording.parquet").to_pandas()
    for _, own in rows.groupby("side"):
        assert own["start"].max() - own["arrival"].min() < 600


def test_passes_of_another_version_are_refused(make: Make) -> None:
    parts: dict[str, Any] = {"proposer": NGram(4, 3, 1), "method": "ngram", "sampling": SAMPLED}
    first = make(**parts)
    first.run()
    file = first.folder.path / "passes.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        del row["scores"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"has rows of another version \('scores'\)"):
        make(resume=True, **parts)


def test_without_a_proposer_plain_decoding_is_measured(make: Make) -> None:
    results = make(arrivals=Constant(500.0)).run()
    assert list(results.sides) == ["baseline"]
    assert results.summary["speedup"] is None
    assert results.summary["e2el_p50"] > 0
    assert results.summary["qps"] == 500.0


def test_what_was_learnt_is_forgotten_between_passes_unless_asked_otherwise(
    make: Make, tmp_path: Path
) -> None:
    class Counted(Heuristic):
        num_resets = 0

        def reset(self) -> None:
            super().reset()
            self.num_resets += 1

    for reset, expected in ((True, 2), (False, 0)):
        controller = Counted()
        settings = LoadSettings(max_running=3, num_requests=6, warmup=0, repeats=2, reset=reset)
        runner = make(
            settings=settings,
            proposer=NGram(),
            method="ngram",
            controller=controller,
            folder=tmp_path / str(reset),
        )
        bound = controller.num_resets
        runner.run()
        assert controller.num_resets - bound == expected


def test_an_interrupted_run_keeps_its_passes_and_goes_on(make: Make) -> None:
    settings = LoadSettings(max_running=3, num_requests=6, warmup=0, repeats=2)
    parts: dict[str, Any] = {"settings": settings, "method": "ngram"}
    broken = make(proposer=InterruptedLater(4, 3, 1), **parts).run()
    assert not broken.complete
    assert broken.summary["speedup"] is not None
    assert broken.summary["num_repeats"] == 1
    runner = make(proposer=NGram(4, 3, 1), resume=True, **parts)
    assert runner.folder.done == {PassKey(0, 0, "baseline"), PassKey(0, 0, "method")}
    assert not runner.folder.is_complete
    results = runner.run()
    assert results.complete
    assert results.summary["num_repeats"] == 2
    assert results.provenance["num_sessions"] == 2
    rows = requests_of(runner)
    assert len({(row["repeat"], row["side"], row["id"]) for row in rows}) == len(rows) == 24
    assert make(proposer=NGram(), resume=True, **parts).folder.is_complete


def test_a_complete_run_is_continued_for_more_repeats(make: Make) -> None:
    runner = make(settings=replace(SMALL, repeats=1), config={"repeats": 1})
    first = runner.run()
    assert first.complete
    assert make(resume=True, config={"repeats": 1}).folder.is_complete
    more = make(settings=replace(SMALL, repeats=3), resume=True, config={"repeats": 3})
    assert not more.folder.is_complete
    results = more.run()
    assert results.complete
    assert results.summary["num_repeats"] == 3
    assert len(requests_of(more)) == 18
    steps = pq.read_table(more.folder.path / "steps.parquet").to_pandas()
    assert set(steps["repeat"]) == {0, 1, 2}
    assert steps["num_new_tokens"].map(sum).sum() == sum(
        row["num_generated_tokens"] for row in requests_of(more)
    )
    assert make(resume=True, config={"repeats": 1}).folder.is_complete


def test_steps_of_an_earlier_session_are_kept(make: Make) -> None:
    runner = make(settings=replace(SMALL, repeats=1), config={"repeats": 1})
    runner.run()
    file = runner.folder.path / "steps.parquet"
    written = pq.read_table(file)
    again = make(settings=replace(SMALL, repeats=2), resume=True, config={"repeats": 2})
    assert again.run().complete
    steps = pq.read_table(file)
    assert steps.slice(0, len(written)).equals(written)
    assert len(steps) > len(written)


def test_a_continued_run_that_is_killed_is_not_complete(make: Make) -> None:
    """Neither while it goes on, nor when one side of its last repeat had come to its end."""
    parts: dict[str, Any] = {"proposer": NGram(4, 3, 1), "method": "ngram"}
    make(settings=replace(SMALL, repeats=1), config={"repeats": 1}, **parts).run()
    runner = make(settings=replace(SMALL, repeats=2), resume=True, config={"repeats": 2}, **parts)
    before = runner.folder.read_results()
    assert before is not None
    runner.folder.begin(before.provenance)
    last = replace(runner.folder.passes[0], key=PassKey(1, 0, "baseline"))
    runner.folder.end_pass(last)
    again = make(settings=replace(SMALL, repeats=2), resume=True, config={"repeats": 2}, **parts)
    assert not again.folder.is_complete
    results = again.run()
    assert results.complete
    rows = [(row["repeat"], row["side"], row["id"]) for row in requests_of(again)]
    assert len(set(rows)) == len(rows) == 24
    fewer = make(settings=replace(SMALL, repeats=1), resume=True, config={"repeats": 1}, **parts)
    (fewer.folder.path / "results.json").unlink()
    assert fewer.run().summary["num_repeats"] == 1


def test_a_torn_row_does_not_stop_a_resumed_run(make: Make) -> None:
    settings = LoadSettings(max_running=3, num_requests=6, warmup=0, repeats=2)
    runner = make(settings=settings)
    runner.run()
    path = runner.folder.path
    (path / "requests.jsonl").write_text((path / "requests.jsonl").read_text()[:-7])
    passes = (path / "passes.jsonl").read_text().splitlines(keepends=True)
    (path / "passes.jsonl").write_text(passes[0] + passes[1][:9])
    again = make(settings=settings, resume=True)
    assert again.folder.done == {PassKey(0, 0, "baseline")}
    assert again.run().complete
    assert len(requests_of(again)) == 12


def test_a_recording_holds_every_side_and_its_time_is_no_time_of_the_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, skipped = Recorder.__call__, [0.0]
    read = Clock._read
    monkeypatch.setattr(Clock, "_read", lambda self: read(self) + skipped[0])

    def slow(self: Recorder, step: Step) -> None:
        record(self, step)
        skipped[0] += 3600.0

    monkeypatch.setattr(Recorder, "__call__", slow)
    settings = LoadSettings(max_running=3, num_requests=6, warmup=0)
    runner = make(settings=settings, proposer=NGram(4, 3, 1), method="ngram", record=True)
    results = runner.run()
    steps = pq.read_table(runner.folder.path / "steps.parquet").to_pandas()
    assert skipped[0] >= 3600.0 * len(steps)
    assert sum(side["wall"] for side in results.sides.values()) < 600
    recording = Recording(runner.folder.path)
    rows = pq.read_table(runner.folder.path / "recording.parquet").to_pandas()
    for side, own in rows.groupby("side"):
        assert own["start"].max() - own["arrival"].min() <= results.sides[side]["wall"]
        assert (own["start"] >= own["arrival"]).all()
    assert {request.id for request in recording.requests("method")} == {str(n) for n in range(6)}


def test_memory_is_watched_through_every_pass(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter(range(10**9, 10**10))
    monkeypatch.setattr(one_pass, "resident_bytes", lambda: next(held))
    settings = LoadSettings(max_running=3, num_requests=6, repeats=2, warmup=1)
    runner = make(settings=settings, arrivals=Constant(4.0))
    summary = runner.run().summary
    rows = [
        json.loads(line) for line in (runner.folder.path / "passes.jsonl").read_text().splitlines()
    ]
    for row in rows:
        seconds = [second for second, _ in row["memory"]]
        assert len(seconds) > 2
        assert seconds == sorted(seconds)
        assert 0 <= seconds[0] < seconds[-1]
    last = rows[-1]["memory"][-1][1]
    assert (summary["memory_start"], summary["memory_end"], summary["memory_peak"]) == (
        10**9,
        last,
        last,
    )
    again = make(settings=settings, arrivals=Constant(4.0), resume=True)
    assert [row.memory[-1][1] for row in again.folder.passes] == [
        row["memory"][-1][1] for row in rows
    ]


def test_memory_of_this_process_is_of_a_plausible_size() -> None:
    before = resident_bytes()
    kept = np.ones(2**26)
    assert resident_bytes() - before > 0.9 * kept.nbytes


def test_the_drafts_that_the_proposer_makes_at_most_are_on_record(make: Make) -> None:
    """The draft model's own default is nowhere in a configuration."""
    draft = CausalLM(build("llama", seed=4), letters_tokenizer(), max_len=60)
    with pytest.warns(UserWarning, match="times the draft"):
        runner = make(proposer=DraftModel(draft), method="draft_model", controller=Fixed())
    results = runner.run()
    assert results.provenance["method"]["num_draft_tokens"] == 5
    assert (
        results.summary["outputs_equal"] is True
    )  # slots of the draft's cache belong to one side each


def test_overload_stops_a_pass_and_the_rest_is_still_told(make: Make) -> None:
    settings = LoadSettings(max_running=2, num_requests=60, warmup=0, max_waiting=5)
    results = make(
        settings=settings, arrivals=Constant(5000.0), proposer=NGram(), method="ngram"
    ).run()
    assert results.complete
    assert results.stopped is not None
    assert results.stopped.startswith("baseline, repeat 0: the queue grows without bound")
    assert results.summary["overloaded"] is True
    assert results.sides["method"]["num_unfinished"] > 0


def test_passes_of_a_method_with_a_memory_start_without_one(make: Make) -> None:
    settings = LoadSettings(max_running=3, num_requests=6, warmup=2, repeats=2)
    runner = make(
        settings=settings, proposer=Suffix(use_global=True), method="suffix", controller=Fixed()
    )
    runner.run()
    by_repeat = [
        [
            row["num_draft_tokens"]
            for row in requests_of(runner)
            if row["repeat"] == r and row["side"] == "method"
        ]
        for r in (0, 1)
    ]
    assert sum(by_repeat[0]) == pytest.approx(sum(by_repeat[1]), rel=0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compare": (0,)}, r"compare=\[0\] must hold draft lengths from 1"),
        ({"compare": (2, 2)}, "names a draft length twice"),
        (
            {"compare": (11,)},
            r"compare=\[11\] holds 11 and the proposer makes at most 10 drafts; raise",
        ),
        (
            {"num_requests": 5},
            "num_requests=5 is too few for a closed loop of 2: .* take at least 6",
        ),
        ({"length_spread": 1.0}, "length_spread=1.0 must be from 0, all outputs alike, to below 1"),
        ({"max_running": 0}, "max_running=0 must be a whole number from 1"),
        ({"max_seconds": 0.0}, "max_seconds=0.0 must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    make: Make, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(settings=LoadSettings(**settings), proposer=NGram(), acceptance=Rejection())
