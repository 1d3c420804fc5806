"""The progress of a certification, and how long it will take."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from specresearch.certification.cases import Case
from specresearch.certification.sampled_outputs import in_bursts, in_waves
from specresearch.engine import Engine
from specresearch.progress import Progress

TRIAL_OUTPUTS = 256  # decoded in a case to time it, at most; they are not counted
TRIAL_WAVES = 8
TRUST = 5.0  # seconds of decoding after which its speed outweighs the timed outputs


class CertifierProgress(Progress):
    """Counts outputs. Their cost differs greatly between cases, so each case is timed first.

    Attributes:
        case: The case that is being decoded.
    """

    case: Case

    def __init__(self, cases: Sequence[Case], *, enabled: bool = True) -> None:
        self._num_left = {case.name: _num_samples(case) for case in cases}
        super().__init__(sum(self._num_left.values()), "outputs", enabled=enabled)
        self._seconds_per_output: dict[str, float] = {}
        self._predicted = 0.0
        self._spent = 0.0
        self._last = time.monotonic()

    def calibrate(self, cases: Sequence[Case], build_engine: Callable[[Case], Engine]) -> None:
        """Time a few outputs of every case, and show how long all will take."""
        if not self.is_shown:
            return
        for case in cases:
            if case.settings:
                seconds = seconds_per_output(build_engine(case), case)
                self._seconds_per_output[case.name] = seconds
        self.show()

    def begin(self, case: Case) -> None:
        """Go on to another case."""
        self.case = case
        self.say(case.name)

    def extend(self, num_units: float | int) -> None:
        self._num_left[self.case.name] += int(num_units)
        super().extend(num_units)

    def skip(self, num_units: float | int) -> None:
        self._num_left[self.case.name] -= int(num_units)
        super().skip(num_units)
        self._last = time.monotonic()

    def advance(self, num_units: float | int = 1) -> None:
        self._num_left[self.case.name] -= int(num_units)
        self._predicted += num_units * self._seconds_per_output.get(self.case.name, 0.0)
        now = time.monotonic()
        self._spent += now - self._last
        self._last = now
        super().advance(num_units)

    @property
    def seconds_left(self) -> float | None:
        """Return what the timed outputs predict, corrected by the speed since then."""
        if not self._seconds_per_output:
            return None
        predicted = 0.0
        for name, seconds in self._seconds_per_output.items():
            predicted += seconds * self._num_left[name]
        return predicted * (self._spent + TRUST) / (self._predicted + TRUST)


def seconds_per_output(engine: Engine, case: Case) -> float:
    """Decode a few outputs of a case, and leave proposer and controller as if new."""
    begin = time.monotonic()
    if case.trial.settings.equal_seeds:
        waves = []
        for number in range(TRIAL_WAVES):
            waves.append([setting.request(number, number) for setting in case.settings])
        decoded = list(in_waves(engine, waves))
    else:
        num_outputs = min(TRIAL_OUTPUTS, 4 * case.trial.settings.batch_size)
        numbers = range(max(num_outputs // len(case.settings), 1))
        requests = []
        for setting in case.settings:
            requests += [setting.request(number, number) for number in numbers]
        decoded = list(in_bursts(engine, requests, np.random.default_rng(0)))
    seconds = time.monotonic() - begin
    engine.proposer.reset()
    engine.controller.reset()
    return seconds / len(decoded)


def _num_samples(case: Case) -> int:
    return sum(setting.num_samples for setting in case.settings)
