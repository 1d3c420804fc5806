"""The images are built from what they are given, and run the command as an ordinary user."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(file: Path, name: str) -> list[str]:
    lines = file.read_text().splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def test_the_builder_gets_what_pip_needs() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    passed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    project, wheel = PROJECT["project"], PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    assert needed | {*wheel["packages"], *wheel["force-include"]} == passed


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_images_run_the_command_as_an_ordinary_user(file: Path) -> None:
    (entrypoint,) = instructions(file, "ENTRYPOINT")
    assert entrypoint == '["specresearch"]'
    assert "specresearch" in PROJECT["project"]["scripts"]
    assert instructions(file, "USER") == ["specresearch"]
    assert instructions(file, "ENV")[-1] == "HF_HOME=/cache"
    assert instructions(file, "VOLUME") == ["/cache"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_images_have_a_torch_that_the_project_allows(file: Path) -> None:
    (version,) = [a.partition("=")[2] for a in instructions(file, "ARG") if a.startswith("TORCH=")]
    requirements = map(Requirement, PROJECT["project"]["dependencies"])
    (torch,) = [requirement for requirement in requirements if requirement.name == "torch"]
    assert version in torch.specifier
