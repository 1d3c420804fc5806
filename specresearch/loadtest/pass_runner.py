"""The passes of a load test in order, and their results, whatever decodes them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol, runtime_checkable

from specresearch.bench.flush import Flush
from specresearch.bench.full_collections import no_full_collections
from specresearch.loadtest.arrivals import Arrivals
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.outputs import SideOutputs
from specresearch.loadtest.progress import LoadProgress
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.workload import LoadWorkload, RequestClass
from specresearch.results.caveats import caveats_of
from specresearch.rows import BASELINE, PassKey, RequestRow
from specresearch.trackers import Tracker

PROGRAM = "specresearch.load"


@runtime_checkable
class RunningPass(Protocol):
    """A pass that is under way.

    Attributes:
        num_tokens: Tokens generated so far.
    """

    key: PassKey

    @property
    def num_tokens(self) -> int: ...

    @property
    def is_over(self) -> bool: ...

    def take_turn(self, seconds: float) -> None:
        """Run for so many seconds of the pass's clock, or to the end of the pass."""


class PassRunner(ABC):
    """Runs one workload under one load, once by every side and repeat.

    In every repeat each side decodes the whole workload once; which side goes first rotates. Times
    and seeds differ between repeats but not between sides.

    Attributes:
        num_requests: Requests of a pass.
        whole_passes: Why passes follow one another; None if those of a repeat take turns.
    """

    classes: Sequence[RequestClass]
    arrivals: Arrivals
    settings: LoadSettings
    folder: LoadFolder
    tracker: Tracker
    num_requests: int
    whole_passes: str | None

    @property
    @abstractmethod
    def sides(self) -> Sequence[str]:
        """Return the names of the sides."""

    @abstractmethod
    def _plan(self, watch: LoadProgress) -> LoadWorkload:
        """Return the requests."""

    @abstractmethod
    def _describe(self, workload: LoadWorkload) -> dict[str, Any]:
        """Return the provenance of what decodes."""

    @abstractmethod
    def _parts(self) -> Sequence[object]:
        """Return the objects whose classes determine what is decoded."""

    @abstractmethod
    def _warm_up(self, workload: LoadWorkload) -> None:
        """Decode requests that do not count."""

    @abstractmethod
    def _pass(
        self, key: PassKey, workload: LoadWorkload, watch: LoadProgress
    ) -> AbstractContextManager[RunningPass]:
        """Return a pass."""

    @abstractmethod
    def _outputs(
        self, requests: Sequence[RequestRow], passes: Sequence[PassRow], workload: LoadWorkload
    ) -> Mapping[str, SideOutputs]:
        """Compare the outputs of every side with the baseline's."""

    @abstractmethod
    def _setting(
        self, outputs: Mapping[str, SideOutputs], passes: Sequence[PassRow]
    ) -> dict[str, Any]:
        """Return what the summary says of the setting, `method` and `max_running` included."""

    @abstractmethod
    def _ending(self, error: Exception) -> Exception:
        """Return the error with which a run ends that keeps its passes; raise any other again."""

    def _failures(self) -> dict[str, dict[str, int]]:
        """Return how many requests of each side failed in which way."""
        return {}

    def _before_group(self) -> None:
        """Forget what was learned in earlier passes."""

    def _finish(self, *, complete: bool) -> None:
        """Write what belongs to the run besides its passes."""

    def passes(self) -> list[list[PassKey]]:
        """Return the passes in order; those that take turns are grouped."""
        sides = list(self.sides)
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
            watch.say("preparing prompts")
            workload = self._plan(watch)
            provenance = self.folder.begin(self._provenance(workload), *self._parts())
            complete, ending = False, None
            try:
                self._measure(groups, workload, provenance, watch)
                complete = True
            except KeyboardInterrupt:
                pass
            except (RuntimeError, MemoryError, ConnectionError) as error:
                ending = self._ending(error)
        results = self._results(workload, complete, provenance)
        self.folder.write_results(results)
        self.folder.write_steps(complete=complete)
        self._finish(complete=complete)
        if ending is not None:
            raise ending
        self.tracker.finish(results.summary, self.folder.files)
        return results

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

    def _measure_group(
        self, keys: Sequence[PassKey], workload: LoadWorkload, watch: LoadProgress
    ) -> None:
        """Run the passes of a group in turns. The one with the fewest tokens goes next."""
        self._before_group()
        with no_full_collections(), ExitStack() as stack:
            passes = []
            for key in keys:
                passes.append(stack.enter_context(self._pass(key, workload, watch)))
            while passes:
                current = min(passes, key=lambda running: running.num_tokens)
                current.take_turn(self.settings.turn_seconds or math.inf)
                if current.is_over:
                    passes.remove(current)
                    watch.pass_done(current.key)

    def _reported(self, passes: Sequence[PassRow]) -> list[str]:
        """Return the sides of the results, plain decoding first; earlier sessions may add some."""
        names = dict.fromkeys([*self.sides, *(row.key.side for row in passes)])
        return sorted(names, key=lambda name: name != BASELINE)

    def _provenance(self, workload: LoadWorkload) -> dict[str, Any]:
        trace = getattr(self.arrivals, "trace", None)
        if trace is not None:
            trace = {name: getattr(trace, name) for name in ("location", "fingerprint", "note")}
        return self._describe(workload) | {
            "caveats": caveats_of(self.folder.config),
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
        for name in self._reported(passes):
            sides[name] = LoadSide.of(
                name=name,
                passes=passes,
                requests=requests,
                steps=self.folder.steps(name),
                concurrency=self.arrivals.concurrency,
                limits=settings.limits,
            )
        outputs = self._outputs(requests, passes, workload)
        setting = {
            **self.arrivals.describe(),
            "temperature": workload.temperature,
            "turn_seconds": None if self.whole_passes else settings.turn_seconds,
            "num_repeats": len({row.key.repeat for row in requests}),
            **self._setting(outputs, passes),
        }
        return LoadResults.of(
            sides,
            settings,
            setting,
            reset=settings.reset,
            complete=complete,
            outputs={name: side.figures for name, side in outputs.items()},
            failures=self._failures(),
            provenance=dict(provenance),
        )
