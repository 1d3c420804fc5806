"""One training run, from its configuration to the saved student."""

import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from specresearch.files import replace_text
from specresearch.models.head_writing import read_provenance
from specresearch.models.memory import peak_bytes
from specresearch.proposers import DraftModel, Proposer
from specresearch.results.folder import RESULTS
from specresearch.results.provenance import describe, describe_process
from specresearch.trackers import NoTracker, Tracker
from specresearch.training.checkpoints import (
    checkpoint_step,
    delete_incomplete_checkpoints,
    last_checkpoint,
)
from specresearch.training.corpus import Corpus, Mix
from specresearch.training.corpus.examples import Examples
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.feature_cache import FeatureCache
from specresearch.training.history import History
from specresearch.training.memory_forecast import MemoryForecast
from specresearch.training.mix_dataset import check_single_writer
from specresearch.training.publishing import Publication
from specresearch.training.run_folder import METRICS, Processes, TrainFolder
from specresearch.training.students import Student
from specresearch.training.students.base import BACKBONE
from specresearch.training.train_settings import TrainSettings
from specresearch.training.trainer import DistillTrainer

logger = logging.getLogger(__name__)

LAYER_SKIP = "layer_skip"  # drafts with the trained target alone
TRAINABLE = ("draft_model", "medusa", "eagle", "eagle3", LAYER_SKIP)
VOCABULARY_EXAMPLES = 1000


