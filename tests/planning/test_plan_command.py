"""The command, as it is typed: tables on the terminal, and plan.json beside its configuration."""

import json
from pathlib import Path

import pytest
from command_line import Typed
from planned import PAIR, planned

from specresearch import plan
from specresearch.planning import plan_record

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*plan.log:ResourceWarning")


def test_a_plan_is_printed_and_written(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    overrides = [*PAIR, "precision.target=int8", "hydra.run.dir=planned"]
    outcome = typed(plan.main, overrides)
    assert (outcome.code, outcome.err) == (0, "")
    assert "by names" in outcome.out
    assert "88.72" in outcome.out
    assert "compute saturated" in outcome.out
    record = json.loads(Path("planned/plan.json").read_text())
    assert record == json.loads(json.dumps(plan_record(planned(*overrides[:-1]))))
    assert record["drafting"]["weights"] == pytest.approx(88.72e9, rel=1e-4)
    assert record["target"]["kv"] == [
        {"num_heads": 8, "num_values": 256, "window": None, "num_layers": 80}
    ]
    assert f"{record['plain']['tokens']:,}" in outcome.out
    again = typed(plan.main, overrides)
    assert again.code == 2
    assert "already holds a plan" in again.err


def test_without_a_drafter_formats_are_compared(typed: Typed) -> None:
    outcome = typed(plan.main, ["target=tiny", "gpu=l4", "hydra.run.dir=planned"])
    assert outcome.code == 0
    assert "Drafting pays" not in outcome.out
    record = json.loads(Path("planned/plan.json").read_text())
    assert [other["target_precision"] for other in record["others"]] == ["int8", "int4"]
    assert (record["drafter"], record["loads"]) == (None, [])
