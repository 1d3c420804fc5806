"""Names of the sides, and the key that the rows of one pass share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BASELINE = "baseline"  # plain decoding
METHOD = "method"  # the method with the controller that was chosen
FIXED = "fixed-"  # prefix of the method with a fixed draft length


@dataclass(frozen=True, order=True)
class PassKey:
    """One pass of one side: over a group of prompts, or over the whole workload of a load test.

    Attributes:
        group: Number of the group of prompts; 0 in a load test.
    """

    repeat: int
    group: int
    side: str

    @staticmethod
    def of(row: Mapping[str, Any]) -> "PassKey":
        """Return the key of a row as it was written. Raises KeyError if the row lacks it."""
        return PassKey(row["repeat"], row["group"], row["side"])
