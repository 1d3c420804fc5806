"""`python -m specresearch.certify`: verdicts, exit codes, errors and multiruns."""

import csv
import io
import json
import re
from pathlib import Path

import hydra
import pytest
from command_line import Run, Typed
from hydra.core.hydra_config import HydraConfig
from toy_methods import AboveAFloor, Copycat

from specresearch import certify
from specresearch.certification.adversaries import ATTACKS
from specresearch.certification.certificate import Certificate
from specresearch.certification.from_config import build_certifier
from specresearch.certification.runner import Certifier
from specresearch.certification.trials import TrialSettings
from specresearch.cli import conf_dir


@pytest.fixture
def command(typed: Typed) -> Run:
    """Run `python -m specresearch.certify` with few samples in an empty folder."""
    few = [
        "visible_tv=0.2",
        "toy.vocab_size=4",
        "num_greedy_prompts=4",
        "trials.mixed.stress=[top_k]",
        "sampled.plain.max_new_tokens=3",
        "sampled.top_k.max_new_tokens=5",
    ]
    few += [f"~trials.{name}" for name in ("crowded", "equal_seeds", "wide", "float32", "bfloat16")]
    few += ["~greedy.plain", "~greedy.penalties"]
    for name in ("short", "pairs", "cool", "top_p", "min_p", "penalties", "everything"):
        few.append(f"~sampled.{name}")
    return lambda *overrides: typed(certify.main, [*few, *overrides])


@pytest.mark.filterwarnings("ignore:unclosed file .*certify.log:ResourceWarning")
class TestTheCommand:
    def test_it_prints_its_verdict_and_leaves_a_certificate(self, command: Run) -> None:
        outcome = command("+proposer=ngram", "hydra.run.dir=out")
        assert outcome.code == 0, outcome.err
        assert "CERTIFIED" in outcome.out
        certificate = json.loads(Path("out/certificate.json").read_text())
        assert (certificate["method"], certificate["rule"], certificate["verdict"]) == (
            "ngram",
            "rejection",
            "certified",
        )
        assert {"packages", "git_commit", "code_fingerprint", "seed"} <= certificate[
            "provenance"
        ].keys()
        assert certificate["config"]["proposer"]["num_draft_tokens"] == "auto"
        assert certificate["config"]["sampled"]["top_k"]["top_k"] == 2
        again = command("+proposer=ngram", "hydra.run.dir=out")
        assert again.code == 2
        assert "already holds counts; add resume=true" in again.err
        assert command("+proposer=ngram", "hydra.run.dir=out", "resume=true").code == 0

    @pytest.mark.parametrize(
        ("strength", "tv"), [("quick", 0.15), ("standard", 0.1), ("sharp", 0.01)]
    )
    def test_strength_sets_the_visible_distance_of_all_trials(
        self, tmp_path: Path, strength: str, tv: float
    ) -> None:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = hydra.compose("certify", [f"strength={strength}"], return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)
        plan = build_certifier(cfg, tmp_path).plan
        assert plan.settings.visible_tv == tv
        assert [trial.name for trial in plan.trials] == [*cfg.trials]
        assert {trial.toy.vocab_size for trial in plan.trials} == {5, 9}
        assert {trial.toy.dtype for trial in plan.trials} == {
            "float64",
            "float32",
            "bfloat16",
        }
        assert {case.trial.name for case in plan.cases()} == set(cfg.trials), "all can be met"
        assert any(trial.settings.is_crowded for trial in plan.trials)
        assert any(trial.settings.equal_seeds for trial in plan.trials)
        assert all(
            tv <= trial.settings.coarseness * tv <= 2 * max(tv, 0.1) for trial in plan.trials
        )

    def test_only_waves_of_methods_that_learn_have_short_prompts(self, tmp_path: Path) -> None:
        lengths = {}
        for warm in ("false", "true"):
            overrides = ["+proposer=token_recycling", f"proposer.warm={warm}"]
            with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
                cfg = hydra.compose("certify", overrides, return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)
            for case in build_certifier(cfg, tmp_path).plan.cases():
                shortest = min(len(setting.prompt) for setting in case.settings)
                lengths[warm, case.trial.name] = min(
                    shortest, lengths.get((warm, case.trial.name), shortest)
                )
        assert lengths.pop(("true", "equal_seeds")) == 1
        for (_, trial), length in lengths.items():
            assert length == cfg.trials[trial].get("shortest_prompt", TrialSettings.shortest_prompt)

    def test_it_says_at_the_start_how_long_it_will_take(self, command: Run) -> None:
        outcome = command("+proposer=ngram", "hydra.run.dir=out")
        assert re.search(r"^0 of [\d,]+ outputs, about \d+ s to go$", outcome.err, re.MULTILINE)
        silent = command("+proposer=ngram", "hydra.run.dir=silent", "progress=false")
        assert "to go" not in silent.err
        counts = [Path(name, "counts/mixed-ngram.jsonl").read_text() for name in ("out", "silent")]
        assert counts[0] == counts[1], "timing a few outputs must not change those that count"

    def test_user_code_is_named_by_its_path_and_a_refutation_has_its_exit_code(
        self, command: Run
    ) -> None:
        own_rule = f"acceptance._target_={AboveAFloor.__module__}.AboveAFloor"
        outcome = command(
            f"+proposer._target_={Copycat.__module__}.Copycat", own_rule, "hydra.run.dir=out"
        )
        assert outcome.code == certify.NOT_CERTIFIED, outcome.err
        assert "REFUTED" in outcome.out
        assert json.loads(Path("out/certificate.json").read_text())["method"] == "copycat"

    def test_a_multirun_shares_the_adversaries_and_ends_with_a_matrix(self, command: Run) -> None:
        outcome = command(
            "-m", "+proposer=draft_model,ngram", "acceptance=rejection", "hydra.sweep.dir=sweep"
        )
        assert outcome.code == 0, outcome.err
        rows = list(csv.DictReader(io.StringIO(Path("sweep/matrix.csv").read_text())))
        verdicts = [(row["method"], row["variant"], row["rule"], row["verdict"]) for row in rows]
        assert verdicts == [
            (name, "", "rejection", "certified") for name in ("draft_model", "ngram")
        ]
        stress_samples = {path.stem.rpartition("-")[0] for path in Path("sweep/stress").iterdir()}
        assert stress_samples == {f"mixed-{name}" for name in ATTACKS}
        assert not list(Path("sweep").glob("*/stress"))

    def test_ctrl_c_prints_how_to_resume(
        self, command: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(self: Certifier, **_: object) -> Certificate:
            raise KeyboardInterrupt

        monkeypatch.setattr(Certifier, "run", interrupt)
        outcome = command("+proposer=ngram", "hydra.run.dir=out")
        assert outcome.code == certify.INTERRUPTED
        assert f"hydra.run.dir={Path('out').absolute()} resume=true" in outcome.out

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("+nope=1", "there is no setting nope; there are: "),
            ("+toy.nope=1", "there is no setting toy.nope; there are: "),
            ("toy.vocab_size=2", "toy.vocab_size=2 must be a whole number from 3"),
            (
                "sampled.plain.top_p=0.0",
                "sampled.plain.top_p=0 must be a number above 0 and at most 1",
            ),
            ("+proposer=nope", "there is no proposer=nope"),
        ],
    )
    def test_bad_input_is_one_line_and_exit_code_2(
        self, command: Run, override: str, message: str
    ) -> None:
        outcome = command(override if "top_p" not in override else f"+{override}")
        assert outcome.code == 2
        assert message in outcome.err.strip().splitlines()[-1]
        assert "Traceback" not in outcome.err
