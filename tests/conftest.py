"""Fixtures shared by all tests."""

import gc
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hydra
import pytest
import torch
from command_line import BuildLoad, Outcome, Typed, call
from hydra.core.hydra_config import HydraConfig
from shape_checks import install, unchecked

install()
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_finish() -> None:
    """Leave the million objects of libraries and tests out of all later collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real prompts and text that cannot be shipped; without them their tests are skipped."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real data is not here")
    return folder


@pytest.fixture(scope="session")
def target_overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides that select a small float64 target on disk."""
    from tiny_models import (
        VOCAB,
        build,
        letters_tokenizer,
    )  # once the package's shapes are checked as it is imported

    folder = tmp_path_factory.mktemp("letters")
    build("llama", seed=3).save_pretrained(folder)
    letters_tokenizer(VOCAB).save_pretrained(folder)
    return ["target=local", f"target.model={folder}", "target.dtype=float64"]


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Typed]:
    """Run an entry point's `main` with overrides, in an empty folder and an 80-column terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(main: Callable[[], None], overrides: Sequence[str]) -> Outcome:
        capsys.readouterr()
        code = call(main, overrides, monkeypatch)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    show, handlers = warnings.showwarning, list(logging.root.handlers)
    yield run
    warnings.showwarning = show
    # Those of a command write to its folder, which later tests may not find.
    for handler in logging.root.handlers[:]:
        if handler not in handlers:
            logging.root.removeHandler(handler)
            handler.close()


@pytest.fixture(autouse=True)
def enabled_loggers() -> None:
    """Let the package's loggers report, whatever commands of earlier tests have configured.

    Those that log nothing by themselves mute all loggers that exist, as Hydra does it.
    """
    if logging.root.level != logging.WARNING:
        logging.root.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.split(".")[0] == "specresearch" and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            if logger.level != logging.NOTSET:  # setLevel clears every logger's cache
                logger.setLevel(logging.NOTSET)


@pytest.fixture
def build_load(target_overrides: list[str], tmp_path: Path) -> BuildLoad:
    """Build what `python -m specresearch.load` builds before it decodes, with small models."""
    # Imported here, so that the package's shapes are checked as it is imported.
    from specresearch.cli import conf_dir
    from specresearch.loadtest.build import build_runner
    from specresearch.loadtest.folder import LoadFolder
    from specresearch.loadtest.settings import LoadSettings

    draft = next(
        override.removeprefix("target.model=")
        for override in target_overrides
        if override.startswith("target.model=")
    )

    def build(overrides: Sequence[str]) -> object:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            all_overrides = [*overrides, *target_overrides, f"draft={draft}"]
            cfg = hydra.compose("load", all_overrides, return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)
            return build_runner(
                cfg, LoadSettings.from_config(cfg), LoadFolder(tmp_path / "run", {})
            )

    return build


@pytest.fixture
def untyped() -> Iterator[None]:
    """Run the package as users have it, without checks of shapes and types."""
    with unchecked():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every proposal of every test, including the package's own."""
    from specresearch.engine import (
        checks,
    )  # once the package's shapes are checked as it is imported

    monkeypatch.setattr(checks, "OWN_CHECKS", sys.maxsize)
    monkeypatch.setattr(checks, "FOREIGN_CHECKS", sys.maxsize)


@pytest.fixture(autouse=True)
def _cache_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep shapes that a test measures out of the home folder, and from other tests."""
    monkeypatch.setenv("SPECRESEARCH_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def short_calibration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` take as many steps as elsewhere, but not two seconds of a tiny model's."""
    if "calibration" not in request.path.parts:
        # The package has a function of the module's name.
        module = importlib.import_module("specresearch.calibration.calibrate")
        monkeypatch.setattr(module, "SECONDS", 0.2)
