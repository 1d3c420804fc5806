"""Choose the shape of drafts for one target, proposer and kind of request, by decoding some."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from itertools import cycle

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.calibration.measurement import PLAIN, Prediction, ShapeMeasurement
from specresearch.calibration.scope import Scope
from specresearch.clock import Clock
from specresearch.controllers import Fixed
from specresearch.engine import Engine, SchedulerSettings, Step
from specresearch.engine.step import StepObserver
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.proposers.draft_shape import DraftShape
from specresearch.request import Request
from specresearch.sampling import SamplingParams

SECONDS = 2.0  # of decoding
LEAST_STEPS = 150  # where steps are slow: for a mean acceptance length within about a tenth
LEAST_PROMPTS = 6  # prompts differ more than the positions of one output do
# What drafts from the output itself, as parts of a cascade may, finds more towards its end, and its
# steps are cheap.
LEAST_STEPS_OF_LOOKUPS, LEAST_PROMPTS_OF_LOOKUPS = 300, 3
CONFIRMATION = 0.5  # of all that
STEPS_IN_A_ROW = 6  # the first does not count: other passes drove its weights out of caches
NUM_SIZES = 3  # of each kind that are timed


@dataclass(frozen=True)
class RequestCosts:
    """What a request costs beside its steps.

    Attributes:
        num_tokens: Tokens of its output.
        prefill: Seconds of the target's prefill.
        draft_prefill: Seconds of the drafter's.
    """

    num_tokens: int
    prefill: float = 0.0
    draft_prefill: float = 0.0

    def seconds(self, step: Prediction, batch_size: int) -> float:
        """Return the seconds of a request that shares its steps with a batch."""
        decode = self.num_tokens / step.tokens * step.seconds / batch_size
        drafter = self.draft_prefill if step.shape.num_draft_tokens else 0.0
        return self.prefill + drafter + decode


@dataclass(frozen=True)
class _Progress:
    """How much was decoded."""

    num_steps: int | float = 0
    seconds: float = 0.0

    def __add__(self, other: "_Progress") -> "_Progress":
        return _Progress(self.num_steps + other.num_steps, self.seconds + other.seconds)

    def __sub__(self, other: "_Progress") -> "_Progress":
        return _Progress(self.num_steps - other.num_steps, self.seconds - other.seconds)

    def has_passed(self, other: "_Progress") -> bool:
        return self.num_steps >= other.num_steps and self.seconds >= other.seconds


@dataclass
class Calibration:
    """Decodes prompts while it goes through shapes from step to step, plain steps included.

    Attributes:
        proposer: Left bound, and drafting in the last of these shapes.
        prompts: Token ids of some that are to be decoded, in random order; used again if they do
            not suffice.
    """

    target: CausalLM
    proposer: Proposer
    prompts: Iterable[Sequence[int]]
    sampling: SamplingParams
    _: KW_ONLY
    acceptance: AcceptanceSampler = field(default_factory=Rejection)
    batch_size: int = 1
    scheduling: SchedulerSettings | None = None
    seed: int = 0
    clock: Clock | None = None

    def __post_init__(self) -> None:
        self._prompts = cycle(self.prompts)
        self._num_steps = self._num_requests = 0
        self._prefill = self._draft_prefill = 0.0

    def measure(self, scope: Scope) -> ShapeMeasurement:
        """Return what shapes of every kind and size took, and what the target accepted."""
        measurement = ShapeMeasurement(scope.shapes, is_num_auto=scope.is_num_auto)
        sizes = [size for shape in scope.shapes for size in sizes_of(shape)]
        more = scope.shapes * 2  # acceptance follows from that of the largest
        self._decode(measurement, [*sizes, *more], 1.0)
        return measurement

    def confirm(
        self, shape: DraftShape, measurement: ShapeMeasurement | None = None
    ) -> ShapeMeasurement:
        """Return what one shape took: of many, the one that seemed fastest was also lucky.

        Plain and drafting steps come in rows, as they do when one of the two is decided on.

        Args:
            measurement: Of the same shape, to go on with.
        """
        measurement = measurement or ShapeMeasurement([shape])
        self._decode(measurement, [shape], CONFIRMATION, STEPS_IN_A_ROW)
        return measurement

    def request_costs(self) -> RequestCosts:
        """Return what a request took beside its steps."""
        num = max(self._num_requests, 1)
        return RequestCosts(
            self.sampling.max_new_tokens, self._prefill / num, self._draft_prefill / num
        )

    def describe(self) -> str:
        """Return what was measured, in words."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return f"measured {now} in {self._num_steps} steps of {self._num_requests} requests"

    def _decode(
        self,
        measurement: ShapeMeasurement,
        shapes: Sequence[DraftShape],
        effort: float,
        num_in_a_row: int = 1,
    ) -> None:
        """Decode prompts, every few steps in another shape or plainly, in random order."""
        turns = self._turns([PLAIN, *shapes], num_in_a_row)
        shape, counts = PLAIN, False
        progress = _Progress()

        def observe(step: Step) -> None:
            nonlocal progress
            times = step.record.times
            progress += _Progress(1, times.total)
            self._draft_prefill += times.draft_prefill
            self._prefill += times.prefill - times.draft_prefill
            if counts and progress.num_steps > num_in_a_row * (len(shapes) + 1):
                measurement.add(step, shape)  # first calls are slow

        num_steps, num_prompts = LEAST_STEPS, LEAST_PROMPTS
        parts = self.proposer.proposers or (self.proposer,)
        if not all(part.models for part in parts):
            num_steps, num_prompts = LEAST_STEPS_OF_LOOKUPS, LEAST_PROMPTS_OF_LOOKUPS
        end = _Progress(effort * num_steps, effort * SECONDS)
        share = _Progress(num_steps / num_prompts, SECONDS / num_prompts)  # of a request
        begun: dict[str, _Progress] = {}
        engine, controller = self._engine(observe, shapes[-1])
        try:
            while not progress.has_passed(end):
                while len(begun) < self.batch_size:
                    id = str(self._num_requests)  # every engine would count from 0
                    engine.submit(Request(next(self._prompts), self.sampling, id=id))
                    begun[id] = progress
                    self._num_requests += 1
                shape, counts = next(turns)
                controller.num_draft_tokens = 0
                if shape.num_draft_tokens:
                    controller.num_draft_tokens = None
                    self.proposer.draft_as(shape)
                engine.step()
                for output in engine.pop_finished():
                    del begun[output.id]
                for id, start in list(begun.items()):
                    if (progress - start).has_passed(share):
                        engine.cancel(id)
                        del begun[id]
        finally:
            engine.abort()
            self.proposer.reset()
        self._num_steps += int(progress.num_steps)

    def _turns(
        self, rotation: list[DraftShape], num_in_a_row: int
    ) -> Iterator[tuple[DraftShape, bool]]:
        """Yield the shape of each step, and whether the step counts."""
        shuffle = random.Random(self.seed).shuffle
        while True:
            shuffle(rotation)
            for shape in rotation:
                for number in range(num_in_a_row):
                    yield shape, number > 0 or num_in_a_row == 1

    def _engine(self, observe: StepObserver, largest: DraftShape) -> tuple[Engine, Fixed]:
        """Return an engine that has room for the largest shape, and its controller."""
        self.proposer.draft_as(largest)
        controller = Fixed()
        engine = Engine(
            self.target,
            self.proposer,
            self.acceptance,
            controller,
            max_batch_size=self.batch_size,
            observers=[observe],
            scheduling=self.scheduling,
            seed=self.seed,
            clock=self.clock,
            num_checked=0,  # the check knows the drafts of one shape
        )
        return engine, controller


def sizes_of(largest: DraftShape) -> Iterator[DraftShape]:
    """Yield the shapes of one kind that are timed, the largest first.

    Times between them are interpolated, and acceptance follows from that of larger ones.
    """
    num, depth = largest.num_draft_tokens, largest.depth
    for i in range(NUM_SIZES):
        levels = None if depth is None else 1 + round((depth - 1) * (1 - i / (NUM_SIZES - 1)))
        yield replace(largest, num_draft_tokens=max(num >> 2 * i, 1), depth=levels)
