"""The documentation builds without a warning, loads nothing external, and shows working code."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate

import specresearch.proposers
from specresearch import CausalLM, Engine, SamplingParams
from specresearch.bench_gpu import parser as bench_parser
from specresearch.cli import conf_dir
from specresearch.cli.arguments import expand_arguments
from specresearch.report import parser as report_parser
from specresearch.settings.check import check_settings, plain
from specresearch.settings.commands import schema_of
from specresearch.table import parser as table_parser
from tests.tiny_models import build

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PARSERS = {"bench_gpu": bench_parser, "report": report_parser, "table": table_parser}
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(
    r"`((?:conf|docs|experiments|notebooks|scripts|specresearch|tests)/[\w/.]+)`"
)
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)")


def commands(page: Path) -> list[str]:
    """Return the arguments of every `python -m specresearch...` in the shell blocks of a page.

    The worked example has no file in conf/, so a proposer of the package stands in for it.
    """
    shell_blocks = [body for language, body in CODE_BLOCK.findall(page.read_text()) if not language]
    lines = "\n".join(shell_blocks).replace("\\\n", " ").splitlines()
    return [
        line.partition("python -m specresearch.")[2].replace("proposer=repeat", "proposer=ngram")
        for line in lines
        if "python -m specresearch." in line and "..." not in line
    ]


def with_first_choice(override: str) -> str:
    """Replace a sweep such as `batch_size=1,2,4` by its first value."""
    (parsed,) = OverridesParser.create().parse_overrides([override])
    if not parsed.is_sweep_override():
        return override
    return f"{override.partition('=')[0]}={next(parsed.sweep_string_iterator())}"


@pytest.mark.parametrize("page", [*filter(commands, PAGES)], ids=lambda page: page.stem)
def test_documented_commands_have_settings_that_are_allowed(page: Path) -> None:
    for command in commands(page):
        name, *arguments = shlex.split(command, comments=True)
        if name in PARSERS:
            PARSERS[name]().parse_args(arguments)
            continue
        settings = expand_arguments([a for a in arguments if not a.startswith("-")])
        overrides = [with_first_choice(setting) for setting in settings]
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = compose(name, overrides)
        check_settings(plain(cfg), schema_of(name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_files_exist(page: Path) -> None:
    names = [name for name in FILE_NAME.findall(page.read_text()) if "/repeat." not in name]
    missing = []
    for name in names:
        if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists():
            missing.append(name)
    assert missing == []


def test_command_with_an_unknown_key_does_not_compose() -> None:
    with (
        initialize_config_dir(str(conf_dir()), version_base="1.3"),
        pytest.raises(Exception, match="no_such_key"),
    ):
        compose("run", ["no_such_key=1"])


def test_site_builds_strictly_and_loads_nothing_external(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    build_process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert build_process.returncode == 0, build_process.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert LOADED.findall(page.read_text()) == [], page


def test_worked_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "add_a_proposer.md").read_text()
    blocks = dict(reversed(CODE_BLOCK.findall(page)))  # the first of each language
    (tmp_path / "repeat.py").write_text(blocks["python"])
    monkeypatch.setattr(
        specresearch.proposers, "__path__", [*specresearch.proposers.__path__, str(tmp_path)]
    )
    proposer = instantiate(yaml.safe_load(blocks["yaml"]))
    target = CausalLM(build("llama"))
    prompts = [[1, 2, 3], [4, 5], [6]]
    sampling = SamplingParams(max_new_tokens=20)
    plain_outputs = Engine(target, max_batch_size=2).generate(prompts, sampling)
    plain = {output.id: output.token_ids for output in plain_outputs}
    drafted_outputs = list(Engine(target, proposer, max_batch_size=2).generate(prompts, sampling))
    assert {output.id: output.token_ids for output in drafted_outputs} == plain
    assert sum(output.record.counts.num_draft_tokens for output in drafted_outputs) > 0
