"""Figures as the tables on a terminal show them."""

from collections.abc import Mapping, Sequence
from typing import Any

NUM_POSITIONS = 18  # shown, in two lines


def number(value: int | float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def by_position(values: Sequence[int | float | None], digits: int = 2) -> str:
    """Return a figure at each position; dots stand for those beyond `NUM_POSITIONS`."""
    shown = [number(value, digits) for value in values[:NUM_POSITIONS]]
    if len(values) > NUM_POSITIONS:
        shown.append(f"... ({len(values)} in all)")
    return " ".join(shown)


def with_caveats(text: str, provenance: Mapping[str, Any]) -> str:
    """Return a text with the caveats of a result in parentheses, if it has any."""
    caveats = provenance.get("caveats")
    return f"{text} ({', '.join(caveats)})" if caveats else text


def describe_target(target: Mapping[str, Any]) -> str:
    """Return a model of a provenance, such as "zoo:tiny (11.5M parameters, float32)".

    What a server's model consists of is unknown; its software stands in for that.
    """
    if target.get("server"):
        return f"{target['model']} ({target['server']})"
    size = f"{target['num_parameters'] / 1e6:,.1f}M parameters"
    stored = target.get("weights", target["dtype"])
    return f"{target['model']} ({size}, {stored})"


def amount(num_bytes: int) -> str:
    """Return bytes as GB or MB."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
