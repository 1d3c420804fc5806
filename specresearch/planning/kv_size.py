"""The bytes of cached keys and values, from a configuration."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig


@dataclass(frozen=True)
class KVLayer:
    """What one layer caches for a token.

    Attributes:
        num_heads: Key heads; a latent counts as one, which every GPU needs whole.
        num_values: Of a head: its key and its value together.
        window: Tokens that a sliding layer keeps; None for all.
    """

    num_heads: int
    num_values: int
    window: int | None = None

    def values_per_gpu(self, num_gpus: int) -> int:
        """Return the values of a token on one GPU; fewer heads than GPUs are copied."""
        return -(-self.num_heads // num_gpus) * self.num_values

    def num_kept(self, num_tokens: int) -> int:
        return num_tokens if self.window is None else min(num_tokens, self.window)


def kv_bytes(
    layers: Iterable[KVLayer], num_tokens: int, num_gpus: int = 1, itemsize: int = 2
) -> int:
    """Return the bytes that a request of so many tokens takes on all GPUs together.

    Args:
        itemsize: Bytes of a cached value.
    """
    values = sum(layer.values_per_gpu(num_gpus) * layer.num_kept(num_tokens) for layer in layers)
    return num_gpus * itemsize * values


def kv_layers(config: PreTrainedConfig, windows: Sequence[int | None]) -> tuple[KVLayer, ...]:
    """Return what the layers of a causal LM cache in a serving engine.

    Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) caches one latent and one rotary
    key for all heads.

    Args:
        windows: The sliding window of each layer that has a cache, None for full attention.
    """
    text: Any = config.get_text_config(decoder=True)
    rank = getattr(text, "kv_lora_rank", None)
    if rank:
        return tuple(KVLayer(1, rank + text.qk_rope_head_dim, window) for window in windows)
    num_heads = (
        getattr(text, "num_key_value_heads", None)
        or getattr(text, "num_kv_heads", None)
        or text.num_attention_heads
    )
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return tuple(KVLayer(num_heads, 2 * width, window) for window in windows)
