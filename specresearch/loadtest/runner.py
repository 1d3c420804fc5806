"""A load run: the same requests at the same times, decoded by plain decoding, by the method, and with fixed draft lengths."""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench.flush import Flush
from specresearch.bench.frozen_heap import frozen_heap
from specresearch.bench.output_check import OutputCheck
from specresearch.bench.pass_observer import PassObserver
from specresearch.controllers import Controller, Fixed
from specresearch.engine import Engine, SchedulerSettings
from specresearch.loadtest.arrivals import Arrivals
from specresearch.loadtest.folder import LoadFolder, LoadResults
from specresearch.loadtest.loop import Feed, Stops
from specresearch.loadtest.memory import memory_figures
from specresearch.loadtest.one_pass import LoadPass
from specresearch.loadtest.outputs import compare_outputs, joined
from specresearch.loadtest.progress import LoadProgress
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.summary import summarize_load
from specresearch.loadtest.workload import RequestClass, Workload
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.recording.recorder import Recorder, describe_recording
from specresearch.results.provenance import describe, describe_method
from specresearch.rows import BASELINE, FIXED, METHOD, PassKey
from specresearch.trackers import NoTracker, Tracker

PROGRAM = "specresearch.load"
TAKEN = (BASELINE, METHOD, "over_best", "best_fixed", "worst_fixed")  # words of figures

logger = logging.getLogger(__name__)


