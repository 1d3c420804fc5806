"""How much a proposer drafts in a step, as a value that can be chosen, stored and set."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

AUTO = "auto"
LONGEST_CHAIN = 10  # drafts of a chain that `auto` considers; few drafters pay beyond
FALLBACK_LENGTH = 3  # drafts while nothing is measured, as most engines suggest for a start

NumDrafts: TypeAlias = int | Literal["auto"]
DraftKindName: TypeAlias = tuple[str | None, int | None]


@dataclass(frozen=True)
class DraftShape:
    """What a proposer drafts for a request in one step.

    Attributes:
        num_draft_tokens: The most drafts; 0 drafts nothing.
        tree: chain, static or dynamic; None for a proposer without this setting.
        depth: Levels of a dynamic tree.
        paths: Paths of ranks of a static tree; None keeps the first nodes of the proposer's own.
        num_proposers: Of the parts of a cascade, those that are asked; None for other proposers.
    """

    num_draft_tokens: int
    tree: str | None = None
    depth: int | None = None
    paths: tuple[tuple[int, ...], ...] | None = None
    num_proposers: int | None = None

    @property
    def kind(self) -> DraftKindName:
        """Return what shapes that differ in size alone have in common."""
        return self.tree, self.num_proposers

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "DraftShape":
        """Return a shape as `dataclasses.asdict` wrote it."""
        paths = data["paths"]
        if paths is not None:
            paths = tuple(tuple(map(int, path)) for path in paths)
        shape = {key: data[key] for key in ("tree", "depth", "num_proposers")}
        return DraftShape(int(data["num_draft_tokens"]), paths=paths, **shape)

    def __str__(self) -> str:
        if not self.num_draft_tokens:
            return "no drafts"
        if self.tree == "chain":
            return f"a chain of {self.num_draft_tokens}"
        if self.tree == "dynamic":
            return f"a dynamic tree of {self._counted('node')}, {self.depth} deep"
        if self.tree == "static":
            return f"a static tree of {self._counted('node')}"
        most = f"at most {self._counted('draft')}"
        if self.num_proposers is not None:
            most += f" of the first {self.num_proposers} proposers"
        return most

    def _counted(self, noun: str) -> str:
        return f"{self.num_draft_tokens} {noun}" + "s" * (self.num_draft_tokens > 1)

    @property
    def overrides(self) -> str:
        """Return the settings that draft in this shape, as on a command line."""
        if not self.num_draft_tokens:
            return "controller.num_draft_tokens=0"
        settings = []
        if self.tree in ("chain", "dynamic"):
            settings.append(f"proposer.tree={self.tree}")
        if self.paths is None:
            settings.append(f"proposer.num_draft_tokens={self.num_draft_tokens}")
        else:
            settings.append(f"proposer.paths={json.dumps(self.paths, separators=(',', ':'))}")
        if self.num_proposers is not None:
            settings.append(f"proposer.num_proposers={self.num_proposers}")
        if self.depth is not None:
            settings.append(f"proposer.depth={self.depth}")
        return " ".join(settings)
