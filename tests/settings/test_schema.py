"""Every choice in conf/ has a schema that knows its keys, allows its values and is the code's."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from specresearch.cli import conf_dir
from specresearch.models.loading import load_model
from specresearch.settings.base import TARGET, Choice, Settings
from specresearch.settings.check import SettingsError, check_settings, plain
from specresearch.settings.commands import SCHEMAS, schema_of
from specresearch.settings.data import DATASET, TRACKER
from specresearch.settings.decoding import ACCEPTANCE, CONTROLLER, SAMPLING, SCHEDULER
from specresearch.settings.drafting import MODEL, PROPOSER
from specresearch.settings.fields import choice_of, model_of
from specresearch.settings.measuring import ARRIVALS, TIMING
from specresearch.settings.sentences import allowed
from specresearch.settings.training import CORPUS, OBJECTIVE, STUDENT

CONF = conf_dir()
GROUPS: dict[str, Choice] = {
    "acceptance": ACCEPTANCE,
    "arrivals": ARRIVALS,
    "controller": CONTROLLER,
    "corpus": CORPUS,
    "dataset": DATASET,
    "objective": OBJECTIVE,
    "proposer": PROPOSER,
    "scheduler": SCHEDULER,
    "student": STUDENT,
    "timing": TIMING,
    "tracker": TRACKER,
}
NEEDED = {  # what a command wants set before it composes completely
    "simulate": ["recording=rec"],
    "tree": ["run=out"],
    "export": ["head=h", "format=eagle", "output=o"],
    "distill": ["+proposer=draft_model"],
    "plan": ["gpu=2xh100"],
}
COMMAND_OF = {"arrivals": "load", "timing": "simulate"}
TRAINED = ("corpus", "objective", "student")
CHOICES = [(group, file.stem) for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]


def compose(command: str, *overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(command, [*NEEDED.get(command, []), *overrides])


def fill(node: Any) -> None:
    """Give keys without a default a value that their schema allows."""
    for key in list(node) if isinstance(node, DictConfig) else ():
        if OmegaConf.is_missing(node, key):
            node[key] = "text" if key in ("path", "model") else 1.0
        elif isinstance(node._get_node(key), DictConfig):
            fill(node[key])


@pytest.mark.parametrize("command", SCHEMAS)
def test_defaults_are_allowed(command: str) -> None:
    check_settings(plain(compose(command)), schema_of(command))


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_is_allowed(group: str, choice: str) -> None:
    command = "distill" if group in TRAINED else COMMAND_OF.get(group, "run")
    if choice == "recorded":
        command = "simulate"
    overrides = [f"{group}={choice}"]
    if (group, choice) == ("corpus", "text"):
        overrides.append("corpus.text_files=[books.txt]")
    if group == "student" or group == "proposer":
        overrides = [f"+proposer={choice}"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        given = [] if group == "student" else NEEDED.get(command, [])
        cfg = hydra.compose(command, [*given, *overrides])
    fill(cfg)
    check_settings(plain(cfg), schema_of(command))


@pytest.mark.parametrize("target", sorted(file.stem for file in (CONF / "target").glob("*.yaml")))
def test_every_target_is_allowed(target: str) -> None:
    overrides = ["target.model=folder"] if target == "local" else []
    check_settings(plain(compose("run", f"target={target}", *overrides)), schema_of("run"))


@pytest.mark.parametrize("command", SCHEMAS)
def test_every_key_of_a_command_has_a_default_or_may_be_absent(command: str) -> None:
    values = plain(compose(command))
    for name, field in schema_of(command).model_fields.items():
        assert name in values or not field.is_required(), name


def models() -> Iterator[tuple[str, type[Settings]]]:
    for choice in (*GROUPS.values(), MODEL, SAMPLING):
        yield from choice.models.items()


@pytest.mark.parametrize(("path", "model"), list(models()))
def test_a_schema_has_the_parameters_of_its_class(path: str, model: type[Settings]) -> None:
    target: Callable[..., Any] = get_object(path)
    functions = [target, load_model] if path.endswith("from_pretrained") else [target]
    parameters: dict[str, inspect.Parameter] = {}
    for function in functions:
        parameters |= inspect.signature(function).parameters
    missing = set(model.model_fields) - set(parameters)
    assert not missing


def fields_of(schema: type[Settings]) -> Iterator[tuple[str, type[Settings]]]:
    for name, field in schema.model_fields.items():
        yield f"{schema.__name__}.{name}", schema
        model = model_of(field)
        if model is not None:
            yield from fields_of(model)


ALL_SCHEMAS = {schema_of(command) for command in SCHEMAS} | {model for _, model in models()}
FIELDS = dict(item for schema in ALL_SCHEMAS for item in fields_of(schema))


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_key_is_explained_with_an_example_that_is_allowed(name: str) -> None:
    schema, key = FIELDS[name], name.rpartition(".")[2]
    field = schema.model_fields[key]
    assert field.description
    assert allowed(field)
    example = (field.examples or [None])[0]
    if choice_of(field) is None and model_of(field) is None and example is not None:
        schema.model_validate({**_example_of(schema), key: example})


def _example_of(schema: type[Settings]) -> Mapping[str, Any]:
    values = {}
    for name, field in schema.model_fields.items():
        if field.is_required():
            model = model_of(field)
            values[name] = _example_of(model) if model else (field.examples or [None])[0]
    return values


@pytest.mark.parametrize("name", ["NGram", "Suffix", "Medusa", "Eagle3", "Lookahead"])
def test_a_class_named_by_target_needs_no_key_that_it_has_a_default_for(name: str) -> None:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("run", [f"+proposer.{TARGET}=specresearch.proposers.{name}"])
    check_settings(plain(cfg), schema_of("run"))


def test_a_class_named_by_target_needs_keys_without_a_default() -> None:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        linear = [f"timing.{TARGET}=specresearch.simulation.Linear", "~timing.noise"]
        cfg = hydra.compose("simulate", ["recording=rec", *linear, "~timing.recordings"])
    with pytest.raises(SettingsError, match=r"^timing\.verify is not set; add [^;]*$"):
        check_settings(plain(cfg), schema_of("simulate"))


def test_conf_is_where_the_groups_are() -> None:
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert folders == {*GROUPS, "experiment", "strength", "target"}
    assert isinstance(CONF, Path)
    assert all(TARGET not in model.model_fields for model in ALL_SCHEMAS)
