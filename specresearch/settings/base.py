"""What a group of settings holds: types, ranges, and a line of explanation for each key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

TARGET = "_target_"
MAX_COUNT = (
    10_000_000  # of whole numbers without a limit of their own; more is a slip of the keyboard
)
MAX_SEED = 2**63 - 1
MAX_BATCH = 65536  # of requests


class Settings(BaseModel):
    """Base of all groups of settings.

    A value must have exactly the annotated type: 2.5 is no whole number, and 1 is not true.
    Defaults are those of conf/; a key without one here must be there.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    def conflicts(self) -> Iterator[str]:
        """Yield a sentence for every contradiction between keys that are allowed by themselves."""
        yield from ()


@dataclass(frozen=True)
class Choice:
    """Marks a key whose settings depend on the class that it names by `_target_`.

    Attributes:
        group: The config group, such as "proposer"; None if conf/ has no folder for it.
        models: Settings of the project's own classes, by the class's path. Classes of yours may
            have any settings that their `__init__` takes.
        base: The path of the class that classes of yours derive from.
        excluded: Paths of classes in the config group that only other commands take.
    """

    group: str | None
    models: Mapping[str, type[Settings]]
    base: str | None = None
    excluded: frozenset[str] = frozenset()


def key(description: str, example: Any, **constraints: Any) -> Any:
    """Declare a key: a line for --help, an allowed value, and limits as in `pydantic.Field`.

    A whole number with a lower limit is at most MAX_COUNT, unless `le` says otherwise.
    """
    if type(example) is int and "ge" in constraints:
        constraints.setdefault("le", MAX_COUNT)
    return Field(description=description, examples=[example], **constraints)


def seed_key(of: str, **constraints: Any) -> Any:
    """Declare a seed, such as that "of the weights"."""
    return key(f"seed {of}", 0, ge=0, le=MAX_SEED, **constraints)


def progress_key() -> Any:
    """Declare whether a command shows its progress."""
    return key("show a bar, or a line about every ten seconds without a terminal", False)
