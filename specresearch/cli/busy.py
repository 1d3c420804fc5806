"""Say so when other processes keep the cores busy that PyTorch is about to use.

Its threads wait for one another at every operation, so on cores that others use too, many threads
may be much slower than few.
"""

import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
IDLE_COLUMNS = (3, 4)  # idle, and waiting for a disk
LEAST_BUSY = 0.5  # cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoreTimes:
    """How long the cores of this process have worked, for whomever.

    Attributes:
        busy: Seconds of all cores together since the machine started.
        own: Seconds of this process.
        now: A clock's seconds.
    """

    pid: int
    busy: float
    own: float
    now: float

    @staticmethod
    def read() -> "CoreTimes | None":
        """Return the times so far, or None where the system does not tell."""
        if not STAT.exists():
            return None
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        ticks = 0
        for line in STAT.read_text(encoding="ascii").splitlines():
            name, *columns = line.split()
            if name in cores:
                idle = sum(int(columns[index]) for index in IDLE_COLUMNS)
                ticks += sum(map(int, columns[:8])) - idle  # guests are counted twice
        busy = ticks / os.sysconf("SC_CLK_TCK")
        return CoreTimes(os.getpid(), busy, time.process_time(), time.monotonic())

    def used_by_others(self, before: "CoreTimes") -> float:
        """Return how many cores other processes used since then, on average."""
        busy = self.busy - before.busy - (self.own - before.own)
        return max(busy / (self.now - before.now), 0.0)


_START = CoreTimes.read()


def warn_of_busy_cores() -> None:
    """Warn if others have used cores since this process started, and PyTorch uses all of them."""
    import torch

    now = CoreTimes.read()
    num_threads = torch.get_num_threads()
    if now is None or _START is None or now.pid != _START.pid or torch.cuda.is_available():
        return
    num_cores = len(os.sched_getaffinity(0))
    others = now.used_by_others(_START)
    if others < LEAST_BUSY or 1 in (num_threads, num_cores) or num_threads < num_cores:
        return
    best = max(num_cores - math.ceil(others), 1)
    logger.warning(
        "other processes use %.1f of %d cores, and PyTorch's %d threads wait for one another; "
        "OMP_NUM_THREADS=%d before the command is probably faster",
        min(others, num_cores),
        num_cores,
        num_threads,
        best,
    )
