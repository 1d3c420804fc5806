"""Plan which drafter decodes which settings in which trial, and with how many samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from specresearch.acceptance import AcceptanceSampler
from specresearch.certification.adversaries import ATTACKS, Adversary
from specresearch.certification.cases import Case, SampledSetting
from specresearch.certification.goodness_of_fit import strictest_level
from specresearch.certification.targets import ragged_prompts
from specresearch.certification.trials import CertifierSettings, Trial
from specresearch.engine.seeds import isolates_requests
from specresearch.proposal import DraftKind, Proposal, Topology
from specresearch.proposers import Proposer
from specresearch.sampling import SamplingBatch, SamplingParams

STRESS_COARSENESS = 2.0  # a wrong rule deviates more with adversaries' drafts than with a method's
Settings: TypeAlias = Mapping[str, SamplingParams]


@dataclass
class TrialPlan:
    """What is tested, and how sharply.

    Attributes:
        method: name of the method.
        sampled: sampled settings, each tested on a prompt of its own length.
        greedy: settings of temperature 0.
        refused: what `cases` leaves out because the rule refuses to judge it, and why.
    """

    method: str
    rule: AcceptanceSampler
    trials: Sequence[Trial]
    sampled: Settings
    greedy: Settings
    settings: CertifierSettings = field(default_factory=CertifierSettings)
    refused: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for group, settings in (("sampled", self.sampled), ("greedy", self.greedy)):
            for name, sampling in settings.items():
                if sampling.is_greedy != (group == "greedy"):
                    raise ValueError(
                        f"{group}.{name}: temperature 0 belongs to greedy settings, all others to "
                        "sampled ones"
                    )
        for trial in self.trials:
            self._check(trial)

    def _check(self, trial: Trial) -> None:
        settings = trial.settings
        groups = {"sampled": self.sampled, "stress": self.sampled, "greedy": self.greedy}
        for key, known in groups.items():
            for name in getattr(settings, key) or ():
                if name not in known:
                    raise ValueError(
                        f"trials.{trial.name}.{key} names {name!r}; available: "
                        f"{', '.join(known) or 'none'}"
                    )
        tv = self._asked_tv(trial, stress=bool(settings.stress))
        if tv >= 1:
            raise ValueError(
                f"visible_tv={self.settings.visible_tv:g} makes trials.{trial.name} look for a "
                f"total variation of {tv:g}, and none is above 1; lower visible_tv or the trial's "
                "coarseness"
            )

    def _asked_tv(self, trial: Trial, *, stress: bool) -> float:
        tv = self.settings.visible_tv * trial.settings.coarseness
        return tv * STRESS_COARSENESS if stress else tv

    def cases(self) -> list[Case]:
        """Return all cases, each with as many samples as Holm's strictest test needs."""
        proposer = self.trials[0].proposer
        reason = self.rule.refuses(proposer.kind)
        if reason is not None:
            self.refused[f"the drafts of {self.method}"] = reason
            return []
        cases = []
        for trial in self.trials:
            cases += self._cases_of(trial)
        level = strictest_level(self.settings.alpha, sum(len(case.sampled) for case in cases))
        return [replace(case, settings=self._settings(case, level)) for case in cases]

    def _cases_of(self, trial: Trial) -> list[Case]:
        """Return the method's case and, if the trial has stress settings, the adversaries'."""
        cases = [self._case(trial, self.method, trial.proposer)]
        for name, attack in ATTACKS.items() if trial.settings.stress else ():
            adversary = Adversary(trial.toy, attack)
            reason = self.rule.refuses(adversary.kind)
            if reason is None:
                cases.append(self._case(trial, name, adversary, stress=True))
            else:
                self.refused[f"adversary {name}"] = reason
        return cases

    def _case(
        self, trial: Trial, drafter: str, proposer: Proposer, *, stress: bool = False
    ) -> Case:
        settings = trial.settings
        sampled = settings.stress if stress else settings.sampled
        judged = []
        for group, names in ((self.sampled, sampled), (self.greedy, settings.greedy)):
            chosen = group if names is None else {name: group[name] for name in names}
            judged.append(
                self._judged(chosen, proposer.kind, trial.toy.vocab_size, note=not stress)
            )
        return Case(
            trial=trial,
            drafter=drafter,
            proposer=proposer,
            stress=stress,
            sampled=judged[0],
            greedy=judged[1],
            asked_tv=self._asked_tv(trial, stress=stress),
        )

    def _judged(
        self, settings: Settings, kind: DraftKind, vocab_size: int, *, note: bool
    ) -> tuple[str, ...]:
        """Return the settings in which the rule judges such drafts; note the refused ones."""
        reasons = {name: refusal(self.rule, kind, settings[name], vocab_size) for name in settings}
        refused = [name for name, reason in reasons.items() if reason]
        if refused and note:
            self.refused["settings " + ", ".join(refused)] = str(reasons[refused[0]])
        return tuple(name for name in settings if name not in refused)

    def _settings(self, case: Case, level: float) -> tuple[SampledSetting, ...]:
        toy, trial = case.trial.toy, case.trial
        learns = not isolates_requests(case.proposer, trial.controller, trial.scheduling)
        # in waves of methods that learn, drafts should come from other outputs than their own
        is_short = trial.settings.equal_seeds and learns
        shortest = 1 if is_short else trial.settings.shortest_prompt
        prompts = ragged_prompts(toy, len(self.sampled), self.settings.seed, shortest=shortest)
        names = [name for name in self.sampled if name in case.sampled]
        settings = []
        for index, name in enumerate(names):
            try:
                setting = SampledSetting.build(
                    name,
                    index,
                    self.sampled[name],
                    prompts[index],
                    toy=toy,
                    tv=case.asked_tv,
                    alpha=level,
                    power=self.settings.power,
                )
            except ValueError as error:
                raise ValueError(f"sampled.{name} in trials.{case.trial.name}: {error}") from error
            settings.append(setting)
        return tuple(settings)


def refusal(
    rule: AcceptanceSampler, kind: DraftKind, sampling: SamplingParams, vocab_size: int
) -> str | None:
    """Return why the rule refuses such drafts under such a setting, by showing it one draft."""
    no_counts = torch.zeros((1, vocab_size), dtype=torch.long)
    uniform = torch.full((1, 2, vocab_size), 1 / vocab_size, dtype=torch.float64)
    proposal = Proposal(
        torch.zeros((1, 2), dtype=torch.long),
        Topology.chain(2),
        torch.tensor([2]),
        draft_probs=uniform if kind.sampled and not sampling.is_greedy else None,
        scores=uniform[:, :, 0] if kind.scored else None,
    )
    batch = SamplingBatch(
        [sampling], seeds=[0], positions=[0], prompt_counts=no_counts, output_counts=no_counts
    )
    try:
        rule(proposal, uniform.log(), batch)
    except ValueError as error:
        return str(error)
    return None
