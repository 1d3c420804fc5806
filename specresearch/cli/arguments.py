"""What is wrong with a command line before anything is made of its words."""

import re
import sys
from argparse import ArgumentError, ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from specresearch.cli.choices import EXPERIMENT, commands_with
from specresearch.cli.commands import COMMANDS

_DRAFT = re.compile(r"^(proposer\.draft)=(?!null$)([^{\[].*)$")


class OneLineParser(ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def parser_of_folders(command: str, purpose: str) -> OneLineParser:
    """Return the parser of a command that reads results folders."""
    parser = OneLineParser(prog=f"python -m specresearch.{command}", description=purpose)
    parser.add_argument(
        "folders",
        nargs="+",
        type=results_folder,
        help="of runs, load runs and sweeps; searched through",
    )
    return parser


def expand_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which `proposer.draft=name` names the draft model, as `draft=` does."""
    return [_DRAFT.sub(r"\1.model=\2", word) for word in arguments]


def check_arguments(command: str, arguments: Sequence[str]) -> None:
    """Raise ValueError for a word that is neither an option nor key=value."""
    parser = get_args_parser()
    parser.exit_on_error = False
    usage = f"settings are key=value, such as {COMMANDS[command].examples[0].split()[0]}"
    try:
        options, unknown = parser.parse_known_args(arguments)
    except ArgumentError as error:
        raise ValueError(f"{error}; {usage}") from error
    if unknown:
        if not unknown[0].startswith("-"):
            raise ValueError(f"{unknown[0]} stands behind an option; put options such as -m first")
        raise ValueError(f"there is no option {unknown[0]}; {usage}; {_meant(unknown[0])}")
    for word in options.overrides:
        if "=" not in word and not word.startswith("~"):
            is_rest = word.endswith(("]", "}"))  # of a value with spaces
            hint = "quote values with spaces, as in 'compare=[2, 5]'" if is_rest else usage
            raise ValueError(f"{word!r} is no setting; {hint}")
        key, _, value = word.lstrip("+").partition("=")
        if key == EXPERIMENT:
            for name in value.split(","):
                _check_experiment(name, command)


def _meant(option: str) -> str:
    """Return what an unknown option was probably meant to be."""
    similar = get_close_matches(option, ("--help", "--multirun"), n=1)
    if similar:
        return f"did you mean {similar[0]}?"
    name, equals, value = option.lstrip("-").partition("=")
    return f"did you mean {name.replace('-', '_')}={value if equals else '...'}?"


def _check_experiment(name: str, command: str) -> None:
    commands = commands_with(name)
    if commands and command not in commands:
        meant = " or ".join(f"python -m specresearch.{other}" for other in commands)
        raise ValueError(f"experiment={name} is not for {command}; give it to {meant}")


def results_folder(text: str) -> Path:
    """Return the folder that an argument names, or raise for a file that holds no results."""
    path = Path(text)
    if path.is_file() and path.name != "results.json":
        raise ArgumentTypeError(f"{text} is a file; give folders of runs, such as outputs/")
    return path
