"""`python -m specresearch.distill +proposer=draft_model objective=forward_kl`: train a drafter towards its target."""

import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from specresearch.cli import PACKAGE, check_keys, entry_point
from specresearch.cli.signals import INTERRUPTED
from specresearch.files import replace_text
from specresearch.files.jsonl import append_rows, read_jsonl, to_line
from specresearch.files.lock import lock_folder
from specresearch.models.head_writing import read_provenance
from specresearch.proposers import DraftModel, Proposer
from specresearch.results.fingerprint import DECODING, describe_software
from specresearch.results.folder import (
    CONFIG,
    PROVENANCE,
    RESULTS,
    check_software,
    differing_settings,
    read_config,
    write_json,
)
from specresearch.results.provenance import describe, describe_process, git_commit
from specresearch.trackers import NoTracker, Tracker
from specresearch.training.corpus import Corpus, Mix
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.examples import Examples
from specresearch.training.feature_cache import FeatureCache
from specresearch.training.joint import BACKBONE
from specresearch.training.memory import MemoryForecast, peak_bytes
from specresearch.training.students import Student
from specresearch.training.train_settings import TrainSettings
from specresearch.training.trainer import (
    DistillTrainer,
    TrainingStoppedError,
    check_writers,
    drop_torn_checkpoints,
    last_checkpoint,
)

logger = logging.getLogger(__name__)

TRAINABLE = ("draft_model", "medusa", "eagle", "eagle3")
VOCABULARY_EXAMPLES = 1000
METRICS, CORPUS = "metrics.jsonl", "corpus_fingerprint.txt"
MAY_CHANGE = ("resume", "force", "progress", "evaluation", "tracker", "output")
MAY_CHANGE += tuple(
    f"train.{name}" for name in ("log_every", "evaluate_every", "save_every", "keep_checkpoints")
)
PROCESS, NUM_PROCESSES = (
    int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
)


def main() -> None:
    entry_point(distill, "distill")


def distill(cfg: DictConfig) -> None:
    """One training run, into Hydra's output folder."""
    check_keys(cfg, "distill", "proposer", "draft", "draft_device", "heads")
    choices = HydraConfig.get().runtime.choices
    method, student = choices.get("proposer"), choices.get("student")
    if method not in TRAINABLE:
        raise ValueError(
            f"proposer={method} has nothing to train; choose one of {', '.join(TRAINABLE)}"
        )
    if student != method:
        raise ValueError(f"student={student} is not for proposer={method}; leave student= out")
    folder = Path(HydraConfig.get().runtime.output_dir)
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    settings = {str(key): value for key, value in config.items()}
    with lock_folder(folder) if PROCESS == 0 else nullcontext():
        if PROCESS == 0:
            open_folder(folder, settings)
        if NUM_PROCESSES > 1 and torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not (cfg.progress and sys.stderr.isatty()):
            disable_progress_bar()
        try:
            train(cfg, settings, folder)
        except KeyboardInterrupt:
            print(
                f"interrupted; this goes on from the last checkpoint:\n  {resume_command(folder)}"
            )
            sys.exit(INTERRUPTED)
        except TrainingStoppedError as error:
            raise ValueError(f"{error}; {_way_on(folder, cfg.train.learning_rate)}") from error


def _way_on(folder: Path, learning_rate: float) -> str:
    """What to do when weights are ruined."""
    checkpoint, remedy = last_checkpoint(folder), f"train.learning_rate={learning_rate / 10:g}"
    if checkpoint is None:
        return (
            f"nothing had been saved: start anew with a lower rate, such as {remedy}, or in float32"
        )
    command = f"{resume_command(folder)} {remedy} force=true"
    return f"{checkpoint.name} is from before that; go on from it with a lower rate:\n  {command}"


