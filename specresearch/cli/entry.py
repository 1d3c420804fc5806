"""How every entry point gets its configuration, and how it says in one line that it cannot run."""

import functools
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from specresearch.cli.signals import INTERRUPTED, signals_interrupt
from specresearch.files import means_full

PACKAGE = Path(__file__).parents[1]
FULL_ERROR = "HYDRA_FULL_ERROR"
USER_ERRORS = (
    ValueError,
    MemoryError,
    OSError,
    torch.OutOfMemoryError,
    HydraException,
    OmegaConfBaseException,
)
FAILED = 2


def conf_dir(package: Path = PACKAGE) -> Path:
    """The folder conf/: inside an installed wheel's package, beside the package of a checkout or an editable install."""
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if (place / "run.yaml").is_file():
            return place
    looked = " and ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"conf/run.yaml is missing; looked in {looked}; install the package again"
    )


def check_keys(cfg: DictConfig, config_name: str, *optional: str) -> None:
    """Refuse top-level keys that nothing reads, with ValueError; Hydra itself lets `+anything=1` pass.

    Known are the keys and groups of conf/<config_name>.yaml, and `optional`.
    """
    own = OmegaConf.load(conf_dir() / f"{config_name}.yaml")
    groups = {
        str(key).removeprefix("optional ")
        for entry in own.defaults
        if isinstance(entry, DictConfig)
        for key in entry
    }
    known = {str(key) for key in {*own, *groups, *optional} - {"defaults", "hydra"}}
    strange = sorted(str(key) for key in cfg if key not in known)
    if strange:
        raise ValueError(f"unknown key {strange[0]!r}; there are: {', '.join(sorted(known))}")


def entry_point(task: Callable[[DictConfig], None], config_name: str) -> None:
    """Run `task` with conf/<config_name>.yaml and the overrides of the command line.

    Bad input and full disks end the process with exit code 2 and one line on stderr; HYDRA_FULL_ERROR=1 shows the traceback
    instead. Ctrl-C, SIGTERM and SIGHUP end it with 128 and the number of the signal.
    """
    wants_traceback = os.environ.get(FULL_ERROR) == "1"
    os.environ[FULL_ERROR] = "1"  # makes Hydra raise what it would otherwise print at length
    warnings.showwarning = _show_warning
    logging.raiseExceptions = False  # of a log file on a full disk
    failed = False

    @functools.wraps(task)
    def guarded(cfg: DictConfig) -> None:
        nonlocal failed
        try:
            task(cfg)
        except Exception as error:
            if wants_traceback or not (isinstance(error, USER_ERRORS) or means_full(error)):
                raise
            failed = True  # the other jobs of a multirun go on
            _say(f"error: {_job()}{_sentence(error, resumes='resume' in cfg)}")

    with signals_interrupt() as stop:
        try:
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(
                guarded
            )()
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
            _say(f"error: {_sentence(error)}")
    if failed:
        sys.exit(FAILED if stop.signum is None else stop.exit_code)


def _say(text: str) -> None:
    """On stderr, unless its terminal was closed."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def _sentence(error: BaseException, *, resumes: bool = False) -> str:
    """resumes: the command can go on where it was stopped."""
    if not means_full(error):
        return one_line(error)
    named = getattr(error, "filename", None)
    folder = Path(HydraConfig.get().runtime.output_dir) if HydraConfig.initialized() else Path.cwd()
    place = Path(os.fsdecode(named)).absolute() if named else folder
    free = shutil.disk_usage(next(each for each in (place, *place.parents) if each.exists())).free
    again = (
        f" with {_key_of(folder)} resume=true"
        if resumes and (folder / "provenance.json").exists()
        else ""
    )
    return (
        f"no room to write {place}, whose disk has {free / 1e6:,.1f} MB free ({one_line(error)}); what was written before is "
        f"kept: make room, then give the same command{again} once more"
    )


def _key_of(folder: Path) -> str:
    """What names the folder of a run on the command line."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return f"hydra.sweep.dir={folder.parent}"
    return f"hydra.run.dir={folder}"


def _job() -> str:
    """Which job of a multirun this is; nothing in a single run."""
    hydra_cfg = HydraConfig.get()
    is_sweep = hydra_cfg.mode == RunMode.MULTIRUN
    return f"job {hydra_cfg.job.num} ({hydra_cfg.job.override_dirname}): " if is_sweep else ""


def one_line(error: BaseException) -> str:
    """What went wrong and what to do about it, without the machinery it passed through."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"there is no {group}={name}; available: {', '.join(error.options)}"
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        key = re.search(r"full_key: (\S+)", str(error))
        cause = one_line(error.__cause__)
        return f"{key[1]}: {cause}" if key and isinstance(error.__cause__, TypeError) else cause
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is not set; add {error.full_key}=..."
    unset = re.match(r"Error resolving interpolation '\$\{(\w+)\}'", str(error))
    if unset:
        return f"{unset[1]} is not set; add +{unset[1]}=..."
    unknown = re.match(r"Could not override '(.+?)'\.\s+To append to your config", str(error))
    if unknown:
        group = unknown[1].partition(".")[0]
        if any(re.match(rf"\+?{group}=.*,", argument) for argument in sys.argv[1:]):
            return f"{unknown[1]!r} belongs to a {group} of which a sweep has several; write ++{unknown[1]}=..."
        return f"there is no key {unknown[1]!r} here; --help lists those there are"
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [
        line
        for line in lines
        if line and not line.startswith(("full_key:", "object_type=", "See https://"))
    ]
    return " ".join(kept) or type(error).__name__


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
