"""Help explains the settings of one command, and imports nothing that takes long."""

import os
import re
import subprocess
import sys

import pytest
from command_line import Typed
from hydra import compose, initialize_config_dir

from specresearch.cli import conf_dir
from specresearch.cli.commands import COMMANDS
from specresearch.cli.entry import entry_point
from specresearch.report import parser
from specresearch.settings.commands import SCHEMAS, schema_of

FOREIGN = {  # a key of another command, which its own help must not show
    "run": "arrivals.qps=",
    "load": "batch_size=",
    "plan": "sampling.temperature=",
    "serve": "dataset.path=",
    "simulate": "dataset.path=",
    "certify": "num_prompts=",
    "penalty": "sampling.temperature=",
    "tree": "seed=",
    "layers": "batch_size=",
    "distill": "sampling.temperature=",
    "export": "seed=",
}
HEAVY = "torch, transformers, datasets, pandas, matplotlib"


def shown(typed: Typed, command: str, *arguments: str) -> str:
    outcome = typed(lambda: entry_point(lambda cfg: None, command), ["--help", *arguments])
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


@pytest.mark.parametrize("command", SCHEMAS)
def test_help_shows_the_commands_own_settings(typed: Typed, command: str) -> None:
    text = shown(typed, command)
    entries = re.findall(r"^  \+?([\w./]+)=", text, re.MULTILINE)
    top = {entry.partition(".")[0] for entry in entries}
    assert set(schema_of(command).model_fields) - {"student"} <= top | {"strength"}
    assert f"  {FOREIGN[command]}" not in text
    settings = text.partition("Settings, as they are now")[2].partition("Examples")[0]
    explanations = re.split(r"^  \S", settings, flags=re.MULTILINE)[1:]
    assert all("(" in explanation for explanation in explanations)
    assert settings.count("such as") >= len(explanations) // 2


@pytest.mark.parametrize("command", SCHEMAS)
def test_help_ends_with_two_examples(typed: Typed, command: str) -> None:
    examples = shown(typed, command).partition("Examples")[2].strip().splitlines()
    assert len(examples) == 2
    assert all(f"python -m specresearch.{command} " in example for example in examples)


@pytest.mark.parametrize("arguments", COMMANDS["report"].examples)
def test_examples_of_report_are_understood(arguments: str) -> None:
    assert parser().parse_args(arguments.split()).folders
    assert "--ttft" in parser().format_help()


def test_settings_of_what_was_chosen_come_first(typed: Typed) -> None:
    text = shown(typed, "run", "+proposer=ngram", "controller=goodput")
    keys = re.findall(r"^  ([\w.]+)=", text.partition("as they are now")[2], re.MULTILINE)
    groups = [key.partition(".")[0] for key in keys]
    num_chosen = sum(group in ("proposer", "controller") for group in groups)
    assert num_chosen > 5
    assert set(groups[:num_chosen]) == {"proposer", "controller"}


def test_a_wrong_choice_is_an_error_in_help_too(typed: Typed) -> None:
    outcome = typed(lambda: entry_point(lambda cfg: None, "run"), ["--help", "+proposer=nope"])
    assert outcome.code == 2
    assert outcome.err.startswith("error: there is no proposer=nope; there are: cascade")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        f"import sys; sys.argv = ['x', '--help']\n"
        f"from specresearch.{command} import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set('{HEAVY}'.split(', ')) & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.strip() == "[]"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_a_reader_may_stop_reading(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "specresearch", *words]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_every_example_composes() -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for command in SCHEMAS:
            for example in COMMANDS[command].examples:
                words = [word.strip("'") for word in example.split() if word != "-m"]
                compose(
                    command, [word.split(",")[0] if "[" not in word else word for word in words]
                )
