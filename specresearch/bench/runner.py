"""Decode every group of prompts plainly and with the method, in turns, in one process."""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench.advice import Advisor
from specresearch.bench.decoding_memory import Forecast
from specresearch.bench.flush import Flush
from specresearch.bench.folder import Results, ResultsFolder
from specresearch.bench.foretelling import NUM_TEXTS, foretell
from specresearch.bench.full_collections import no_full_collections
from specresearch.bench.memory_fit import BatchSetting, MemoryFit, shortage_of
from specresearch.bench.memory_use import memory_use
from specresearch.bench.output_check import OutputCheck
from specresearch.bench.output_comparer import OutputComparer
from specresearch.bench.pass_observer import PassObserver
from specresearch.bench.plan import PassPlan
from specresearch.bench.progress import figures_so_far
from specresearch.bench.rows import GroupRow
from specresearch.bench.settings import RunSettings
from specresearch.bench.summary import RUN_DEFINITIONS, summarize
from specresearch.calibration import Calibration, settle_shape
from specresearch.controllers import Controller, Fixed
from specresearch.data import Prompt, PromptDataset, Row
from specresearch.engine import Engine, SchedulerSettings, Step
from specresearch.metrics import StepRecord
from specresearch.models import CausalLM
from specresearch.progress import Progress
from specresearch.proposers import Proposer
from specresearch.recording.recorder import Recorder
from specresearch.request import Request
from specresearch.results.caveats import caveats_of
from specresearch.results.provenance import describe, describe_method
from specresearch.rows import BASELINE, METHOD, PassKey, RequestRow
from specresearch.sampling import SamplingParams, derive_seed
from specresearch.shape_store import ShapeChoice
from specresearch.trackers import NoTracker, Tracker

logger = logging.getLogger(__name__)


