"""One finding of a decision."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One finding of a decision.

    Attributes:
        lines: Text, one line below the other.
        command: What to type.
        is_open: Whether it stands on the page, not in its folded part.
    """

    term: str
    lines: tuple[str, ...]
    command: str = ""
    is_open: bool = False
