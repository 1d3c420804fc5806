"""A configuration is composed once, unless something in it may ask for a multirun."""

from typing import Any

import pytest
import yaml
from command_line import Typed
from hydra._internal.hydra import Hydra

from specresearch import run
from specresearch.cli import conf_dir
from specresearch.cli.composition import composed_once, may_set_mode


@pytest.fixture
def compositions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the run modes that configurations are composed for."""
    modes, compose = [], Hydra.compose_config

    def noted(self: Hydra, **how: Any) -> Any:
        modes.append(how["run_mode"].name)
        return compose(self, **how)

    monkeypatch.setattr(Hydra, "compose_config", noted)
    return modes


@pytest.mark.parametrize(
    ("typed_words", "modes"),
    [
        (["num_prompts=0"], ["RUN"]),
        (["num_prompts=0", "hydra.run.dir=here"], ["RUN"]),
        (["-m", "num_prompts=0,-1"], ["MULTIRUN"]),
        (["hydra.mode=RUN", "num_prompts=0"], ["MULTIRUN", "RUN"]),
        (["hydra.mode=MULTIRUN", "num_prompts=0,-1"], ["MULTIRUN", "MULTIRUN"]),
        (["+experiment=batch_size", "num_prompts=0"], ["MULTIRUN", "MULTIRUN"]),
    ],
)
def test_the_mode_is_looked_for_only_where_it_may_be(
    typed_words: list[str], modes: list[str], typed: Typed, compositions: list[Any]
) -> None:
    outcome = typed(run.main, typed_words)
    assert compositions == modes
    assert outcome.code == 2
    assert "num_prompts" in outcome.err
    assert ("job 1" in outcome.err) == (modes[-1] == "MULTIRUN")


@pytest.mark.parametrize(
    ("word", "may"),
    [
        ("-m", False),
        ("--multirun", False),
        ("--config-dir=mine", True),
        ("-cn=mine", True),
        ("num_prompts=3", False),
        ("~tracker", False),
        ("hydra.run.dir=outputs/here", False),
        ("hydra.searchpath=[file://mine]", True),
        ("hydra/launcher=joblib", True),
        ("++hydra.mode=MULTIRUN", True),
        ("+experiment=qps", True),
        ("experiment@_global_=qps", True),
    ],
)
def test_what_may_ask_for_a_multirun(word: str, may: bool) -> None:
    assert may_set_mode(["+proposer=ngram", word]) == may


def test_only_experiments_ask_for_a_multirun() -> None:
    files = {
        file.parent.name
        for file in conf_dir().rglob("*.yaml")
        if "mode" in ((yaml.safe_load(file.read_text()) or {}).get("hydra") or {})
    }
    assert files == {"experiment"}


def test_hydra_is_left_as_it_was() -> None:
    before = Hydra.get_mode
    with pytest.raises(ValueError, match="failed"), composed_once([]):
        raise ValueError("failed")
    assert Hydra.get_mode is before
