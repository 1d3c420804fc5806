"""What only the device can tell: when its work is done, what it ran, and the memory it took."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from specresearch.machine import device_name
from specresearch.models.memory import peak_bytes


@dataclass(frozen=True)
class DeviceActivity:
    """What a device did while it was profiled.

    Attributes:
        num_kernels: Kernels that ran; on a CPU, operators that call no others.
        busy: Seconds in which at least one ran, or memory was copied.
    """

    num_kernels: int
    busy: float


class CudaDevice:
    """The GPU that torch calls `cuda`."""

    how_busy = "profiled kernels and copies, against steps that were not profiled"

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = device_name(self.device)

    def describe(self) -> dict[str, Any]:
        """Return what distinguishes this device and its driver."""
        properties = torch.cuda.get_device_properties(self.device)
        return {
            "name": self.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "driver": self._driver(),
        }

    def _driver(self) -> str | None:
        with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as lines:
            return next((line.strip() for line in lines if line.startswith("NVRM")), None)
        return None

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Return unused memory, after a case that ran out of it."""
        torch.cuda.empty_cache()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        return peak_bytes(self.device)

    def activity(self, task: Callable[[], object]) -> DeviceActivity:
        """Run a task under the profiler."""
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            task()
            self.wait()
        ran = [event for event in recorded.events() or () if event.device_type.name == "CUDA"]
        kernels = [event for event in ran if not event.name.startswith(("Memcpy", "Memset"))]
        return _activity(len(kernels), ran)


class CpuDevice:
    """The CPU, which only rehearses."""

    how_busy = "profiled operators, against steps that were not profiled"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.name = device_name(self.device)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def wait(self) -> None:
        pass

    def release(self) -> None:
        pass

    def reset_peak(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return peak_bytes(self.device)

    def activity(self, task: Callable[[], object]) -> DeviceActivity:
        """Run a task under the profiler."""
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            task()
        ran = list(recorded.events() or ())
        return _activity(sum(not event.cpu_children for event in ran), ran)


Device = CudaDevice | CpuDevice


def seconds(device: Device, task: Callable[[], object], num_calls: int = 1) -> float:
    """Return the seconds that a call of a task takes, until the device has done its work."""
    device.wait()
    begin = perf_counter()
    for _ in range(num_calls):
        task()
    device.wait()
    return (perf_counter() - begin) / num_calls


def _activity(num_kernels: int, events: Sequence[Any]) -> DeviceActivity:
    if not num_kernels:
        raise RuntimeError("the profiler recorded no work of the device")
    ranges = [(event.time_range.start, event.time_range.end) for event in events]
    return DeviceActivity(num_kernels, sum(_lengths(ranges)) / 1e6)


def _lengths(ranges: Sequence[tuple[float | int, float | int]]) -> Iterator[float | int]:
    """Yield the lengths of what is covered, where ranges may overlap."""
    ordered = sorted(ranges)
    begin, end = ordered[0]
    for next_begin, next_end in ordered[1:]:
        if next_begin > end:
            yield end - begin
            begin = next_begin
        end = max(end, next_end)
    yield end - begin
