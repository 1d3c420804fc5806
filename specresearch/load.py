"""`python -m specresearch.load +proposer=ngram arrivals.qps=4`: test a method under load.

With `server=http://...`, a server is tested in place of an engine of this process.
"""

from functools import partial

from omegaconf import DictConfig

from specresearch.cli import (
    entry_point,
    exit_interrupted,
    open_folder,
    quick_imports,
    stay_offline_without_hub,
    warn_of_busy_cores,
)


def main() -> None:
    entry_point(load, "load")


def load(cfg: DictConfig) -> None:
    """Run one load test into Hydra's output folder."""
    # Wrong settings have been refused by now, without waiting for these imports.
    with quick_imports():
        from specresearch.loadtest.build import build_runner
        from specresearch.loadtest.folder import LoadFolder
        from specresearch.loadtest.pass_runner import PROGRAM
        from specresearch.loadtest.report import print_load
        from specresearch.loadtest.servers.build import (
            build_server_runner,
            is_of_servers,
            without_engine,
        )
        from specresearch.loadtest.servers.folder import ServerFolder
        from specresearch.loadtest.settings import LoadSettings

    stay_offline_without_hub(cfg)
    warn_of_busy_cores()
    settings = LoadSettings.from_config(cfg)
    if is_of_servers(cfg):
        cfg = without_engine(cfg)
        folder = open_folder(cfg, ServerFolder)
        build = partial(build_server_runner, cfg, settings, folder)
    else:
        folder = open_folder(cfg, LoadFolder)
        build = partial(build_runner, cfg, settings, folder)
    results = folder.read_results() if folder.is_complete else None
    if results is None:
        results = build().run(progress=cfg.progress)
    print_load(results, folder.path)
    if not results.complete:
        exit_interrupted(folder.path, PROGRAM, "the finished passes are kept")


if __name__ == "__main__":
    main()
