"""A mix as a torch dataset, drawn batch by batch and never ahead of training."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from torch.utils.data import DataLoader, Dataset

from specresearch.training.corpus import Mix
from specresearch.training.corpus.examples import Example, collate
from specresearch.training.corpus.generated import DraftGenerated
from specresearch.training.distillation import Distillation
from specresearch.training.feature_cache import FeatureCache

IGNORED_LABEL = -100


class MixDataset(Dataset[Example]):
    """The first examples of a mix by position.

    Attributes:
        uses_student: True if the student writes some of the examples.
    """

    def __init__(self, mix: Mix, num_examples: int, distillation: Distillation) -> None:
        self.mix = mix
        self.num_examples = num_examples
        self.distillation = distillation
        sources = mix.sources.values()
        self.uses_student = any(isinstance(source, DraftGenerated) for source in sources)
        self._rounds: set[int] = set()  # of the batch drawn last

    def __len__(self) -> int:
        return self.num_examples

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[int, Example]]:
        rounds = {position // self.mix.round_size for position in positions}
        needs_decoding = self.uses_student and not rounds <= self._rounds
        self._rounds = rounds
        with self.distillation.decoding_mode() if needs_decoding else nullcontext():
            return [(position, self.mix[position]) for position in positions]

    def loader(
        self, batch_size: int, *, process: int, num_processes: int, collate_fn: Any
    ) -> DataLoader[Example]:
        """Return a loader that draws each batch only when asked, unlike the library's own."""
        first, stride = batch_size * process, batch_size * num_processes
        batches = [
            list(range(begin, begin + batch_size))
            for begin in range(first, self.num_examples, stride)
        ]
        return DataLoader(self, batch_sampler=batches, collate_fn=collate_fn)


def collate_drawn(
    drawn: Sequence[tuple[int, Example]], features: FeatureCache | None = None
) -> dict[str, Any]:
    """Collate drawn examples; the library only counts `labels`, to weight the batches of a step."""
    examples = [example for _, example in drawn]
    batch: dict[str, Any] = dict(collate(examples))
    batch["labels"] = batch["token_ids"].masked_fill(~batch["loss_mask"], IGNORED_LABEL)
    batch["rows"] = [f"example {i} ({example.row or 'unnamed'})" for i, example in drawn]
    batch["num_tokens"] = sum(len(example.token_ids) for example in examples)
    batch["states"] = None if features is None else features(examples)
    batch["peaks"] = None if features is None else features.peaks(examples)
    return batch


def check_single_writer(uses_student: bool, num_processes: int) -> None:
    """Raise ValueError if several processes need the student's text, which only one writes."""
    if uses_student and num_processes > 1:
        raise ValueError(
            "text of the student (corpus.draft) is written by one process, and there are "
            f"{num_processes}; set corpus.draft=0, or use one process and raise train.accumulate"
        )
