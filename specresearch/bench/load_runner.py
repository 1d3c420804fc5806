"""A load run: the same requests at the same times, decoded by plain decoding, by the method, and with fixed draft lengths."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench.arrivals import Arrivals
from specresearch.bench.load_folder import LoadFolder, LoadResults
from specresearch.bench.load_loop import Feed, LoadLoop, Stops
from specresearch.bench.load_memory import memory_figures, resident_bytes
from specresearch.bench.load_outputs import compare_outputs, joined
from specresearch.bench.load_progress import LoadProgress
from specresearch.bench.load_records import CONTROLLED, PLAIN, LoadRow, PassPlace, PassRow, StepLog
from specresearch.bench.load_settings import LoadSettings
from specresearch.bench.load_side import LoadSide
from specresearch.bench.load_summary import summarize_load
from specresearch.bench.provenance import describe, describe_method
from specresearch.bench.recorder import Recorder, describe_recording
from specresearch.bench.workload import RequestClass, Workload
from specresearch.controllers import Adaptive, Controller, Fixed
from specresearch.engine import Engine, RequestOutput, SchedulerSettings
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.trackers import NoTracker, Tracker

PROGRAM = "specresearch.load"
STEPS_AT_ONCE = 4096  # kept in memory before they are written

logger = logging.getLogger(__name__)


class LoadRunner:
    """One target under one load, without and with a method (`proposer`; None measures plain decoding only).

    method, controller_name: for reports. record: keep what a simulation needs. Sides take turns: in every repeat each decodes
    the whole workload once, and which goes first moves on from repeat to repeat. Times and seeds differ between repeats, and are
    those of all sides.
    """

    def __init__(
        self,
        target: CausalLM,
        classes: Sequence[RequestClass],
        arrivals: Arrivals,
        settings: LoadSettings,
        folder: LoadFolder,
        *,
        proposer: Proposer | None = None,
        method: str | None = None,
        acceptance: AcceptanceSampler | None = None,
        controller: Controller | None = None,
        controller_name: str | None = None,
        scheduling: SchedulerSettings | None = None,
        tracker: Tracker | None = None,
        record: bool = False,
    ) -> None:
        self.target, self.classes, self.arrivals = target, tuple(classes), arrivals
        self.settings, self.folder = settings, folder
        self.proposer, self.method, self.controller_name = proposer, method, controller_name
        self.acceptance = acceptance or Rejection()
        self.scheduling, self.tracker = scheduling, tracker or NoTracker()
        self.num_requests = settings.count(arrivals)
        self.engines = {PLAIN: self._engine(None, None, Fixed(0))}
        if proposer is not None:
            self.engines[CONTROLLED] = self._engine(proposer, self.acceptance, controller)
            for length in settings.compare:
                if length > proposer.num_draft_tokens:
                    raise ValueError(
                        f"compare={list(settings.compare)} holds {length} and the proposer makes at most "
                        f"{proposer.num_draft_tokens} drafts; raise proposer.num_draft_tokens or leave that length out"
                    )
                self.engines[f"fixed-{length}"] = self._engine(proposer, self.acceptance, Fixed(length))
        self.recorder = self._recorder() if record else None

    def _engine(
        self, proposer: Proposer | None, acceptance: AcceptanceSampler | None, controller: Controller | None
    ) -> Engine:
        return Engine(
            self.target,
            proposer,
            acceptance,
            controller,
            max_batch_size=self.settings.max_running,
            scheduling=self.scheduling,
        )

    def _recorder(self) -> Recorder:
        """Of every side, once proposer and controllers are bound."""
        controllers = {side: None if side == PLAIN else engine.controller for side, engine in self.engines.items()}
        header = describe_recording(
            self.target, self.proposer, self.acceptance, self.method, controllers, self.folder.config
        )
        recorder = Recorder(self.folder.path, header)
        for engine in self.engines.values():
            engine.watch = recorder
        return recorder

    def places(self) -> list[PassPlace]:
        """The order of passes."""
        sides = list(self.engines)
        turns = [(repeat, repeat % len(sides)) for repeat in range(self.settings.repeats)]
        return [PassPlace(repeat, side) for repeat, turn in turns for side in [*sides[turn:], *sides[:turn]]]

    def run(self, *, progress: bool = True) -> LoadResults:
        """Decode what the folder does not hold yet. Ctrl-C ends early with the passes that are done."""
        self.tracker.start(self.folder.config, self.folder.path)
        places = self.places()
        with LoadProgress(len(places), self.num_requests, enabled=progress) as watch:
            watch.say("preparing prompts")
            workload = Workload(
                self.target,
                self.classes,
                self.num_requests,
                trace=self.arrivals.rows,
                length_spread=self.settings.length_spread,
                seed=self.settings.seed,
                on_prepared=watch.prepared,
            )
            provenance = self.folder.begin(self._provenance(workload))
            complete = False
            try:
                if any(place not in self.folder.done for place in places):
                    watch.say("warming up")
                    self._warm_up(workload)
                for number, place in enumerate(places):
                    watch.begin_pass(number, place)
                    if place not in self.folder.done:
                        self._measure(place, workload, watch.tick)
                complete = True
            except KeyboardInterrupt:
                pass
        results = self._results(workload, complete, provenance)
        self.folder.write_results(results)
        self.folder.write_steps(complete=complete)
        if self.recorder is not None:
            self.recorder.write(complete=complete)
        self.tracker.finish(results.summary, self.folder.files)
        return results

    def _warm_up(self, workload: Workload) -> None:
        num = min(self.settings.warmup, len(workload))
        for engine in self.engines.values():
            for _ in engine.generate([workload.request(number, 0) for number in range(num)]):
                pass

    def _measure(self, place: PassPlace, workload: Workload, on_tick: Callable[[LoadLoop], None]) -> None:
        engine = self.engines[place.side]
        if self.proposer is not None:
            self.proposer.reset()
        if self.settings.reset and isinstance(engine.controller, Adaptive):
            engine.controller.reset()
        times = self.arrivals.times(len(workload), (self.settings.seed << 16) + place.repeat)
        if self.recorder is not None:
            self.recorder.begin(place.side, place.repeat)
            self.recorder.take_seconds()
        with self.folder.write_pass(place) as rows:
            log = StepLog(place, time.perf_counter())
            memory: list[tuple[float, int]] = []

            def look() -> None:
                memory.append((round(time.perf_counter() - log.begin, 3), resident_bytes()))

            def keep(output: RequestOutput) -> None:
                planned = workload.requests[int(output.id)]
                row = LoadRow.of(place, planned, log.begin, output)
                rows.add_request(row)

            def tick(loop: LoadLoop) -> None:
                on_tick(loop)
                look()
                if len(log) >= STEPS_AT_ONCE:
                    rows.add_steps(log.take())

            loop = LoadLoop(
                engine,
                Feed(times, self.arrivals.concurrency),
                lambda number: workload.request(number, place.repeat),
                log,
                Stops(self.settings.max_waiting, self.settings.max_seconds),
                keep,
                tick,
                self.recorder.take_seconds if self.recorder is not None else lambda: 0.0,
            )
            look()
            loop.run()
            look()
            rows.add_steps(log.take())
        if self.recorder is not None:
            self.recorder.end()
        if loop.stopped is not None:
            logger.warning("%s: %s; going on with what it has", place.side, loop.stopped)
        self.folder.end_pass(self._pass_row(place, loop, engine, memory))

    def _pass_row(
        self, place: PassPlace, loop: LoadLoop, engine: Engine, memory: Sequence[tuple[float, int]]
    ) -> PassRow:
        return PassRow(
            place,
            loop.wall,
            self.num_requests,
            loop.feed.num_submitted,
            loop.num_finished,
            loop.last_arrival,
            loop.num_waiting,
            loop.stopped,
            tuple(engine.controller.trace()) if isinstance(engine.controller, Adaptive) else (),
            tuple(memory),
        )

    def _provenance(self, workload: Workload) -> dict[str, Any]:
        datasets = list({id(part.dataset): part.dataset for part in self.classes}.values())
        told = describe(self.target, datasets, self.settings.seed, PROGRAM)
        trace = getattr(self.arrivals, "trace", None)
        return told | {
            "method": describe_method(self.method, self.proposer, self.acceptance),
            "controller": self.controller_name,
            "arrivals": self.arrivals.describe(),
            "trace": trace and {"location": trace.location, "fingerprint": trace.fingerprint, "note": trace.note},
            "workload": workload.describe(),
        }

    def _results(self, workload: Workload, complete: bool, provenance: Mapping[str, Any]) -> LoadResults:
        requests = self.folder.requests()
        settings, concurrency = self.settings, self.arrivals.concurrency
        sides = {
            name: LoadSide.of(
                name,
                self.folder.passes,
                requests,
                self.folder.steps(name),
                concurrency,
                settings.limits,
                settings.seed,
            )
            for name in self.engines
        }
        figures = summarize_load(sides, settings.limits, settings.max_running, seed=settings.seed)
        outputs = compare_outputs(requests, list(self.engines), workload, self.target, self.acceptance)
        setting = {"method": self.method, "controller": self.controller_name if self.method else None}
        setting |= self.arrivals.describe() | {"max_running": settings.max_running}
        setting |= {"temperature": workload.temperature, "num_repeats": len({row.place.repeat for row in requests})}
        setting |= joined(outputs) | memory_figures(self.folder.passes)
        return LoadResults.of(
            figures,
            setting,
            settings.limits,
            complete=complete,
            outputs={name: comparison.figures for name, comparison in outputs.items()},
            provenance=dict(provenance),
        )
