"""Puts a method and a rule to the proof: on enumerated targets, with the method's own drafts and with adversaries'."""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich import progress as bars
from rich.console import Console

from specresearch.acceptance import AcceptanceSampler
from specresearch.batch import Request
from specresearch.certification.adversaries import ATTACKS, Adversary
from specresearch.certification.certificate import Certificate, GreedyTest, SampledTest
from specresearch.certification.decoding import in_bursts
from specresearch.certification.drafters import Capped, Drafter, Paused, refusal
from specresearch.certification.draws import (
    BurstDraw,
    CountsFile,
    Setting,
    Tally,
    WaveDraw,
    tally_outputs,
)
from specresearch.certification.enumeration import Law, enumerate_outputs, ragged_prompts
from specresearch.certification.goodness import Fit, holm, samples_needed, visible_tv
from specresearch.certification.greedy_outputs import GreedyLaw
from specresearch.certification.trials import Trial
from specresearch.controllers import Fixed
from specresearch.engine import Engine, RequestOutput, SchedulerSettings
from specresearch.results.fingerprint import code_fingerprint, describe
from specresearch.sampling import SamplingParams

SHORTEST_SAMPLED = 4
STRESS_COARSENESS = 2.0  # adversaries make a wrong rule deviate more than a method's drafts do
Settings: TypeAlias = Mapping[str, SamplingParams]


