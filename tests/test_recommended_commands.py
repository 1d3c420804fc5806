"""Nothing recommends a command that is then refused: every printed command is run."""

import html
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from forked import Ended, import_everything, run_forked
from shape_checks import unchecked

from specresearch.cli import conf_dir

PROPOSERS = sorted(file.stem for file in (conf_dir() / "proposer").glob("*.yaml"))
QUICK = ("eagle", "ngram")  # a head and a lookup; others print the like
CASES = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in PROPOSERS
]
CODE = re.compile(r"<(?:code|pre)[^>]*>(.*?)</(?:code|pre)>", re.DOTALL)
COMMAND = re.compile(r"^\s*(?:\$ )?python -m specresearch\.(\w+) (.*\S)\s*$", re.MULTILINE)
SHORT = {"sampling.max_new_tokens": "6", "dataset.max_prompt_tokens": "24", "warmup": "0"}
SMALL = {
    "run": {**SHORT, "num_prompts": "3"},
    "load": {**SHORT, "arrivals.qps": "50", "num_requests": "6"},
}
AMOUNTS = {"num_prompts", "num_requests"}
CLOSED = "arrivals=closed_loop"  # arrivals without a rate, whose number of requests is their own
LIMIT = 400.0  # seconds


@pytest.fixture(scope="module")
def _ready() -> Iterator[None]:
    import_everything()
    with unchecked(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def small(command: str, arguments: Sequence[str]) -> list[str]:
    """Return a command that measures little; besides, it keeps the settings that it has."""
    settings = dict(SMALL.get(command, {}))
    if CLOSED in arguments:
        del settings["arrivals.qps"], settings["num_requests"]
    kept = [word for word in arguments if word.partition("=")[0] not in settings.keys() & AMOUNTS]
    keys = {word.partition("=")[0] for word in kept}
    added = [f"{key}={value}" for key, value in settings.items() if key not in keys]
    return [*kept, *added]


def commands_in(text: str) -> set[tuple[str, ...]]:
    """Return the commands that stand alone on a line of a text, as words."""
    return {(name, *shlex.split(words)) for name, words in COMMAND.findall(text)}


def commands_of(page: Path) -> set[tuple[str, ...]]:
    """Return the commands in the code of an HTML page."""
    blocks = [html.unescape(block) for block in CODE.findall(page.read_text(encoding="utf-8"))]
    return set().union(*map(commands_in, blocks))


@pytest.mark.usefixtures("_ready")
@pytest.mark.parametrize("proposer", CASES)
def test_recommended_commands_work(proposer: str, tmp_path: Path) -> None:
    """A run, a load test and a report at their defaults, then whatever these print."""
    folders = []
    texts = []

    def call(command: str, arguments: Sequence[str]) -> Ended:
        ended = run_forked(command, arguments, tmp_path, tmp_path, LIMIT)
        assert ended.code == 0, f"{command} {shlex.join(arguments)}: {ended.err}"
        texts.append(ended.out + "\n" + ended.err)
        return ended

    done = set()
    for command in ("run", "load"):
        folder = tmp_path / command
        arguments = [*small(command, [f"+proposer={proposer}"]), f"hydra.run.dir={folder}"]
        call(command, arguments)
        folders.append(str(folder))
        done.add((command, *arguments))
    call("report", folders)
    call("report", [folders[0], "--output", "first"])
    printed = set().union(*map(commands_in, texts))
    for page in tmp_path.glob("*/report.html"):
        printed |= commands_of(page)
    for command, *arguments in sorted(printed - done):
        call(command, small(command, arguments))


def test_commands_are_found() -> None:
    page = "<pre>\npython -m specresearch.load -m &#39;compare=[2]&#39;\n</pre>"
    (block,) = CODE.findall(page)
    assert commands_in(html.unescape(block)) == {("load", "-m", "compare=[2]")}
    assert commands_in("see python -m specresearch.run for more") == set()
