"""Run many commands fast: each in a process forked from one that has imported everything."""

import gc
import importlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir

from specresearch.cli import conf_dir
from specresearch.cli.commands import COMMANDS
from specresearch.settings.commands import SCHEMAS

LIMIT = 20.0  # seconds after which a command is killed


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Exit code; -9 if it was killed.
        out: What it printed on stdout.
        err: What it printed on stderr.
        seconds: How long it took.
    """

    code: int
    out: str
    err: str
    seconds: float


def import_everything() -> None:
    """Import what the commands import late, and warm Hydra's parsers, before processes fork."""
    for name in COMMANDS:
        importlib.import_module(f"specresearch.{name}")
    package = Path(importlib.import_module("specresearch").__file__ or "").parent
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        if "templates" not in parts and parts[-1] not in ("__main__", "__init__"):
            importlib.import_module(".".join(parts))
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for command in SCHEMAS:
            compose(command, ["+proposer=eagle"] if command == "distill" else [])
    gc.freeze()


def run_forked(
    command: str, arguments: Sequence[str], folder: Path, logs: Path, limit: float = LIMIT
) -> Ended:
    """Run `python -m specresearch.<command>` in `folder`, in a child of this process.

    Args:
        logs: A folder for what the command prints.
        limit: Seconds after which it is killed.
    """
    out, err = logs / "stdout", logs / "stderr"
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = _main(command, arguments, folder, out, err)
        finally:
            os._exit(code)
    status, done = 0, 0
    while not done:
        done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            time.sleep(0.005)
            if time.monotonic() - start > limit:
                os.kill(child, 9)
    seconds = time.monotonic() - start
    return Ended(os.waitstatus_to_exitcode(status), out.read_text(), err.read_text(), seconds)


def _main(command: str, arguments: Sequence[str], folder: Path, out: Path, err: Path) -> int:
    """Run the command in this process, with its streams in files."""
    os.environ.pop("HYDRA_FULL_ERROR", None)
    os.environ["COLUMNS"] = "100"
    os.chdir(folder)
    with out.open("w") as stdout, err.open("w") as stderr:
        os.dup2(stdout.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        sys.stdout, sys.stderr = stdout, stderr
        sys.argv = [f"python -m specresearch.{command}", *arguments]
        gc.disable()
        try:
            importlib.import_module(f"specresearch.{command}").main()
        except SystemExit as end:
            return int(end.code or 0) if not isinstance(end.code, str) else 1
        except BaseException:
            traceback.print_exc()
            return 1
        return 0
