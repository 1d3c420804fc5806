"""What a target makes of texts, on disk, so that training for many epochs runs it once."""

import hashlib
import shutil
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Shaped
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.training.chunked_loss import PEAKS, Peaks
from specresearch.training.corpus.examples import Example, Examples, collate
from specresearch.training.corpus.generated import weights_digest
from specresearch.training.objectives import CHUNK_ROWS, Objective
from specresearch.training.shards import Shard, ShardStore

SHARD_SIZE = 64
PEAK_BYTES = 12  # of a token: its id, and the normaliser in float32


class FeatureCache:
    """Hidden states of a set of examples, computed into `folder` on construction.

    States already there are reused, and so is what was written before a full disk. `hidden_layers`
    are those of `CausalLM.forward_whole`.

    Args:
        reduced: The objective of a student with a reduced vocabulary, which needs the peaks of the
            target's logits as well; None leaves them out.

    Raises:
        ValueError: if the folder holds features of other inputs.
        OSError: if the disk is too small.
    """

    def __init__(
        self,
        target: CausalLM,
        hidden_layers: Sequence[int],
        examples: Examples,
        folder: Path,
        *,
        reduced: Objective | None = None,
        batch_size: int = 4,
        shard_size: int | None = None,
    ) -> None:
        shard_size = shard_size or SHARD_SIZE
        self.target = target
        self.reduced = reduced
        self.hidden_layers = tuple(hidden_layers)
        self.batch_size = batch_size
        settings = {
            "model": target.name,
            "weights": weights_digest(target),
            "dtype": str(target.dtype),
            "hidden_layers": self.hidden_layers,
            "examples": examples.fingerprint,
            "shard_size": shard_size,
            "temperature": None if reduced is None else reduced.temperature,
        }
        self.store = ShardStore(folder, settings, ".safetensors")
        self._locations: dict[str, tuple[int, str]] = {}  # shard number and tensor name by key
        shards: list[list[int]] = []
        for index, example in enumerate(examples):
            key = _key(example)
            if key not in self._locations:
                if not shards or len(shards[-1]) == shard_size:
                    shards.append([])
                self._locations[key] = len(shards) - 1, str(len(shards[-1]))
                shards[-1].append(index)
        self._fill(examples, shards)

    @torch.no_grad()
    def __call__(self, examples: Sequence[Example]) -> tuple[Float[Tensor, "B T H"], ...]:
        """Return `forward_whole(...).hidden` of the collated examples, on the CPU, zero-padded."""
        rows = [self._read(example) for example in examples]
        layers = zip(*rows, strict=True)
        return tuple(pad_sequence(list(layer), batch_first=True) for layer in layers)

    def peaks(self, examples: Sequence[Example]) -> dict[str, Shaped[Tensor, "B T"]] | None:
        """Return the fields of `Peaks` of the collated examples, on the CPU, zero-padded.

        Without `reduced` they are None.
        """
        if self.reduced is None:
            return None
        parts = {name: [self._read(each, f".{name}") for each in examples] for name in PEAKS}
        return {name: pad_sequence(part, batch_first=True) for name, part in parts.items()}

    def num_bytes(self, num_tokens: int) -> int:
        """Return the size of the features of `num_tokens` tokens."""
        config = self.target.model.config.get_text_config(decoder=True)
        bytes_per_layer = config.hidden_size * self.target.dtype.itemsize
        peaks = 0 if self.reduced is None else PEAK_BYTES
        return num_tokens * (len(self.hidden_layers) * bytes_per_layer + peaks)

    def _read(self, example: Example, part: str = "") -> Tensor:
        """Return the states of an example, [L, T, H], or another part of what is stored of it."""
        location = self._locations.get(_key(example))
        if location is None:
            raise ValueError(
                "an example is not among those whose features are cached; "
                "build the cache from the same corpus"
            )
        number, name = location
        with safe_open(self.store.path(number), framework="pt") as file:
            return file.get_tensor(name + part)

    def _fill(self, examples: Examples, shards: Sequence[Sequence[int]]) -> None:
        def start(missing: Sequence[int]) -> Callable[[int], Shard]:
            indices = [index for number in missing for index in shards[number]]
            self._announce(sum(len(examples[index].token_ids) for index in indices))
            return lambda number: self._compute([examples[index] for index in shards[number]])

        self.store.fill([len(shard) for shard in shards], start, title="features", unit="examples")

    def _announce(self, num_tokens: int) -> None:
        num_bytes, free = self.num_bytes(num_tokens), shutil.disk_usage(self.store.folder).free
        message = (
            f"features of {num_tokens:,} tokens, {len(self.hidden_layers)} layers: "
            f"{num_bytes / 1e9:,.2f} GB to write to {self.store.folder}, "
            f"which has {free / 1e9:,.2f} GB free"
        )
        if num_bytes > free:
            raise OSError(f"{message}; take fewer examples or layers, or another folder")
        Console(stderr=True, soft_wrap=True).print(message)

    @torch.no_grad()
    def _compute(self, examples: Sequence[Example]) -> Shard:
        """Compute what is stored of each example by its index; batches have similar lengths."""
        lengths = [len(example.token_ids) for example in examples]
        order = sorted(range(len(examples)), key=lengths.__getitem__)
        tensors: dict[str, Tensor] = {}
        for begin in range(0, len(order), self.batch_size):
            indices = order[begin : begin + self.batch_size]
            token_ids = collate([examples[index] for index in indices])["token_ids"]
            token_ids = token_ids.to(self.target.device)
            layers = self.target.forward_whole(token_ids, self.hidden_layers).hidden
            hidden = torch.stack(layers, dim=1).cpu()  # [B, L, T, H]
            for row, (index, states) in enumerate(zip(indices, hidden, strict=True)):
                tensors[str(index)] = states[:, : lengths[index]].contiguous()
                if self.reduced is not None:
                    final = layers[self.hidden_layers.index(FINAL_NORM)][row, : lengths[index]]
                    peaks = self._peaks_of(final, self.reduced)
                    tensors |= {f"{index}.{name}": getattr(peaks, name).cpu() for name in PEAKS}
        return Shard(partial(save_file, tensors), len(examples), sum(lengths))

    def _peaks_of(self, final: Float[Tensor, "T H"], objective: Objective) -> Peaks:
        chunks = [Peaks.of(self.target.readout(c), objective) for c in final.split(CHUNK_ROWS)]
        parts = ([getattr(chunk, name) for chunk in chunks] for name in PEAKS)
        return Peaks(*map(torch.cat, parts))


def _key(example: Example) -> str:
    return hashlib.sha256(array("i", example.token_ids)).hexdigest()[:24]
