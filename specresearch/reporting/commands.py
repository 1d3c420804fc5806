"""The next measurement, as a command that runs: an earlier one with some settings changed."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from specresearch.settings.commands import schema_of

EXPERIMENT = "experiment"
TRANSIENT = ("resume", "progress", "record")  # settings of one session
OVERRIDES = Path(".hydra", "overrides.yaml")


@dataclass(frozen=True)
class Command:
    """A command line of `run` or `load`.

    Attributes:
        method: The choice of `proposer`; empty if the overrides name a class, or a server.
        overrides: The other settings as they were typed, by name; a name may begin with + or ~.
    """

    program: str = "run"
    method: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(folder: Path, program: str, provenance: Mapping[str, Any]) -> "Command":
        """Return the command that measured a folder, without where it wrote to.

        Hydra's file has the overrides of one run of a sweep, the provenance those of the sweep.
        """
        if (folder / OVERRIDES).exists():
            words = yaml.safe_load((folder / OVERRIDES).read_text("utf-8")) or []
        else:
            words = shlex.split(provenance.get("command", ""))
        kept = {EXPERIMENT, *schema_of(program).model_fields}.difference(TRANSIENT)
        overrides = {}
        method = "" if "servers" in provenance else provenance["method"]["name"]
        for word in words:
            name, _, value = word.partition("=")
            if _group_of(name) in kept and name.lstrip("+") != "proposer":
                overrides[name] = value
            if name.lstrip("+") == "proposer._target_":
                method = ""
        # The default dataset of the other program is another one.
        overrides.setdefault("dataset", provenance["dataset"]["name"])
        if " + " in overrides["dataset"]:
            del overrides["dataset"]  # the classes of a mixed workload name theirs
        return Command(program, method, overrides)

    def number(self, name: str, default: int) -> int:
        """Return a setting that is a whole number, or the default."""
        value = self.overrides.get(name, "")
        return int(value) if value.isdigit() else default

    def setting(self, settings: Mapping[str, object]) -> "Command":
        """Return the command with other settings."""
        overrides = dict(self.overrides)
        for name, value in settings.items():
            as_typed = next((key for key in overrides if key.lstrip("+") == name), name)
            overrides[as_typed] = str(value)
        return replace(self, overrides=overrides)

    def without(self, *names: str) -> "Command":
        """Return the command without some settings and all that lie below them."""
        kept = {}
        for name, value in self.overrides.items():
            bare = name.lstrip("+~")
            if not any(bare == other or bare.startswith(f"{other}.") for other in names):
                kept[name] = value
        return replace(self, overrides=kept)

    def under_load(self) -> "Command":
        """Return a load test of the same method, with the settings that both programs have."""
        allowed = schema_of("load").model_fields
        kept = {name: value for name, value in self.overrides.items() if _group_of(name) in allowed}
        return Command("load", self.method, kept)

    def __str__(self) -> str:
        words = ["python", "-m", f"specresearch.{self.program}"]
        if any(_is_sweep(value) for value in self.overrides.values()):
            words.append("-m")
        # An experiment brings a proposer of its own, which is replaced and not added.
        has_proposer = any(_group_of(name) == EXPERIMENT for name in self.overrides)
        if self.method:
            words.append(f"{'' if has_proposer else '+'}proposer={self.method}")
        for name, value in self.overrides.items():
            words.append(name if name.startswith("~") else f"{name}={value}")
        return shlex.join(words)


def _group_of(name: str) -> str:
    return re.split("[./@]", name.lstrip("+~"))[0]


def _is_sweep(value: str) -> bool:
    """Return whether Hydra takes a value as several, one a run."""
    depth = 0
    for letter in value:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            return True
    return value.startswith(("range(", "choice(", "glob("))
