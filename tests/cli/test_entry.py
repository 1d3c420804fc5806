"""conf/ is found, and every choice in it composes and names objects that exist."""

import importlib
import inspect
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from command_line import BuildLoad
from hydra.utils import get_class, get_method, get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM
from specresearch.cli import conf_dir
from specresearch.cli.choices import EXPERIMENT, choices, commands_with
from specresearch.cli.errors import explain, one_line
from specresearch.models import loading
from specresearch.settings.check import SettingsError, check_settings, plain
from specresearch.settings.commands import SCHEMAS, schema_of
from specresearch.statistics import LEAST_UNITS

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
DEFAULT_GROUPS = {"target", "dataset", "acceptance", "controller", "scheduler", "tracker"}
EXPERIMENTS = sorted(path.stem for path in CONF.glob("experiment/*.yaml"))
LOAD_EXPERIMENTS = [
    name
    for name in EXPERIMENTS
    if "specresearch.load" in (CONF / "experiment" / f"{name}.yaml").read_text()
]
METHODS = ("ngram", "draft_model")
LIKE_MODELS = pytest.mark.filterwarnings("ignore:the target is:UserWarning")
VALUES_ONLY = ("experiment", "strength")  # groups whose choices build nothing
CHOICES = sorted(
    (p.parent.name, p.stem) for p in CONF.glob("*/*.yaml") if p.parent.name not in VALUES_ONLY
)


@pytest.fixture
def compose() -> Iterator[Callable[..., DictConfig]]:
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield lambda *overrides: hydra.compose("run", list(overrides))


def parameters(function: Callable[..., Any]) -> set[str]:
    return {
        name
        for name, p in inspect.signature(function).parameters.items()
        if p.kind != p.VAR_KEYWORD
    }


def test_a_checkout_and_an_editable_install_have_conf_beside_the_package() -> None:
    assert conf_dir() == CONF


def test_an_installed_wheel_has_conf_inside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "specresearch"
    (package / "conf").mkdir(parents=True)
    (package / "conf" / "run.yaml").touch()
    assert conf_dir(package) == package / "conf"


