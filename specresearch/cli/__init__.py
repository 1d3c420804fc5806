"""What all commands share: configuration, folders, interruption, and errors in one line."""

from specresearch.cli.busy import warn_of_busy_cores
from specresearch.cli.config import PACKAGE, conf_dir
from specresearch.cli.entry import entry_point, exit_on_user_errors
from specresearch.cli.errors import one_line
from specresearch.cli.folder import (
    check_resumable,
    exit_interrupted,
    folder_override,
    is_named,
    is_sweep,
    open_folder,
    output_folder,
    resume_command,
    sweep_folder,
)
from specresearch.cli.hub import stay_offline_without_hub
from specresearch.cli.imports import quick_imports
from specresearch.cli.signals import INTERRUPTED

__all__ = [
    "INTERRUPTED",
    "PACKAGE",
    "check_resumable",
    "conf_dir",
    "entry_point",
    "exit_interrupted",
    "exit_on_user_errors",
    "folder_override",
    "is_named",
    "is_sweep",
    "one_line",
    "open_folder",
    "output_folder",
    "quick_imports",
    "resume_command",
    "stay_offline_without_hub",
    "sweep_folder",
    "warn_of_busy_cores",
]
