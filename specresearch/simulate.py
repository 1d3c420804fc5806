"""`python -m specresearch.simulate recording=<folder>`: predict what was not measured."""

from dataclasses import asdict
from pathlib import Path

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from specresearch.cli import check_keys, entry_point
from specresearch.files import replace_text
from specresearch.files.lock import lock_folder
from specresearch.loadtest.results import LoadResults
from specresearch.results.folder import CONFIG, RESULTS, write_json
from specresearch.simulation.build import build_simulator
from specresearch.simulation.report import print_simulation


def main() -> None:
    entry_point(simulate, "simulate")


def simulate(cfg: DictConfig) -> None:
    """Simulate one setting and write it into Hydra's output folder."""
    check_keys(cfg, "simulate")
    runtime = HydraConfig.get().runtime
    path = Path(runtime.output_dir)
    with lock_folder(path):
        if (path / RESULTS).exists():
            raise ValueError(f"{path} already holds a run; choose another hydra.run.dir")
        results = build_simulator(cfg, runtime.choices["controller"]).run()
        write(path, cfg, results)
        print_simulation(results, path)


def write(path: Path, cfg: DictConfig, results: LoadResults) -> None:
    """Write the configuration and the results into a folder."""
    config = OmegaConf.to_container(cfg, resolve=True)
    replace_text(path / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    write_json(path / RESULTS, asdict(results))


if __name__ == "__main__":
    main()
