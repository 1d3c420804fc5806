"""A load test: the same requests at the same times by plain decoding and by every other side."""

import math
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench.flush import Flush
from specresearch.bench.frozen_heap import frozen_heap
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
from specresearch.loadtest.outputs import combined_figures, compare_outputs
from specresearch.loadtest.progress import LoadProgress
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.workload import LoadWorkload, RequestClass
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.recording.recorder import Recorder, describe_recording
from specresearch.results.caveats import caveats_of
from specresearch.results.provenance import describe, describe_method
from specresearch.rows import BASELINE, PassKey
from specresearch.shape_store import ShapeChoice
from specresearch.trackers import NoTracker, Tracker

PROGRAM = "specresearch.load"


@dataclass
class LoadRunner:
    """Runs one target under one load, with and without a method.

    In every repeat each side decodes the whole workload once; which side goes first rotates. Times
    and seeds differ between repeats but not between sides. The sides of a repeat take turns unless
    `whole_passes` says why they cannot.

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

    def passes(self) -> list[list[PassKey]]:
        """Return the passes in order; those that take turns are grouped."""
        sides = list(self.engines)
        groups = []
        for repeat in range(self.settings.repeats):
            first = repeat % len(sides)
            rotated = [*sides[first:], *sides[:first]]
            keys = [PassKey(repeat, 0, side) for side in rotated]
            groups += [[key] for key in keys] if self.whole_passes else [keys]
        return groups

    def run(self, *, progress: bool = True) -> LoadResults:
        """Decode what the folder does not hold yet. Ctrl-C ends early with the finished passes."""
        self._earlier = self.folder.summary()
        self.tracker.start(self.folder.config, self.folder.path)
        groups = self.passes()
        with LoadProgress(sum(map(len, groups)), self.num_requests, enabled=progress) as watch:
            workload = self._prepare(watch)
            provenance = self._begin_folder(workload)
            complete, shortage = False, None
            try:
                self._measure(groups, workload, provenance, watch)
                complete = True
            except KeyboardInterrupt:
                pass
            except (RuntimeError, MemoryError) as error:
                shortage = shortage_of(error)
        results = self._results(workload, complete, provenance)
        self.folder.write_results(results)
        self.folder.write_steps(complete=complete)
        recorder = self._sides.observers[BASELINE].recorder
        if recorder is not None:
            recorder.write(complete=complete)
        if shortage is not None:
            raise shortage
        self.tracker.finish(results.summary, self.folder.files)
        return results

    def _prepare(self, watch: LoadProgress) -> LoadWorkload:
        watch.say("preparing prompts")
        return LoadWorkload(
            self.target,
            self.classes,
            self.num_requests,
            trace=self.arrivals.rows,
            length_spread=self.settings.length_spread,
            seed=self.settings.seed,
            on_prepared=watch.prepared,
        )

    def _begin_folder(self, workload: LoadWorkload) -> dict[str, Any]:
        controllers = [engine.controller for engine in self.engines.values()]
        parts = (self.proposer, self.acceptance, self.arrivals, *controllers)
        return self.folder.begin(self._provenance(workload), *parts)

    def _measure(
        self,
        groups: Sequence[Sequence[PassKey]],
        workload: LoadWorkload,
        provenance: Mapping[str, Any],
        watch: LoadProgress,
    ) -> None:
        """Decode the groups of passes that are not finished."""
        missing = [group for group in groups if not self.folder.done.issuperset(group)]
        # Sides are measured together, so a group that lacks one of them is decoded again.
        self.folder.drop({key for group in missing for key in group})
        for key in self.folder.done:
            watch.pass_done(key, was_kept=True)
        if not missing:
            return
        watch.say("warming up")
        self._warm_up(workload)
        flush = Flush(lambda: self.folder.write_results(self._results(workload, False, provenance)))
        for group in missing:
            self._measure_group(group, workload, watch)
            if group is not missing[-1]:
                flush()

    def _warm_up(self, workload: LoadWorkload) -> None:
        numbers = range(min(self.settings.warmup, len(workload)))
        for engine in self.engines.values():
            for output in engine.generate([workload.request(number, 0) for number in numbers]):
                output.checked()

    def _measure_group(
        self, keys: Sequence[PassKey], workload: LoadWorkload, watch: LoadProgress
    ) -> None:
        """Run the passes of a group in turns. The one with the fewest tokens goes next."""
        if self.proposer is not None:
            self.proposer.reset()
        with frozen_heap(), ExitStack() as stack:
            passes = []
            for key in keys:
                passes.append(stack.enter_context(self._pass(key, workload, watch)))
            while passes:
                current = min(passes, key=lambda load_pass: load_pass.loop.num_tokens)
                current.take_turn(self.settings.turn_seconds or math.inf)
                if current.is_over:
                    passes.remove(current)
                    watch.pass_done(current.key)

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

    def _provenance(self, workload: LoadWorkload) -> dict[str, Any]:
        datasets = list({id(part.dataset): part.dataset for part in self.classes}.values())
        provenance = describe(self.target, datasets, self.settings.seed, PROGRAM)
        trace = getattr(self.arrivals, "trace", None)
        if trace is not None:
            trace = {name: getattr(trace, name) for name in ("location", "fingerprint", "note")}
        method = describe_method(self.method, self.proposer, self.acceptance)
        if method is not None:
            method["shape"] = self.shape and self.shape.to_json()
        return provenance | {
            "method": method,
            "caveats": caveats_of(self.folder.config),
            "memory": self.memory.to_json(),
            "controller": self.controller_name,
            "arrivals": self.arrivals.describe(),
            "trace": trace,
            "workload": workload.describe(),
        }

    def _results(
        self, workload: LoadWorkload, complete: bool, provenance: Mapping[str, Any]
    ) -> LoadResults:
        settings = self.settings
        num_repeats = settings.repeats  # a folder may hold more
        requests = [row for row in self.folder.requests() if row.key.repeat < num_repeats]
        passes = [row for row in self.folder.passes if row.key.repeat < num_repeats]
        sides = {}
        for name in self.engines:
            sides[name] = LoadSide.of(
                name=name,
                passes=passes,
                requests=requests,
                steps=self.folder.steps(name),
                concurrency=self.arrivals.concurrency,
                limits=settings.limits,
            )
        outputs = compare_outputs(
            requests=requests,
            passes=passes,
            sides=list(self.engines),
            workload=workload,
            target=self.target,
            rule=self.acceptance,
        )
        setting = {
            "method": self.method,
            "controller": self.controller_name if self.method else None,
            **self.arrivals.describe(),
            "max_running": self.max_running,
            "turn_seconds": None if self.whole_passes else settings.turn_seconds,
            "temperature": workload.temperature,
            "num_repeats": len({row.key.repeat for row in requests}),
            **combined_figures(outputs),
            **memory_figures(passes),
            **memory_use(self.target, self.proposer, self._earlier, self.memory.memory),
        }
        return LoadResults.of(
            sides,
            settings,
            setting,
            reset=settings.reset,
            complete=complete,
            outputs={name: side.figures for name, side in outputs.items()},
            provenance=dict(provenance),
        )
