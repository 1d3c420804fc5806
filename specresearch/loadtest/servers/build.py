"""A load test of servers from its configuration."""

import logging

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from specresearch.loadtest.build import build_classes
from specresearch.loadtest.servers.folder import ServerFolder
from specresearch.loadtest.servers.runner import ServerRunner
from specresearch.loadtest.servers.sides import ClientSettings, find_sides
from specresearch.loadtest.settings import LoadSettings

OF_ENGINES = (
    "target",
    "draft",
    "draft_device",
    "draft_weights",
    "draft_gguf_file",
    "heads",
    "proposer",
    "acceptance",
    "controller",
    "scheduler",
    "variants",
    "record",
    "max_running",
)  # settings of an engine of this process, which a server has of its own


def is_of_servers(cfg: DictConfig) -> bool:
    """Return whether a configuration names servers to measure."""
    return cfg.server is not None or cfg.baseline_server is not None


def without_engine(cfg: DictConfig) -> DictConfig:
    """Return the configuration without the settings of an engine of this process."""
    kept = [str(key) for key in cfg if key not in OF_ENGINES]
    return OmegaConf.masked_copy(cfg, kept)


def build_server_runner(
    cfg: DictConfig, settings: LoadSettings, folder: ServerFolder
) -> ServerRunner:
    """Find the servers, and construct everything that the configuration names.

    Raises:
        ValueError: If a server does not answer, or something else cannot be measured.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log a line for each request
    asked = ClientSettings.from_config(cfg)
    served = find_sides(asked, settings.compare)
    tracker = instantiate(cfg.tracker, _convert_="all")
    arrivals = instantiate(cfg.arrivals, _convert_="all")
    num_rows = settings.count(arrivals) if arrivals.rows is None else None
    classes = build_classes(cfg, num_rows, uses_threshold=False)
    return ServerRunner(served, classes, arrivals, settings, folder, asked=asked, tracker=tracker)
