"""The version of what runs write, which resuming and the report check before they read anything."""

from collections.abc import Mapping
from typing import Any

SCHEMA = 2  # raise it when a column or a figure that the report reads changes


def check_schema(results: Mapping[str, Any], subject: object) -> None:
    """Raise ValueError if results were written by another version.

    Args:
        subject: What the error names, such as the folder.
    """
    schema = results.get("schema", 1)
    if schema != SCHEMA:
        raise ValueError(
            f"{subject} was written by another version (schema {schema}, this is {SCHEMA}); "
            "measure again"
        )
