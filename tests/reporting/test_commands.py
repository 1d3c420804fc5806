"""Every command that a report recommends is one that runs."""

import re
import shlex
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import DictConfig

from specresearch.cli import conf_dir
from specresearch.loadtest.settings import LoadSettings
from specresearch.proposal import DraftKind
from specresearch.reporting import Requirements, compose, gather, write
from specresearch.reporting.commands import Command
from specresearch.settings.check import check_settings, plain
from specresearch.settings.commands import schema_of
from tests.reporting.decisions import FASTER, SLOWER
from tests.reporting.folders import write_load, write_run

SPEED_ONLY = {"synthetic"}  # recommends nothing
METHODS = sorted({file.stem for file in (conf_dir() / "proposer").glob("*.yaml")} - SPEED_ONLY)
TREES = {"eagle", "eagle3", "lookahead", "medusa", "suffix", "token_recycling"}
UNSURE: Any = (0.45, None, None)


def compose_config(program: str, overrides: list[str]) -> DictConfig:
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose(program, overrides)


def recommended(folder: Path, out: Path) -> list[str]:
    """Return the commands of the page."""
    page = write(compose(gather([folder]), Requirements()), out).read_text()
    texts = re.findall(r"<(?:pre|code)>(python -m specresearch.*?)</(?:pre|code)>", page)
    return [unescape(text) for text in texts]


def jobs(command: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the program and the overrides of the first and the last run that a command starts."""
    _, _, module, *words = shlex.split(command)
    overrides = [word for word in words if word != "-m"]
    parsed = OverridesParser.create().parse_overrides(overrides)
    (batch,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    assert (len(batch) > 1) == ("-m" in words), command
    for job in (batch[0], batch[-1]):
        yield module.removeprefix("specresearch."), list(job)


def number_of(proposer: Mapping[str, Any] | DictConfig) -> int:
    """Return the proposer's number of drafts, or one that `auto` may have chosen."""
    number = proposer.get("num_draft_tokens")
    return number if isinstance(number, int) else 5


def check(command: str, *, trees: bool) -> None:
    """Refuse what `run` or `load` would refuse before they load a model."""
    for program, overrides in jobs(command):
        cfg = compose_config(program, overrides)
        check_settings(plain(cfg), schema_of(program))
        most = number_of(cfg.proposer)
        instantiate(cfg.controller).bind(DraftKind(trees=trees, scored=True), most)
        if program == "load":
            settings = LoadSettings.from_config(cfg)
            assert all(length <= most for length in settings.compare)
            settings.count(instantiate(cfg.arrivals))


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specresearch.reporting.page.compose_sections", lambda *_: [])
    monkeypatch.setattr("specresearch.reporting.page.draw_overview", lambda *_: [])


@pytest.mark.parametrize("method", METHODS)
def test_what_a_report_of_runs_recommends_is_accepted(tmp_path: Path, method: str) -> None:
    proposer = plain(compose_config("run", [f"+proposer={method}"]))["proposer"]
    trees = method in TREES
    for data, gain in zip(("cnndm", "gsm8k", "sharegpt"), (FASTER, SLOWER, UNSURE), strict=True):
        write_run(
            tmp_path / "runs" / data,
            gain,
            data=data,
            method=method,
            proposer=proposer,
            length=number_of(proposer),
            trees=trees,
        )
    commands = recommended(tmp_path / "runs", tmp_path / "out")
    for data in ("cnndm", "gsm8k", "sharegpt"):
        assert any(f"dataset={data}" in command for command in commands)
    for command in commands:
        assert f"proposer={method} " in command
        check(command, trees=trees)
        if trees or "num_draft_tokens" not in proposer:
            assert "num_draft_tokens" not in command


@pytest.mark.parametrize("method", METHODS)
def test_what_a_report_of_load_tests_recommends_is_accepted(tmp_path: Path, method: str) -> None:
    proposer = plain(compose_config("load", [f"+proposer={method}"]))["proposer"]
    trees = method in TREES
    cases = {"cnndm": (FASTER, SLOWER), "gsm8k": (SLOWER, SLOWER), "sharegpt": (UNSURE,)}
    for data, gains in cases.items():
        for concurrency, gain in zip((1, 8), gains, strict=False):
            write_load(
                tmp_path / "loads" / f"{data}{concurrency}",
                gain,
                data=data,
                method=method,
                controller="fixed",
                concurrency=concurrency,
                proposer=proposer,
                bound=number_of(proposer),
                trees=trees,
            )
    commands = recommended(tmp_path / "loads", tmp_path / "out")
    for data in cases:
        assert any(f"dataset={data}" in command for command in commands)
    for command in commands:
        check(command, trees=trees)


def test_a_command_keeps_the_settings_of_the_folder_and_leaves_out_where_it_wrote(
    tmp_path: Path,
) -> None:
    overrides = [
        "+proposer=suffix",
        "num_prompts=8",
        "batch_size=4",
        "sampling.temperature=0.5",
        "+target.quantization.x=true",
        "~proposer.offset",
        "hydra.run.dir=out",
        "resume=true",
    ]
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides))
    provenance = {"method": {"name": "suffix"}, "dataset": {"name": "gsm8k"}, "command": "x y=z"}
    command = Command.of(tmp_path, "run", provenance)
    assert str(command) == (
        "python -m specresearch.run +proposer=suffix num_prompts=8 batch_size=4 "
        "sampling.temperature=0.5 +target.quantization.x=true '~proposer.offset' "
        "dataset=gsm8k"
    )
    under_load = command.under_load().setting({"arrivals.concurrency": "1,4"})
    assert str(under_load) == (
        "python -m specresearch.load -m +proposer=suffix sampling.temperature=0.5 "
        "+target.quantization.x=true '~proposer.offset' dataset=gsm8k "
        "arrivals.concurrency=1,4"
    )


