"""`python -m specresearch.simulate recording=<folder>`: predict what was not measured."""

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
from specresearch.recording.recording import Recording
from specresearch.simulation import Drafting, SimulationSettings, Simulator, open_recording
from specresearch.simulation.report import print_simulation


def main() -> None:
    """Run the command."""
    entry_point(simulate, "simulate")


def simulate(cfg: DictConfig) -> None:
    """Simulate one setting and write it into Hydra's output folder."""
    check_keys(cfg, "simulate")
    path = Path(HydraConfig.get().runtime.output_dir)
    with lock_folder(path):
        if (path / "results.json").exists():
            raise ValueError(f"{path} already holds a run; choose another hydra.run.dir")
        results = build(cfg, HydraConfig.get().runtime.choices["controller"]).run()
        write(path, cfg, results)
        print_simulation(results, path)


def write(path: Path, cfg: DictConfig, results: LoadResults) -> None:
    """Write the configuration and the results into a folder."""
    config = OmegaConf.to_container(cfg, resolve=True)
    replace_text(path / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    text = json.dumps(asdict(results), indent=2, ensure_ascii=False)
    replace_text(path / "results.json", text + "\n")


def build(cfg: DictConfig, controller_name: str) -> Simulator:
    """Construct everything that the configuration names.

    Raises:
        ValueError: If the recording cannot answer the question.
    """
    recording = open_recording(Path(cfg.recording))
    if cfg.model is not None:
        recording.header.check(recording.path, {"model": cfg.model}, f"model={cfg.model}")
    drafting = build_drafting(cfg, recording)
    timing = instantiate(cfg.timing, _convert_="all")
    timing.bind(recording)
    settings = {field.name: cfg[field.name] for field in fields(SimulationSettings)}
    settings |= {"compare": tuple(cfg.compare), "limits": Limits(**cfg.limits)}
    return Simulator(
        drafting=drafting,
        timing=timing,
        arrivals=instantiate(cfg.arrivals, _convert_="all"),
        settings=SimulationSettings(**settings),
        controller=instantiate(cfg.controller, _convert_="all"),
        scheduling=instantiate(cfg.scheduler, _convert_="all"),
        controller_name=controller_name,
    )


def build_drafting(cfg: DictConfig, recording: Recording) -> Drafting:
    """Return the side that is replayed, as the configuration asks for it."""
    header = recording.header
    most = header.num_draft_tokens if cfg.num_draft_tokens is None else cfg.num_draft_tokens
    rule_name = header.acceptance
    if cfg.get("acceptance"):
        rule_name = type(instantiate(cfg.acceptance, _convert_="all")).__name__.lower()
    drafting = Drafting(
        recording=recording,
        side=cfg.side or header.longest_side,
        rule=rule_name,
        num_draft_tokens=most,
        seed=cfg.seed,
    )
    check_temperature(drafting, cfg.temperature)
    return drafting


def check_temperature(drafting: Drafting, temperature: float | None) -> None:
    """Raise ValueError for any temperature but the recorded one."""
    recorded = sorted({request.sampling.temperature for request in drafting.requests})
    if temperature is not None and recorded != [temperature]:
        names = ", ".join(f"{value:g}" for value in recorded)
        raise ValueError(
            f"temperature={temperature}: the recording has temperature {names}, and another one "
            "leads to other texts, which only the model knows; record at that temperature"
        )


if __name__ == "__main__":
    main()
