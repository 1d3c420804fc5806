"""`python -m specresearch.distill +proposer=draft_model objective=forward_kl`: train a drafter towards its target."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from specresearch.bench.provenance import describe
from specresearch.config import check_keys, entry_point
from specresearch.proposers import DraftModel, Proposer
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.students import Student
from specresearch.training.trainer import DistillTrainer, TrainingStoppedError, TrainSettings, last_checkpoint

TRAINABLE = ("draft_model", "medusa", "eagle", "eagle3")
VOCABULARY_EXAMPLES = 1000
INTERRUPTED = 130
MAY_CHANGE = ("resume", "force", "progress", "evaluation", "tracker", "output")


def main() -> None:
    entry_point(distill, "distill")


def distill(cfg: DictConfig) -> None:
    """One training run, into Hydra's output folder."""
    check_keys(cfg, "distill", "proposer", "draft", "draft_device")
    method = HydraConfig.get().runtime.choices.get("proposer")
    if method not in TRAINABLE:
        raise ValueError(f"proposer={method} has nothing to train; choose one of {', '.join(TRAINABLE)}")
    folder = Path(HydraConfig.get().runtime.output_dir)
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    _check_resume(folder, {str(key): value for key, value in config.items()}, cfg)
    if not (cfg.progress and sys.stderr.isatty()):
        disable_progress_bar()
    settings: TrainSettings = instantiate(cfg.train)
    tracker = instantiate(cfg.tracker, _convert_="all")
    dataset = instantiate(cfg.dataset, _convert_="all")
    target = instantiate(cfg.target, _convert_="all")
    proposer: Proposer = instantiate(cfg.proposer, _convert_="all")
    corpus = instantiate(cfg.corpus, _convert_="all")
    draft = proposer.draft if isinstance(proposer, DraftModel) else None
    per_step = settings.batch_size * settings.accumulate
    mix = corpus.mix(target, dataset, folder, draft=draft, examples_per_step=per_step)
    texts = corpus.heldout(target, dataset, folder, num_rows=cfg.evaluation.num_texts)
    examples = (mix[i] for i in range(VOCABULARY_EXAMPLES))
    student: Student = instantiate(cfg.student, _partial_=True)(proposer, target, examples)
    evaluation = Evaluation(
        target,
        [text for text in texts.examples if any(text.loss_mask)],
        text_temperature=corpus.generation.temperature,
        **{key: cfg.evaluation[key] for key in cfg.evaluation if key != "num_texts"},
    )
    tracker.start(config, folder)
    history = _History(folder / "metrics.jsonl", tracker)
    trainer = DistillTrainer(
        Distillation(student, target, instantiate(cfg.objective)),
        mix,
        settings,
        folder,
        log=history,
        evaluation=evaluation,
        progress=cfg.progress and sys.stderr.isatty(),
    )
    checkpoint = last_checkpoint(folder) if cfg.resume else None
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except KeyboardInterrupt:
        print(f"interrupted; to go on from the last checkpoint, add: resume=true hydra.run.dir={folder}")
        sys.exit(INTERRUPTED)
    except TrainingStoppedError as error:
        raise ValueError(str(error)) from error
    provenance = {
        **describe(target, dataset, settings.seed),
        "method": method,
        "objective": HydraConfig.get().runtime.choices.get("objective"),
        "corpus": mix.fingerprint,
        "steps": settings.steps,
        "final": history.last,
    }
    place = Path(cfg.output) if cfg.output else folder / "student"
    if trainer.is_world_process_zero():
        student.save(str(place), provenance)
        summary = {"summary": history.last, "provenance": provenance}
        (folder / "results.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        tracker.finish(history.last, [folder / "metrics.jsonl", folder / "results.json", *sorted(place.iterdir())])
        _print(history.first, history.last, place)


class _History:
    """Every figure as one line of a file, and in the tracker. first, last: of evaluations."""

    def __init__(self, file: Path, tracker: Any) -> None:
        self.file, self.tracker = file, tracker
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}

    def __call__(self, step: int, values: Mapping[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": step, **values}) + "\n")
        self.tracker.log(step, values)
        if any(key.startswith("predicted/") for key in values):
            self.first = self.first or dict(values)
            self.last = dict(values)


def _check_resume(folder: Path, config: dict[str, Any], cfg: DictConfig) -> None:
    """Raises ValueError for a folder that holds another run, unless it is to be resumed with the same settings."""
    file = folder / "config.yaml"
    if file.exists():
        if not cfg.resume:
            raise ValueError(
                f"{folder} holds a run already; add resume=true to go on with it, or choose another folder"
            )
        before = OmegaConf.to_container(OmegaConf.load(file))
        assert isinstance(before, dict)
        changed = [key for key in config if key not in MAY_CHANGE and config[key] != before.get(key)]
        if changed and not cfg.force:
            raise ValueError(
                f"{folder} was started with other settings of {', '.join(sorted(changed))}; use the same, or force=true"
            )
    elif cfg.resume:
        raise ValueError(f"{folder} holds no run to resume; set hydra.run.dir to one that does")
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(OmegaConf.create(config), file)


def _print(first: Mapping[str, Any], last: Mapping[str, Any], place: Path) -> None:
    table = Table("held-out prompts", "before", "after")
    for key, value in last.items():
        before = first.get(key)
        cells = [f"{x:.3f}" if isinstance(x, float) else "-" for x in (before, value)]
        table.add_row(key, *cells)
    console = Console()
    console.print(table)
    console.print(f"the trained drafter is in {place}")


if __name__ == "__main__":
    main()
