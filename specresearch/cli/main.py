"""The console script: `specresearch <command> ...` is `python -m specresearch.<command> ...`."""

import importlib
import sys

COMMANDS = {
    "run": "measure a method beside plain decoding",
    "load": "measure a method under load",
    "report": "one page from any set of runs: should speculation be turned on?",
    "simulate": "answer what-if questions from a recording",
    "certify": "prove that a method leaves the output's distribution as it is",
    "tree": "choose the draft tree that would have been fastest",
    "distill": "train a drafter towards its target",
    "export": "write a trained head as serving engines read it",
}


def main() -> None:
    """Run the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        print(
            f"error: there is no command {name!r}; there are: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        sys.exit(2)
    module = f"specresearch.{name}"
    sys.argv = [f"python -m {module}", *sys.argv[2:]]
    importlib.import_module(module).main()


def usage() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        ["usage: specresearch <command> [options]", "", *lines, "", "specresearch <command> --help"]
    )