@dataclass
class Runner:
    """Measures one target on one dataset, without and with a method.

    The baseline always decodes with `Rejection` and no drafts.

    Attributes:
        proposer: The method; None measures plain decoding only.
        method: The proposer's name, for reports.
        rows: The prompts, in the order of decoding.
        memory: How many requests decode together, and the forecast of the memory that they take.
        size: That number.
        groups: The rows that are decoded together.
        engines: The engine of each side.
        plan: Which side decodes which group, and when.
    """

    target: CausalLM
    dataset: PromptDataset
    sampling: SamplingParams
    settings: RunSettings
    folder: ResultsFolder
    proposer: Proposer | None = None
    method: str | None = None
    acceptance: AcceptanceSampler = field(default_factory=Rejection)
    controller: Controller | None = None
    scheduling: SchedulerSettings | None = None
    tracker: Tracker = field(default_factory=NoTracker)
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        if self.target.tokenizer is None:
            raise ValueError(
                f"{self.target.name} has no tokenizer, and prompts are text; load one with it"
            )
        if self.target.max_len <= self.sampling.max_new_tokens:
            raise ValueError(
                f"sampling.max_new_tokens={self.sampling.max_new_tokens} leaves no room for a "
                f"prompt in target.max_len={self.target.max_len}; lower the first or raise the "
                "second"
            )
        rows = list(self.dataset.rows[: self.settings.num_prompts])
        self.memory = self._fit_memory(len(rows))
        self.size = self.memory.num_running
        self.max_prompt_tokens = self.target.max_len - self.sampling.max_new_tokens
        self._numbers = {row.id: number for number, row in enumerate(rows)}
        self._by_id = {row.id: row for row in rows}
        if self.settings.order == "shuffled":
            random.Random(self.settings.seed).shuffle(rows)
        self.rows: tuple[Row, ...] = tuple(rows)
        begins = range(0, len(rows), self.size)
        self.groups = [self.rows[begin : begin + self.size] for begin in begins]
        self._steps: list[StepRecord] = []
        self._progress: Progress | None = None
        is_checked = self.acceptance.lossless and not self.sampling.is_greedy
        check = OutputCheck() if self.proposer is not None and is_checked else None
        self._observer = PassObserver(self.recorder, check)
        self._comparer = OutputComparer(
            self.target,
            self.acceptance,
            prompt=self._prompt,
            is_greedy=self.sampling.is_greedy,
            verify_greedy=self.settings.verify_greedy,
        )
        self.shape = self._settle_shape()
        self.engines = {BASELINE: self._engine()}
        if self.proposer is not None:
            self.engines[METHOD] = self._engine(self.proposer, self.acceptance, self.controller)
            self._observer.advisor = self._advisor(self.proposer)
        self.plan = PassPlan(self.groups, tuple(self.engines), self.settings.repeats)

    def _fit_memory(self, num_rows: int) -> MemoryFit:
        """Return the batch size and what it will take, before anything is allocated."""
        scheduling = self.scheduling or SchedulerSettings()
        forecast = Forecast(
            self.target,
            self.proposer,
            [self.sampling],
            max_step_tokens=scheduling.max_step_tokens,
        )
        batch = BatchSetting(
            "batch_size",
            self.settings.batch_size,
            self.folder,
            num_requests=num_rows,
            max_step_tokens=scheduling.max_step_tokens,
        )
        fit = batch.fit(forecast, self.sampling.max_new_tokens)
        batch.log(fit)
        return fit

    def _settle_shape(self) -> ShapeChoice | None:
        """Choose what the method drafts, where `auto` does; a resumed run keeps its choice."""
        if self.proposer is None:
            return None
        rows = random.Random(self.settings.seed).sample(self.rows, len(self.rows))
        calibration = Calibration(
            self.target,
            self.proposer,
            (self._prompt(row.id, ()).token_ids for row in rows),
            self.sampling,
            acceptance=self.acceptance,
            batch_size=self.size,
            scheduling=self.scheduling,
            seed=self.settings.seed,
        )
        return settle_shape(
            calibration,
            self.controller or Fixed(),
            self.dataset.source.fingerprint,
            self.folder.provenance(),
        )

    def _advisor(self, proposer: Proposer) -> Advisor | None:
        """Return who says what to draft instead, if the same is drafted in every step."""
        shape, controller = proposer.shape_now, self.controller or Fixed()
        if not isinstance(controller, Fixed):
            return None
        if controller.num_draft_tokens is not None:
            num_drafts = min(controller.num_draft_tokens, shape.num_draft_tokens)
            shape = replace(shape, num_draft_tokens=num_drafts)
        return Advisor(shape) if shape.num_draft_tokens else None

    def _engine(self, *parts: Any) -> Engine:
        """Return an engine on the target with a proposer, rule and controller, if any."""
        return Engine(
            self.target,
            *parts,
            max_batch_size=self.size,
            observers=[self._keep_record, self._observer],
            measure_shift=True,
            scheduling=self.scheduling,
        )

    def run(self, *, progress: bool = True) -> Results:
        """Decode what the folder does not hold yet. Ctrl-C ends early with the results so far."""
        self._earlier = self.folder.summary()
        self.tracker.start(self.folder.config, self.folder.path)
        method = describe_method(self.method, self.proposer, self.acceptance)
        if method and method["description"]:
            logger.info("drafter: %s", method["description"])
        provenance = describe(self.target, [self.dataset], self.settings.seed)
        if method is not None:
            method["shape"] = self.shape and self.shape.to_json()
            method["foretold"] = self._foretell()
        provenance |= {"order": self.settings.order, "method": method}
        provenance["memory"] = self.memory.to_json()
        provenance["caveats"] = caveats_of(self.folder.config)
        parts = (self.proposer, self.acceptance, self.controller)
        provenance = self.folder.begin(provenance, *parts)
        is_complete, shortage = False, None
        try:
            self._decode_all(provenance, progress=progress)
            is_complete = True
        except KeyboardInterrupt:
            pass
        except (RuntimeError, MemoryError) as error:
            shortage = shortage_of(error)
        results = self._results(provenance, complete=is_complete, examine=shortage is None)
        self.folder.write_steps(complete=is_complete)
        if self.recorder is not None:
            self.recorder.write(complete=is_complete)
        self.folder.write_results(results)
        if shortage is not None:
            raise shortage
        self.tracker.finish(results.summary, self.folder.files)
        return results

    def _foretell(self) -> dict[str, Any] | None:
        """Return what the target's own texts say about the drafts, which is logged."""
        prompts = [self._prompt(row.id, ()).token_ids for row in self.rows[:NUM_TEXTS]]
        foretold = foretell(self.engines[BASELINE], self.proposer, prompts, self.sampling)
        self._steps.clear()
        if foretold is None:
            return None
        logger.info("pair: %s", foretold)
        return asdict(foretold) | {"summary": str(foretold)}

    def _decode_all(self, provenance: Mapping[str, Any], *, progress: bool) -> None:
        def write_results() -> None:
            results = self._results(provenance, complete=False, examine=False)
            self.folder.write_results(results)

        flush = Flush(write_results)
        missing = [key for key in self.plan.passes() if key not in self.folder.done]
        num_prompts = len(self.rows) * self.settings.repeats
        bar = Progress(
            num_prompts,
            "prompts",
            num_done=num_prompts - sum(map(self.plan.num_prompts, missing)),
            figures=lambda: figures_so_far(self.method or METHOD, *self._paired_rows()),
            enabled=progress,
        )
        with bar, no_full_collections():
            if missing:
                bar.say("warming up")
                self._warm_up()
            self._progress = bar
            num_pairs = 0
            for _, keys in groupby(missing, key=lambda key: key.repeat):
                self._reset()
                for key in keys:
                    bar.say("plain" if key.side == BASELINE else self.method or "method")
                    self._decode_group(key)
                    bar.advance(self.plan.num_prompts(key))
                    if self.plan.is_paired(key, self.folder.done) and key != missing[-1]:
                        num_pairs += 1
                        if num_pairs == 1:
                            bar.show()
                        flush()

    def _paired_rows(self) -> tuple[list[RequestRow], list[GroupRow]]:
        """Return the rows of the groups that every side has decoded."""
        plan, done = self.plan, self.folder.done
        return plan.paired(self.folder.requests, done), plan.paired(self.folder.groups, done)

    def _warm_up(self) -> None:
        rows = self.rows[: self.settings.warmup]
        for begin in range(0, len(rows), self.size):
            for engine in self.engines.values():
                batch = rows[begin : begin + self.size]
                prompts = [self._prompt(row.id, ()).token_ids for row in batch]
                for output in engine.generate(prompts, self.sampling):
                    output.checked()
        self._steps.clear()

    def _reset(self) -> None:
        if self.proposer is not None:
            self.proposer.reset()
            if self.controller is not None:
                self.controller.reset()

    def _decode_group(self, key: PassKey) -> None:
        """Decode one group on one side, turn by turn, after the model's own earlier replies."""
        rows = self.groups[key.group]
        clock = self.engines[key.side].clock
        replies: dict[str, list[str]] = {row.id: [] for row in rows}
        steps: list[StepRecord] = []
        num_requests = 0
        self._observer.begin(key.side, key.repeat, key.group)
        begin = clock.now()
        for turn in range(max(len(row.turns) for row in rows)):
            num_requests += self._decode_turn(key, turn, replies, steps, begin)
        wall = clock.now() - begin
        row = GroupRow.of(key, wall, steps, num_requests, self._observer.end())
        self.folder.add_group(row, steps, begin)

    def _decode_turn(
        self,
        key: PassKey,
        turn: int,
        replies: dict[str, list[str]],
        steps: list[StepRecord],
        begin: float,
    ) -> int:
        """Decode a turn of every conversation that has one, and return their number.

        Replies and steps are appended. Only decoding takes time on the clock.
        """
        engine = self.engines[key.side]
        with engine.clock.paused():
            rows: dict[str, Row] = {}
            prompts: dict[str, Prompt] = {}
            requests = []
            for row in self.groups[key.group]:
                if len(row.turns) > turn:
                    id = f"{row.id}/{turn}"
                    rows[id], prompts[id] = row, self._prompt(row.id, replies[row.id])
                    sampling = self._sampling(key, row, turn)
                    requests.append(Request(prompts[id].token_ids, sampling, id))
        for output in engine.generate(requests):
            with engine.clock.paused():
                row = rows[output.checked().id]
                replies[row.id].append(output.text)
                request = RequestRow.of(
                    key,
                    output,
                    row=row.id,
                    begin=begin,
                    turn=turn,
                    category=row.category,
                    num_cut_tokens=prompts[output.id].num_cut_tokens,
                    text=output.text,
                )
                self.folder.add_request(request)
                self._log_steps(key, steps)
                self.tracker.log_request(key.side, output.record)
        with engine.clock.paused():
            self._log_steps(key, steps)
        return len(requests)

    def _keep_record(self, step: Step) -> None:
        self._steps.append(step.record)
        if self._progress is not None:
            self._progress.tick()  # the clock is paused for observers

    def _log_steps(self, key: PassKey, steps: list[StepRecord]) -> None:
        """Move the engine's new records to `steps`."""
        for record in self._steps:
            self.tracker.log_step(key.side, record)
        steps += self._steps
        self._steps.clear()

    def _prompt(self, row_id: str, replies: Sequence[str]) -> Prompt:
        """Return the prompt of a row after earlier replies."""
        assert self.target.tokenizer is not None
        row = self._by_id[row_id]
        max_tokens = self.max_prompt_tokens
        return self.dataset.prompt(self.target.tokenizer, row, replies, max_tokens=max_tokens)

    def _sampling(self, key: PassKey, row: Row, turn: int) -> SamplingParams:
        """Return the sampling of a request: both sides share its seed, no two requests do."""
        base = self.settings.seed if self.sampling.seed is None else self.sampling.seed
        seed = derive_seed(base, key.repeat, self._numbers[row.id], turn)
        return replace(self.sampling, seed=seed)

    def _results(
        self, provenance: Mapping[str, Any], *, complete: bool, examine: bool = True
    ) -> Results:
        """Return the figures of the groups that every side has decoded.

        Args:
            examine: Whether to ask the target why greedy outputs differ.
        """
        requests, groups = self._paired_rows()
        comparison = None
        if self.proposer is not None:
            comparison = self._comparer.compare(requests, groups, examine=examine)
        figures = summarize(requests, groups, comparison)
        memory = memory_use(self.target, self.proposer, self._earlier, self.memory.memory)
        advisor, advice = self._observer.advisor, None
        if examine and advisor is not None and (figures.summary["speedup"] or 1.0) < 1:
            advice = advisor.advise(groups, self.size)
        parts: dict[str, Any] = dict(vars(figures))
        parts["summary"] = {"method": self.method} | figures.summary | memory
        return Results(
            **parts,
            complete=complete,
            advice=advice,
            definitions=RUN_DEFINITIONS,
            provenance=dict(provenance),
        )
