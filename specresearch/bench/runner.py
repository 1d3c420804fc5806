"""The measurement: every group of prompts is decoded plainly and with the method, in turns, in one process."""

import logging
import random
from dataclasses import dataclass, field, fields, replace

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.bench.flush import Flush
from specresearch.bench.folder import Results, ResultsFolder
from specresearch.bench.frozen_heap import frozen_heap
from specresearch.bench.output_check import OutputCheck
from specresearch.bench.outputs import LogitGap, OutputComparison, measure_rounding
from specresearch.bench.pass_observer import PassObserver
from specresearch.bench.progress import Progress
from specresearch.bench.rows import GroupRow
from specresearch.bench.summary import RUN_DEFINITIONS, summarize
from specresearch.controllers import Controller
from specresearch.data import Prompt, PromptDataset, Row
from specresearch.engine import Engine, SchedulerSettings, Step
from specresearch.metrics import StepRecord
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.recording.recorder import Recorder
from specresearch.request import Request
from specresearch.results.provenance import describe, describe_method
from specresearch.rows import BASELINE, METHOD, PassKey, RequestRow
from specresearch.sampling import SamplingParams, derive_seed
from specresearch.trackers import NoTracker, Tracker

ORDERS = ("dataset", "shuffled")
NUM_ROUNDED = 32  # texts on which rounding is measured

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSettings:
    """batch_size: prompts decoded together, a group. num_prompts: None for all. warmup: prompts decoded and not counted.

    order: of the prompts, the dataset's or `shuffled` by the seed; whatever it is, the same ones are decoded with the same seeds.
    verify_greedy: look into every greedy output that changed, in units of rounding as measured on this run's own texts.
    """

    batch_size: int = 1
    num_prompts: int | None = None
    repeats: int = 1
    warmup: int = 2
    seed: int = 0
    verify_greedy: bool = False
    order: str = "dataset"

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "num_prompts": 1, "repeats": 1, "warmup": 0}.items():
            value = getattr(self, name)
            if value is None and name == "num_prompts":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value} must be a whole number from {least}")
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order} is not known; use one of {', '.join(ORDERS)}")


