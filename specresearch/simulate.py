"""`python -m specresearch.simulate recording=<folder>`: predict what was not measured."""

from dataclasses import asdict

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from specresearch.cli import entry_point, output_folder, quick_imports
from specresearch.files import replace_text
from specresearch.files.lock import lock_folder


def main() -> None:
    entry_point(simulate, "simulate")


def simulate(cfg: DictConfig) -> None:
    """Simulate one setting and write it into Hydra's output folder."""
    # Wrong settings have been refused by now, without waiting for these imports.
    with quick_imports():
        from specresearch.results.folder import CONFIG, RESULTS, write_json
        from specresearch.simulation.build import build_simulator
        from specresearch.simulation.report import print_simulation

    path = output_folder()
    with lock_folder(path):
        if (path / RESULTS).exists():
            raise ValueError(f"{path} already holds a run; choose another hydra.run.dir")
        controller = HydraConfig.get().runtime.choices["controller"]
        results = build_simulator(cfg, controller).run()
        config = OmegaConf.to_container(cfg, resolve=True)
        replace_text(path / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        write_json(path / RESULTS, asdict(results))
        print_simulation(results, path)


if __name__ == "__main__":
    main()
