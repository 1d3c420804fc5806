"""A load test without the model: the same sides and figures, on a simulated clock."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specresearch.clock import Clock
from specresearch.controllers import Controller, Fixed
from specresearch.engine import SchedulerSettings
from specresearch.loadtest.arrivals import Arrivals
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.settings import WAVES, LoadSettings, PassSettings
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.steps import PassSteps
from specresearch.progress import Progress
from specresearch.results.caveats import caveats_of
from specresearch.rows import BASELINE, FIXED, METHOD, PassKey
from specresearch.simulation.drafting import Drafting
from specresearch.simulation.method import Method
from specresearch.simulation.one_pass import SimulatedPass, Simulation
from specresearch.simulation.recordings import version_caution
from specresearch.simulation.replays import ReplayedRequest, Replays
from specresearch.simulation.timing import Timing


@dataclass(frozen=True)
class SimulationSettings(PassSettings):
    """What is simulated of each side.

    Attributes:
        num_requests: Requests of a pass; None takes every recorded request once, and at least
            `WAVES` times a closed loop's concurrency.
        max_running: Requests that decode together.
        max_len: The most tokens of a request; None takes the recorded limit.
    """

    max_running: int = 8
    max_waiting: int = 1_000
    max_seconds: float = 1e9
    max_len: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("max_running")
        if self.max_len is not None:
            self.check_counts("max_len")


@dataclass
class Simulator:
    """Decodes recorded requests again, plainly and with their method, under one load.

    Attributes:
        controller_name: Name of the controller, for reports.
        num_simulated: Requests simulated so far.
        seconds: How long the simulation took.
        cautions: What to doubt of the figures.
        not_recorded: What differs from the recorded setting, a phrase each.
    """

    drafting: Drafting
    timing: Timing
    arrivals: Arrivals
    settings: SimulationSettings
    controller: Controller = field(default_factory=Fixed)
    scheduling: SchedulerSettings = field(default_factory=SchedulerSettings)
    controller_name: str = "fixed"
    not_recorded: Sequence[str] = ()
    num_simulated: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    cautions: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        header = self.drafting.recording.header
        if self.settings.num_requests is not None:
            # Refuses a closed loop that is nothing but warm-up and tail.
            LoadSettings(self.settings.num_requests).count(self.arrivals)
        self.max_len = self.settings.max_len or header.target["max_len"]
        caution = version_caution(header)
        if caution is not None:
            self.cautions.add(caution)
        self.methods = self._methods()

    @property
    def num_requests(self) -> int:
        """Return the requests of a pass."""
        if self.settings.num_requests is not None:
            return self.settings.num_requests
        if self.arrivals.rows is not None:
            return len(self.arrivals.rows)
        return max(len(self.drafting.requests), WAVES * (self.arrivals.concurrency or 0))

    def run(self) -> LoadResults:
        """Simulate every pass of every side and return the figures."""
        clock = Clock()
        begin = clock.now()
        passes: dict[str, list[SimulatedPass]] = {}
        num_passes = len(self.methods) * self.settings.repeats
        with Progress(num_passes * self.num_requests, "requests") as progress:
            for side, method in self.methods.items():
                progress.say(f"simulating {side}")
                keys = [PassKey(repeat, 0, side) for repeat in range(self.settings.repeats)]
                passes[side] = [self._pass(key, method, progress) for key in keys]
        self.seconds = clock.now() - begin
        sides = {name: self._side(name, of_side) for name, of_side in passes.items()}
        setting = {
            "method": self.drafting.recording.header.method,
            "controller": self.controller_name,
            **self.arrivals.describe(),
            "max_running": self.settings.max_running,
        }
        results = LoadResults.of(
            sides,
            self.settings,
            setting,
            complete=True,
            kind="simulation",
            provenance=self._provenance(),
        )
        for figures in (results.summary, *results.sides.values()):
            figures["schedule_share"] = None  # the scheduler takes no time on a simulated clock
        return results

    def _methods(self) -> dict[str, Method]:
        """Return the sides: the baseline, the method, and each fixed length to compare."""
        methods = {BASELINE: Method(Fixed(0))}
        most = self.drafting.num_draft_tokens
        if not most:
            return methods
        controllers = {METHOD: self.controller}
        for length in self.settings.compare:
            if not 1 <= length <= most:
                raise ValueError(
                    f"compare={list(self.settings.compare)} holds {length}, and drafts have 1 to "
                    f"{most} tokens; leave it out or raise num_draft_tokens"
                )
            controllers[f"{FIXED}{length}"] = Fixed(length)
        for side, controller in controllers.items():
            methods[side] = Method(
                controller, self.drafting.kind, most, self.drafting.prefills_lazily
            )
        return methods

    def _pass(self, key: PassKey, method: Method, progress: Progress) -> SimulatedPass:
        settings = self.settings
        replays = Replays(self.drafting, self.max_len, self.arrivals.rows)
        simulation = Simulation(
            self.timing, method, self.scheduling, settings.max_running, self.max_len
        )

        def request(number: int) -> ReplayedRequest:
            progress.advance()
            return replays.request(number, key.repeat)

        simulated = simulation.run(
            key,
            feed=settings.feed(self.arrivals, self.num_requests, key.repeat),
            request=request,
            stops=settings.stops,
            seed=settings.pass_seed(key.repeat),
        )
        self.num_simulated += len(simulated.requests)
        caution = self.timing.caution()
        if caution is not None:
            self.cautions.add(f"{key.side}: {caution}")
        return simulated

    def _side(self, name: str, passes: Sequence[SimulatedPass]) -> LoadSide:
        requests = []
        steps = {}
        for simulated in passes:
            requests += simulated.requests
            steps[simulated.row.key.repeat] = PassSteps.of(simulated.log.pop())
        return LoadSide.of(
            name=name,
            passes=[simulated.row for simulated in passes],
            requests=requests,
            steps=steps,
            concurrency=self.arrivals.concurrency,
            limits=self.settings.limits,
        )

    def _provenance(self) -> dict[str, Any]:
        drafting = self.drafting
        speed = self.num_simulated / self.seconds if self.seconds else None
        return {
            "recording": str(drafting.recording.path),
            "recorded": asdict(drafting.recording.header),
            "caveats": caveats_of(drafting.recording.header.config),
            "side": drafting.side,
            "acceptance": drafting.rule,
            "num_draft_tokens": drafting.num_draft_tokens,
            "controller": self.controller_name,
            "assumption": drafting.assumption,
            "timing": self.timing.describe(),
            "cautions": sorted(self.cautions),
            "not_recorded": list(self.not_recorded),
            "num_requests": self.num_requests,
            "requests_per_second_of_simulation": speed,
        }
