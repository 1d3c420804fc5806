"""What keeps a result from saying anything about a drafter's quality."""

from collections.abc import Iterator, Mapping
from typing import Any

SYNTHETIC = "synthetic acceptance"
RANDOM = "random weights"
PARTS = ("target", "proposer")  # keys of a configuration that name what decodes


def caveats_of(config: Mapping[str, Any]) -> list[str]:
    """Return the caveats of a configuration, in words; most have none."""
    found = {caveat for part in PARTS for caveat in _caveats_in(config.get(part))}
    return sorted(found, reverse=True)


def _caveats_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if str(value.get("_target_", "")).endswith(".Synthetic"):
            yield SYNTHETIC
        if value.get("weights") == "random":
            yield RANDOM
        for inner in value.values():
            yield from _caveats_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _caveats_in(inner)