def open_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raises ValueError for a folder that holds another run, unless that is to be resumed with the same settings and code."""
    is_named = is_sweep() or any(
        key.startswith("hydra.run.dir=") for key in HydraConfig.get().overrides.hydra
    )
    if NUM_PROCESSES > 1 and not is_named:
        raise ValueError(
            f"{NUM_PROCESSES} processes need one folder between them: add hydra.run.dir=<folder>"
        )
    is_resumed, has_begun = settings["resume"], (folder / METRICS).exists()
    if is_resumed and not is_named:
        raise ValueError(
            "resume=true needs the folder of the run to continue: add hydra.run.dir=<folder>"
        )
    if is_resumed and not is_sweep() and not (folder / CONFIG).exists():
        raise ValueError(f"{folder} holds no run to resume; set hydra.run.dir to one that does")
    if has_begun and not is_resumed:
        raise ValueError(
            f"{folder} holds a run already; add resume=true to go on with it, or choose another folder"
        )
    software = describe_software((*DECODING, "training"))
    if has_begun and not settings["force"]:
        _check_unchanged(folder, settings)
        check_software(folder, software, "go on with this by force=true")
    output = settings["output"] and Path(settings["output"])
    if output and not is_resumed and output.exists() and any(output.iterdir()):
        raise ValueError(f"output={output} is not empty; choose another folder")
    replace_text(folder / CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(settings))))
    write_json(folder / PROVENANCE, software | {"git_commit": git_commit(PACKAGE)})


def _check_unchanged(folder: Path, settings: Mapping[str, Any]) -> None:
    changed = [
        f"{key} was {before!r} and is now {now!r}"
        for key, before, now in differing_settings(read_config(folder), settings, MAY_CHANGE)
    ]
    if changed:
        raise ValueError(
            f"{folder} was started with other settings: {'; '.join(changed)}; use the same, or go on with these by force=true"
        )


def train(cfg: DictConfig, config: Mapping[str, Any], folder: Path) -> None:
    """Everything the configuration names, constructed and run. What may be refused is refused before a model writes text."""
    choices = HydraConfig.get().runtime.choices
    settings: TrainSettings = instantiate(cfg.train)
    tracker: Tracker = instantiate(cfg.tracker, _convert_="all") if PROCESS == 0 else NoTracker()
    objective = instantiate(cfg.objective)
    corpus: Corpus = instantiate(cfg.corpus, _convert_="all")
    check_writers(corpus.draft > 0, NUM_PROCESSES)
    if cfg.cache is not None:
        check_cache(cfg.cache, corpus, config["student"])
    dataset = instantiate(cfg.dataset, _convert_="all")
    if dataset.source.kind == "sample" and corpus.text < 1:
        logger.warning(
            "training on the sample, which specresearch.run measures on as well; name other rows by dataset.path="
        )
    target = instantiate(cfg.target, _convert_="all")
    proposer: Proposer = instantiate(cfg.proposer, _convert_="all")
    draft = proposer.draft if isinstance(proposer, DraftModel) else None
    per_step = settings.batch_size * settings.accumulate * NUM_PROCESSES

    @cache
    def mix() -> Mix:
        return corpus.mix(target, dataset, folder, draft=draft, examples_per_step=per_step)

    examples = (mix()[i] for i in range(VOCABULARY_EXAMPLES))
    student: Student = instantiate(cfg.student, _partial_=True, _convert_="all")(
        proposer, target, examples
    )
    distillation = Distillation(student, target, objective, precision=settings.precision)
    forecast = MemoryForecast.of(
        distillation, settings.batch_size, min(corpus.max_len, target.max_len)
    ).check(target.device)
    texts = corpus.heldout(target, dataset, folder, num_rows=cfg.evaluation.num_texts)
    evaluation = Evaluation(
        target,
        list(texts),
        text_temperature=corpus.generation.temperature,
        **{key: value for key, value in config["evaluation"].items() if key != "num_texts"},
    )
    provenance = {
        **describe(target, [dataset], settings.seed),
        **describe_process(("-m", "specresearch.distill"), target.device),
        "num_processes": NUM_PROCESSES,
        "method": choices["proposer"],
        "objective": {"name": choices["objective"], **_told(config["objective"])},
        "corpus": {
            "name": choices["corpus"],
            "fingerprint": mix().fingerprint,
            **_told(config["corpus"], "folder"),
        },
        "student": _told(config["student"]),
        "train": _told(config["train"]),
        "begun_from": begun_from(config),
        "decodes_with": "the target" if student.verifier is None else BACKBONE,
    }
    features = None
    if cfg.cache is not None:
        examples, place = (
            Examples(mix().first(settings.steps * per_step)),
            Path(cfg.cache).expanduser(),
        )
        features = FeatureCache(
            target, distillation.layers, examples, place, batch_size=settings.batch_size
        )
    history = History(folder / METRICS, tracker)
    trainer = DistillTrainer(
        distillation,
        mix(),
        settings,
        folder,
        log=history,
        evaluation=evaluation,
        features=features,
        shows_progress=cfg.progress,
    )
    checkpoint = last_checkpoint(folder) if cfg.resume else None
    if PROCESS == 0:
        drop_torn_checkpoints(folder)
        print(forecast, file=sys.stderr)
        check_corpus(
            folder, mix().fingerprint, is_resumed=checkpoint is not None, is_forced=cfg.force
        )
        history.open(0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2]))
    tracker.start(config, folder)
    files = [folder / METRICS]
    try:
        trainer.run(checkpoint)
        if PROCESS == 0:
            place = Path(cfg.output) if cfg.output else _from_here(folder) / "student"
            with distillation.as_decoded():
                student.save(str(place), provenance | {"figures": history.last})
            results = {"first": history.first, "last": history.last, "provenance": provenance}
            replace_text(folder / RESULTS, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            files += [folder / RESULTS, *sorted(place.iterdir())]
            print_report(
                history,
                place,
                peak_bytes(target.device),
                None if student.verifier is None else target.name,
            )
    finally:
        tracker.finish(history.last, files)


def _told(section: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    """Settings without the names of classes."""
    inner = {
        key: _told(value) if isinstance(value, Mapping) else value for key, value in section.items()
    }
    return {key: value for key, value in inner.items() if key not in ("_target_", *left_out)}


def begun_from(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The drafter whose weights training went on from, and how those were trained if that was here; None: from random ones."""
    proposer = config["proposer"]
    name = config.get("draft") if "draft" in proposer else proposer.get("head")
    if name is None or config["student"].get("from_scratch"):
        return None
    return {"checkpoint": str(name), "provenance": read_provenance(str(name))}


