"""Build a certifier from the configuration, and open the folder of its counts."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from specresearch.acceptance import AcceptanceSampler
from specresearch.calibration import Scope
from specresearch.certification.certificate import CERTIFICATE
from specresearch.certification.plan import TrialPlan
from specresearch.certification.runner import Certifier
from specresearch.certification.substitution import build_on_toy
from specresearch.certification.targets import Toy
from specresearch.certification.trials import CertifierSettings, Trial, TrialSettings
from specresearch.controllers import Controller
from specresearch.proposers import Autoregressive
from specresearch.results.fingerprint import PACKAGE, WHOLE_PACKAGE, describe_software
from specresearch.results.folder import PROVENANCE, check_software, write_json
from specresearch.results.provenance import git_commit
from specresearch.sampling import SamplingParams

MAY_CHANGE = ("resume", "progress")  # keys that a resumed certification may change


def open_folder(folder: Path, *, resume: bool) -> None:
    """Record the software that is about to fill a folder.

    Raises:
        ValueError: the folder holds counts and `resume` is False, or they were sampled with
            other code or packages.
    """
    holds_counts = (folder / CERTIFICATE).exists() or (folder / "counts").exists()
    if holds_counts and not resume:
        raise ValueError(
            f"{folder} already holds counts; add resume=true to continue them, or choose another "
            "hydra.run.dir"
        )
    software = describe_software(WHOLE_PACKAGE)
    if holds_counts:
        check_software(folder, software)
    write_json(folder / PROVENANCE, software | {"git_commit": git_commit(PACKAGE)})


def build_certifier(cfg: DictConfig, folder: Path, sweep_folder: Path | None = None) -> Certifier:
    """Build everything that the configuration names, on toy targets.

    Args:
        sweep_folder: Shared by the jobs of a sweep, which share counts that no method changes.
    """
    rule: AcceptanceSampler = instantiate(cfg.acceptance, _convert_="all")
    names = [str(name) for name, settings in cfg.trials.items() if settings is not None]
    trials = [_trial(cfg, name, rule, index) for index, name in enumerate(names)]
    if not trials:
        raise ValueError("trials is empty; keep at least one, such as trials.mixed")
    class_name = type(trials[0].proposer).__name__.lower()
    default_name = class_name if cfg.get("proposer") else "plain"
    recorded = [str(key) for key in cfg if key not in MAY_CHANGE]
    config: Any = OmegaConf.to_container(OmegaConf.masked_copy(cfg, recorded), resolve=False)
    plan = TrialPlan(
        method=HydraConfig.get().runtime.choices.get("proposer") or default_name,
        rule=rule,
        trials=trials,
        sampled=_sampling_params(cfg.sampled),
        greedy=_sampling_params(cfg.greedy),
        settings=CertifierSettings(**{f.name: cfg[f.name] for f in fields(CertifierSettings)}),
    )
    stress_folder = sweep_folder / "stress" if sweep_folder else None
    return Certifier(plan, folder, stress_folder, config)


def _trial(cfg: DictConfig, name: str, rule: AcceptanceSampler, index: int) -> Trial:
    """Build a trial with its own target, proposer and controller.

    Kinds of drafts that `auto` chooses from take turns, the largest first: times of a toy say
    nothing of which one a real target would get.
    """
    options: Any = OmegaConf.to_container(cfg.trials[name], resolve=True)
    try:
        settings = TrialSettings(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"trials.{name}: {error}") from error
    toy: Toy = instantiate(OmegaConf.merge(cfg.toy, settings.toy), _convert_="all")
    target = toy.target()
    proposer = build_on_toy(cfg.proposer, toy, target) if cfg.get("proposer") else Autoregressive()
    controller: Controller = instantiate(cfg.controller, _convert_="all")
    if proposer.shapes:
        shapes = Scope.of(proposer, rule, controller).shapes
        proposer.draft_as(shapes[-1 - index % len(shapes)])
    return Trial(
        name=name,
        settings=settings,
        toy=toy,
        target=target,
        proposer=proposer,
        controller=controller,
        scheduling=instantiate(cfg.scheduler, _convert_="all"),
    )


def _sampling_params(group: DictConfig) -> dict[str, SamplingParams]:
    base = {"_target_": "specresearch.sampling.SamplingParams", "_convert_": "all"}
    return {str(name): instantiate(base | dict(params)) for name, params in group.items()}