def test_words_of_another_program_are_no_settings(tmp_path: Path) -> None:
    provenance = {
        "method": {"name": "ngram"},
        "dataset": {"name": "cnndm"},
        "command": "python -c 'x=1' --config-dir=here num_prompts=8 dataset@classes.a.dataset=b",
    }
    assert str(Command.of(tmp_path, "run", provenance)) == (
        "python -m specresearch.run +proposer=ngram num_prompts=8 "
        "dataset@classes.a.dataset=b dataset=cnndm"
    )


def test_lists_are_no_sweeps_and_an_experiment_brings_the_proposer(tmp_path: Path) -> None:
    words = "python -m specresearch.load +experiment=qps proposer=suffix compare=[2,4]"
    provenance = {
        "method": {"name": "suffix"},
        "dataset": {"name": "sharegpt"},
        "command": words,
    }
    assert str(Command.of(tmp_path, "load", provenance)) == (
        "python -m specresearch.load proposer=suffix +experiment=qps 'compare=[2,4]' "
        "dataset=sharegpt"
    )


def test_a_load_test_of_few_prompts_asks_for_more_of_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", UNSURE)
    provenance = (folder / "results.json").read_text().replace("200", "3")
    (folder / "results.json").write_text(provenance)
    commands = recommended(folder, tmp_path / "out")
    assert any("num_prompts=24" in command for command in commands)


def test_a_class_from_the_command_line_is_named_again(tmp_path: Path) -> None:
    words = ["+proposer._target_=mine.Lag", "+proposer.num_draft_tokens=6", "batch_size=2"]
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
    provenance = {"method": {"name": "lag"}, "dataset": {"name": "cnndm"}}
    command = Command.of(tmp_path, "run", provenance).setting({"proposer.num_draft_tokens": "3,12"})
    assert str(command) == (
        "python -m specresearch.run -m +proposer._target_=mine.Lag "
        "+proposer.num_draft_tokens=3,12 batch_size=2 dataset=cnndm"
    )
