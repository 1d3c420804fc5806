"""The promised names exist, and every public class name has one meaning."""

import ast
from collections import defaultdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import specresearch

ROOT = Path(specresearch.__file__).parent
PROMISED = ("acceptance", "controllers", "engine", "proposers")


@pytest.mark.parametrize("name", ["specresearch", *(f"specresearch.{room}" for room in PROMISED)])
def test_promised_names_exist(name: str) -> None:
    module = import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for promised in module.__all__:
        assert hasattr(module, promised), promised


def test_the_version_is_that_of_the_installed_package() -> None:
    assert specresearch.__version__ == version("specresearch")


def test_no_two_public_classes_share_a_name() -> None:
    files = defaultdict(list)
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(file.relative_to(ROOT)))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}
