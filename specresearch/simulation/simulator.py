"""A load run without the model: the same sides, the same figures, on a simulated clock."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specresearch.controllers import Controller, Fixed
from specresearch.engine import SchedulerSettings
from specresearch.loadtest.arrivals import Arrivals
from specresearch.loadtest.folder import LoadResults
from specresearch.loadtest.loop import Feed, Stops
from specresearch.loadtest.settings import WAVES, LoadSettings, PassSettings
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.steps import PassSteps
from specresearch.loadtest.summary import summarize_load
from specresearch.rows import BASELINE, METHOD, PassKey
from specresearch.simulation.drafting import Drafting
from specresearch.simulation.method import Method
from specresearch.simulation.one_pass import SimulatedPass, Simulation
from specresearch.simulation.recordings import version_caution
from specresearch.simulation.replays import Replays
from specresearch.simulation.timing import Timing


@dataclass(frozen=True)
class SimulationSettings(PassSettings):
    """num_requests: None: every recorded request once, and at least WAVES times a closed loop's concurrency.

    max_len: tokens of a request; None: as recorded.
    """

    max_running: int = 8
    max_waiting: int = 1_000
    max_seconds: float = 1e9
    max_len: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_len is not None:
            self.check_counts("max_len")


@dataclass
class Simulator:
    """Decodes the requests of `drafting` again, plainly and with its method, under one load. controller_name: for reports."""

    drafting: Drafting
    timing: Timing
    arrivals: Arrivals
    settings: SimulationSettings
    controller: Controller = field(default_factory=Fixed)
    scheduling: SchedulerSettings = field(default_factory=SchedulerSettings)
    controller_name: str = "fixed"
    num_simulated: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    cautions: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        header, most, kind = (
            self.drafting.recording.header,
            self.drafting.num_draft_tokens,
            self.drafting.kind,
        )
        if self.settings.num_requests is not None:
            LoadSettings(self.settings.num_requests).count(
                self.arrivals
            )  # refuses a closed loop without a middle
        self.max_len = self.settings.max_len or header.target["max_len"]
        lazy_prefill = self.drafting.prefills_lazily
        self.cautions |= {caution for caution in [version_caution(header)] if caution is not None}
        self.methods = {BASELINE: Method(Fixed(0))}
        if most:
            self.methods[METHOD] = Method(self.controller, kind, most, lazy_prefill)
            for length in self.settings.compare:
                if not 1 <= length <= most:
                    raise ValueError(
                        f"compare={list(self.settings.compare)} holds {length}, and drafts have 1 to {most} tokens; leave it out "
                        "or raise num_draft_tokens"
                    )
                self.methods[f"fixed-{length}"] = Method(Fixed(length), kind, most, lazy_prefill)

    @property
    def num_requests(self) -> int:
        if self.settings.num_requests is not None:
            return self.settings.num_requests
        if self.arrivals.rows is not None:
            return len(self.arrivals.rows)
        return max(len(self.drafting.requests), WAVES * (self.arrivals.concurrency or 0))

    def run(self) -> LoadResults:
        """Every pass of every side, and its figures as `kind` simulation."""
        begin = time.perf_counter()
        passes = {
            name: [
                self._pass(PassKey(repeat, 0, name), method)
                for repeat in range(self.settings.repeats)
            ]
            for name, method in self.methods.items()
        }
        self.seconds = time.perf_counter() - begin
        settings = self.settings
        sides = {name: self._side(name, made) for name, made in passes.items()}
        figures = summarize_load(sides, settings.limits, settings.max_running)
        for told in (figures.summary, *figures.sides.values()):
            told["schedule_share"] = None  # the scheduler's own time is not simulated
        header = self.drafting.recording.header
        setting = {"method": header.method, "controller": self.controller_name}
        setting |= self.arrivals.describe() | {"max_running": settings.max_running}
        return LoadResults.of(
            figures,
            setting,
            settings.limits,
            complete=True,
            kind="simulation",
            provenance=self._provenance(),
        )

    def _pass(self, place: PassKey, method: Method) -> SimulatedPass:
        settings, seed = self.settings, (self.settings.seed << 16) + place.repeat
        replays = Replays(self.drafting, self.max_len, self.arrivals.rows)
        feed = Feed(self.arrivals.times(self.num_requests, seed), self.arrivals.concurrency)
        simulation = Simulation(
            self.timing, method, self.scheduling, settings.max_running, self.max_len
        )
        stops = Stops(settings.max_waiting, settings.max_seconds)
        made = simulation.run(
            place, feed, lambda number: replays.request(number, place.repeat), stops, seed
        )
        self.num_simulated += len(made.requests)
        caution = self.timing.caution()
        if caution is not None:
            self.cautions.add(f"{place.side}: {caution}")
        return made

    def _side(self, name: str, made: Sequence[SimulatedPass]) -> LoadSide:
        return LoadSide.of(
            name,
            [each.row for each in made],
            [request for each in made for request in each.requests],
            {each.row.key.repeat: PassSteps.of(each.log.pop()) for each in made},
            self.arrivals.concurrency,
            self.settings.limits,
        )

    def _provenance(self) -> dict[str, Any]:
        drafting = self.drafting
        return {
            "recording": str(drafting.recording.path),
            "recorded": asdict(drafting.recording.header),
            "side": drafting.side,
            "acceptance": drafting.rule,
            "num_draft_tokens": drafting.num_draft_tokens,
            "controller": self.controller_name,
            "assumption": drafting.assumption,
            "timing": self.timing.describe(),
            "cautions": sorted(self.cautions),
            "num_requests": self.num_requests,
            "requests_per_second_of_simulation": self.num_simulated / self.seconds
            if self.seconds
            else None,
        }
