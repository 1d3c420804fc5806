"""The folder of a run: how a command opens it, and how it tells the user to continue it."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from specresearch.cli.signals import INTERRUPTED
from specresearch.files.lock import LOCK
from specresearch.results.config import CONFIG, PROVENANCE, RESULTS

Folder = TypeVar("Folder")


def is_sweep() -> bool:
    """Return whether this is a job of a multirun."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def sweep_folder() -> Path | None:
    """Return the folder that the jobs of a multirun share, or None outside of one."""
    return Path(HydraConfig.get().sweep.dir).absolute() if is_sweep() else None


def is_named() -> bool:
    """Return whether the user chose the output folder, or this is a job of a multirun."""
    overrides = HydraConfig.get().overrides.hydra
    return is_sweep() or any(key.startswith("hydra.run.dir=") for key in overrides)


def output_folder() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def check_resumable(file: str) -> None:
    """Check that there is a run for `resume=true` to continue.

    Args:
        file: The name of a file that a run writes as it begins.

    Raises:
        ValueError: If no folder is named, or the folder holds no run.
    """
    if not is_named():
        raise ValueError(
            "resume=true needs the folder of the run to continue: add hydra.run.dir=<folder>"
        )
    if not is_sweep() and not (output_folder() / file).exists():
        raise ValueError(
            f"{output_folder()} holds no run to resume; set hydra.run.dir to one that does, or "
            "leave resume=true out"
        )


def discard_unused_folder(*, resume: bool) -> None:
    """Remove what a failed command wrote to its output folder, if it measured nothing.

    Args:
        resume: The folder's settings are those of an earlier run, and are kept.
    """
    folder, hydra = output_folder(), HydraConfig.get()
    if hydra.output_subdir is None:
        return
    names = {path.name for path in folder.iterdir()}
    begun = names & {CONFIG, PROVENANCE}
    if _holds_no_rows(folder / RESULTS):
        begun.add(RESULTS)
    unused = names & {hydra.output_subdir, LOCK, f"{hydra.job.name}.log"} | begun
    if begun and (resume or names > unused):
        return
    for name in unused:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # a folder that holds something else
        for path in (folder, *folder.parents):
            if path not in (Path.cwd(), *Path.cwd().parents):
                path.rmdir()


def _holds_no_rows(results: Path) -> bool:
    """Return whether a results file is that of a run which has hardly begun."""
    try:
        return json.loads(results.read_text(encoding="utf-8"))["complete"] is False
    except (OSError, ValueError, KeyError):
        return False


def open_folder(cfg: DictConfig, kind: Callable[..., Folder]) -> Folder:
    """Open Hydra's output folder for a kind of run, a `RunFolder`.

    Raises:
        ValueError: If the folder holds something else, or if a run is to be resumed and no folder
            is named.
    """
    if cfg.resume:
        check_resumable(CONFIG)
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    return kind(
        output_folder(), {str(key): value for key, value in config.items()}, resume=cfg.resume
    )


def folder_override(folder: Path, *, sweep: bool | None = None) -> str:
    """Return the override that names the folder on the command line."""
    if is_sweep() if sweep is None else sweep:
        return f"hydra.sweep.dir={folder.parent}"
    return f"hydra.run.dir={folder}"


def resume_command(
    arguments: Sequence[str], folder: Path, program: str, *, sweep: bool | None = None
) -> str:
    """Return the command that continues the run in `folder`.

    Args:
        arguments: What `python -m program` was given.
        sweep: The folder is that of a job of a multirun; None: if this is one.
    """
    override = folder_override(folder, sweep=sweep)
    replaced = ("resume", "force", override.partition("=")[0])
    kept = [argument for argument in arguments if argument.partition("=")[0] not in replaced]
    return shlex.join(["python", "-m", program, *kept, override, "resume=true"])


def exit_interrupted(
    folder: Path, program: str, kept: str = "everything so far is kept"
) -> NoReturn:
    """Tell the user what is kept of an interrupted run and how to continue it; end the process."""
    command = resume_command(sys.argv[1:], folder, program)
    print(f"interrupted; {kept}, and this continues it:\n  {command}")
    sys.exit(INTERRUPTED)
