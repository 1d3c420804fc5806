"""The target's hidden states of every example, on disk: a head can then be trained in many passes for one of the target."""

import hashlib
import shutil
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specresearch.models import CausalLM
from specresearch.training.examples import Example, Examples, collate
from specresearch.training.generated import weights_digest
from specresearch.training.progress import progress
from specresearch.training.shards import ShardStore

SHARD_SIZE = 64


class FeatureCache:
    """Features of a set of examples, computed into `folder` on construction; those that are there are kept.

    hidden_layers: as in `CausalLM.forward_whole`. batch_size, shard_size: examples of a pass, and of a file.
    Prints beforehand how much it will write. Raises ValueError for a folder with features of something else, and OSError where
    the disk cannot hold them; what was written by then is kept and used next time.
    """

    def __init__(
        self,
        target: CausalLM,
        hidden_layers: Sequence[int],
        examples: Examples,
        folder: Path,
        *,
        batch_size: int = 4,
        shard_size: int | None = None,
    ) -> None:
        shard_size = shard_size or SHARD_SIZE
        self.target = target
        self.hidden_layers = tuple(hidden_layers)
        self.batch_size = batch_size
        settings = {
            "model": target.name,
            "weights": weights_digest(target),
            "dtype": str(target.dtype),
            "hidden_layers": self.hidden_layers,
            "examples": examples.fingerprint,
            "shard_size": shard_size,
        }
        self.store = ShardStore(folder, settings, ".safetensors")
        self._places: dict[str, tuple[int, str]] = {}  # shard, and name in it
        unique: list[int] = []
        for index, example in enumerate(examples):
            key = _key(example)
            if key not in self._places:
                self._places[key] = len(unique) // shard_size, str(len(unique) % shard_size)
                unique.append(index)
        self._fill(
            examples,
            [unique[begin : begin + shard_size] for begin in range(0, len(unique), shard_size)],
        )

    @torch.no_grad()
    def __call__(self, examples: Sequence[Example]) -> tuple[Float[Tensor, "B T H"], ...]:
        """What `forward_whole` of the collated examples gives as `hidden`, on the CPU, zeros where padded."""
        rows = [self._read(example) for example in examples]
        return tuple(
            pad_sequence(list(layer), batch_first=True) for layer in zip(*rows, strict=True)
        )

    def num_bytes(self, num_tokens: int) -> int:
        """The size of the features of so many tokens."""
        config = self.target.model.config.get_text_config(decoder=True)
        return (
            num_tokens * len(self.hidden_layers) * config.hidden_size * self.target.dtype.itemsize
        )

    def _read(self, example: Example) -> Float[Tensor, "L T H"]:
        place = self._places.get(_key(example))
        if place is None:
            raise ValueError(
                "an example is not among those whose features are cached; build the cache from the same corpus"
            )
        number, name = place
        with safe_open(self.store.path(number), framework="pt") as file:
            return file.get_tensor(name)

    def _fill(self, examples: Examples, shards: Sequence[Sequence[int]]) -> None:
        with self.store.writing():
            missing = [number for number in range(len(shards)) if not self.store.holds(number)]
            if not missing:
                return
            lengths = {
                index: len(examples[index].token_ids)
                for number in missing
                for index in shards[number]
            }
            self._announce(sum(lengths.values()))
            done = sum(map(len, shards)) - len(lengths)
            with progress("features", sum(map(len, shards)), "examples", done) as advance:
                for number in missing:
                    tensors = self._compute([examples[index] for index in shards[number]])
                    num_tokens = sum(lengths[index] for index in shards[number])
                    self.store.write(
                        number,
                        partial(save_file, tensors),
                        num_examples=len(tensors),
                        num_tokens=num_tokens,
                    )
                    advance(len(tensors), num_tokens)

    def _announce(self, num_tokens: int) -> None:
        needed, free = self.num_bytes(num_tokens), shutil.disk_usage(self.store.folder).free
        told = (
            f"features of {num_tokens:,} tokens, {len(self.hidden_layers)} layers: {needed / 1e9:,.2f} GB to write to "
            f"{self.store.folder}, which has {free / 1e9:,.2f} GB free"
        )
        if needed > free:
            raise OSError(f"{told}; take fewer examples or layers, or another folder")
        Console(stderr=True, soft_wrap=True).print(told)

    @torch.no_grad()
    def _compute(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """[L, T, H] for every example, by its place; passes run over examples of like lengths."""
        order = sorted(range(len(examples)), key=lambda place: len(examples[place].token_ids))
        tensors: dict[str, Tensor] = {}
        for begin in range(0, len(order), self.batch_size):
            places = order[begin : begin + self.batch_size]
            token_ids = collate([examples[place] for place in places])["token_ids"].to(
                self.target.device
            )
            hidden = torch.stack(
                self.target.forward_whole(token_ids, self.hidden_layers).hidden, dim=1
            ).cpu()  # [B, L, T, H]
            for place, states in zip(places, hidden, strict=True):
                tensors[str(place)] = states[:, : len(examples[place].token_ids)].contiguous()
        return tensors


def _key(example: Example) -> str:
    return hashlib.sha256(array("i", example.token_ids)).hexdigest()[:24]
