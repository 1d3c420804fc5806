"""How much memory the process holds during a run: a server that leaks would grow."""

from collections.abc import Sequence

from specresearch.loadtest.rows import PassRow


def memory_figures(passes: Sequence[PassRow]) -> dict[str, int | None]:
    """Return the memory at the start, at the end and at its peak. Passes are in run order."""
    samples = [num_bytes for row in passes for _, num_bytes in row.memory]
    if not samples:
        return dict.fromkeys(("memory_start", "memory_end", "memory_peak"))
    return {
        "memory_start": samples[0],
        "memory_end": samples[-1],
        "memory_peak": max(samples),
    }
