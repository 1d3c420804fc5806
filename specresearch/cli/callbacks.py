"""Hydra callbacks that are imported when a multirun needs them."""

from functools import cached_property
from importlib import import_module
from typing import Any

from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig


class MultirunCallback(Callback):
    """Forwards the events of a multirun to another callback.

    Hydra constructs callbacks before it looks at anything else. What summarises a multirun takes
    seconds to import, which neither a single run nor a wrong setting should wait for.

    Args:
        callback: The other callback's class, by its path.
    """

    def __init__(self, callback: str) -> None:
        self._path = callback

    @cached_property
    def _callback(self) -> Callback:
        module, _, name = self._path.rpartition(".")
        return getattr(import_module(module), name)()

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        if config.hydra.mode == RunMode.MULTIRUN:
            self._callback.on_job_end(config, job_return, **kwargs)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._callback.on_multirun_end(config, **kwargs)
