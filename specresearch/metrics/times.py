"""Where the time of a step goes."""

import time
from dataclasses import dataclass

import torch

_SKIPPED = "skipped"


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step. propose includes what the proposer learns afterwards. control: of choosing how much to draft.

    prefill and schedule are not in `total`: what was spent since the last record on reading, and on deciding who runs and how
    much of a prompt is read. catch_up: the part of prefill in which a drafter read what it had put off. draft_prefill: all
    of the drafter's part of prefill.
    """

    propose: float
    verify: float
    accept: float
    commit: float
    total: float
    prefill: float = 0.0
    schedule: float = 0.0
    catch_up: float = 0.0
    control: float = 0.0
    draft_prefill: float = 0.0

    @property
    def work(self) -> float:
        """Of the step itself, however its drafts were chosen."""
        return self.total - self.control

    @property
    def host(self) -> float:
        """What no named part accounts for."""
        return self.work - self.propose - self.verify - self.accept - self.commit


class StepClock:
    """Splits a step into named laps.

    On CUDA a lap is a stretch of the GPU's own timeline, idling for the host included, so that `StepTimes.host` is near 0
    there and a launch-bound pass shows as a long `verify`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.laps: dict[str, float] = {}
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self.start = self._last = time.perf_counter()
        if self.is_cuda:
            self._mark("start")

    def _mark(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        self._marks.append((name, event))

    def lap(self, name: str) -> None:
        """Everything since the last lap was spent on `name`."""
        now = time.perf_counter()
        if self.is_cuda:
            self._mark(name)
        else:
            self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    def skip(self) -> None:
        """What was done since the last lap, and is finished on the device, was no part of the step."""
        begin = self._last
        self.lap(_SKIPPED)
        self.start += self._last - begin

    def stop(
        self,
        prefill: float = 0.0,
        schedule: float = 0.0,
        catch_up: float = 0.0,
        draft_prefill: float = 0.0,
    ) -> StepTimes:
        if self.is_cuda:
            self._marks[-1][1].synchronize()
            for (_, before), (name, after) in zip(self._marks, self._marks[1:], strict=False):
                self.laps[name] = self.laps.get(name, 0.0) + before.elapsed_time(after) / 1e3
        self.laps.pop(_SKIPPED, None)
        total = time.perf_counter() - self.start
        read = {
            "prefill": prefill,
            "schedule": schedule,
            "catch_up": catch_up,
            "draft_prefill": draft_prefill,
        }
        return StepTimes(**self.laps, total=total, **read)