class TrainingRun:
    """Everything a configuration names, constructed and validated before any text is generated.

    Args:
        settings: The resolved configuration.
        choices: The name chosen in each config group.

    Raises:
        ValueError: If settings contradict each other, or if the training will not fit in memory.
    """

    def __init__(
        self,
        cfg: DictConfig,
        settings: Mapping[str, Any],
        choices: Mapping[str, str],
        folder: TrainFolder,
        processes: Processes,
    ) -> None:
        self.cfg = cfg
        self.settings = settings
        self.choices = choices
        self.folder = folder
        self.processes = processes
        self.train: TrainSettings = instantiate(cfg.train)
        self.examples_per_step = self.train.batch_size * self.train.accumulate * processes.count
        self.tracker: Tracker = NoTracker()
        self.publication = Publication(cfg.push_to_hub, private=cfg.private, license=cfg.license)
        if processes.rank == 0:
            self.publication.check(is_sweep=folder.is_sweep)
            self.tracker = instantiate(cfg.tracker, _convert_="all")
        objective = instantiate(cfg.objective)
        self.corpus: Corpus = instantiate(cfg.corpus, _convert_="all")
        check_single_writer(self.corpus.draft > 0, processes.count)
        if cfg.cache is not None:
            _check_cacheable(cfg.cache, self.corpus, settings["student"])
        self.dataset = instantiate(cfg.dataset, _convert_="all")
        if self.dataset.source.kind == "sample" and self.corpus.text < 1:
            logger.warning(
                "training on the sample, which specresearch.run measures on as well; "
                "name other rows by dataset.path="
            )
        self.target = instantiate(cfg.target, _convert_="all")
        self.proposer: Proposer = instantiate(cfg.proposer, _convert_="all")
        # A generator, so that only a reduced vocabulary builds the mix before the other checks.
        examples = (self.mix[i] for i in range(VOCABULARY_EXAMPLES))
        build_student = instantiate(cfg.student, _partial_=True, _convert_="all")
        self.student: Student = build_student(self.proposer, self.target, examples)
        self.distillation = Distillation(
            self.student, self.target, objective, precision=self.train.precision
        )
        max_len = min(self.corpus.max_len, self.target.max_len)
        forecast = MemoryForecast.measure(self.distillation, self.train.batch_size, max_len)
        self.memory_summary = forecast.check(self.target.device)

    @cached_property
    def mix(self) -> Mix:
        draft = self.proposer.draft if type(self.proposer) is DraftModel else None
        return self.corpus.mix(
            self.target,
            self.dataset,
            self.folder.path,
            draft=draft,
            examples_per_step=self.examples_per_step,
        )

    def run(self) -> None:
        """Train, evaluate and save the student; resume if the configuration says so."""
        evaluation = self._evaluation()
        provenance = self._provenance()
        history = History(self.folder.path / METRICS, self.tracker)
        trainer = DistillTrainer(
            self.distillation,
            self.mix,
            self.train,
            self.folder.path,
            log=history,
            evaluation=evaluation,
            features=self._features(),
            shows_progress=self.cfg.progress,
        )
        checkpoint = last_checkpoint(self.folder.path) if self.cfg.resume else None
        is_main = self.processes.rank == 0
        if is_main:
            self._prepare_folder(history, checkpoint)
        self.tracker.start(self.settings, self.folder.path)
        files = [history.file]
        try:
            trainer.run(checkpoint)
            if is_main:
                files += self._save(history, provenance)
        finally:
            self.tracker.finish(history.last, files)

    def _evaluation(self) -> Evaluation:
        settings = dict(self.settings["evaluation"])
        num_texts = settings.pop("num_texts")
        texts = self.corpus.heldout(self.target, self.dataset, self.folder.path, num_rows=num_texts)
        temperature = self.corpus.generation.temperature
        return Evaluation(self.target, list(texts), text_temperature=temperature, **settings)

    def _features(self) -> FeatureCache | None:
        if self.cfg.cache is None:
            return None
        return FeatureCache(
            self.target,
            self.distillation.layers,
            Examples(self.mix.first(self.train.steps * self.examples_per_step)),
            Path(self.cfg.cache).expanduser(),
            reduced=None if self.student.target_ids is None else self.distillation.objective,
            batch_size=self.train.batch_size,
        )

    def _prepare_folder(self, history: History, checkpoint: Path | None) -> None:
        delete_incomplete_checkpoints(self.folder.path)
        print(self.memory_summary, file=sys.stderr)
        self.folder.check_corpus(
            self.mix.fingerprint, is_resumed=checkpoint is not None, is_forced=self.cfg.force
        )
        history.open(0 if checkpoint is None else checkpoint_step(checkpoint))

    def _save(self, history: History, provenance: Mapping[str, Any]) -> list[Path]:
        """Write student and results, print a report, and return the files."""
        output = Path(self.cfg.output or self.folder.path / "student")
        if not self.cfg.output and output.is_relative_to(Path.cwd()):
            output = output.relative_to(Path.cwd())
        record = {**provenance, "figures": history.last}
        with self.distillation.decoding_mode():
            self.student.save(str(output), record)
        results = {"first": history.first, "last": history.last, "provenance": provenance}
        results_file = self.folder.path / RESULTS
        replace_text(results_file, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        console = Console(soft_wrap=True)
        console.print(history.table())
        peak = peak_bytes(self.target.device) / 1e9
        console.print(f"{self._rows()}; peak memory {peak:.2f} GB")
        console.print(f"the trained drafter is in {output}; try it with:")
        backbone = None if self.student.verifier is None else output / BACKBONE
        overrides = HydraConfig.get().overrides.task
        console.print(
            f"  {measuring_command(overrides, self.choices['proposer'], output, backbone)}"
        )
        if self.dataset.source.kind in ("file", "sample") and self.corpus.text < 1:
            console.print(
                "this decodes prompts that it was trained on; name others by dataset.path= to see "
                "what it gains on new ones"
            )
        if self.student.verifier is not None:
            console.print(
                "it belongs to a new target, which did all decoding above and whose outputs are no "
                f"longer those of {self.target.name}; its baseline is that target's plain decoding"
            )
        url = self.publication.publish(output, self.choices["proposer"], self.target.name, record)
        if url is not None:
            console.print(f"it is published at {url}")
        return [results_file, *sorted(output.iterdir())]

    def _rows(self) -> str:
        """Return how many rows of the dataset were trained on and held out."""
        num_examples = self.train.steps * self.examples_per_step
        trained = f"trained on {num_examples:,} examples"
        num_train, num_heldout = self.corpus.num_rows(self.dataset)
        if self.corpus.text < 1:
            trained += f" from {num_train:,} rows"
        num_used = min(num_heldout, self.settings["evaluation"]["num_texts"])
        return f"{trained}; {num_heldout:,} rows were held out, and {num_used:,} of them evaluated"

    def _provenance(self) -> dict[str, Any]:
        settings, choices = self.settings, self.choices
        corpus = {key: value for key, value in settings["corpus"].items() if key != "folder"}
        return {
            **describe(self.target, [self.dataset], self.train.seed),
            **describe_process(("-m", "specresearch.distill"), self.target.device),
            "num_processes": self.processes.count,
            "method": choices["proposer"],
            "objective": {
                "name": choices["objective"],
                **_without_targets(settings["objective"]),
            },
            "corpus": {
                "name": choices["corpus"],
                "fingerprint": self.mix.fingerprint,
                **_without_targets(corpus),
            },
            "student": _without_targets(settings["student"]),
            "train": _without_targets(settings["train"]),
            "begun_from": initial_checkpoint(settings),
            "decodes_with": "the target" if self.student.verifier is None else BACKBONE,
        }


def measuring_command(
    overrides: Sequence[str], method: str, output: Path, backbone: Path | None = None
) -> str:
    """Return the command that measures a trained drafter with its target and dataset.

    Args:
        overrides: What the training was given.
        backbone: The target that was trained with the drafter.
    """
    kept = []
    for override in overrides:
        name, _, _ = override.lstrip("+").partition("=")
        group, _, key = name.partition(".")
        is_target = group in ("target", "draft_device") and backbone is None
        if is_target or (group == "dataset" and key != "split"):
            kept.append(override)
    if backbone is not None:
        kept += ["target=local", f"target.model={backbone}"]
    arguments = [f"+proposer={method}"]
    if method != LAYER_SKIP:
        drafter = "draft" if method == "draft_model" else "proposer.head"
        arguments.append(f"{drafter}={output}")
    arguments += kept
    return shlex.join(["python", "-m", "specresearch.run", *arguments])


def initial_checkpoint(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the drafter that training starts from and its provenance; None for random weights."""
    proposer = settings["proposer"]
    name = settings.get("draft") if "draft" in proposer else proposer.get("head")
    if name is None or settings["student"].get("from_scratch"):
        return None
    return {"checkpoint": str(name), "provenance": read_provenance(str(name))}


def check_method(choices: Mapping[str, str]) -> None:
    """Raise ValueError if the chosen method has nothing to train, or with another's student."""
    method, student = choices.get("proposer"), choices.get("student")
    if method not in TRAINABLE:
        raise ValueError(
            f"proposer={method} has nothing to train; choose one of {', '.join(TRAINABLE)}"
        )
    if student != method:
        raise ValueError(f"student={student} is not for proposer={method}; leave student= out")


def _without_targets(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the names of classes."""
    plain: dict[str, Any] = {}
    for key, value in section.items():
        if key != "_target_":
            plain[key] = _without_targets(value) if isinstance(value, Mapping) else value
    return plain


def _check_cacheable(cache: str, corpus: Corpus, student: Mapping[str, Any]) -> None:
    """Raise ValueError if the target states that a student reads change during training."""
    if corpus.draft:
        raise ValueError(
            f"text of the student (corpus.draft={corpus.draft}) is written while it learns, so "
            f"cache={cache} cannot hold it; set corpus.draft=0, or cache=null"
        )
    if student.get("joint") is not None:
        raise ValueError(
            "with student.joint the states change while training, so "
            f"cache={cache} cannot hold them; set cache=null"
        )