@dataclass
class Runner:
    """One target on one dataset, without and with a method (`proposer`; None measures plain decoding only).

    method: the proposer's name, for reports. The baseline always decodes with `Rejection` and no drafts.
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
        self.max_prompt_tokens = self.target.max_len - self.sampling.max_new_tokens
        if self.max_prompt_tokens < 1:
            raise ValueError(
                f"sampling.max_new_tokens={self.sampling.max_new_tokens} leaves no room for a prompt in "
                f"target.max_len={self.target.max_len}; lower the first or raise the second"
            )
        rows, size = list(self.dataset.rows[: self.settings.num_prompts]), self.settings.batch_size
        self._number = {row.id: number for number, row in enumerate(rows)}
        if self.settings.order == "shuffled":
            random.Random(self.settings.seed).shuffle(rows)
        self.rows: tuple[Row, ...] = tuple(rows)
        self.groups = [self.rows[begin : begin + size] for begin in range(0, len(rows), size)]
        self._steps: list[StepRecord] = []
        checks = (
            self.proposer is not None and self.acceptance.lossless and not self.sampling.is_greedy
        )
        self._check = OutputCheck() if checks else None
        self._observer = PassObserver(self.recorder, self._check)
        self.engines = {BASELINE: self._engine()}
        if self.proposer is not None:
            self.engines[METHOD] = self._engine(self.proposer, self.acceptance, self.controller)

    def _engine(
        self,
        proposer: Proposer | None = None,
        acceptance: AcceptanceSampler | None = None,
        controller: Controller | None = None,
    ) -> Engine:
        return Engine(
            self.target,
            proposer,
            acceptance,
            controller,
            max_batch_size=min(self.settings.batch_size, len(self.rows)),
            observers=[self._keep_record, self._observer],
            measure_shift=True,
            scheduling=self.scheduling,
        )

    def run(self, *, progress: bool = True) -> Results:
        """Decode what the folder does not hold yet. Ctrl-C ends early with the results so far."""
        self.tracker.start(self.folder.config, self.folder.path)
        told = describe(self.target, [self.dataset], self.settings.seed)
        method = describe_method(self.method, self.proposer, self.acceptance)
        if method and method["description"]:
            logger.info("drafter: %s", method["description"])
        provenance = self.folder.begin(
            told | {"order": self.settings.order, "method": method},
            self.proposer,
            self.acceptance,
            self.controller,
        )
        complete = False
        keys = self.passes()
        try:
            with Progress(len(self.rows) * self.settings.repeats, enabled=progress) as watch:
                if any(key not in self.folder.done for key in keys):
                    watch.say("warming up")
                    self._warm_up()
                flush = Flush(
                    lambda: self.folder.write_results(
                        self._results(False, provenance, look_into=False)
                    )
                )
                with frozen_heap():
                    for number, key in enumerate(keys):
                        if number % (len(keys) // self.settings.repeats) == 0:
                            self._reset()
                        if key not in self.folder.done:
                            watch.say("plain" if key.side == BASELINE else self.method or "method")
                            self._measure(key)
                            if self._is_paired(key) and key != keys[-1]:
                                flush()
                        watch.advance(
                            len(self.groups[key.group]) / len(self.engines), self.folder.groups
                        )
            complete = True
        except KeyboardInterrupt:
            pass
        results = self._results(complete, provenance)
        self.folder.write_steps(complete=complete)
        if self.recorder is not None:
            self.recorder.write(complete=complete)
        self.folder.write_results(results)
        self.tracker.finish(results.summary, self.folder.files)
        return results

    def passes(self) -> list[PassKey]:
        """The order of decoding: which side goes first alternates from group to group."""
        sides = list(self.engines)
        return [
            PassKey(repeat, group, side)
            for repeat in range(self.settings.repeats)
            for group in range(len(self.groups))
            for side in (sides if (repeat + group) % 2 == 0 else reversed(sides))
        ]

    def _is_paired(self, key: PassKey) -> bool:
        """Return whether every side has decoded the group of the key."""
        return all(replace(key, side=side) in self.folder.done for side in self.engines)

    def _warm_up(self) -> None:
        rows = self.rows[: self.settings.warmup]
        size = self.settings.batch_size
        for begin in range(0, len(rows), size):
            for engine in self.engines.values():
                prompts = [self._prompt(row, ()) for row in rows[begin : begin + size]]
                for output in engine.generate(
                    [prompt.token_ids for prompt in prompts], self.sampling
                ):
                    output.checked()
        self._steps.clear()

    def _reset(self) -> None:
        if self.proposer is not None:
            self.proposer.reset()
            if self.controller is not None:
                self.controller.reset()

    def _measure(self, key: PassKey) -> None:
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
        """Decode a turn of every conversation that has one; returns their number.

        Replies and steps are appended. Only decoding takes time on the clock.
        """
        engine = self.engines[key.side]
        with engine.clock.paused():
            rows = {}
            for row in self.groups[key.group]:
                if len(row.turns) > turn:
                    rows[f"{row.id}/{turn}"] = row
            prompts, requests = {}, []
            for id, row in rows.items():
                prompts[id] = self._prompt(row, replies[row.id])
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

    def _log_steps(self, key: PassKey, steps: list[StepRecord]) -> None:
        """Move the engine's new records to `steps`."""
        for record in self._steps:
            self.tracker.log_step(key.side, record)
        steps += self._steps
        self._steps.clear()

    def _prompt(self, row: Row, replies: tuple[str, ...] | list[str]) -> Prompt:
        assert self.target.tokenizer is not None
        return self.dataset.prompt(
            self.target.tokenizer, row, replies, max_tokens=self.max_prompt_tokens
        )

    def _sampling(self, key: PassKey, row: Row, turn: int) -> SamplingParams:
        """Both sides of a request share a seed; no two requests do."""
        base = self.settings.seed if self.sampling.seed is None else self.sampling.seed
        return replace(
            self.sampling, seed=derive_seed(base, key.repeat, self._number[row.id], turn)
        )

    def _results(
        self, complete: bool, provenance: dict[str, object], *, look_into: bool = True
    ) -> Results:
        """Return the figures of the groups that every side has decoded.

        Args:
            look_into: Whether to ask the target why greedy outputs differ.
        """
        paired = {(key.repeat, key.group) for key in self.folder.done if self._is_paired(key)}
        groups = [row for row in self.folder.groups if (row.key.repeat, row.key.group) in paired]
        requests = [
            row for row in self.folder.requests if (row.key.repeat, row.key.group) in paired
        ]
        figures = summarize(requests, groups, self._compare(requests, groups, look_into=look_into))
        parts = {part.name: getattr(figures, part.name) for part in fields(figures)}
        parts["summary"] = {"method": self.method} | figures.summary
        return Results(
            **parts,
            complete=complete,
            definitions=RUN_DEFINITIONS,
            provenance=dict(provenance),
        )

    def _compare(
        self, requests: list[RequestRow], groups: list[GroupRow], *, look_into: bool
    ) -> OutputComparison | None:
        if self.proposer is None:
            return None
        if not self.sampling.is_greedy:
            rule = type(self.acceptance).__name__.lower()
            return OutputComparison.of_samples(
                rule, requests, groups, lossless=self.acceptance.lossless
            )
        if not look_into:
            return OutputComparison.greedy(requests)
        turns = {
            (row.key.repeat, row.row, row.turn): row.text
            for row in requests
            if row.key.side == BASELINE
        }
        by_id = {row.id: row for row in self.rows}

        def context(plain: RequestRow, position: int) -> list[int]:
            replies = [turns[plain.key.repeat, plain.row, turn] for turn in range(plain.turn)]
            prompt = self._prompt(by_id[plain.row], replies)
            return [*prompt.token_ids, *plain.token_ids[:position]]

        if not self.settings.verify_greedy:
            return OutputComparison.greedy(
                requests, lambda row, at: LogitGap.after(self.target, context(row, at))
            )
        plain = [row for row in requests if row.key.side == BASELINE]
        rounding = measure_rounding(
            self.target, [context(row, len(row.token_ids) // 2) for row in plain[:NUM_ROUNDED]]
        )
        return OutputComparison.greedy(
            requests,
            lambda row, at: LogitGap.after(self.target, context(row, at), rounding),
            max_examined=None,
        )
