"""The GPUs that a deployment runs on, and what each can hold and do."""

import re
from dataclasses import dataclass

from specresearch.settings.sentences import nearest

GIB = 2.0**30


@dataclass(frozen=True)
class GpuKind:
    """One kind of GPU.

    Attributes:
        memory: Bytes of its memory.
        is_reported: True if a driver reported `memory`; False if it is the vendor's round number.
        bandwidth: Bytes per second of its memory, by its vendor.
        flops: Dense bfloat16 operations per second, by its vendor.
    """

    memory: float
    is_reported: bool
    bandwidth: float
    flops: float


KINDS = {
    "h100": GpuKind(79.2 * GIB, True, 3.35e12, 9.89e14),
    "h200": GpuKind(140 * GIB, True, 4.8e12, 9.89e14),
    "a100": GpuKind(80e9, False, 2.039e12, 3.12e14),
    "l40s": GpuKind(48e9, False, 8.64e11, 3.62e14),
    "l4": GpuKind(24e9, False, 3.0e11, 1.21e14),
}


@dataclass(frozen=True)
class Gpus:
    """Equal GPUs that share every layer by tensor parallelism.

    Attributes:
        num: How many there are.
        memory: Bytes of each.
        bandwidth: Bytes per second of each.
        flops: Operations per second of each.
        memory_source: Where `memory` comes from.
    """

    name: str
    num: int
    memory: float
    bandwidth: float
    flops: float
    memory_source: str

    @classmethod
    def parse(
        cls,
        text: str,
        memory: float | None = None,
        bandwidth: float | None = None,
        flops: float | None = None,
    ) -> "Gpus":
        """Read a number and a kind such as "2xh100"; the other arguments replace its figures.

        Raises:
            ValueError: If `text` is no such thing, or the figures of the kind are not known.
        """
        match = re.fullmatch(r"(?:(\d+)x)?([a-z][\w.-]*)", text.lower())
        if match is None or match[1] == "0":
            raise ValueError(
                f"gpu={text} is not a number and a kind of GPU; write it as gpu=2xh100"
            )
        num, name = int(match[1] or 1), match[2]
        given = {"gpu_memory": memory, "timing.bandwidth": bandwidth, "timing.flops": flops}
        kind = KINDS.get(name)
        if kind is None:
            missing = [key for key, value in given.items() if value is None]
            if memory is None or bandwidth is None or flops is None:
                raise ValueError(
                    f"gpu={text}: the figures of {name!r} are not known{nearest(name, KINDS)}; "
                    f"for another one, add {', '.join(missing)}"
                )
            return cls(name, num, memory, bandwidth, flops, "as given")
        source = "as its driver reports" if kind.is_reported else "by its vendor, unverified"
        return cls(
            name,
            num,
            memory=memory or kind.memory,
            bandwidth=bandwidth or kind.bandwidth,
            flops=flops or kind.flops,
            memory_source="as given" if memory else source,
        )

    def __str__(self) -> str:
        return f"{self.num} x {self.name}"
