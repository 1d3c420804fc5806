"""Train a model of the zoo for a given time or on a given number of tokens, with checkpoints.

    python experiments/tiny_zoo/train.py target --work WORK --minutes 60 [--resume] \\
        [--export specresearch/zoo/tiny]
    python experiments/tiny_zoo/train.py shallow --work WORK --tokens 6e6 [--resume]

The learning rate and the curriculum follow the share of `--minutes` or `--tokens` that has been
spent, not a number of steps. With `--minutes` a slower machine still ends with the rate at zero;
with `--tokens` a machine whose load varies gives the same training. Each worker thread takes one
micro-batch at a time and runs its operators single-threaded: unlike operators split over the cores,
this keeps its speed when other programs take part of them.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from documents import LOSS_WEIGHTS, Kind
from jaxtyping import Float, Int
from mix import PHASES, Phase
from muon import Muon
from pair import SHAPES, build, export, grow
from rich.console import Console
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

MUON_RATE, ADAM_RATE, EMBEDDING_RATE = 0.01, 2e-3, 4e-3
WARM_UP, DECAY_FROM = 0.015, 0.40
MICRO_TOKENS = 1024
AHEAD_WEIGHTS = (0.3, 0.2)  # of the losses of the second and third next token, with --ahead


@dataclass
class Progress:
    """Progress of the training, saved in checkpoints; `rows_read` counts rows by phase."""

    seconds: float
    num_tokens: int
    num_steps: int
    rows_read: dict[str, int]


@dataclass(frozen=True)
class Rows:
    """Rows of the mix: token ids, and each token's share of the loss weights."""

    ids: Int[Tensor, "rows length"]
    kinds: Int[Tensor, "rows length"]
    weights: Float[Tensor, "rows length"]


@dataclass(frozen=True)
class Part:
    """The gradients and token losses of one micro-batch; rows lose their first token."""

    gradients: tuple[Tensor, ...]
    losses: Float[Tensor, "rows length_minus_one"]


class Shards:
    """The packed rows of every phase, read in order, and again from the top when they run out."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.loaded: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.kind_weights = torch.tensor([LOSS_WEIGHTS.get(kind, 1.0) for kind in Kind])

    def rows(self, phase: Phase, start: int, num_rows: int) -> Rows:
        """Return `num_rows` rows from number `start` on."""
        if phase.name not in self.loaded:
            with np.load(self.work / f"shard_{phase.name}.npz") as shard:
                self.loaded = {phase.name: (shard["ids"], shard["kinds"])}
        ids, kinds = (
            torch.from_numpy(
                array[np.arange(start, start + num_rows) % len(array)].astype(np.int64)
            )
            for array in self.loaded[phase.name]
        )
        weights = self.kind_weights[kinds]
        return Rows(ids, kinds, weights / weights[:, 1:].sum())


class Ahead(torch.nn.Module):
    """Predictors of the tokens after the next from a model's last state, through its LM head.

    They are only for training (arXiv 2404.19737): with them the state tells more of what follows,
    which is what drafters read it for. They start as the identity.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Linear(width, width, bias=False) for _ in AHEAD_WEIGHTS
        )
        for block in self.blocks:
            torch.nn.init.zeros_(block.weight)

    def forward(self, states: Float[Tensor, "... width"]) -> list[Float[Tensor, "... width"]]:
        """Return the states that predict the second next token and those after it."""
        return [states + torch.nn.functional.silu(block(states)) for block in self.blocks]


