"""Puts a method and a rule to the proof: on an enumerated target, with the method's own drafts and with adversaries'."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich import progress as bars
from rich.console import Console

from specresearch.acceptance import AcceptanceSampler
from specresearch.batch import Request
from specresearch.bench.adversaries import ATTACKS, Adversary
from specresearch.bench.certificate import Certificate, GreedyTest, SampledTest
from specresearch.bench.drafters import Capped, Drafter, refusal
from specresearch.bench.draws import CountsFile, Setting, Tally, tally_outputs
from specresearch.bench.enumeration import Toy, enumerate_outputs, ragged_prompts
from specresearch.bench.fingerprint import code_fingerprint, describe
from specresearch.bench.goodness import Fit, holm, samples_needed, visible_tv
from specresearch.controllers import Controller, Fixed
from specresearch.engine import Engine, SchedulerSettings
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.sampling import SamplingParams

SHORTEST_SAMPLED = 4
Settings: TypeAlias = Mapping[str, SamplingParams]


@dataclass(frozen=True)
class Demands:
    """How much is asked of the tests.

    alpha: chance that something lossless is refuted. visible_tv, power: every test of the method sees a deviation of this total
    variation with this probability, whatever outputs it lies in. stress_tv: the same for the adversaries, which deviate more.
    max_draft_tokens: what is drafted in a step is cut to this, lest large trees take all day.
    """

    alpha: float = 0.001
    power: float = 0.9
    visible_tv: float = 0.01
    stress_tv: float = 0.02
    max_draft_tokens: int = 16
    num_greedy_prompts: int = 36
    batch_size: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("alpha", "power", "visible_tv", "stress_tv"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        for name in ("max_draft_tokens", "num_greedy_prompts", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass
class Certifier:
    """One method with one rule, on `target`, which is the toy's.

    sampled: settings, each tested on a prompt of its own length. stress: the names of those that adversaries are given, too.
    greedy: settings of temperature 0. folder: where counts go; stress_folder: the adversaries', which depend on the rule only.
    scheduling: limits and order under which the method decodes; adversaries go without. config: settings of all of these, for the
    record.
    """

    toy: Toy
    target: CausalLM
    method: str
    proposer: Proposer
    rule: AcceptanceSampler
    sampled: Settings
    stress: Sequence[str]
    greedy: Settings
    folder: Path
    stress_folder: Path | None = None
    controller: Controller | None = None
    scheduling: SchedulerSettings | None = None
    demands: Demands = field(default_factory=Demands)
    config: Mapping[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        warm = [name for name, sampling in self.greedy.items() if not sampling.is_greedy]
        cold = [name for name, sampling in self.sampled.items() if sampling.is_greedy]
        if warm or cold:
            group, name = ("greedy", warm[0]) if warm else ("sampled", cold[0])
            raise ValueError(f"{group}.{name}: temperature 0 belongs to greedy settings, all others to sampled ones")
        unknown = [name for name in self.stress if name not in self.sampled]
        if unknown:
            raise ValueError(f"stress names {unknown[0]!r}, which is not a sampled setting: {', '.join(self.sampled)}")

    def run(self, *, progress: bool = True) -> Certificate:
        """Draw what the counts on disk lack, and judge. Raises ValueError for counts that were drawn from something else."""
        sampled: tuple[SampledTest, ...] = ()
        greedy: list[GreedyTest] = []
        reason = self.rule.refuses(self.proposer.kind)
        if reason is None:
            drafters = self._drafters()
            settings = self._settings(drafters)
            observed: list[tuple[Drafter, Setting, Tally]] = []
            total = sum(setting.num_samples for own in settings.values() for setting in own)
            with _bar(total, enabled=progress) as (say, advance):
                for drafter in drafters:
                    say(drafter.name)
                    engine, own = self._engine(drafter), settings[drafter.name]
                    greedy += [self._compare(engine, drafter, name) for name in drafter.greedy]
                    tallies = self._draw(engine, drafter, own, advance)
                    observed += [(drafter, setting, tallies[setting.name]) for setting in own]
            sampled = self._judge(observed)
        else:
            self.refused[f"the drafts of {self.method}"] = reason
        return Certificate(
            self.method,
            type(self.rule).__name__.lower(),
            self.rule.lossless,
            self.proposer.num_draft_tokens > 0,
            self.demands.alpha,
            self.demands.power,
            self.demands.visible_tv,
            sampled,
            tuple(greedy),
            self.refused,
            dict(self.config),
            describe(
                self.target.device, code_fingerprint(self.proposer, self.rule, self.controller), self.demands.seed
            ),
        )

    def _drafters(self) -> list[Drafter]:
        """The method and the adversaries, with what the rule does not refuse to judge."""
        found = [self._drafter(self.method, self.proposer, 0, tuple(self.sampled))]
        for number, (name, attack) in enumerate(ATTACKS.items(), start=1):
            adversary = Adversary(self.toy, attack)
            reason = self.rule.refuses(adversary.kind)
            if reason is None:
                found.append(self._drafter(name, adversary, number, tuple(self.stress)))
            else:
                self.refused[f"adversary {name}"] = reason
        return found

    def _drafter(self, name: str, proposer: Proposer, number: int, sampled: tuple[str, ...]) -> Drafter:
        kept = []
        for group, names in (self.sampled, sampled), (self.greedy, tuple(self.greedy)):
            reasons = {n: refusal(self.rule, proposer.kind, group[n], self.toy.vocab_size) for n in names}
            kept.append(tuple(n for n in names if not reasons[n]))
            refused = [n for n in names if reasons[n]]
            if refused and not number:
                self.refused["settings " + ", ".join(refused)] = str(reasons[refused[0]])
        return Drafter(name, proposer, number, *kept)

    def _settings(self, drafters: Sequence[Drafter]) -> dict[str, list[Setting]]:
        """Every drafter's sampled settings with their laws, and as many samples as Holm's first and strictest test needs."""
        level = self.demands.alpha / max(sum(len(drafter.sampled) for drafter in drafters), 1)
        prompts = ragged_prompts(self.toy, SHORTEST_SAMPLED + len(self.sampled), self.demands.seed)[SHORTEST_SAMPLED:]
        numbers = {name: number for number, name in enumerate(self.sampled)}
        laws = {
            name: enumerate_outputs(self.toy, prompts[number], self.sampled[name]) for name, number in numbers.items()
        }
        for name, law in laws.items():
            if len(law.outputs) < 2:
                raise ValueError(f"sampled.{name} leaves only one output; loosen it, or choose another toy.seed")
        needed: dict[str, list[Setting]] = {}
        for drafter in drafters:
            tv = self.demands.stress_tv if drafter.stress else self.demands.visible_tv
            needed[drafter.name] = [
                Setting(
                    name,
                    numbers[name],
                    self.sampled[name],
                    prompts[numbers[name]],
                    laws[name],
                    samples_needed(len(laws[name].outputs), tv, level, self.demands.power),
                )
                for name in drafter.sampled
            ]
        return needed

    def _engine(self, drafter: Drafter) -> Engine:
        own = Fixed() if drafter.stress or self.controller is None else self.controller
        return Engine(
            self.target,
            drafter.proposer,
            self.rule,
            Capped(own, self.demands.max_draft_tokens),
            max_batch_size=self.demands.batch_size,
            scheduling=None if drafter.stress else self.scheduling,
        )

    def _compare(self, engine: Engine, drafter: Drafter, name: str) -> GreedyTest:
        prompts = ragged_prompts(self.toy, self.demands.num_greedy_prompts, self.demands.seed + 1)
        wanted = self.toy.greedy(prompts, self.greedy[name])
        requests = [Request(prompt, self.greedy[name], str(i)) for i, prompt in enumerate(prompts)]
        outputs = {int(output.id): output for output in engine.generate(requests)}
        differing = [i for i, output in outputs.items() if output.token_ids != wanted[i]]
        first = None
        if differing:
            i = min(differing)
            pairs = enumerate(zip(outputs[i].token_ids, wanted[i], strict=False))
            first = f"request {i}, token {next((at for at, (ours, theirs) in pairs if ours != theirs), 'count')}"
        counts = [output.record.counts for output in outputs.values()]
        return GreedyTest(
            drafter.name,
            drafter.stress,
            name,
            len(prompts),
            len(prompts) - len(differing),
            sum(map(len, wanted)),
            sum(told.num_draft_tokens for told in counts),
            sum(told.num_accepted_tokens for told in counts),
            first,
        )

    def _draw(
        self, engine: Engine, drafter: Drafter, settings: Sequence[Setting], advance: Callable[[int], None]
    ) -> dict[str, Tally]:
        if not settings:
            return {}
        seed = self.demands.seed * (1 + len(ATTACKS)) + drafter.number
        identity = self._identity(drafter, settings, seed)
        return tally_outputs(
            engine, settings, seed, CountsFile(self._counts_path(drafter, identity), identity), advance
        )

    def _counts_path(self, drafter: Drafter, identity: Mapping[str, Any]) -> Path:
        """An adversary's counts may be shared with certificates of other methods, and lie beside those of other rules."""
        if not drafter.stress:
            return self.folder / "counts" / f"{drafter.name}.jsonl"
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        return (self.stress_folder or self.folder / "stress") / f"{drafter.name}-{digest}.jsonl"

    def _identity(self, drafter: Drafter, settings: Sequence[Setting], seed: int) -> dict[str, Any]:
        own = (self.proposer, self.controller) if not drafter.stress else ()
        keys = [key for key in self.config if key == "acceptance" or not drafter.stress]
        return {
            "drafter": drafter.name,
            "code": code_fingerprint(self.rule, *own),
            "config": {key: self.config[key] for key in keys},
            "toy": self.toy.settings,
            "settings": {setting.name: asdict(setting.sampling) for setting in settings},
            "samples": {setting.name: setting.num_samples for setting in settings},
            "max_draft_tokens": self.demands.max_draft_tokens,
            "seed": seed,
        }

    def _judge(self, observed: Sequence[tuple[Drafter, Setting, Tally]]) -> tuple[SampledTest, ...]:
        fits = [
            Fit.of(np.array(tally.counts), setting.law.probs, tally.num_impossible) for _, setting, tally in observed
        ]
        adjusted = holm([fit.p_value for fit in fits])
        level, power = self.demands.alpha / max(len(fits), 1), self.demands.power
        return tuple(
            SampledTest(
                drafter.name,
                drafter.stress,
                setting.name,
                setting.prompt,
                len(setting.law.outputs),
                fit,
                p_adjusted,
                p_adjusted < self.demands.alpha,
                visible_tv(fit.num_samples, len(setting.law.outputs), level, power),
                tally.num_draft_tokens,
                tally.num_accepted_tokens,
                tally.num_target_forwards,
                tally.num_generated_tokens,
            )
            for (drafter, setting, tally), fit, p_adjusted in zip(observed, fits, adjusted, strict=True)
        )


@contextmanager
def _bar(total: int, *, enabled: bool) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Functions that say who is drafting now, and how many more samples there are. Silent unless stderr is a terminal."""
    console = Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description:<24}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:,.0f}/{task.total:,} samples"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bar:
        task = bar.add_task("", total=total)
        yield (
            lambda name: bar.update(task, description=name),
            lambda num: bar.update(task, advance=num),
        )