def check_corpus(folder: Path, fingerprint: str, *, is_resumed: bool, is_forced: bool) -> None:
    """Note what is trained on. Raises ValueError where a run that goes on began with something else."""
    file = folder / CORPUS
    before = (
        file.read_text(encoding="utf-8").strip() if is_resumed and file.exists() else fingerprint
    )
    if before != fingerprint and not is_forced:
        raise ValueError(
            f"the text has changed since {folder} was started (its fingerprint was {before} and is now {fingerprint}), although "
            "the settings are the same: give it the files it had, or go on with these by force=true"
        )
    replace_text(file, fingerprint + "\n")


def check_cache(place: str, corpus: Corpus, student: Mapping[str, Any]) -> None:
    """Raises ValueError where the states that a student reads cannot be computed before it learns."""
    if corpus.draft:
        raise ValueError(
            f"text of the student (corpus.draft={corpus.draft}) is written while it learns, so cache={place} cannot hold it; "
            "set corpus.draft=0, or cache=null"
        )
    if student.get("joint") is not None:
        raise ValueError(
            f"with student.joint the states change while training, so cache={place} cannot hold them; set cache=null"
        )


def _from_here(folder: Path) -> Path:
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


class History:
    """Every figure as one line of a file, and in the tracker. first, last: figures of evaluations."""

    def __init__(self, file: Path, tracker: Tracker) -> None:
        self.file, self.tracker = file, tracker
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}

    def open(self, step: int) -> None:
        """Drop what was logged after `step`, from where the run goes on; at 0, all."""
        rows = [row for row in read_jsonl(self.file) if step and row["step"] <= step]
        replace_text(self.file, "".join(map(to_line, rows)))
        for row in rows:
            self._keep({key: value for key, value in row.items() if key != "step"})

    def __call__(self, step: int, values: Mapping[str, Any]) -> None:
        append_rows(self.file, [{"step": step, **values}])
        self.tracker.log(step, values)
        self._keep(values)

    def _keep(self, values: Mapping[str, Any]) -> None:
        figures = {key: value for key, value in values.items() if isinstance(value, float)}
        if any(key.startswith("predicted/") for key in figures):
            self.first = self.first or figures
            self.last = figures


def is_sweep() -> bool:
    return HydraConfig.get().mode == RunMode.MULTIRUN


def resume_command(folder: Path) -> str:
    key, place = ("hydra.sweep.dir", folder.parent) if is_sweep() else ("hydra.run.dir", folder)
    kept = [
        argument
        for argument in sys.argv[1:]
        if argument.split("=")[0] not in ("resume", "force", key)
    ]
    return shlex.join(
        ["python", "-m", "specresearch.distill", *kept, f"{key}={place}", "resume=true"]
    )


def print_report(history: History, place: Path, peak: int, former_target: str | None) -> None:
    """former_target: the name of the target, where training has made another of it."""
    table = Table("held-out prompts", "before", "after")
    for key, value in history.last.items():
        before = history.first.get(key)
        table.add_row(key, "-" if before is None else f"{before:.3f}", f"{value:.3f}")
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"peak memory {peak / 1e9:.2f} GB; the trained drafter is in {place}")
    if former_target is not None:
        console.print(
            f"it belongs to a target of its own, with which all of this was decoded and whose outputs are no longer those of "
            f"{former_target}: use it with target=local target.model={place / BACKBONE}, whose own plain decoding is its baseline"
        )


if __name__ == "__main__":
    main()
