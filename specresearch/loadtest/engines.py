"""The engines of a load test: one per side, all on one target."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specresearch.acceptance import AcceptanceSampler
from specresearch.bench.decoding_memory import Forecast
from specresearch.bench.memory_fit import BatchSetting, MemoryFit
from specresearch.bench.output_check import OutputCheck
from specresearch.bench.pass_observer import PassObserver
from specresearch.calibration import Scope
from specresearch.controllers import Controller, Fixed
from specresearch.engine import Engine, SchedulerSettings
from specresearch.loadtest.settings import LoadSettings
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.rows import BASELINE, FIXED, METHOD
from specresearch.sampling_params import SamplingParams

RESERVED = (BASELINE, METHOD, "over_best", "best_fixed", "worst_fixed")  # names in figures

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SideEngines:
    """An engine and an observer for each side.

    The sides share the target's cache, each with slots of its own, so that their passes can take
    turns.

    Attributes:
        proposer: None measures plain decoding only.
        method: Name of the method, for messages.
        variants: Controllers that are measured as sides of their own, by name.
        batch: The setting of how many requests of each side decode together.
        sampling: Of all requests.
        settle: Chooses what the method drafts, given the size of the batch; called before the
            engines are built.
        memory: That number, and the forecast of the memory that it takes.
        engines: By side.
        observers: By side.
        why_whole: Why passes do not take turns but follow one another; None if they take turns.

    Raises:
        ValueError: If a side cannot be measured.
        MemoryError: If the cache does not fit even for one side.
    """

    target: CausalLM
    proposer: Proposer | None
    acceptance: AcceptanceSampler
    controller: Controller | None
    method: str | None
    variants: Mapping[str, Controller]
    settings: LoadSettings
    batch: BatchSetting
    sampling: Sequence[SamplingParams]
    scheduling: SchedulerSettings
    settle: Callable[[int], None]

    def __post_init__(self) -> None:
        controllers = self._controllers()
        self.why_whole = self._why_whole()
        try:
            self._build(controllers)
        except MemoryError as error:
            if self.why_whole is not None:
                raise
            self.why_whole = f"memory is short ({error})"
            self.target.free_cache()
            self._build(controllers)
        self.batch.log(self.memory)
        if self.why_whole is not None and self.settings.turn_seconds is not None:
            logger.info(
                "sides do not take turns, since %s; noise of this machine affects one of them",
                self.why_whole,
            )

    def _why_whole(self) -> str | None:
        if self.settings.turn_seconds is None:
            return "turn_seconds=null"
        if self.target.compiled or (self.proposer is not None and self.proposer.compiled):
            return "a compiled model computes every slot of its cache"
        if self.proposer is not None and self.proposer.memory == "warm":
            return f"{self.method} learns from request to request"
        return None

    def _build(self, controllers: Mapping[str, Controller | None]) -> None:
        self.engines: dict[str, Engine] = {}
        self.observers: dict[str, PassObserver] = {}
        num_sides = 1 if self.why_whole else len(controllers)
        self.memory = self._fit_memory(num_sides)
        size = self.memory.num_running
        self.settle(size)
        self.target.allocate(size * num_sides)
        for side, controller in controllers.items():
            drafts = side != BASELINE
            begin = 0 if self.why_whole else size * len(self.engines)
            self.observers[side] = PassObserver()
            self.engines[side] = Engine(
                self.target,
                self.proposer if drafts else None,
                self.acceptance if drafts else None,
                controller,
                max_batch_size=size,
                observers=[self.observers[side]],
                scheduling=self.scheduling,
                slots=range(begin, begin + size),
            )

    def _fit_memory(self, num_sides: int) -> MemoryFit:
        forecast = Forecast(
            self.target,
            self.proposer,
            self.sampling,
            max_step_tokens=self.scheduling.max_step_tokens,
            num_sides=num_sides,
        )
        longest_output = max(params.max_new_tokens for params in self.sampling)
        # Where the context would be shortened, sides first give up taking turns.
        return self.batch.fit(forecast, longest_output, may_shorten=num_sides == 1)

    def check_outputs(self) -> None:
        """Check the sampled output of every side from now on."""
        for observer in self.observers.values():
            observer.check = OutputCheck()

    def _controllers(self) -> dict[str, Controller | None]:
        """Return the controller of each side; None leaves the engine's default."""
        for name in self.variants:
            if not name.isidentifier() or name in RESERVED:
                raise ValueError(
                    f"variants.{name}: this cannot be the name of a side; choose one word, none of "
                    f"{', '.join(RESERVED)}"
                )
        compare = list(self.settings.compare)
        controllers: dict[str, Controller | None] = {BASELINE: Fixed(0)}
        if self.proposer is None:
            if compare or self.variants:
                side = f"compare={compare}" if compare else f"variants.{next(iter(self.variants))}"
                raise ValueError(
                    f"{side} is a way of drafting, and nothing drafts; add +proposer=..., or leave "
                    "it out"
                )
            return controllers
        controllers[METHOD] = self.controller
        if compare and self.proposer.shapes and not Scope.is_steered_by(self.controller or Fixed()):
            raise ValueError(
                f"compare={compare} drafts several lengths, and proposer.num_draft_tokens=auto "
                "chooses one for all sides with this controller; set proposer.num_draft_tokens to "
                "the largest, or use controller=goodput"
            )
        for length in compare:
            if length > self.proposer.num_draft_tokens:
                raise ValueError(
                    f"compare={compare} holds {length} and the proposer makes at most "
                    f"{self.proposer.num_draft_tokens} drafts; raise proposer.num_draft_tokens or "
                    "leave that length out"
                )
            controllers[f"{FIXED}{length}"] = Fixed(length)
        return controllers | dict(self.variants)
