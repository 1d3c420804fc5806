"""What a decision tells a server to do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import Requirements, gather
from specresearch.reporting.decision import decide
from specresearch.reporting.serving import NONE, TRIAL, serving, shell_text
from specresearch.reporting.speculation import Speculation, Stage, speculation_of
from specresearch.reporting.workload import Setting
from tests.reporting.decisions import FASTER, SLOWER, UNCLEAR, write_loads
from tests.reporting.folders import write_load, write_run

HEAD: Mapping[str, Any] = {
    "_target_": "specresearch.proposers.Eagle3",
    "head": "org/head",
    "num_draft_tokens": 5,
    "sample": True,
    "tree": "chain",
    "depth": 7,
    "top_k": 10,
}
FIXED: Mapping[str, Any] = {"method": "eagle3", "controller": "fixed", "proposer": HEAD}


def speculation(folder: Path) -> Speculation | None:
    (decision,) = decide(gather([folder]).comparisons, Requirements())
    return speculation_of(decision)


def drafting(folder: Path) -> Speculation:
    found = speculation(folder)
    assert found is not None
    return found


def test_a_bound_by_load_is_the_last_load_at_which_it_is_faster(tmp_path: Path) -> None:
    write_loads(tmp_path, (FASTER, FASTER, UNCLEAR, SLOWER), **FIXED)
    found = drafting(tmp_path)
    assert found.stages == [Stage(4, 5), Stage(16, 0)]
    assert found.by_load == "5 up to 4 running requests, none above"
    assert (found.draft, found.length, found.tree) == ("org/head", 5, None)


def test_the_same_everywhere_needs_no_stages(tmp_path: Path) -> None:
    write_loads(tmp_path, (FASTER, FASTER), **FIXED)
    assert not drafting(tmp_path).stages


def test_drafts_are_sampled_only_above_temperature_0(tmp_path: Path) -> None:
    for temperature, samples in ((0.0, False), (0.8, True)):
        folder = tmp_path / str(temperature)
        write_loads(folder, (FASTER, FASTER), temperature=temperature, **FIXED)
        assert drafting(folder).samples_drafts is samples


def test_a_controller_becomes_the_best_fixed_length_of_each_load(tmp_path: Path) -> None:
    lengths = ((1, {2: 1.5, 8: 2.5}), (4, {2: 1.4, 8: 1.1}), (16, {2: 0.9, 8: 0.7}))
    for concurrency, fixed in lengths:
        folder = tmp_path / str(concurrency)
        write_load(folder, (1.6, 1.5, 1.7), concurrency=concurrency, fixed=fixed, variants={})
    (decision,) = decide(gather([tmp_path]).comparisons, Requirements())
    if decision.setting.is_fixed:
        pytest.fail("the controller was not recommended")
    found = drafting(tmp_path)
    assert found.stages == [Stage(1, 8), Stage(4, 2), Stage(16, 0)]
    assert "goodput controller has no equivalent" in found.notes[0]
    assert "fastest" in found.notes[0]


def test_a_controller_alone_becomes_what_it_drafted_on_average(tmp_path: Path) -> None:
    write_loads(tmp_path, (FASTER, FASTER), method="ngram")
    found = drafting(tmp_path)
    assert found.length == 3  # the mean of these folders
    assert "on average" in found.notes[0]


def test_a_tree_has_its_depth_as_length(tmp_path: Path) -> None:
    proposer = {**HEAD, "tree": "dynamic", "num_draft_tokens": 40}
    write_loads(tmp_path, (FASTER, SLOWER), **{**FIXED, "proposer": proposer}, trees=True)
    found = drafting(tmp_path)
    assert found.tree is not None
    assert (found.tree.num_nodes, found.tree.depth, found.tree.top_k) == (40, 7, 10)
    assert found.stages == [Stage(1, 7), Stage(4, 0)]
    assert not found.samples_drafts


def test_a_rate_of_requests_is_no_number_of_requests(tmp_path: Path) -> None:
    for qps, tpot in ((1.0, (0.02, 0.01)), (8.0, (0.01, 0.02))):
        write_load(tmp_path / str(qps), FASTER, qps=qps, tpot_p99=tpot, **FIXED)
    found = drafting(tmp_path)
    assert not found.stages
    assert any("arrivals=closed_loop" in note for note in found.notes)


@pytest.mark.parametrize("gains", [(SLOWER, SLOWER)])
def test_nothing_is_drafted_where_it_is_turned_off(tmp_path: Path, gains: Any) -> None:
    write_loads(tmp_path, gains, **FIXED)
    assert speculation(tmp_path) is None
    (decision,) = decide(gather([tmp_path]).comparisons, Requirements())
    told = serving(decision)
    assert told is not None
    assert told.lines == (NONE,)
    assert not told.flags


def test_wrong_output_has_no_flags(tmp_path: Path) -> None:
    write_run(tmp_path / "a", FASTER, num_outputs_equal=100)
    assert speculation(tmp_path) is None


def test_too_little_measured_gives_flags_to_try(tmp_path: Path) -> None:
    write_run(tmp_path / "a", FASTER)
    (decision,) = decide(gather([tmp_path]).comparisons, Requirements())
    told = serving(decision)
    assert told is not None
    assert told.title == TRIAL


def test_text_for_a_shell_has_one_server_or_all(tmp_path: Path) -> None:
    write_loads(tmp_path, (FASTER, FASTER), **FIXED)
    (decision,) = decide(gather([tmp_path]).comparisons, Requirements())
    told = serving(decision)
    assert told is not None
    one, every = (shell_text("chats", told, name) for name in ("vllm", None))
    assert one.splitlines()[0] == "# chats"
    assert "vllm serve" in one
    assert "llama-server" not in one
    assert "llama-server" in every
    assert "zoo:" in one


def test_auto_is_named_by_the_shape_that_it_chose(tmp_path: Path) -> None:
    from specresearch.reporting.config import setting_of

    shape = {"num_draft_tokens": 12, "tree": "dynamic", "depth": 4, "paths": None}
    method = {"name": "eagle3", "num_draft_tokens": 12, "trees": True, "shape": {"shape": shape}}
    config = {"proposer": {**HEAD, "tree": "auto", "num_draft_tokens": "auto"}}
    assert setting_of(config, method, "method", "fixed") == Setting(
        "eagle3", "fixed", 12, "dynamic tree"
    )
