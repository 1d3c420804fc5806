"""A server from its configuration."""

import asyncio
import sys
from socket import socket

from hydra.utils import instantiate
from omegaconf import DictConfig
from transformers.utils.logging import disable_progress_bar

from specresearch.calibration import leave_to_controller
from specresearch.engine import Engine
from specresearch.serving.app import create_app
from specresearch.serving.bridge import EngineBridge
from specresearch.serving.driver import StepFeed
from specresearch.serving.log import log_as_json
from specresearch.serving.server import HttpServer, bind
from specresearch.serving.service import Service
from specresearch.serving.settings import ServeSettings


def build_service(cfg: DictConfig, settings: ServeSettings) -> Service:
    """Load the models and construct everything behind the HTTP interface.

    It needs no running event loop; its bridge is started by the server.
    """
    if not sys.stderr.isatty():
        disable_progress_bar()
    defaults = instantiate(cfg.sampling, _convert_="all")
    target = instantiate(cfg.target, _convert_="all")
    acceptance = instantiate(cfg.acceptance, _convert_="all")
    controller = instantiate(cfg.controller, _convert_="all")
    proposer = instantiate(cfg.proposer, _convert_="all") if cfg.get("proposer") else None
    if proposer is not None:
        leave_to_controller(target, proposer, acceptance, controller, cfg.max_running)
    feed = StepFeed()
    engine = Engine(
        target,
        proposer,
        acceptance,
        controller,
        max_batch_size=cfg.max_running,
        seed=cfg.seed,
        observers=[feed],
        scheduling=instantiate(cfg.scheduler, _convert_="all"),
    )
    return Service(EngineBridge(engine, feed), settings, defaults)


def serve_forever(cfg: DictConfig) -> None:
    """Serve what a configuration names until the process is told to stop."""
    log_as_json()
    settings = ServeSettings.from_config(cfg.server)
    # The address is taken first: loading models may take long, and would be in vain.
    with bind(settings.host, settings.port) as listener:
        asyncio.run(_serve(build_service(cfg, settings), listener))


async def _serve(service: Service, listener: socket) -> None:
    name, proposer = service.model_name, type(service.engine.proposer).__name__

    def announce(address: str) -> None:
        print(f"{name} with {proposer} at {address}/v1", flush=True)

    await HttpServer(create_app(service), service, listener, announce).run()