class LoadRunner:
    """One target under one load, without and with a method (`proposer`; None measures plain decoding only).

    method, controller_name: for reports. variants: controllers measured beside the one, a side each, by name. record: keep what a
    simulation needs. In every repeat each side decodes the whole workload once, and which goes first moves on from repeat to
    repeat. Times and seeds differ between repeats, and are those of all sides.

    The sides of a repeat take turns, each with slots of its own in the target's cache. whole_passes: why they do not, and one
    pass follows the other; None: they do.
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
        variants: Mapping[str, Controller] | None = None,
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
        self.variants = dict(variants or {})
        for name in self.variants:
            if not name.isidentifier() or name in TAKEN:
                raise ValueError(
                    f"variants.{name}: a side cannot be called so; choose one word, none of {', '.join(TAKEN)}"
                )
        if proposer is None and (settings.compare or self.variants):
            told = (
                f"compare={list(settings.compare)}"
                if settings.compare
                else f"variants.{next(iter(self.variants))}"
            )
            raise ValueError(
                f"{told} is a way of drafting, and nothing drafts; add +proposer=..., or leave it out"
            )
        self.whole_passes = self._why_whole_passes()
        self.engines: dict[str, Engine] = {}
        self.observers: dict[str, PassObserver] = {}
        try:
            self._add_sides(controller)
        except MemoryError as error:
            if self.whole_passes is not None:
                raise
            self.whole_passes = f"memory is short ({error})"
            self.engines.clear()
            self.target.free_cache()
            self._add_sides(controller)
        if self.whole_passes is not None and settings.turn_seconds is not None:
            logger.info(
                "sides do not take turns, since %s; noise of this machine falls on one of them",
                self.whole_passes,
            )
        self._observe(record=record)

    @property
    def _max_running(self) -> int:
        return min(
            self.settings.max_running, self.arrivals.concurrency or self.settings.max_running
        )

    def _why_whole_passes(self) -> str | None:
        if self.settings.turn_seconds is None:
            return "turn_seconds=null"
        if self.target.compiled or (self.proposer is not None and self.proposer.compiled):
            return "a compiled model computes every slot of its cache"
        if self.proposer is not None and self.proposer.memory == "warm":
            return f"{self.method} learns from request to request"
        return None

    def _add_sides(self, controller: Controller | None) -> None:
        """Raises MemoryError where their caches do not fit."""
        settings, proposer = self.settings, self.proposer
        num_sides = 1 if proposer is None else 2 + len(settings.compare) + len(self.variants)
        self.target.allocate(self._max_running * (1 if self.whole_passes else num_sides))
        self._add(BASELINE, None, None, Fixed(0))
        if proposer is None:
            return
        self._add(METHOD, proposer, self.acceptance, controller)
        for length in settings.compare:
            if length > proposer.num_draft_tokens:
                raise ValueError(
                    f"compare={list(settings.compare)} holds {length} and the proposer makes at most "
                    f"{proposer.num_draft_tokens} drafts; raise proposer.num_draft_tokens or leave that length out"
                )
            self._add(f"{FIXED}{length}", proposer, self.acceptance, Fixed(length))
        for name, variant in self.variants.items():
            self._add(name, proposer, self.acceptance, variant)

    def _add(
        self,
        side: str,
        proposer: Proposer | None,
        acceptance: AcceptanceSampler | None,
        controller: Controller | None,
    ) -> None:
        size = self._max_running
        begin = 0 if self.whole_passes else size * len(self.engines)
        self.observers[side] = PassObserver()
        self.engines[side] = Engine(
            self.target,
            proposer,
            acceptance,
            controller,
            max_batch_size=size,
            observers=[self.observers[side]],
            scheduling=self.scheduling,
            slots=range(begin, begin + size),
        )

    def _observe(self, *, record: bool) -> None:
        """Check sampled output of a rule that claims to be lossless, and record if asked to."""
        is_sampled = any(not part.sampling.is_greedy for part in self.classes)
        checks = self.proposer is not None and self.acceptance.lossless and is_sampled
        recorders = self._recorders() if record else {}
        for side, observer in self.observers.items():
            observer.check = OutputCheck() if checks else None
            observer.recorder = recorders.get(side)

    def _recorders(self) -> dict[str, Recorder]:
        """One for every side, once proposer and controllers are bound; what they write is one recording."""
        controllers = {
            side: None if side == BASELINE else engine.controller
            for side, engine in self.engines.items()
        }
        header = describe_recording(
            self.target,
            self.proposer,
            self.acceptance,
            self.method,
            controllers,
            self.folder.config,
        )
        return {side: Recorder(self.folder.path, header) for side in self.engines}

    def passes(self) -> list[list[PassKey]]:
        """The order of passes: those that take turns stand together."""
        sides = list(self.engines)
        turns = [(repeat, repeat % len(sides)) for repeat in range(self.settings.repeats)]
        repeats = [
            [PassKey(repeat, 0, side) for side in [*sides[turn:], *sides[:turn]]]
            for repeat, turn in turns
        ]
        return [[key] for keys in repeats for key in keys] if self.whole_passes else repeats

    def run(self, *, progress: bool = True) -> LoadResults:
        """Decode what the folder does not hold yet. Ctrl-C ends early with the passes that are done."""
        self.tracker.start(self.folder.config, self.folder.path)
        groups = self.passes()
        with LoadProgress(sum(map(len, groups)), self.num_requests, enabled=progress) as watch:
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
            controllers = [engine.controller for engine in self.engines.values()]
            provenance = self.folder.begin(
                self._provenance(workload),
                self.proposer,
                self.acceptance,
                self.arrivals,
                *controllers,
            )
            complete = False
            try:
                missing = [group for group in groups if not self.folder.done.issuperset(group)]
                self.folder.forget(
                    {key for group in missing for key in group}
                )  # sides are measured together
                for key in self.folder.done:
                    watch.pass_done(key)
                if missing:
                    watch.say("warming up")
                    self._warm_up(workload)
                flush = Flush(
                    lambda: self.folder.write_results(self._results(workload, False, provenance))
                )
                for group in missing:
                    self._measure(group, workload, watch)
                    if group is not missing[-1]:
                        flush()
                complete = True
            except KeyboardInterrupt:
                pass
        results = self._results(workload, complete, provenance)
        self.folder.write_results(results)
        self.folder.write_steps(complete=complete)
        recorder = self.observers[BASELINE].recorder
        if recorder is not None:
            recorder.write(complete=complete)
        self.tracker.finish(results.summary, self.folder.files)
        return results

    def _warm_up(self, workload: Workload) -> None:
        num = min(self.settings.warmup, len(workload))
        for engine in self.engines.values():
            for output in engine.generate([workload.request(number, 0) for number in range(num)]):
                output.checked()

    def _measure(self, keys: Sequence[PassKey], workload: Workload, watch: LoadProgress) -> None:
        """Whoever has come least far goes on."""
        if self.proposer is not None:
            self.proposer.reset()
        with frozen_heap(), ExitStack() as stack:
            passes = [stack.enter_context(self._begin(key, workload, watch)) for key in keys]
            while passes:
                current = min(passes, key=lambda one: one.loop.num_tokens)
                current.take_turn(self.settings.turn_seconds or math.inf)
                if current.is_over:
                    passes.remove(current)
                    watch.pass_done(current.key)

    def _begin(self, key: PassKey, workload: Workload, watch: LoadProgress) -> LoadPass:
        engine, settings = self.engines[key.side], self.settings
        if settings.reset:
            engine.controller.reset()
        times = self.arrivals.times(len(workload), (settings.seed << 16) + key.repeat)
        feed = Feed(times, self.arrivals.concurrency)
        stops = Stops(settings.max_waiting, settings.max_seconds)
        return LoadPass(
            key,
            engine,
            workload,
            feed,
            stops,
            self.folder,
            watch.tick,
            self.observers[key.side],
        )

    def _provenance(self, workload: Workload) -> dict[str, Any]:
        datasets = list({id(part.dataset): part.dataset for part in self.classes}.values())
        told = describe(self.target, datasets, self.settings.seed, PROGRAM)
        trace = getattr(self.arrivals, "trace", None)
        return told | {
            "method": describe_method(self.method, self.proposer, self.acceptance),
            "controller": self.controller_name,
            "arrivals": self.arrivals.describe(),
            "trace": trace
            and {"location": trace.location, "fingerprint": trace.fingerprint, "note": trace.note},
            "workload": workload.describe(),
        }

    def _results(
        self, workload: Workload, complete: bool, provenance: Mapping[str, Any]
    ) -> LoadResults:
        num_repeats = self.settings.repeats  # a folder may hold more
        requests = [row for row in self.folder.requests() if row.key.repeat < num_repeats]
        passes = [row for row in self.folder.passes if row.key.repeat < num_repeats]
        settings, concurrency = self.settings, self.arrivals.concurrency
        sides = {
            name: LoadSide.of(
                name, passes, requests, self.folder.steps(name), concurrency, settings.limits
            )
            for name in self.engines
        }
        figures = summarize_load(sides, settings.limits, settings.max_running, reset=settings.reset)
        outputs = compare_outputs(
            requests, passes, list(self.engines), workload, self.target, self.acceptance
        )
        setting = {
            "method": self.method,
            "controller": self.controller_name if self.method else None,
        }
        setting |= self.arrivals.describe() | {"max_running": settings.max_running}
        setting |= {"turn_seconds": None if self.whole_passes else settings.turn_seconds}
        setting |= {
            "temperature": workload.temperature,
            "num_repeats": len({row.key.repeat for row in requests}),
        }
        setting |= joined(outputs) | memory_figures(passes)
        return LoadResults.of(
            figures,
            setting,
            settings.limits,
            complete=complete,
            outputs={name: found.figures for name, found in outputs.items()},
            provenance=dict(provenance),
        )
