"""Find complete checkpoints of a run and delete incomplete ones."""

import json
import shutil
from pathlib import Path

STUDENT_WEIGHTS = "student.safetensors"
TRAINER_STATE = "trainer_state.json"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, or None if there is none."""
    complete = [path for path in folder.glob("checkpoint-*") if _is_complete(path)]
    return max(complete, key=checkpoint_step, default=None)


def checkpoint_step(checkpoint: Path) -> int:
    """Return the optimizer step a checkpoint was saved after."""
    return int(checkpoint.name.rpartition("-")[2])


def delete_incomplete_checkpoints(folder: Path) -> None:
    """Delete checkpoints that a kill or a full disk left incomplete."""
    for path in folder.glob("checkpoint-*"):
        if not _is_complete(path):
            shutil.rmtree(path)


def _is_complete(checkpoint: Path) -> bool:
    """Check the state, which the library writes last."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "global_step" in state
