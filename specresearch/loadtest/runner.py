"""A load test: the same requests at the same times by plain decoding and by every other side."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench.memory_fit import AUTO, BatchSetting, shortage_of
from specresearch.bench.memory_use import memory_use
from specresearch.calibration import Calibration, settle_shape
from specresearch.controllers import Controller, Fixed
from specresearch.engine import SchedulerSettings
from specresearch.loadtest.arrivals import Arrivals
from specresearch.loadtest.engines import SideEngines
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.memory import memory_figures
from specresearch.loadtest.one_pass import LoadPass
from specresearch.loadtest.outputs import SideOutputs, combined_figures, compare_outputs
from specresearch.loadtest.pass_runner import PROGRAM, PassRunner
from specresearch.loadtest.progress import LoadProgress
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.workload import LoadWorkload, RequestClass
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.recording.recorder import Recorder, describe_recording
from specresearch.results.provenance import describe, describe_method
from specresearch.rows import BASELINE, PassKey, RequestRow
from specresearch.shape_store import ShapeChoice
from specresearch.trackers import NoTracker, Tracker


@dataclass
class LoadRunner(PassRunner):
    """Runs one target in this process under one load, with and without a method.

    The sides of a repeat take turns unless `whole_passes` says why they cannot.

    Attributes:
        proposer: None measures plain decoding only.
        method: Name of the method, for reports.
        controller_name: Name of the controller, for reports.
        variants: Controllers that are measured as sides of their own, by name.
        record: Keep what a simulation needs.
        max_running: Requests of each side that decode together.
        memory: The forecast of the memory that they take.
    """

    target: CausalLM
    classes: Sequence[RequestClass]
    arrivals: Arrivals
    settings: LoadSettings
    folder: LoadFolder
    _: KW_ONLY
    proposer: Proposer | None = None
    method: str | None = None
    acceptance: AcceptanceSampler = field(default_factory=Rejection)
    controller: Controller | None = None
    controller_name: str | None = None
    variants: Mapping[str, Controller] = field(default_factory=dict)
    scheduling: SchedulerSettings | None = None
    tracker: Tracker = field(default_factory=NoTracker)
    record: bool = False

    def __post_init__(self) -> None:
        settings, concurrency = self.settings, self.arrivals.concurrency
        self.num_requests = settings.count(self.arrivals)
        scheduling = self.scheduling or SchedulerSettings()
        self.shape: ShapeChoice | None = None
        self._sides = SideEngines(
            target=self.target,
            proposer=self.proposer,
            acceptance=self.acceptance,
            controller=self.controller,
            method=self.method,
            variants=self.variants,
            settings=settings,
            batch=BatchSetting(
                "max_running",
                settings.max_running,
                self.folder,
                num_requests=concurrency or self.num_requests,
                max_step_tokens=scheduling.max_step_tokens,
            ),
            sampling=[part.sampling for part in self.classes],
            scheduling=scheduling,
            settle=self._settle_shape,
        )
        self.memory = self._sides.memory
        self.max_running = self.memory.num_running
        if settings.max_running != AUTO:
            self.max_running = int(settings.max_running)
        self.engines = self._sides.engines
        self.whole_passes = self._sides.why_whole
        is_sampled = any(not part.sampling.is_greedy for part in self.classes)
        if self.proposer is not None and self.acceptance.lossless and is_sampled:
            self._sides.check_outputs()
        if self.record:
            self._record()

    def _settle_shape(self, batch_size: int) -> None:
        """Choose what the method drafts, where `auto` does, for the largest class of requests."""
        tokenizer = self.target.tokenizer
        part = max(self.classes, key=lambda each: each.share)
        max_tokens = self.target.max_len - part.sampling.max_new_tokens
        if self.proposer is None or tokenizer is None or max_tokens < 1:
            return
        rows = part.dataset.rows
        calibration = Calibration(
            self.target,
            self.proposer,
            (
                part.dataset.prompt(tokenizer, row, (), max_tokens=max_tokens).token_ids
                for row in random.Random(self.settings.seed).sample(rows, len(rows))
            ),
            part.sampling,
            acceptance=self.acceptance,
            batch_size=batch_size,
            scheduling=self.scheduling,
            seed=self.settings.seed,
        )
        self.shape = settle_shape(
            calibration,
            self.controller or Fixed(),
            part.dataset.source.fingerprint,
            self.folder.provenance(),
            is_shared=bool(self.settings.compare or self.variants),
        )

    def _record(self) -> None:
        """Let a recorder observe every side. What they write is one recording."""
        controllers = {}
        for side, engine in self.engines.items():
            controllers[side] = None if side == BASELINE else engine.controller
        header = describe_recording(
            target=self.target,
            proposer=self.proposer,
            rule=self.acceptance,
            method=self.method,
            controllers=controllers,
            config=self.folder.config,
        )
        for observer in self._sides.observers.values():
            observer.recorder = Recorder(self.folder.path, header)

    @property
    def sides(self) -> Sequence[str]:
        return list(self.engines)

    def _plan(self, watch: LoadProgress) -> LoadWorkload:
        return LoadWorkload(
            self.target,
            self.classes,
            self.num_requests,
            trace=self.arrivals.rows,
            length_spread=self.settings.length_spread,
            seed=self.settings.seed,
            on_prepared=watch.prepared,
        )

    def _parts(self) -> Sequence[object]:
        controllers = [engine.controller for engine in self.engines.values()]
        return (self.proposer, self.acceptance, self.arrivals, *controllers)

    def _warm_up(self, workload: LoadWorkload) -> None:
        numbers = range(min(self.settings.warmup, len(workload)))
        for engine in self.engines.values():
            for output in engine.generate([workload.request(number, 0) for number in numbers]):
                output.checked()

    def _before_group(self) -> None:
        if self.proposer is not None:
            self.proposer.reset()

    def _pass(self, key: PassKey, workload: LoadWorkload, watch: LoadProgress) -> LoadPass:
        engine = self.engines[key.side]
        if self.settings.reset:
            engine.controller.reset()
        return LoadPass(
            key=key,
            engine=engine,
            workload=workload,
            feed=self.settings.feed(self.arrivals, len(workload), key.repeat),
            stops=self.settings.stops,
            folder=self.folder,
            on_tick=watch.tick_pass,
            observer=self._sides.observers[key.side],
        )

    def _describe(self, workload: LoadWorkload) -> dict[str, Any]:
        datasets = list({id(part.dataset): part.dataset for part in self.classes}.values())
        provenance = describe(self.target, datasets, self.settings.seed, PROGRAM)
        method = describe_method(self.method, self.proposer, self.acceptance)
        if method is not None:
            method["shape"] = self.shape and self.shape.to_json()
        return provenance | {
            "method": method,
            "memory": self.memory.to_json(),
            "controller": self.controller_name,
        }

    def _outputs(
        self, requests: Sequence[RequestRow], passes: Sequence[PassRow], workload: LoadWorkload
    ) -> Mapping[str, SideOutputs]:
        return compare_outputs(
            requests=requests,
            passes=passes,
            sides=self.sides,
            workload=workload,
            target=self.target,
            rule=self.acceptance,
        )

    def _setting(
        self, outputs: Mapping[str, SideOutputs], passes: Sequence[PassRow]
    ) -> dict[str, Any]:
        return {
            "method": self.method,
            "controller": self.controller_name if self.method else None,
            "max_running": self.max_running,
            **combined_figures(outputs),
            **memory_figures(passes),
            **memory_use(self.target, self.proposer, self._earlier, self.memory.memory),
        }

    def _ending(self, error: Exception) -> Exception:
        return shortage_of(error)

    def _finish(self, *, complete: bool) -> None:
        recorder = self._sides.observers[BASELINE].recorder
        if recorder is not None:
            recorder.write(complete=complete)
