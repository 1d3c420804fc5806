import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from specresearch import CausalLM, SamplingParams
from specresearch.acceptance import Rejection
from specresearch.batch import Batch, RequestState
from specresearch.bench import ResultsFolder, Runner, RunSettings
from specresearch.bench.records import BASELINE, METHOD
from specresearch.data import PromptDataset
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import NGram
from specresearch.sampling import SamplingBatch

Make = Callable[..., Runner]
NUM_TOKENS = 10


class Gullible(Rejection):
    """Accepts every draft."""

    lossless = False

    def __call__(self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch) -> Verdict:
        width = proposal.token_ids.shape[1]
        index = torch.arange(width)
        path = torch.where(index < proposal.lengths[:, None], index, -1)
        last = target_logits.argmax(-1).gather(1, proposal.lengths[:, None] - 1)[:, 0]
        return Verdict(path, proposal.lengths - 1, last)


class Interrupted(NGram):
    """Ctrl-C while the fourth request is decoded, the warm-up's counted."""

    num_started = 0

    def start(self, rows: Sequence[RequestState], output: object) -> None:
        super().start(rows, output)
        self.num_started += len(rows)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if self.num_started == 4 and batch.rows[0].num_generated > 2:
            raise KeyboardInterrupt
        return super().propose(batch, budget)


def tokens(results: ResultsFolder, side: str) -> dict[tuple[int, str], tuple[int, ...]]:
    return {(row.place.repeat, row.id): row.token_ids for row in results.requests if row.place.side == side}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_greedy_output_is_unchanged_and_everything_is_on_disk(make_runner: Make, batch_size: int) -> None:
    runner = make_runner(
        proposer=NGram(4, 3, 1), method="ngram", settings=RunSettings(batch_size=batch_size, repeats=2)
    )
    results = runner.run()
    summary, folder = results.summary, runner.folder.path
    assert results.complete
    assert summary["outputs_equal"] is True
    assert summary["output_statement"] == "output unchanged: 14 of 14 greedy outputs equal token for token"
    assert summary["num_prompts"] == 4
    assert summary["num_requests"] == 14
    assert summary["speedup_basis"] == "wall time, equal token counts"
    assert summary["num_generated_tokens"] == summary["baseline_num_generated_tokens"] == 14 * NUM_TOKENS
    assert summary["tokens_per_target_forward"] > 1
    assert sum(
        summary[f"fraction_{part}"] for part in ("prefill", "propose", "verify", "accept", "commit", "host")
    ) == (pytest.approx(1.0))
    assert all(
        summary[f"fraction_{part}"] >= 0 for part in ("prefill", "propose", "verify", "accept", "commit", "host")
    )
    written = json.loads((folder / "results.json").read_text())
    assert written["summary"]["speedup"] == summary["speedup"]
    assert "speedup" in written["definitions"]
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == 28
    assert all(len(row["token_ids"]) == NUM_TOKENS for row in rows)
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    assert sum(sum(row["num_new_tokens"]) for row in steps if row["side"] == METHOD) == summary["num_generated_tokens"]
    assert sum(sum(row["num_accepted_tokens"]) for row in steps) == summary["num_accepted_tokens"]
    assert runner.target.cache.num_slots == len(runner.target._free)


def test_sides_take_turns_in_going_first(make_runner: Make) -> None:
    runner = make_runner(proposer=NGram())
    order = [(place.group, place.side) for place in runner.places()]
    assert order[:4] == [(0, BASELINE), (0, METHOD), (1, METHOD), (1, BASELINE)]


def test_a_rule_that_accepts_anything_is_found_out(make_runner: Make) -> None:
    results = make_runner(proposer=NGram(4, 3, 1), method="ngram", acceptance=Gullible()).run()
    assert results.summary["outputs_equal"] is False
    difference = results.summary["output_differences"][0]
    assert difference["logits"]["is_rounding"] is False
    assert difference["logits"]["gap"] > 0
    assert results.summary["output_statement"].startswith("OUTPUT CHANGED")


def test_without_a_proposer_plain_decoding_is_measured(make_runner: Make) -> None:
    runner = make_runner()
    summary = runner.run().summary
    assert summary["speedup"] is None
    assert summary["tokens_per_second"] > 0
    assert {row.place.side for row in runner.folder.requests} == {BASELINE}


def test_later_turns_hold_the_models_own_replies(make_runner: Make, target: CausalLM) -> None:
    runner = make_runner(proposer=NGram(4, 3, 1))
    runner.run()
    first, second = (next(r for r in runner.folder.requests if r.id == f"p1/{turn}") for turn in (0, 1))
    row = runner.rows[1]
    expected = runner.dataset.prompt(target.tokenizer, row, [first.text])  # type: ignore[arg-type]
    assert second.num_prompt_tokens == len(expected.token_ids)
    assert first.text in target.tokenizer.decode(expected.token_ids)  # type: ignore[union-attr]


def test_sampled_runs_are_reproducible_and_state_their_guarantee(make_runner: Make, tmp_path: Path) -> None:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=6)
    settings = RunSettings(seed=11, repeats=2, warmup=0)
    runs = [
        make_runner(folder=tmp_path / name, proposer=NGram(4, 3, 1), sampling=sampling, settings=settings)
        for name in ("one", "two")
    ]
    results = [runner.run() for runner in runs]
    assert results[0].summary["outputs_equal"] is None
    assert results[0].summary["output_statement"] == "same distribution by construction (lossless rule rejection)"
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
    assert broken.target.cache.num_slots == len(broken.target._free)
    before = [row for row in broken.folder.requests if row.place in broken.folder.done]
    again = make_runner(folder=tmp_path / "broken", resume=True, proposer=NGram(4, 3, 1), method="ngram")
    assert again.folder.requests == before
    results = again.run()
    assert results.complete
    assert results.provenance["num_sessions"] == 2
    assert all(row in again.folder.requests for row in before)
    for side in (BASELINE, METHOD):
        assert tokens(again.folder, side) == tokens(whole.folder, side)
    num_steps = len(pq.read_table(tmp_path / "broken" / "steps.parquet"))
    assert num_steps == len(pq.read_table(tmp_path / "whole" / "steps.parquet"))


def test_a_complete_run_resumes_without_decoding(make_runner: Make, tmp_path: Path) -> None:
    first = make_runner(proposer=NGram(4, 3, 1)).run()
    again = make_runner(resume=True, proposer=NGram(4, 3, 1)).run()
    assert again.summary == first.summary


def test_long_prompts_are_cut_to_leave_room_for_the_output(make_runner: Make, target: CausalLM, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "abcdef " * 40}) + "\n" + json.dumps({"prompt": "abc"}) + "\n")
    runner = make_runner(proposer=NGram())
    runner = replace(runner, dataset=PromptDataset("long", "prompts", "raw", path=str(file)))
    assert runner.run().summary["num_prompts_cut"] == 1
    assert max(row.num_prompt_tokens for row in runner.folder.requests) <= target.max_len - NUM_TOKENS


def test_no_room_for_a_prompt(make_runner: Make) -> None:
    with pytest.raises(ValueError, match=r"max_new_tokens=60 leaves no room for a prompt in target.max_len=60"):
        make_runner(sampling=SamplingParams(max_new_tokens=60))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_prompts": 0}, "num_prompts=0"),
        ({"repeats": 0}, "repeats=0"),
        ({"warmup": -1}, "warmup=-1"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunSettings(**settings)
