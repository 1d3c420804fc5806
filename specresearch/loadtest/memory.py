"""What the process holds in memory while requests come and go; of a server that forgets nothing it would grow with them."""

from collections.abc import Sequence

import psutil

from specresearch.loadtest.rows import PassRow


def resident_bytes() -> int:
    """Of this process, now."""
    return psutil.Process().memory_info().rss


def memory_figures(passes: Sequence[PassRow]) -> dict[str, int | None]:
    """passes: in the order in which they were made."""
    held = [num_bytes for row in passes for _, num_bytes in row.memory]
    if not held:
        return dict.fromkeys(("memory_start", "memory_end", "memory_peak"))
    return {"memory_start": held[0], "memory_end": held[-1], "memory_peak": max(held)}
