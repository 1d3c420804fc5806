"""Keep chosen shapes on disk: one JSON file for each identity, in a cache folder."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specresearch.files import replace_text
from specresearch.shape_store.choice import ShapeChoice
from specresearch.shape_store.identity import Identity

logger = logging.getLogger(__name__)

VARIABLE = "SPECRESEARCH_CACHE"  # names the folder


def cache_folder() -> Path:
    """Return the folder for what can be measured again; $SPECRESEARCH_CACHE names another."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specresearch"


class ShapeStore:
    """The shapes that were chosen for one identity, by workload; the last is the newest.

    A file that is damaged or of another version counts as none.

    Args:
        folder: None uses `cache_folder()`.
    """

    def __init__(self, identity: Identity, folder: Path | None = None) -> None:
        self.identity = identity
        self.file = (folder or cache_folder()) / "shapes" / f"{identity.key}.json"

    def load(self, workload: Mapping[str, Any]) -> ShapeChoice | None:
        """Return what was chosen for requests like these, if it was measured."""
        for entry, choice in self._entries():
            if entry == workload:
                return choice
        return None

    def newest(self) -> ShapeChoice | None:
        """Return what was chosen last, whatever the requests."""
        return next((choice for _, choice in reversed(self._entries())), None)

    def save(self, workload: Mapping[str, Any], choice: ShapeChoice) -> None:
        """Keep a choice in place of an earlier one; a folder that cannot be written is no error."""
        kept = [(entry, old) for entry, old in self._entries() if entry != workload]
        rows = []
        for entry, each in [*kept, (dict(workload), choice)]:
            rows.append({"workload": entry, "choice": each.to_json()})
        content = {"identity": asdict(self.identity), "choices": rows}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.file, json.dumps(content, indent=1, default=str) + "\n")
        except OSError as error:
            logger.warning("the chosen shape of drafts is not kept: %s", error)

    def _entries(self) -> list[tuple[dict[str, Any], ShapeChoice]]:
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
            entries = []
            for row in content["choices"]:
                entries.append((dict(row["workload"]), ShapeChoice.from_json(row["choice"])))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is damaged and is measured again: %s", self.file, error)
            return []
        return entries
