"""Training settings, and their translation for the transformers Trainer."""

from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.utils import parse_flag_from_env
from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from specresearch.training.distillation import PRECISIONS

DDP_TIMEOUT = 86_400  # seconds; other processes wait for the one that evaluates
COUNTS = (
    "steps",
    "batch_size",
    "accumulate",
    "log_every",
    "evaluate_every",
    "save_every",
    "keep_checkpoints",
)


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the optimisation; a step has `accumulate` passes of `batch_size` examples."""

    steps: int = 1000
    batch_size: int = 8
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    schedule: str = "cosine"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    precision: str = "auto"
    seed: int = 0
    log_every: int = 20
    evaluate_every: int = 200
    save_every: int = 200
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name}={getattr(self, name)} must be at least 1")
        for name in ("warmup_steps", "weight_decay", "max_grad_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"train.{name}={getattr(self, name)} must be 0 or above")
        if not self.learning_rate > 0:
            raise ValueError(f"train.learning_rate={self.learning_rate} must be above 0")
        schedules = tuple(schedule.value for schedule in SchedulerType)
        for name, known in (("precision", PRECISIONS), ("schedule", schedules)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(
                    f"train.{name}={value!r} is unknown; choose one of {', '.join(known)}"
                )

    def arguments(
        self, folder: Path, device: torch.device, in_stages: bool = False
    ) -> TrainingArguments:
        """Return arguments for the library's Trainer, with one device per process.

        `in_stages` means that some parameters are not always trained.
        """
        for name in ("FSDP", "DEEPSPEED"):
            if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
                raise ValueError(
                    f"ACCELERATE_USE_{name} is set, but losses take gradients of unsharded "
                    "weights: start with torchrun, and save memory by target.quantization, "
                    "target.device=balanced or student.lora"
                )
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=self.steps,
            per_device_train_batch_size=self.batch_size,
            gradient_accumulation_steps=self.accumulate,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            lr_scheduler_type=self.schedule,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            seed=self.seed,
            save_total_limit=self.keep_checkpoints,
            use_cpu=device.type == "cpu",
            report_to="none",
            remove_unused_columns=False,
            disable_tqdm=True,
            logging_nan_inf_filter=False,
            average_tokens_across_devices=True,
            ddp_find_unused_parameters=in_stages,
            ddp_timeout=DDP_TIMEOUT,
        )
        trainer_device = arguments.device
        if (device.type, device.index or 0) != (trainer_device.type, trainer_device.index or 0):
            raise ValueError(
                f"the target is on {device}, and this process trains on {trainer_device}; leave "
                "target.device=auto, and choose GPUs with CUDA_VISIBLE_DEVICES"
            )
        # Other GPUs serve other processes or parts of the target, not DataParallel.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        return arguments
