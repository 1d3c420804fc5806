"""Everything that depends on transformers' internals: caches, masks, hooks, which models are safe.

Tested with transformers 5.17, 5.23 and 5.24. A model's code is never modified: its attention
implementation is set to ours (`slot`), or it gets a 4-D mask (`sdpa`, `eager`, and models that
ignore the setting).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from specresearch.models.attention import slot_attention
from specresearch.models.attention_plan import AttentionPlan, GivenBiases
from specresearch.models.kernel_choice import LayerShape, NoKernelError
from specresearch.models.kv_cache import Region, SlotCache
from specresearch.models.quantizer import is_quantized
from specresearch.models.two_part import TwoPartPlan

ATTENTION_CHOICES = ("auto", "two_part", "slot", "sdpa", "eager")
FINAL_NORM = -1
SLOT_ATTENTION = "specresearch_slot"
AttentionInterface.register(SLOT_ATTENTION, slot_attention)
AttentionMaskInterface.register(SLOT_ATTENTION, sdpa_mask)


class UnsupportedModelError(ValueError):
    """The model cannot be verified exactly through the slot cache."""


def cache_argument(module: torch.nn.Module) -> str:
    """Return the name by which a model or layer takes its cache: `cache` since version 5.24."""
    names = inspect.signature(module.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


class SlotCacheView(Cache):
    """A `SlotCache` as a model sees it: it writes to one region and reads the region's columns."""

    def __init__(self, store: SlotCache) -> None:
        super().__init__(layers=[])
        self.store = store
        self.region: Region | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.region is not None
        return self.store.update(layer_idx, self.region, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class HFAdapter:
    """Runs one forward pass of an unmodified model over a `SlotCache`."""

    def __init__(self, model: PreTrainedModel, attention: str) -> None:
        if attention not in ATTENTION_CHOICES:
            raise ValueError(
                f"attention={attention!r} is unknown; choose one of {', '.join(ATTENTION_CHOICES)}"
            )
        self.model = model
        self._cache_argument = cache_argument(model)
        self.layer_windows = check_model(model)
        self.attention = attention
        asks_library = attention in ("sdpa", "eager")
        self.uses_slot_attention = not asks_library and self._take_over_attention()
        if not self.uses_slot_attention:
            model.set_attn_implementation("eager" if attention == "eager" else "sdpa")
        self.layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        self._logit_rows: Int[Tensor, " R"] | None = None
        self._final_hidden: list[Tensor] | None = None
        head = model.get_output_embeddings()
        if head is None:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no LM head (get_output_embeddings() is None), so "
                "there is no distribution over tokens to verify; load the checkpoint's "
                "...ForCausalLM class"
            )
        self.vocab_size: int = getattr(head, "out_features", None) or head.weight.shape[0]
        head.register_forward_pre_hook(self._before_head)

    def _take_over_attention(self) -> bool:
        """Return True if the model now calls our function; some silently keep their own."""
        try:
            self.model.set_attn_implementation(SLOT_ATTENTION)
        except (ValueError, KeyError):
            return False
        return self.model.config._attn_implementation == SLOT_ATTENTION

    def layer_shapes(self, layers: SlotCache) -> set[LayerShape]:
        """Return what a flash kernel has to serve for attention in two parts.

        Args:
            layers: A cache that the model has written to.

        Raises:
            NoKernelError: If none can, whatever the shapes.
        """
        config: Any = self.model.config.get_text_config(decoder=True)
        if not self.uses_slot_attention:
            raise NoKernelError("its class keeps an attention of its own")
        if getattr(config, "attn_logit_softcapping", None) is not None:
            raise NoKernelError("it caps its scores (attn_logit_softcapping)")
        has_window = any(window is not None for window in self.layer_windows)
        shapes: set[LayerShape] = set()
        for keys, values in layers.buffers:
            if keys.shape != values.shape:
                raise NoKernelError("its cache holds latents in place of keys and values")
            shapes.add(LayerShape(keys.device, keys.dtype, keys.shape[3], has_window))
        return shapes

    def _before_head(self, module: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._final_hidden is not None:
            self._final_hidden.append(args[0])
        if self._logit_rows is None:
            return args
        states = args[0].flatten(0, 1)
        return states.index_select(0, self._logit_rows.to(states.device))[None], *args[1:]

    def forward(
        self,
        token_ids: Int[Tensor, "B N"],
        position_ids: Int[Tensor, "B N"],
        view: Cache,
        plan: AttentionPlan | GivenBiases | TwoPartPlan,
        logit_rows: Int[Tensor, " R"] | None,
        hidden_layers: Sequence[int] = (),
    ) -> tuple[Float[Tensor, "..."], tuple[Float[Tensor, "B N H"], ...]]:
        """Run a pass; return logits as `call` does, and the requested hidden states.

        Args:
            hidden_layers: k >= 0 is the input of layer k; k = number of layers is the last layer's
                output, before the final norm; FINAL_NORM is what the LM head reads.
        """
        self._final_hidden = [] if FINAL_NORM in hidden_layers else None
        captured: dict[int, Tensor] = {}
        releases = [self._capture(k, captured) for k in hidden_layers if k != FINAL_NORM]
        try:
            logits = self.call(token_ids, position_ids, view, plan, logit_rows)
        finally:
            for release in reversed(releases):
                release()
            final, self._final_hidden = self._final_hidden, None
        if final is not None:
            captured[FINAL_NORM] = final[0]
        return logits, tuple(captured[k].to(token_ids.device) for k in hidden_layers)

    def call(
        self,
        token_ids: Int[Tensor, "B N"],
        position_ids: Int[Tensor, "B N"],
        view: Cache,
        plan: AttentionPlan | GivenBiases | TwoPartPlan,
        logit_rows: Int[Tensor, " R"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return logits [B, N, V], or [1, R, V] for chosen rows of the flattened batch."""
        self._logit_rows = logit_rows
        if self.uses_slot_attention:
            mask = torch.zeros((1, 1, 1, 1), dtype=self.model.dtype, device=token_ids.device)
            extra = {"attention_plan": plan}
        else:
            assert isinstance(plan, AttentionPlan)
            mask, extra = self._library_mask(plan), {}
        try:
            output = self.model(
                input_ids=token_ids,
                attention_mask=mask,
                position_ids=position_ids,
                use_cache=True,
                return_dict=True,
                **{self._cache_argument: view},
                **extra,
            )
        finally:
            self._logit_rows = None  # drafting heads use the LM head too
        return output.logits.to(token_ids.device)

    def readout(
        self, states: Float[Tensor, "*rows H"], token_ids: Int[Tensor, " D"] | None = None
    ) -> Float[Tensor, "*rows V"] | Float[Tensor, "*rows D"]:
        """Apply the LM head, and the scale and cap that some models put on its logits."""
        head: Any = self.model.get_output_embeddings()
        config: Any = self.model.config.get_text_config(decoder=True)
        logits = head(states) if token_ids is None else _some_logits(head, states, token_ids)
        logits = logits * (getattr(config, "logit_scale", None) or 1.0)
        logits = logits / (getattr(config, "logits_scaling", None) or 1.0)
        cap = getattr(config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _capture(self, k: int, captured: dict[int, Tensor]) -> Callable[[], None]:
        """Take a hidden state from the passes that follow, and return what ends this.

        A layer's input is taken around its `forward`, since hooks cost more, and a head needs
        several inputs in every step. An output is left to a hook, since others may change it.
        """
        if not 0 <= k <= len(self.layers):
            raise ValueError(
                f"hidden layer {k}: this model has layers 0 to {len(self.layers)}, or {FINAL_NORM}"
            )
        if k == len(self.layers):

            def after(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
                captured[k] = output[0] if isinstance(output, tuple) else output

            return self.layers[-1].register_forward_hook(after).remove
        forward, own = self.layers[k].forward, vars(self.layers[k])
        earlier = own.get("forward")  # of accelerate, or of a compiled layer

        def forward_captured(*args: Any, **options: Any) -> Any:
            captured[k] = args[0] if args else options["hidden_states"]
            return forward(*args, **options)

        def release() -> None:
            if earlier is None:
                del own["forward"]
            else:
                own["forward"] = earlier

        own["forward"] = forward_captured
        return release

    def _library_mask(self, plan: AttentionPlan) -> Tensor | dict[str, Tensor]:
        """Return an additive mask, or one per kind of layer if kinds are mixed."""
        windows = set(self.layer_windows)
        if len(windows) == 1:
            return plan.full_bias(windows.pop())
        window = next(w for w in windows if w is not None)
        return {"full_attention": plan.full_bias(), "sliding_attention": plan.full_bias(window)}


def check_model(model: PreTrainedModel) -> list[int | None]:
    """Return the sliding window of each layer; None means full attention.

    Raises:
        UnsupportedModelError: With the reason.
    """
    config, name = model.config.get_text_config(decoder=True), type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder model; only decoder-only models can be verified"
        )
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if not takes_positions or getattr(config, "alibi", False):
        raise UnsupportedModelError(
            f"{name} takes its positions from the order of the cache (no position_ids, or ALiBi), "
            "which a draft tree breaks; use a model with rotary or learned positions"
        )
    layer_types = set(getattr(config, "layer_types", None) or ())
    unsupported = layer_types - {"full_attention", "sliding_attention"}
    if unsupported:
        raise UnsupportedModelError(
            f"{name} has layers of kind {', '.join(sorted(unsupported))}: only full and "
            "sliding-window attention can be verified as a tree; use another model"
        )
    windows: list[int | None] = []
    for layer in DynamicCache(config=config).layers:
        kind = type(layer).__name__
        if kind not in ("DynamicLayer", "DynamicSlidingWindowLayer"):
            raise UnsupportedModelError(
                f"{name} has a layer whose cache is a {kind}: only full and sliding-window "
                "attention can be verified as a tree"
            )
        windows.append(getattr(layer, "sliding_window", None))
    return windows or [None]


def _some_logits(
    head: nn.Module, states: Float[Tensor, "*rows H"], token_ids: Int[Tensor, " D"]
) -> Float[Tensor, "*rows D"]:
    """Apply some rows of an LM head; one that is quantised computes all logits."""
    if not isinstance(head, nn.Linear) or is_quantized(head):
        return head(states)[..., token_ids]
    device = head.weight.device
    token_ids = token_ids.to(device)
    bias = None if head.bias is None else head.bias[token_ids]
    return F.linear(states.to(device), head.weight[token_ids], bias)


def length_limit(model: PreTrainedModel) -> int:
    """Return the longest context, in tokens, at which batching does not change what is computed.

    Dynamic and longrope scaling choose their frequencies by the longest row of a batch, so such
    models stay below the length at which the choice changes.
    """
    config = model.config.get_text_config(decoder=True)
    limit = int(
        getattr(config, "max_position_embeddings", None)
        or getattr(config, "n_positions", None)
        or 1 << 30
    )
    rope = getattr(config, "rope_parameters", None) or {}
    per_layer_type = [part for part in rope.values() if isinstance(part, dict)]
    for parameters in per_layer_type or [rope]:
        if parameters.get("rope_type") in ("dynamic", "longrope"):
            original = parameters.get("original_max_position_embeddings") or limit
            limit = min(limit, int(original))
    return limit
