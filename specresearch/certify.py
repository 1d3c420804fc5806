"""`python -m specresearch.certify +proposer=ngram acceptance=rejection`: does this method leave the target's output as it is?"""

import sys
from dataclasses import fields
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from specresearch.certification.certificate import (
    CERTIFICATE,
    REFUTED,
    UNTESTED,
    Certificate,
    print_certificate,
)
from specresearch.certification.certifier import Certifier, Demands
from specresearch.certification.enumeration import Toy
from specresearch.certification.substitution import build_on_toy
from specresearch.certification.trials import Trial, TrialSettings
from specresearch.cli import PACKAGE, check_keys, entry_point
from specresearch.cli.signals import INTERRUPTED
from specresearch.files.lock import lock_folder
from specresearch.proposers import Autoregressive
from specresearch.results.fingerprint import WHOLE_PACKAGE, describe_software
from specresearch.results.folder import PROVENANCE, check_software, write_json
from specresearch.results.provenance import git_commit
from specresearch.sampling import SamplingParams

NOT_CERTIFIED = 1
INDIFFERENT = ("resume", "progress")  # keys that a continued certificate may change


def main() -> None:
    verdicts: list[str] = []

    def certify(cfg: DictConfig) -> None:
        verdicts.append(run(cfg).verdict)

    entry_point(certify, "certify")
    if {REFUTED, UNTESTED} & set(verdicts):
        sys.exit(NOT_CERTIFIED)


def run(cfg: DictConfig) -> Certificate:
    """One certificate, into Hydra's output folder."""
    check_keys(cfg, "certify", "proposer")
    folder = Path(HydraConfig.get().runtime.output_dir)
    with lock_folder(folder):
        open_folder(folder, resume=cfg.resume)
        try:
            certificate = build(cfg, folder).run(progress=cfg.progress)
        except KeyboardInterrupt:
            place = f"hydra.sweep.dir={folder.parent}" if _is_sweep() else f"hydra.run.dir={folder}"
            print(f"interrupted; the same command with {place} resume=true continues it")
            sys.exit(INTERRUPTED)
        print_certificate(certificate, certificate.write(folder))
    return certificate


def open_folder(folder: Path, *, resume: bool) -> None:
    """Raises ValueError for a folder that holds another certificate, or one that other code or packages began."""
    holds = (folder / CERTIFICATE).exists() or (folder / "counts").exists()
    if holds and not resume:
        raise ValueError(
            f"{folder} already holds counts; add resume=true to continue them, or choose another hydra.run.dir"
        )
    software = describe_software(WHOLE_PACKAGE)
    if holds:
        check_software(folder, software)
    write_json(folder / PROVENANCE, software | {"git_commit": git_commit(PACKAGE)})


def build(cfg: DictConfig, folder: Path) -> Certifier:
    """Everything the configuration names, constructed on toy targets."""
    hydra_cfg = HydraConfig.get()
    trials = [_trial(cfg, str(name)) for name, told in cfg.trials.items() if told is not None]
    if not trials:
        raise ValueError("trials is empty; keep at least one, such as trials.mixed")
    own = type(trials[0].proposer).__name__.lower() if cfg.get("proposer") else "plain"
    config = OmegaConf.to_container(
        OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in INDIFFERENT]),
        resolve=False,
    )
    assert isinstance(config, dict)
    return Certifier(
        hydra_cfg.runtime.choices.get("proposer") or own,
        instantiate(cfg.acceptance, _convert_="all"),
        trials,
        _settings(cfg.sampled),
        _settings(cfg.greedy),
        folder,
        Path(hydra_cfg.sweep.dir).absolute() / "stress" if _is_sweep() else None,
        Demands(**{field.name: cfg[field.name] for field in fields(Demands)}),
        {str(key): value for key, value in config.items()},
    )


def _trial(cfg: DictConfig, name: str) -> Trial:
    """A trial with its own toy, proposer and controller."""
    settings = OmegaConf.to_container(cfg.trials[name], resolve=True)
    assert isinstance(settings, dict)
    try:
        told = TrialSettings(**{str(key): value for key, value in settings.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"trials.{name}: {error}") from error
    toy: Toy = instantiate(OmegaConf.merge(cfg.toy, told.toy), _convert_="all")
    target = toy.target()
    return Trial(
        name,
        told,
        toy,
        target,
        build_on_toy(cfg.proposer, toy, target) if cfg.get("proposer") else Autoregressive(),
        instantiate(cfg.controller, _convert_="all"),
        instantiate(cfg.scheduler, _convert_="all"),
    )


def _is_sweep() -> bool:
    return HydraConfig.get().mode == RunMode.MULTIRUN


def _settings(node: DictConfig) -> dict[str, SamplingParams]:
    made = {"_target_": "specresearch.sampling.SamplingParams", "_convert_": "all"}
    return {str(name): instantiate(made | dict(told)) for name, told in node.items()}


if __name__ == "__main__":
    main()
