"""`python -m specresearch.simulate recording=<folder> arrivals=poisson arrivals.qps=40`: what if, answered from a recording."""

import json
from dataclasses import asdict, fields
from pathlib import Path

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from specresearch.cli import check_keys, entry_point
from specresearch.files import replace_text
from specresearch.files.lock import lock_folder
from specresearch.loadtest.folder import LoadResults
from specresearch.loadtest.window import Limits
from specresearch.simulation import Drafting, SimulationSettings, Simulator, open_recording
from specresearch.simulation.report import print_simulation


def main() -> None:
    entry_point(simulate, "simulate")


def simulate(cfg: DictConfig) -> None:
    """One simulation, into Hydra's output folder."""
    check_keys(cfg, "simulate")
    path = Path(HydraConfig.get().runtime.output_dir)
    with lock_folder(path):
        if (path / "results.json").exists():
            raise ValueError(f"{path} already holds a run; choose another hydra.run.dir")
        results = build(cfg, HydraConfig.get().runtime.choices["controller"]).run()
        write(path, cfg, results)
        print_simulation(results, path)


def write(path: Path, cfg: DictConfig, results: LoadResults) -> None:
    config = OmegaConf.to_container(cfg, resolve=True)
    replace_text(path / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    replace_text(
        path / "results.json", json.dumps(asdict(results), indent=2, ensure_ascii=False) + "\n"
    )


def build(cfg: DictConfig, controller_name: str) -> Simulator:
    """Everything the configuration names, constructed. Raises ValueError for a question that the recording cannot answer."""
    recording = open_recording(Path(cfg.recording))
    header = recording.header
    if cfg.model is not None:
        header.check(recording.path, {"model": cfg.model}, f"model={cfg.model}")
    side = cfg.side or header.longest_side
    most = header.num_draft_tokens if cfg.num_draft_tokens is None else cfg.num_draft_tokens
    rule = instantiate(cfg.acceptance, _convert_="all") if cfg.get("acceptance") else None
    name = header.acceptance if rule is None else type(rule).__name__.lower()
    drafting = Drafting(recording, side, name, most, cfg.seed)
    check_temperature(drafting, cfg.temperature)
    timing = instantiate(cfg.timing, _convert_="all")
    timing.bind(recording)
    told = {field.name: cfg[field.name] for field in fields(SimulationSettings)}
    settings = SimulationSettings(
        **told | {"compare": tuple(cfg.compare), "limits": Limits(**cfg.limits)}
    )
    return Simulator(
        drafting,
        timing,
        instantiate(cfg.arrivals, _convert_="all"),
        settings,
        instantiate(cfg.controller, _convert_="all"),
        instantiate(cfg.scheduler, _convert_="all"),
        controller_name,
    )


def check_temperature(drafting: Drafting, temperature: float | None) -> None:
    """Raises ValueError for any other than the recorded one."""
    recorded = sorted({request.sampling.temperature for request in drafting.requests})
    if temperature is not None and recorded != [temperature]:
        raise ValueError(
            f"temperature={temperature}: the recording has temperature {', '.join(f'{t:g}' for t in recorded)}, and another one "
            "leads to other texts, which only the model knows; record at that temperature"
        )


if __name__ == "__main__":
    main()
