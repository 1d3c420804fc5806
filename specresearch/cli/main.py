"""The console script: `specresearch <command> ...` is `python -m specresearch.<command> ...`."""

import importlib
import os
import sys

from specresearch.cli.closed_pipe import closed_pipe_is_no_error
from specresearch.cli.commands import COMMANDS
from specresearch.settings.sentences import nearest


def main() -> None:
    """Run the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        with closed_pipe_is_no_error():
            print(usage())
        return
    if name not in COMMANDS:
        print(f"error: there is no command {name!r}{nearest(name, COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    module = f"specresearch.{name}"
    sys.path.insert(0, os.getcwd())  # as python -m does, for classes of the user's
    sys.argv = [f"python -m {module}", *sys.argv[2:]]
    importlib.import_module(module).main()


def usage() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.purpose}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["usage: specresearch <command> [options]", "", *lines, "", "specresearch <command> --help"]
    )
