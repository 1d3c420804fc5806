"""Run a certification: decode all cases of a plan, count the outputs, and test them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from specresearch.certification.capped import Capped, Paused
from specresearch.certification.cases import Case, SampledSetting
from specresearch.certification.certificate import Certificate
from specresearch.certification.counts import CountsFile, Tally
from specresearch.certification.greedy_outputs import GreedyReference, greedy_test
from specresearch.certification.outcomes import GreedyTest, sampled_tests
from specresearch.certification.plan import TrialPlan
from specresearch.certification.progress import CertifierProgress
from specresearch.certification.sampled_outputs import in_bursts, sample_outputs
from specresearch.certification.targets import ragged_prompts
from specresearch.controllers import Fixed
from specresearch.engine import Engine, SchedulerSettings
from specresearch.progress import Progress
from specresearch.request import Request
from specresearch.results.fingerprint import code_fingerprint
from specresearch.results.provenance import describe_process


@dataclass
class Certifier:
    """Tests whether a method with an acceptance rule leaves the target's outputs unchanged.

    Attributes:
        folder: where counts are written.
        stress_folder: where the adversaries' counts are written. They depend on the rule only, so
            the jobs of a sweep share them. None for a folder within `folder`.
        config: the command's configuration, for the record.
    """

    plan: TrialPlan
    folder: Path
    stress_folder: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def run(self, *, progress: bool = True) -> Certificate:
        """Sample what the counts on disk lack, and test all outputs.

        Raises:
            ValueError: the folder holds counts that were sampled with other settings.
        """
        plan, settings = self.plan, self.plan.settings
        cases = plan.cases()
        greedy: list[GreedyTest] = []
        observed: list[tuple[Case, SampledSetting, Tally]] = []
        with CertifierProgress(cases, enabled=progress) as bar:
            bar.calibrate(cases, self._engine)
            for case in cases:
                engine = self._engine(case)
                bar.begin(case)
                greedy += [self._compare_greedy(engine, case, name) for name in case.greedy]
                tallies = self._sample(engine, case, bar)
                observed += [(case, s, tallies[s.name]) for s in case.settings]
        proposer = plan.trials[0].proposer
        return Certificate(
            method=plan.method,
            rule=type(plan.rule).__name__.lower(),
            lossless_claimed=plan.rule.lossless,
            speculates=proposer.num_draft_tokens > 0,
            alpha=settings.alpha,
            power=settings.power,
            visible_tv=settings.visible_tv,
            sampled=sampled_tests(observed, settings.alpha, settings.power),
            greedy=tuple(greedy),
            refused=plan.refused,
            chosen_drafts={
                trial.name: str(trial.proposer.chosen)
                for trial in plan.trials
                if trial.proposer.chosen is not None
            },
            config=dict(self.config),
            provenance=self._provenance(),
        )

    def _provenance(self) -> dict[str, Any]:
        trial = self.plan.trials[0]
        return {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "code_fingerprint": code_fingerprint(trial.proposer, self.plan.rule, trial.controller),
            **describe_process(("-m", "specresearch.certify"), trial.target.device),
            "seed": self.plan.settings.seed,
        }

    def _engine(self, case: Case) -> Engine:
        trial, settings = case.trial, case.trial.settings
        scheduling = SchedulerSettings() if case.stress else trial.scheduling
        draft_limits = [self.plan.settings.max_draft_tokens, settings.max_draft_tokens]
        draft_limit = min((limit for limit in draft_limits if limit is not None), default=None)
        capped = Paused if settings.is_crowded else Capped
        return Engine(
            trial.target,
            case.proposer,
            self.plan.rule,
            capped(Fixed() if case.stress else trial.controller, draft_limit),
            max_batch_size=settings.batch_size,
            scheduling=settings.limited(scheduling, case.proposer.num_probe_nodes),
        )

    def _compare_greedy(self, engine: Engine, case: Case, name: str) -> GreedyTest:
        """Decode greedy requests alone, then again mixed with sampled requests."""
        settings, sampling = self.plan.settings, self.plan.greedy[name]
        toy = case.trial.toy
        prompts = ragged_prompts(toy, settings.num_greedy_prompts, settings.seed + 1)
        requests = [Request(prompt, sampling, str(i)) for i, prompt in enumerate(prompts)]
        outputs = [output.checked() for output in engine.generate(requests)]
        mixed = list(requests)
        for setting in case.settings:
            mixed += [setting.request(i, i) for i in range(len(requests))]
        if case.settings:
            rng = np.random.default_rng(case.seed(settings.seed))
            shuffled = [mixed[i] for i in rng.permutation(len(mixed))]
            decoded = [item.output for item in in_bursts(engine, shuffled, rng)]
            outputs += [output for output in decoded if output.id.isdecimal()]
        return greedy_test(case, name, GreedyReference(toy, prompts, sampling), outputs)

    def _sample(self, engine: Engine, case: Case, progress: Progress) -> dict[str, Tally]:
        if not case.settings:
            return {}
        seed, identity = case.seed(self.plan.settings.seed), self._identity(case)
        file = CountsFile(self._counts_path(case, identity), identity)
        return sample_outputs(engine, case, seed, file, progress)

    def _counts_path(self, case: Case, identity: Mapping[str, Any]) -> Path:
        if not case.stress:
            return self.folder / "counts" / f"{case.name}.jsonl"
        # certificates of other methods share these counts, those of other rules must not
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        return (self.stress_folder or self.folder / "stress") / f"{case.name}-{digest}.jsonl"

    def _identity(self, case: Case) -> dict[str, Any]:
        """Return everything that the counts of a case depend on."""
        trial, plan = case.trial, self.plan
        parts: list[object] = [plan.rule]
        config = dict(self.config)
        if case.stress:
            config = {key: value for key, value in config.items() if key == "acceptance"}
        else:
            parts += [trial.proposer, trial.controller]
        return {
            "drafter": case.drafter,
            "code": code_fingerprint(*parts),
            "config": config,
            "trial": asdict(trial.settings),
            "toy": asdict(trial.toy),
            "settings": {setting.name: asdict(setting.sampling) for setting in case.settings},
            "samples": {setting.name: setting.num_samples for setting in case.settings},
            "max_draft_tokens": plan.settings.max_draft_tokens,
            "seed": plan.settings.seed,
        }
