"""Text that models generate: the target before training, or the student while it learns.

In decoding a drafter follows the target's text and its own drafts, which published text does not
resemble (DistillSpec, arXiv 2310.08461; on-policy text: arXiv 2306.13649).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from specresearch.data import Row
from specresearch.models import CausalLM
from specresearch.training.corpus.examples import Example, Examples
from specresearch.training.corpus.reply_generator import ReplyGenerator
from specresearch.training.corpus.sources import Draw, ListSource, Source, shuffled, stable_hash
from specresearch.training.shards import ShardStore

SUFFIX = ".parquet"


class TargetGenerated(ListSource):
    """The target's replies, one example a turn, generated into `folder` or reused from it.

    Raises:
        ValueError: if the folder holds text of another model, dataset or settings.
    """

    def __init__(self, generator: ReplyGenerator, rows: Sequence[Row], folder: Path) -> None:
        settings = generator.describe(rows) | {"weights": weights_digest(generator.model)}
        store = ShardStore(folder, settings, SUFFIX)
        self.examples = generator.fill(store, rows, "decoding with the target")


class DraftGenerated(Source):
    """The student's replies, generated again in each round with its current weights.

    A round is generated when its first example is drawn, so drawing ahead uses outdated weights.
    Each round has its own folder, and a resumed run reuses the rounds it finds.
    """

    def __init__(self, generator: ReplyGenerator, rows: Sequence[Row], folder: Path) -> None:
        self.generator = generator
        self.rows = rows
        self.folder = folder
        self._round: int | None = None
        self._examples = Examples()

    @property
    def fingerprint(self) -> str:
        """Hash of prompts and settings; the text itself depends on the student's training."""
        return f"{stable_hash(self.generator.describe(self.rows)):016x}"

    def draw(self, draw: Draw) -> Example:
        if self._round != draw.round:
            self._examples = self._generate(draw.round, draw.round_size)
            self._round = draw.round
        return self._examples[draw.index]

    def _generate(self, round: int, num_examples: int) -> Examples:
        rows: list[Row] = []
        num_turns = num_passes = 0
        seed = self.generator.generation.seed
        while num_turns < num_examples:
            for index in shuffled(len(self.rows), seed, round, num_passes):
                if num_turns >= num_examples:
                    break
                rows.append(self.rows[index])
                num_turns += len(rows[-1].turns)
            num_passes += 1
        settings = self.generator.describe(rows) | {"round": round}
        store = ShardStore(self.folder / f"round-{round:05d}", settings, SUFFIX)
        return self.generator.fill(store, rows, f"decoding with the draft, round {round}", round)


@torch.no_grad()
def weights_digest(model: CausalLM) -> str:
    """Hash the first numbers of every weight, rounded so that the loading dtype does not matter."""
    parts: list[np.ndarray] = []
    for weight in model.model.parameters():
        rounded = weight.flatten()[:64].to("cpu", torch.bfloat16)
        parts.append(rounded.view(torch.int16).numpy())
    return f"{stable_hash(np.concatenate(parts).tolist()):016x}"