def test_a_built_wheel_carries_every_file_of_conf(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site-packages")
    folder = conf_dir(tmp_path / "site-packages" / "specresearch")
    assert {p.relative_to(folder) for p in folder.rglob("*.yaml")} == {
        p.relative_to(CONF) for p in CONF.rglob("*.yaml")
    }


def test_the_error_for_a_missing_conf_names_the_searched_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/conf"):
        conf_dir(tmp_path)


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes_and_its_parts_exist(
    compose: Callable[..., DictConfig], group: str, choice: str
) -> None:
    cfg = compose(f"{'' if group in DEFAULT_GROUPS else '+'}{group}={choice}")
    part = cfg[group]
    if group not in (*DEFAULT_GROUPS, "proposer"):  # of another entry point
        assert {str(key) for key in part} - {"_target_"} <= parameters(get_object(part._target_))
        return
    if group == "target":
        assert get_method(part._target_).__self__.__name__ == "CausalLM"
        accepted = parameters(get_method(part._target_)) | parameters(loading.load_model)
        assert {str(key) for key in part} - {"_target_"} <= accepted
        assert OmegaConf.is_missing(part, "model") == (choice == "local")
        assert (cfg.draft is None) == (choice in ("local", "gemma3_270m"))
        return
    if group == "proposer" and "draft" in part:
        parts = (get_method(part.draft._target_), CausalLM.from_pretrained, loading.load_model)
        accepted = set[str]().union(*map(parameters, parts))
        assert {str(key) for key in part.draft} - {"_target_"} <= accepted
        assert part.draft.model == cfg.draft
        draft = CausalLM(build("llama"), letters_tokenizer())
        settings = {key: value for key, value in part.items() if key not in ("_target_", "draft")}
        assert get_class(part._target_)(draft, **settings).draft is draft
        return
    built = instantiate(
        part, _convert_="all", **({"source": "sample"} if group == "dataset" else {})
    )
    module, _, name = part._target_.rpartition(".")
    assert isinstance(built, getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_sweep_over_settings_that_exist(name: str) -> None:
    program = "load" if name in LOAD_EXPERIMENTS else "run"
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = hydra.compose(program, [f"+experiment={name}"], return_hydra_config=True)
        chosen = hydra.compose(program, [f"+experiment={name}", "proposer=draft_model"])
    assert cfg.hydra.mode.name == "MULTIRUN"
    assert cfg.hydra.sweeper.params
    for key in cfg.hydra.sweeper.params:
        assert OmegaConf.select(cfg, str(key), default="missing") != "missing"
    check_settings(plain(chosen), schema_of(program))
    assert chosen.proposer._target_ == "specresearch.proposers.DraftModel"


@pytest.mark.parametrize("command", SCHEMAS)
def test_offered_choices_compose_and_are_accepted(command: str) -> None:
    schema = schema_of(command)
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for name in choices(EXPERIMENT, schema):
            check_settings(plain(hydra.compose(command, [f"+experiment={name}"])), schema)
    assert all(command in commands_with(name) for name in choices(EXPERIMENT, schema))


def test_every_experiment_is_offered_by_the_command_that_it_names() -> None:
    assert set(choices(EXPERIMENT, schema_of("load"))) >= set(LOAD_EXPERIMENTS)
    others = set(EXPERIMENTS) - set(LOAD_EXPERIMENTS)
    assert set(choices(EXPERIMENT, schema_of("run"))) == others
    assert choices(EXPERIMENT, schema_of("simulate")) == []


def test_arrivals_of_recordings_are_offered_by_simulate_only() -> None:
    assert "recorded" in choices("arrivals", schema_of("simulate"))
    assert "recorded" not in choices("arrivals", schema_of("load"))


@LIKE_MODELS
@pytest.mark.parametrize("proposer", METHODS)
@pytest.mark.parametrize("name", LOAD_EXPERIMENTS)
def test_every_load_experiment_is_accepted_and_has_enough_samples(
    build_load: BuildLoad, name: str, proposer: str
) -> None:
    runner = build_load([f"+experiment={name}", f"proposer={proposer}"])
    settings = runner.settings
    assert set(runner.engines) == {
        "baseline",
        "method",
        *(f"fixed-{length}" for length in settings.compare),
    }
    if runner.arrivals.concurrency is None:
        assert runner.num_requests > settings.max_running + settings.max_waiting
    if len(runner.classes) > 1:
        assert runner.num_requests >= 200


@LIKE_MODELS
@pytest.mark.parametrize("proposer", METHODS)
def test_the_grid_of_the_load_study_is_accepted(
    build_load: BuildLoad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proposer: str
) -> None:
    """Run its script with a `python` that records its arguments."""
    recorded, stub = tmp_path / "told", tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\necho "$@" >> {recorded}\n')
    stub.chmod(0o755)
    for name, value in {
        "PATH": f"{stub.parent}:{os.environ['PATH']}",
        "CNNDM": "",
        "SHAREGPT": "",
    }.items():
        monkeypatch.setenv(name, value)
    subprocess.run(["bash", str(ROOT / "experiments" / "load" / "run.sh")], check=True)
    cells = [
        line.split() for line in recorded.read_text().splitlines() if "specresearch.load" in line
    ]
    assert len(cells) == 10
    for words in cells:
        load_calls = [
            word
            for word in words[3:]
            if not word.startswith(("hydra.", "dataset.path=", "+proposer=", "sampling.temp"))
        ]
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            hydra.compose(
                "load", load_calls
            )  # as Hydra does before it starts a sweep over proposers
        runner = build_load([*load_calls, f"+proposer={proposer}"])
        assert "bounded" in runner.engines
        assert runner.num_requests - 2 * (runner.arrivals.concurrency or 0) >= 32


def test_the_largest_batch_of_the_ready_sweep_leaves_enough_groups_for_an_interval() -> None:
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = hydra.compose("run", ["+experiment=batch_size"], return_hydra_config=True)
    largest = max(int(size) for size in cfg.hydra.sweeper.params.batch_size.split(","))
    assert cfg.num_prompts // largest >= LEAST_UNITS


def test_the_defaults_have_no_proposer(compose: Callable[..., DictConfig]) -> None:
    cfg = compose()
    assert "proposer" not in cfg
    assert cfg.target.model == "zoo:tiny"
    assert instantiate(cfg.sampling, _convert_="all").is_greedy


def test_a_target_and_its_draft_share_device_and_dtype(compose: Callable[..., DictConfig]) -> None:
    cfg = compose(
        "+proposer=draft_model", "target=vicuna_7b", "target.device=cpu", "target.dtype=float64"
    )
    draft = cfg.proposer.draft
    assert (draft.model, draft.device, draft.dtype, draft.allow_pickle) == (
        "double7/vicuna-68m",
        "cpu",
        "float64",
        True,
    )


def test_target_and_draft_name_gguf_files_of_their_own(compose: Callable[..., DictConfig]) -> None:
    for proposer in ("draft_model", "cascade"):
        cfg = compose(
            f"+proposer={proposer}", "target.gguf_file=large.gguf", "draft_gguf_file=small.gguf"
        )
        drafter = cfg.proposer if proposer == "draft_model" else cfg.proposer.proposers[1]
        assert (cfg.target.gguf_file, drafter.draft.gguf_file) == ("large.gguf", "small.gguf")


def test_errors_become_one_line(compose: Callable[..., DictConfig]) -> None:
    with pytest.raises(Exception, match="dataset") as unknown:
        compose("dataset=nope")
    run = schema_of("run")
    known = "there is no dataset=nope; there are: cnndm, gsm8k"
    assert explain(unknown.value, run).startswith(known)
    with pytest.raises(Exception, match="dataset") as similar:
        compose("dataset=cnn")
    assert explain(similar.value, run) == "there is no dataset=cnn; did you mean cnndm?"
    with pytest.raises(Exception, match="n_min") as bad:
        instantiate(compose("+proposer=ngram", "proposer.n_min=9").proposer)
    assert one_line(bad.value) == "proposer.n_min=9, n_max=4: need 1 <= n_min <= n_max"
    with pytest.raises(Exception, match="foo") as error:
        instantiate(compose("+proposer=ngram", "+proposer.foo=9").proposer)
    assert "unexpected keyword argument 'foo'" in one_line(error.value)
    with pytest.raises(MissingMandatoryValue) as missing:
        _ = compose("target=local").target.model
    assert one_line(missing.value) == "target.model is not set; add target.model=..."
    assert one_line(ValueError()) == "ValueError"


def test_the_error_for_a_key_of_a_swept_group_suggests_two_plus_signs(
    compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match="n_min") as unknown:
        compose("proposer.n_min=2")
    run = schema_of("run")
    assert (
        explain(unknown.value, run)
        == "there is no setting proposer.n_min yet; add +proposer= first, one of: ngram"
    )
    monkeypatch.setattr("sys.argv", ["run", "-m", "+proposer=ngram,suffix", "proposer.n_min=2"])
    assert "belongs to a proposer of which a sweep has several; write ++proposer.n_min=" in explain(
        unknown.value, run
    )


def test_unknown_top_level_keys_are_rejected(compose: Callable[..., DictConfig]) -> None:
    with pytest.raises(SettingsError, match=r"no setting num_promts; did you mean num_prompts\?"):
        check_settings(plain(compose("+num_promts=3")), schema_of("run"))