@dataclass(frozen=True)
class Demands:
    """How much is asked of the tests.

    alpha: chance that something lossless is refuted. visible_tv, power: every test of the method sees a deviation of this total
    variation, times its trial's coarseness, with this probability, whatever outputs it lies in; adversaries are given half the
    sharpness.
    max_draft_tokens: what is drafted in a step is cut to this; None = as the method likes.
    """

    alpha: float = 0.001
    power: float = 0.9
    visible_tv: float = 0.1
    max_draft_tokens: int | None = None
    num_greedy_prompts: int = 36
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("alpha", "power", "visible_tv"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        for name in ("max_draft_tokens", "num_greedy_prompts"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True)
class Part:
    """One drafter in one trial, and the sampled settings that it decodes."""

    trial: Trial
    drafter: Drafter
    settings: tuple[Setting, ...]
    asked_tv: float

    @property
    def name(self) -> str:
        return f"{self.trial.name}-{self.drafter.name}"

    def seed(self, seed: int) -> int:
        """Return a seed that no other part of a certificate has."""
        return (seed << 32) + zlib.crc32(self.name.encode())


@dataclass
class Certifier:
    """One method with one rule, in trials.

    sampled: settings, each tested on a prompt of its own length. greedy: settings of temperature 0.
    folder: where counts go; stress_folder: the adversaries', which depend on the rule only.
    config: settings of all of these, for the record.
    """

    method: str
    rule: AcceptanceSampler
    trials: Sequence[Trial]
    sampled: Settings
    greedy: Settings
    folder: Path
    stress_folder: Path | None = None
    demands: Demands = field(default_factory=Demands)
    config: Mapping[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        warm = [name for name, sampling in self.greedy.items() if not sampling.is_greedy]
        cold = [name for name, sampling in self.sampled.items() if sampling.is_greedy]
        if warm or cold:
            group, name = ("greedy", warm[0]) if warm else ("sampled", cold[0])
            raise ValueError(
                f"{group}.{name}: temperature 0 belongs to greedy settings, all others to sampled ones"
            )
        for trial in self.trials:
            told = trial.settings
            for key, known in (
                ("sampled", self.sampled),
                ("stress", self.sampled),
                ("greedy", self.greedy),
            ):
                unknown = [name for name in getattr(told, key) or () if name not in known]
                if unknown:
                    raise ValueError(
                        f"trials.{trial.name}.{key} names {unknown[0]!r}, and there are: {', '.join(known) or 'none'}"
                    )
            tv = (
                told.coarseness
                * self.demands.visible_tv
                * (STRESS_COARSENESS if told.stress else 1)
            )
            if tv >= 1:
                raise ValueError(
                    f"visible_tv={self.demands.visible_tv:g} makes trials.{trial.name} look for a total variation of {tv:g}, and "
                    "none is above 1; lower visible_tv or the trial's coarseness"
                )

    def run(self, *, progress: bool = True) -> Certificate:
        """Draw what the counts on disk lack, and judge. Raises ValueError for counts that were drawn from something else."""
        sampled: tuple[SampledTest, ...] = ()
        greedy: list[GreedyTest] = []
        proposer = self.trials[0].proposer
        reason = self.rule.refuses(proposer.kind)
        if reason is None:
            parts = self._parts()
            observed: list[tuple[Part, Setting, Tally]] = []
            total = sum(setting.num_samples for part in parts for setting in part.settings)
            with _bar(total, enabled=progress) as (say, advance):
                for part in parts:
                    say(part.name)
                    engine = self._engine(part)
                    greedy += [self._compare(engine, part, name) for name in part.drafter.greedy]
                    tallies = self._draw(engine, part, advance)
                    observed += [
                        (part, setting, tallies[setting.name]) for setting in part.settings
                    ]
            sampled = self._judge(observed)
        else:
            self.refused[f"the drafts of {self.method}"] = reason
        code = code_fingerprint(proposer, self.rule, self.trials[0].controller)
        return Certificate(
            self.method,
            type(self.rule).__name__.lower(),
            self.rule.lossless,
            proposer.num_draft_tokens > 0,
            self.demands.alpha,
            self.demands.power,
            self.demands.visible_tv,
            sampled,
            tuple(greedy),
            self.refused,
            dict(self.config),
            describe(self.trials[0].target.device, code, self.demands.seed),
        )

    def _parts(self) -> list[Part]:
        """Every drafter of every trial, with as many samples as Holm's first and strictest test needs."""
        drafters = [(trial, drafter) for trial in self.trials for drafter in self._drafters(trial)]
        level = self._level(sum(len(drafter.sampled) for _, drafter in drafters))
        parts = []
        for trial, drafter in drafters:
            tv = self.demands.visible_tv * trial.settings.coarseness
            asked_tv = tv * STRESS_COARSENESS if drafter.stress else tv
            parts.append(
                Part(trial, drafter, self._settings(trial, drafter, asked_tv, level), asked_tv)
            )
        return parts

    def _level(self, num_tests: int) -> float:
        return self.demands.alpha / max(num_tests, 1)

    def _drafters(self, trial: Trial) -> list[Drafter]:
        """The method and, where the trial has stress settings, the adversaries, with what the rule does not refuse to judge."""
        told = trial.settings
        names = tuple(self.sampled if told.sampled is None else told.sampled)
        greedy = tuple(self.greedy if told.greedy is None else told.greedy)
        found = [self._drafter(Drafter(self.method, trial.proposer, names, greedy), trial)]
        for name, attack in ATTACKS.items() if told.stress else ():
            adversary = Adversary(trial.toy, attack)
            reason = self.rule.refuses(adversary.kind)
            if reason is None:
                found.append(
                    self._drafter(
                        Drafter(name, adversary, tuple(told.stress), greedy, stress=True), trial
                    )
                )
            else:
                self.refused[f"adversary {name}"] = reason
        return found

    def _drafter(self, drafter: Drafter, trial: Trial) -> Drafter:
        """The drafter without the settings in which the rule refuses to judge its drafts."""
        kept = []
        for group, names in (self.sampled, drafter.sampled), (self.greedy, drafter.greedy):
            reasons = {
                n: refusal(self.rule, drafter.proposer.kind, group[n], trial.toy.vocab_size)
                for n in names
            }
            kept.append(tuple(n for n in names if not reasons[n]))
            refused = [n for n in names if reasons[n]]
            if refused and not drafter.stress:
                self.refused["settings " + ", ".join(refused)] = str(reasons[refused[0]])
        return replace(drafter, sampled=kept[0], greedy=kept[1])

    def _settings(
        self, trial: Trial, drafter: Drafter, tv: float, level: float
    ) -> tuple[Setting, ...]:
        toy = trial.toy
        prompts = ragged_prompts(toy, SHORTEST_SAMPLED + len(self.sampled), self.demands.seed)
        if (
            not trial.settings.equal_seeds
        ):  # there, short prompts, in which a method finds less to draft than in others' outputs
            prompts = prompts[SHORTEST_SAMPLED:]
        made = []
        for number, name in enumerate(name for name in self.sampled if name in drafter.sampled):
            try:
                law = enumerate_outputs(toy, prompts[number], self.sampled[name])
                if len(law.outputs) < 2:
                    raise ValueError(
                        "it leaves only one output; loosen it, or choose another toy.seed"
                    )
                num_samples = samples_needed(law.probs, tv, level, self.demands.power, law.rounding)
            except ValueError as error:
                raise ValueError(f"sampled.{name} in trials.{trial.name}: {error}") from error
            made.append(
                Setting(name, number, self.sampled[name], prompts[number], law, num_samples)
            )
        return tuple(made)

    def _engine(self, part: Part) -> Engine:
        trial, told, stress = part.trial, part.trial.settings, part.drafter.stress
        cap = Paused if told.is_crowded else Capped
        limits = SchedulerSettings() if stress else trial.scheduling
        if told.is_crowded:
            limits = replace(
                limits, max_step_tokens=told.max_step_tokens, max_cache_tokens=told.max_cache_tokens
            )
        caps = [
            most
            for most in (self.demands.max_draft_tokens, told.max_draft_tokens)
            if most is not None
        ]
        return Engine(
            trial.target,
            part.drafter.proposer,
            self.rule,
            cap(Fixed() if stress else trial.controller, min(caps, default=None)),
            max_batch_size=told.batch_size,
            scheduling=limits,
        )

    def _compare(self, engine: Engine, part: Part, name: str) -> GreedyTest:
        """Greedy outputs of requests alone, and again with sampled requests in between."""
        prompts = ragged_prompts(
            part.trial.toy, self.demands.num_greedy_prompts, self.demands.seed + 1
        )
        law = GreedyLaw(part.trial.toy, prompts, self.greedy[name])
        requests = [Request(prompt, self.greedy[name], str(i)) for i, prompt in enumerate(prompts)]
        outputs = [output.checked() for output in engine.generate(requests)]
        company = [setting.request(i, i) for setting in part.settings for i in range(len(requests))]
        if company:
            rng = np.random.default_rng(part.seed(self.demands.seed))
            mixed = [*requests, *company]
            decoded = in_bursts(engine, [mixed[i] for i in rng.permutation(len(mixed))], rng)
            outputs += [each.output for each in decoded if each.output.id.isdecimal()]
        return _greedy_test(part, name, law, outputs)

    def _draw(self, engine: Engine, part: Part, advance: Callable[[int], None]) -> dict[str, Tally]:
        if not part.settings:
            return {}
        seed = part.seed(self.demands.seed)
        identity = self._identity(part)
        draw = (WaveDraw if part.trial.settings.equal_seeds else BurstDraw)(engine, seed)
        return tally_outputs(
            draw, part.settings, CountsFile(self._counts_path(part, identity), identity), advance
        )

    def _counts_path(self, part: Part, identity: Mapping[str, Any]) -> Path:
        """An adversary's counts may be shared with certificates of other methods, and lie beside those of other rules."""
        if not part.drafter.stress:
            return self.folder / "counts" / f"{part.name}.jsonl"
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        return (self.stress_folder or self.folder / "stress") / f"{part.name}-{digest}.jsonl"

    def _identity(self, part: Part) -> dict[str, Any]:
        stress = part.drafter.stress
        own = (part.trial.proposer, part.trial.controller) if not stress else ()
        keys = [key for key in self.config if key == "acceptance" or not stress]
        return {
            "drafter": part.drafter.name,
            "code": code_fingerprint(self.rule, *own),
            "config": {key: self.config[key] for key in keys},
            "trial": asdict(part.trial.settings),
            "toy": part.trial.toy.settings,
            "settings": {setting.name: asdict(setting.sampling) for setting in part.settings},
            "samples": {setting.name: setting.num_samples for setting in part.settings},
            "max_draft_tokens": self.demands.max_draft_tokens,
            "seed": self.demands.seed,
        }

    def _judge(self, observed: Sequence[tuple[Part, Setting, Tally]]) -> tuple[SampledTest, ...]:
        fits = [_fit(setting.law, tally) for _, setting, tally in observed]
        adjusted = holm([fit.p_value for fit in fits])
        level, power = self._level(len(fits)), self.demands.power
        return tuple(
            SampledTest(
                trial=part.trial.name,
                drafter=part.drafter.name,
                stress=part.drafter.stress,
                setting=setting.name,
                prompt=setting.prompt,
                num_outputs=len(setting.law.outputs),
                fit=fit,
                p_adjusted=p_adjusted,
                rejected=p_adjusted < self.demands.alpha,
                asked_tv=part.asked_tv,
                visible_tv=visible_tv(
                    fit.num_samples, setting.law.probs, level, power, setting.law.rounding
                ),
                rounding=setting.law.rounding,
                is_crowded=part.trial.settings.is_crowded,
                num_draft_tokens=tally.num_draft_tokens,
                num_accepted_tokens=tally.num_accepted_tokens,
                num_target_forwards=tally.num_target_forwards,
                num_generated_tokens=tally.num_generated_tokens,
                num_preempted=tally.num_preempted,
                num_chunked=tally.num_chunked,
            )
            for (part, setting, tally), fit, p_adjusted in zip(
                observed, fits, adjusted, strict=True
            )
        )


def _fit(law: Law, tally: Tally) -> Fit:
    return Fit.of(np.array(tally.counts), law.probs, tally.num_impossible, law.rounding)


def _greedy_test(
    part: Part, setting: str, law: GreedyLaw, outputs: Sequence[RequestOutput]
) -> GreedyTest:
    findings = [law.judge(int(output.id), output.token_ids) for output in outputs]
    pairs = zip(outputs, findings, strict=True)
    wrong = [
        (int(output.id), found.position) for output, found in pairs if found.position is not None
    ]
    counts = [output.record.counts for output in outputs]
    first = None
    if wrong:
        request, position = min(wrong)
        first = f"request {request}, token {position}"
    return GreedyTest(
        trial=part.trial.name,
        drafter=part.drafter.name,
        stress=part.drafter.stress,
        setting=setting,
        num_requests=len(outputs),
        num_equal=sum(found.is_equal for found in findings),
        num_ties=sum(found.is_tie for found in findings),
        num_tokens=sum(len(output.token_ids) for output in outputs),
        num_draft_tokens=sum(told.num_draft_tokens for told in counts),
        num_accepted_tokens=sum(told.num_accepted_tokens for told in counts),
        first_difference=first,
    )


@contextmanager
def _bar(
    total: int, *, enabled: bool
) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Functions that say who is drafting now, and how many more samples there are. Silent unless stderr is a terminal."""
    console = Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description:<24}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:,.0f}/{task.total:,} samples"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(
        *columns, console=console, transient=True, disable=not (enabled and console.is_terminal)
    ) as bar:
        task = bar.add_task("", total=total)
        yield (
            lambda name: bar.update(task, description=name),
            lambda num: bar.update(task, advance=num),
        )