class Trainer:
    """A model, its optimisers, and the threads that share micro-batches and updates."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        *,
        dtype: torch.dtype,
        num_workers: int,
        ahead: Ahead | None = None,
    ) -> None:
        self.model = model
        self.ahead = ahead
        self.dtype = dtype
        extra = [] if ahead is None else list(ahead.parameters())
        self.parameters = [*model.parameters(), *extra]
        self.optimisers = optimisers(model, extra, dtype)
        self.base_rates = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]
        torch.set_num_threads(1)
        self.pool = ThreadPoolExecutor(
            num_workers, initializer=torch.set_num_threads, initargs=(1,)
        )

    def step(
        self, rows: Rows, factor: float, others: Sequence[Callable[[], Part]] = ()
    ) -> Float[Tensor, "rows length_minus_one"]:
        """Update with the learning rates times `factor`; return losses in nats of predicted tokens.

        others: more of what the update shall lower, each a micro-batch.
        """
        size = max(1, MICRO_TOKENS // rows.ids.shape[1])
        starts = range(0, len(rows.ids), size)
        cuts = [
            Rows(rows.ids[a : a + size], rows.kinds[a : a + size], rows.weights[a : a + size])
            for a in starts
        ]
        parts = list(
            self.pool.map(
                lambda part: part(), [*(partial(self._part, cut) for cut in cuts), *others]
            )
        )
        summed = list(parts[0].gradients)
        for part in parts[1:]:
            torch._foreach_add_(summed, part.gradients)
        for parameter, gradient in zip(self.parameters, summed, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimiser, base in zip(self.optimisers, self.base_rates, strict=True):
            optimiser.param_groups[0]["lr"] = base * factor
        list(self.pool.map(lambda optimiser: optimiser.step(), self.optimisers))
        return torch.cat([part.losses for part in parts[: len(cuts)]])

    def _part(self, rows: Rows) -> Part:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            states = self.model.model(input_ids=rows.ids, use_cache=False).last_hidden_state
            losses = self._losses(states, rows, 1)
            total = (losses * rows.weights[:, 1:]).sum()
            if self.ahead is not None:
                parts = zip(AHEAD_WEIGHTS, self.ahead(states), strict=True)
                for shift, (weight, further) in enumerate(parts, start=2):
                    further_losses = self._losses(further, rows, shift)
                    total = total + weight * (further_losses * rows.weights[:, shift:]).sum()
        return Part(torch.autograd.grad(total, self.parameters), losses.detach())

    def _losses(
        self, states: Float[Tensor, "rows length width"], rows: Rows, shift: int
    ) -> Float[Tensor, "rows predicted"]:
        """Return losses in nats of predicting the token `shift` places on."""
        logits = self.model.lm_head(states[:, :-shift])
        targets = rows.ids[:, shift:]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), reduction="none"
        )
        return losses.view_as(targets)


def optimisers(
    model: LlamaForCausalLM, extra: list[torch.nn.Parameter], muon_dtype: torch.dtype
) -> list[torch.optim.Optimizer]:
    """Return Muon for layer matrices, in halves for two workers, and AdamW for the rest.

    extra: parameters besides the model's.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
    embeddings = [] if model.config.tie_word_embeddings else [model.model.embed_tokens.weight]
    others = [
        p for p in model.parameters() if all(p is not known for known in matrices + embeddings)
    ]
    half = len(matrices) // 2
    return [
        *(
            Muon(part, lr=MUON_RATE, dtype=muon_dtype)
            for part in (matrices[:half], matrices[half:])
        ),
        torch.optim.AdamW([*others, *extra], lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
        *(
            torch.optim.AdamW([p], lr=EMBEDDING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
            for p in embeddings
        ),
    ]


def rate(progress: float) -> float:
    """Return the factor of the learning rates: a short warm-up, level, then linear to zero."""
    return max(0.0, min(1.0, progress / WARM_UP, (1 - progress) / (1 - DECAY_FROM)))


class Log:
    """Report mean losses by kind of token, and speed, on screen and as JSON Lines."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self.file = path.open("a", encoding="utf-8")
        self.console = Console(width=200)
        self._restart(progress)

    def add(self, kinds: Int[Tensor, "rows n"], losses: Float[Tensor, "rows n"]) -> None:
        """Count the losses of one step."""
        self.sums += torch.bincount(kinds.flatten(), losses.flatten(), minlength=len(Kind))
        self.counts += torch.bincount(kinds.flatten(), minlength=len(Kind))

    def report(self, progress: Progress, share: float, phase: Phase, factor: float) -> None:
        """Write one line and reset the counts."""
        losses = {
            k.name.lower(): round(float(self.sums[k] / self.counts[k]), 3)
            for k in Kind
            if self.counts[k]
        }
        speed = (progress.num_tokens - self.num_tokens) / max(progress.seconds - self.seconds, 1e-9)
        row = vars(progress) | {
            "phase": phase.name,
            "rate": factor,
            "tokens_per_second": speed,
            "loss": losses,
        }
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        left = progress.seconds * (1 / share - 1) / 60
        self.console.print(
            f"{100 * share:3.0f}%  {progress.seconds / 60:5.1f} min"
            f"  {progress.num_tokens / 1e6:5.2f} M tokens  {speed:.0f}/s"
            f"  ETA {max(0.0, left):.0f} min  {phase.name}  "
            + "  ".join(f"{name} {value:.2f}" for name, value in losses.items())
        )
        self._restart(progress)

    def _restart(self, progress: Progress) -> None:
        self.sums, self.counts = torch.zeros(len(Kind)), torch.zeros(len(Kind))
        self.seconds, self.num_tokens = progress.seconds, progress.num_tokens


def train(arguments: argparse.Namespace) -> None:
    """Train until the time is spent, with checkpoints, logs and exports."""
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.work / "tokenizer")
    model = build(arguments.model, tokenizer)
    if arguments.init:
        begun = LlamaForCausalLM.from_pretrained(arguments.init, dtype=torch.float32)
        if len(begun.model.layers) < len(model.model.layers):
            grow(model, begun)
        else:
            model.load_state_dict(begun.state_dict())
    trainer = Trainer(
        model,
        dtype=getattr(torch, arguments.dtype),
        num_workers=arguments.workers,
        ahead=Ahead(model.config.hidden_size) if arguments.ahead else None,
    )
    progress = Progress(0.0, 0, 0, {phase.name: 0 for phase in PHASES})
    checkpoint = arguments.work / f"{arguments.model}.pt"
    if arguments.resume and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        trainer.model.load_state_dict(saved["model"])
        if trainer.ahead is not None:
            trainer.ahead.load_state_dict(saved["ahead"])
        for optimiser, state in zip(trainer.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        progress = Progress(**saved["progress"])
        progress.rows_read = {phase.name: 0 for phase in PHASES} | progress.rows_read
    shards = Shards(arguments.work)
    log = Log(arguments.work / f"{arguments.model}.jsonl", progress)
    saved_at = logged_at = progress.seconds
    started = time.monotonic() - progress.seconds
    share = spent(progress, arguments)
    while share < 1:
        phase = next(
            phase for phase, end in zip(PHASES, arguments.ends, strict=True) if share < end
        )
        num_rows = arguments.batch_tokens // phase.length
        rows = shards.rows(phase, progress.rows_read[phase.name], num_rows)
        losses = trainer.step(rows, rate(share))
        log.add(rows.kinds[:, 1:], losses)
        progress.rows_read[phase.name] += num_rows
        progress.num_tokens += rows.ids.numel()
        progress.num_steps += 1
        progress.seconds = time.monotonic() - started
        share = spent(progress, arguments)
        over = share >= 1
        if over or progress.seconds - logged_at >= arguments.log_seconds:
            log.report(progress, share, phase, rate(share))
            logged_at = progress.seconds
        if over or progress.seconds - saved_at >= arguments.save_seconds:
            save(trainer, progress, checkpoint)
            if arguments.export:
                export(trainer.model, tokenizer, arguments.export)
            saved_at = progress.seconds


def spent(progress: Progress, arguments: argparse.Namespace) -> float:
    """Return the share of the training's time or tokens that is spent."""
    if arguments.tokens:
        return progress.num_tokens / arguments.tokens
    return progress.seconds / (60 * arguments.minutes)


def save(trainer: Trainer, progress: Progress, checkpoint: Path) -> None:
    """Write what a resumed run needs; if killed meanwhile, the previous checkpoint remains."""
    fresh = checkpoint.with_suffix(".new")
    states = [optimiser.state_dict() for optimiser in trainer.optimisers]
    saved = {
        "model": trainer.model.state_dict(),
        "optimisers": states,
        "progress": vars(progress),
    }
    if trainer.ahead is not None:
        saved["ahead"] = trainer.ahead.state_dict()
    torch.save(saved, fresh)
    fresh.replace(checkpoint)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder of the shards; checkpoints and logs go there",
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="training time, before a resume included")
    budget.add_argument("--tokens", type=float, help="tokens read, before a resume included")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="bfloat16 pays where cores have units for it",
    )
    parser.add_argument(
        "--batch-tokens", type=int, default=4096, help="tokens of an optimiser step"
    )
    parser.add_argument(
        "--ends",
        type=float,
        nargs=len(PHASES),
        default=[phase.end for phase in PHASES],
        help="share of the time at which each phase ends",
    )
    parser.add_argument("--workers", type=int, default=2, help="threads, one micro-batch each")
    parser.add_argument(
        "--init",
        type=Path,
        help="exported folder to take the first weights from, its optimiser state lost; a "
        "shallower model's layers are spread over the depth",
    )
    parser.add_argument(
        "--ahead", action="store_true", help="also learn to predict the two tokens after the next"
    )
    parser.add_argument("--resume", action="store_true")
    parser.add_argument(
        "--export",
        type=Path,
        help="folder to write the half-precision model to with each checkpoint",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-seconds", type=float, default=30)
    parser.add_argument("--save-seconds", type=float, default=300)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
