"""How a command gets its configuration, and how it says in one line that it cannot run."""

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from specresearch.cli.arguments import check_arguments, expand_arguments
from specresearch.cli.closed_pipe import closed_pipe_is_no_error
from specresearch.cli.composition import composed_once
from specresearch.cli.config import conf_dir
from specresearch.cli.errors import explain, is_user_error
from specresearch.cli.folder import discard_unused_folder, is_sweep
from specresearch.cli.help import print_help, wants_help
from specresearch.cli.signals import INTERRUPTED, signals_interrupt
from specresearch.progress import progress_shown
from specresearch.settings.check import check_settings, plain
from specresearch.settings.commands import schema_of

FULL_ERROR = "HYDRA_FULL_ERROR"
FAILED = 2  # exit code
FOLDER_REMEDY = "choose another folder by hydra.run.dir="


def entry_point(task: Callable[[DictConfig], None], config_name: str) -> None:
    """Run `task` with conf/<config_name>.yaml and the overrides of the command line.

    Bad input and full disks end the process with exit code 2 and one line on stderr;
    HYDRA_FULL_ERROR=1 shows the traceback instead. Ctrl-C, SIGTERM and SIGHUP end it with 128 plus
    the number of the signal.
    """
    sys.argv[1:] = expand_arguments(sys.argv[1:])
    try:
        check_arguments(config_name, sys.argv[1:])
    except ValueError as error:
        _say(f"error: {error}")
        sys.exit(FAILED)
    if wants_help(sys.argv[1:]):
        _help(config_name, sys.argv[1:])
        return
    wants_traceback = os.environ.get(FULL_ERROR) == "1"
    os.environ[FULL_ERROR] = "1"  # makes Hydra raise what it would otherwise print at length
    warnings.showwarning = _show_warning
    logging.raiseExceptions = False  # of a log file on a full disk
    schema = schema_of(config_name)
    failed = False

    @functools.wraps(task)
    def guarded(cfg: DictConfig) -> None:
        nonlocal failed
        try:
            check_settings(plain(cfg), schema)
            with progress_shown(cfg.get("progress", True)):
                task(cfg)
        except Exception as error:
            if wants_traceback or not is_user_error(error):
                raise
            failed = True  # the other jobs of a multirun go on
            discard_unused_folder(resume=cfg.get("resume", False))
            _say(f"error: {_job()}{explain(error, schema, can_resume='resume' in cfg)}")

    with signals_interrupt() as stop:
        try:
            with composed_once(sys.argv[1:]):
                hydra.main(
                    version_base="1.3", config_path=str(conf_dir()), config_name=config_name
                )(guarded)()
        except KeyboardInterrupt:
            _say("interrupted")
            sys.exit(stop.exit_code)
        except SystemExit as end:
            if end.code == INTERRUPTED:
                sys.exit(stop.exit_code)
            raise
        except (HydraException, OmegaConfBaseException, OSError) as error:
            if wants_traceback:
                raise
            failed = True
            is_of_folder = not isinstance(error, HydraException)
            remedy = f"; {FOLDER_REMEDY}" if is_of_folder else ""
            _say(f"error: {explain(error, schema)}{remedy}")
    if failed:
        sys.exit(FAILED if stop.signum is None else stop.exit_code)


@contextmanager
def exit_on_user_errors() -> Iterator[None]:
    """End a command without a configuration with code 2 and one line on stderr for bad input."""
    try:
        yield
    except Exception as error:
        if not is_user_error(error):
            raise
        _say(f"error: {explain(error)}")
        sys.exit(FAILED)


def _help(command: str, arguments: Sequence[str]) -> None:
    """Print help, or in one line why there is none for these arguments."""
    try:
        with closed_pipe_is_no_error():
            print_help(command, arguments)
    except (HydraException, OmegaConfBaseException) as error:
        _say(f"error: {explain(error, schema_of(command))}")
        sys.exit(FAILED)


def _say(text: str) -> None:
    """Print on stderr, unless its terminal was closed."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def _job() -> str:
    """Return which job of a multirun this is; nothing in a single run."""
    if not is_sweep():
        return ""
    job = HydraConfig.get().job
    return f"job {job.num} ({job.override_dirname}): "


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
