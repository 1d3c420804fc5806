"""Models from Python packages: which are used, and that a conversion is whole or absent."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build, letters_tokenizer

from specresearch.models import packaged
from specresearch.models.loading import load_model, resolve
from specresearch.models.packaged import PACKAGES, Package, packaged_folder

MODEL, MODULE = "acme/letters", "letters_gguf_for_tests"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Install a stand-in for a package of weights; return the files that it was asked for.

    What reads GGUF files returns a tiny random model.
    """
    assembled: list[Path] = []
    module: Any = ModuleType(MODULE)

    def assemble(file: Path) -> None:
        assembled.append(file)
        file.write_bytes(b"GGUF")

    def read(folder: str, gguf_file: str, dtype: torch.dtype) -> tuple[Any, Any]:
        assert (Path(folder) / gguf_file).read_bytes() == b"GGUF"
        model: Any = build("llama", seed=3, dtype=torch.float32)
        return model.to(dtype), letters_tokenizer(VOCAB)

    module.assemble = assemble
    module.__spec__ = type(sys.__spec__)(MODULE, None)
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setitem(PACKAGES, MODEL, Package(MODULE, ("gguf", "letters-gguf")))
    monkeypatch.setattr(packaged, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(packaged, "load_gguf", read)
    return assembled


def test_the_weights_are_converted_once_and_load_as_a_plain_model(package: list[Path]) -> None:
    folder = packaged_folder(MODEL)
    assert folder is not None
    assert resolve(MODEL) == str(folder) == str(packaged_folder(MODEL))
    assert len(package) == 1
    loaded, tokenizer = load_model(MODEL, dtype="bfloat16")
    original: Any = build("llama", seed=3, dtype=torch.float32)
    original = original.to(torch.bfloat16)
    for name, value in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert tokenizer.get_vocab() == letters_tokenizer(VOCAB).get_vocab()


def test_an_interrupted_conversion_leaves_nothing(
    package: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packaged, "load_gguf", fail)
        with pytest.raises(KeyboardInterrupt):
            packaged_folder(MODEL)
    assert [path.suffix for path in packaged.CACHE.iterdir()] == [".lock"]
    assert packaged_folder(MODEL) is not None
    assert len(package) == 2


def test_the_hubs_own_copy_comes_first(
    package: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "try_to_load_from_cache", lambda *_: "/cache/config.json")
    assert packaged_folder(MODEL) is None
    assert package == []


def test_without_a_package_the_name_stays_the_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Package("no_such_module_anywhere", ("gguf", "letters-gguf"))
    monkeypatch.setitem(PACKAGES, MODEL, missing)
    assert packaged_folder(MODEL) is None
    assert packaged_folder("acme/other") is None
    assert resolve(MODEL) == MODEL
    assert missing.install_command == "pip install gguf letters-gguf"


def test_the_error_for_a_model_that_a_package_has_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PACKAGES, MODEL, Package("no_such_module_anywhere", ("letters-gguf",)))
    with pytest.raises(ValueError, match="pip install letters-gguf"):
        load_model(MODEL)
