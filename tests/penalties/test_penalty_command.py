"""The command, as it is typed: its table, its figures, and that it resumes."""

import json
from pathlib import Path

import pytest
from command_line import Typed, prompts_of

from specresearch import penalty
from specresearch.penalties.folder import KEY, ROWS
from specresearch.penalties.picture import PICTURE
from specresearch.penalties.report import TABLE
from specresearch.penalties.summary import fastest_length

pytest.importorskip("torchao")
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*penalty.log:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:the target is:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
SIZES = ["num_prompts=3", "num_trials=1", "max_new_tokens=6", "lengths=[1,2]"]
PRECISIONS = ["targets=[fp32,int8]", "drafts=[fp32,int8]"]


@pytest.fixture
def arguments(target_overrides: list[str], tmp_path: Path) -> list[str]:
    prompts = prompts_of(tmp_path / "prompts.jsonl", ("abcabcab", "fedfed", "ffffff"))
    folder = f"hydra.run.dir={tmp_path / 'out'}"
    draft = "proposer.draft=self"
    return [*target_overrides, *prompts, *SIZES, *PRECISIONS, draft, folder, "progress=false"]


def test_it_measures_every_pair_and_resumes(
    typed: Typed, arguments: list[str], tmp_path: Path
) -> None:
    first = typed(penalty.main, arguments)
    assert (first.code, first.err) == (0, "")
    out = tmp_path / "out"
    results = json.loads((out / "results.json").read_text())
    cells, targets = results["summary"]["cells"], results["summary"]["targets"]
    assert results["complete"]
    assert len(cells) == 8
    for cell in cells:
        assert cell["tokens_per_step"] >= 1
        assert cell["length"] in (1, 2)
        assert cell["foretold_tokens_per_step"] <= cell["length"] + 1
        if cell["target"] == cell["draft"]:
            assert cell["acceptance"] == pytest.approx(1.0, abs=1e-4)
        if cell["temperature"] == 0:
            assert cell["outputs_equal"] == 1
        if cell["draft"] == "fp32":
            assert (cell["points_lost"], cell["within_rule"]) == (0, True)
    assert targets[0]["kl"] is None
    assert targets[1]["kl"] > 0
    assert targets[1]["weight_bytes"] < targets[0]["weight_bytes"]
    assert "Compare cells of one target only" in (out / TABLE).read_text()
    assert (out / PICTURE).stat().st_size > 1000

    rows = (out / ROWS).read_text().splitlines(keepends=True)
    (out / ROWS).write_text("".join(rows[: len(rows) // 2]))
    again = typed(penalty.main, [*arguments, "resume=true"])
    assert (again.code, again.err) == (0, "")
    resumed = (out / ROWS).read_text().splitlines(keepends=True)
    assert resumed[: len(rows) // 2] == rows[: len(rows) // 2]
    keys = [tuple(json.loads(row)[name] for name in KEY) for row in resumed]
    assert sorted(map(str, keys)) == sorted({str(key) for key in keys})
    assert {key[:5] for key in keys} == {
        tuple(json.loads(row)[name] for name in KEY)[:5] for row in rows
    }


def test_the_fastest_length_has_the_most_tokens_per_second() -> None:
    trials = [
        {"length": 1, "num_tokens": 10, "seconds": 1.0},
        {"length": 4, "num_tokens": 10, "seconds": 0.9},
        {"length": 4, "num_tokens": 10, "seconds": 1.0},
        {"length": 8, "num_tokens": 10, "seconds": 2.0},
    ]
    assert fastest_length(trials) == 4
