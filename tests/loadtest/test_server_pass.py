"""One pass through a server: rows for answers and failures, and whatever the server counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import Script, serving

from specresearch.data import PromptDataset
from specresearch.loadtest.loop import Feed, Stops
from specresearch.loadtest.servers.folder import ServerFolder
from specresearch.loadtest.servers.one_pass import ServerLostError, ServerPass
from specresearch.loadtest.servers.sides import ClientSettings, find_sides
from specresearch.loadtest.servers.workload import UNLIMITED, ServedModel, ServerWorkload
from specresearch.loadtest.workload import RequestClass
from specresearch.rows import METHOD, PassKey
from specresearch.sampling_params import SamplingParams

NUM_TOKENS = 8
Start = Callable[..., ServerPass]


@pytest.fixture
def start(prompt_file: Path, tmp_path: Path) -> Start:
    """Return a pass of six requests through the server at an address."""

    def make(url: str, **parts: Any) -> ServerPass:
        dataset = PromptDataset("letters", "mtbench", "raw", path=str(prompt_file))
        sampling = SamplingParams(max_new_tokens=NUM_TOKENS)
        model = ServedModel("fake", None, UNLIMITED, "chat")
        workload = ServerWorkload(model, [RequestClass(dataset, sampling)], 6)
        side = find_sides(ClientSettings(url, None))[METHOD]
        settings: dict[str, Any] = {
            "feed": Feed(np.zeros(6), concurrency=2),
            "stops": Stops(max_waiting=100, max_seconds=60.0),
            "on_tick": lambda key, running: None,
        }
        folder = ServerFolder(tmp_path / "run", {"server": url, "baseline_server": None})
        return ServerPass(
            PassKey(0, 0, METHOD), side, workload, folder=folder, **(settings | parts)
        )

    return make


def test_every_answer_is_a_row_with_tokens_from_usage_and_times_from_chunks(start: Start) -> None:
    with serving(Script(tokens_per_chunk=3, seconds_per_chunk=0.01, drafts=3)) as url:
        run = start(url)
        run.take_turn(np.inf)
    rows = run.folder.requests()
    assert sorted(row.id for row in rows) == list("012345")
    for row in rows:
        assert row.counts.num_generated_tokens == NUM_TOKENS
        assert (row.num_prompt_tokens, row.finish_reason) == (7, "length")
        assert len(row.itl) == NUM_TOKENS - 1
        assert sum(gap == 0.0 for gap in row.itl) >= NUM_TOKENS - 3  # inside of three chunks
        assert row.tpot == pytest.approx((row.e2el - row.ttft) / (NUM_TOKENS - 1))
        assert row.text.startswith("word0 word1 ")
    (done,) = run.folder.passes
    assert (done.num_finished, done.num_failed, done.session) == (6, 0, 1)
    assert done.counts is not None
    assert (done.counts.num_drafts, done.counts.num_accepted_tokens) == (18, 30)
    assert done.counts.reached == [18, 18, 12]


def test_reports_in_answers_take_precedence_over_counters(start: Start) -> None:
    with serving(Script(tokens_per_chunk=2, drafts=3, reports=True, counts_tokens=True)) as url:
        run = start(url)
        run.take_turn(np.inf)
    assert run.folder.passes[0].counts is None
    assert {row.counts.num_accepted_tokens for row in run.folder.requests()} == {4}


def test_failures_are_rows_and_the_others_go_on(start: Start) -> None:
    script = Script(failures={1: 429, 2: "cut", 3: "event", 5: 503})
    with serving(script) as url:
        run = start(url)
        run.take_turn(np.inf)
    failures = {row["kind"]: row for row in run.folder.failures()}
    assert failures.keys() == {"rate limited", "disconnected", "broken answer", "refused"}
    limited = failures["rate limited"]
    assert (limited["status"], limited["retry_after"], limited["num_chunks"]) == (429, "3", 0)
    assert limited["message"] == "status 429 by script"
    assert failures["disconnected"]["num_chunks"] >= 1
    assert failures["broken answer"]["message"] == "the engine broke"
    assert len(run.folder.requests()) == 2
    assert (run.folder.passes[0].num_failed, run.num_in_flight) == (4, 0)


def test_a_server_that_is_gone_ends_the_run_and_the_pass_does_not_count(start: Start) -> None:
    with serving(Script()) as url:
        run = start(url, feed=Feed(np.zeros(20), concurrency=2))
        run.workload.requests *= 4
    with pytest.raises(ServerLostError, match="does not answer any more, after 0 requests"):
        run.take_turn(np.inf)
    assert run.folder.passes == []


def test_a_pass_stops_at_its_time_and_leaves_no_request_behind(start: Start) -> None:
    with serving(Script(seconds_per_chunk=0.2)) as url:
        run = start(url, stops=Stops(max_waiting=100, max_seconds=0.3))
        run.take_turn(np.inf)
    assert run.stopped is not None
    assert run.stopped.startswith("out of time: 2 requests arrived and 0 were answered")
    assert run.folder.passes[0].num_finished == 0


def test_open_arrivals_are_sent_when_they_are_due(start: Start) -> None:
    times = np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.25])
    with serving(Script()) as url:
        run = start(url, feed=Feed(times))
        run.take_turn(np.inf)
    rows = sorted(run.folder.requests(), key=lambda row: row.id)
    assert [row.arrival for row in rows] == times.tolist()
    assert run.folder.passes[0].last_arrival == 0.25
    assert json.loads((run.folder.path / "requests.jsonl").read_text().splitlines()[0])["ttft"] > 0
