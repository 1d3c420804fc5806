"""`python -m specresearch.certify +proposer=ngram`: test whether a method is lossless."""

import sys

from omegaconf import DictConfig

from specresearch.cli import (
    INTERRUPTED,
    check_resumable,
    entry_point,
    folder_override,
    output_folder,
    quick_imports,
    sweep_folder,
)
from specresearch.files.lock import lock_folder

NOT_CERTIFIED = 1


def main() -> None:
    passed: list[bool] = []
    entry_point(lambda cfg: passed.append(run(cfg)), "certify")
    if not all(passed):
        sys.exit(NOT_CERTIFIED)


def run(cfg: DictConfig) -> bool:
    """Write one certificate into Hydra's output folder, and return whether the method passed."""
    with quick_imports():
        from specresearch.certification.certificate import REFUTED, UNTESTED
        from specresearch.certification.from_config import build_certifier, open_folder
        from specresearch.certification.report import print_certificate, write_certificate
        from specresearch.results.folder import PROVENANCE

    if cfg.resume:
        check_resumable(PROVENANCE)
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
    return certificate.verdict not in (REFUTED, UNTESTED)


if __name__ == "__main__":
    main()
