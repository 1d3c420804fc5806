"""`python -m specresearch.certify +proposer=ngram`: test whether a method is lossless."""

import sys

from omegaconf import DictConfig

from specresearch.certification.certificate import REFUTED, UNTESTED, Certificate
from specresearch.certification.from_config import build_certifier, open_folder
from specresearch.certification.report import print_certificate, write_certificate
from specresearch.cli import (
    INTERRUPTED,
    check_keys,
    entry_point,
    folder_override,
    output_folder,
    sweep_folder,
)
from specresearch.files.lock import lock_folder

NOT_CERTIFIED = 1


def main() -> None:
    verdicts: list[str] = []

    def certify(cfg: DictConfig) -> None:
        verdicts.append(run(cfg).verdict)

    entry_point(certify, "certify")
    if {REFUTED, UNTESTED} & set(verdicts):
        sys.exit(NOT_CERTIFIED)


def run(cfg: DictConfig) -> Certificate:
    """Write one certificate into Hydra's output folder."""
    check_keys(cfg, "certify", "proposer")
    folder = output_folder()
    with lock_folder(folder):
        open_folder(folder, resume=cfg.resume)
        try:
            certificate = build_certifier(cfg, folder, sweep_folder()).run(progress=cfg.progress)
        except KeyboardInterrupt:
            override = folder_override(folder)
            print(f"interrupted; to continue, repeat the command with {override} resume=true")
            sys.exit(INTERRUPTED)
        print_certificate(certificate, write_certificate(certificate, folder))
    return certificate


if __name__ == "__main__":
    main()
