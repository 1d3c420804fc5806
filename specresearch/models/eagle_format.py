"""The two formats of EAGLE heads: EAGLE-1, which EAGLE-2 uses too, and EAGLE-3."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers import LlamaConfig, PreTrainedConfig

from specresearch.models.hf_adapter import FINAL_NORM

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
CONVENTIONS = ("inputs", "outputs")
COPIED_KEYS = (
    "intermediate_size",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
)
LAYER_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class EagleFormat:
    """What an EAGLE head is made of, whichever layout described it.

    EAGLE-1 heads have no use for the fields after `base_model`.

    Attributes:
        proposer: Name of the proposer that drafts with such heads.
        layouts: Layouts in which such heads can be exported.
        architecture, layer_prefix: What the raw layout calls the model and its layer.
        training_steps: Drafting steps that the paper trains with.
        reduces_vocabulary: True if a head may draft from a part of the vocabulary.
        layer: Config of the decoder layer; its `vocab_size` is the target's.
        fc_width: Values that `fc` reads.
        trains_embedding: The stored embedding differs from the target's on purpose.
        window: Sliding window in tokens.
        base_model: The target that the config names.
        draft_vocab_size: Rows of the head's own LM head; None if it uses the target's.
        num_fc_norms: Number of norms over single target features.
        norm_before_fc: One norm is applied to all target features together.
        norm_before_residual: The residual is the normed hidden state.
        norm_output: Outputs are normed before they are fed back.
        layer_ids, id_convention: Captured target layers as the config states them, by ids of
            layer `inputs` or `outputs`.
    """

    version: ClassVar[int]
    proposer: ClassVar[str]
    layouts: ClassVar[tuple[str, ...]]
    architecture: ClassVar[str]
    layer_prefix: ClassVar[str]
    training_steps: ClassVar[int]
    reduces_vocabulary: ClassVar[bool]

    layer: LlamaConfig
    fc_width: int
    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    own_embedding: bool = False
    trains_embedding: bool = False
    window: int | None = None
    target_hidden_size: int | None = None
    base_model: str | None = None
    draft_vocab_size: int | None = None
    num_fc_norms: int = 0
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    layer_ids: tuple[int, ...] | None = None
    id_convention: str | None = None

    @classmethod
    def new(
        cls,
        layer: LlamaConfig,
        target_hidden_size: int,
        layer_ids: tuple[int, ...],
        draft_vocab_size: int,
        base_model: str | None = None,
    ) -> "EagleFormat":
        """Return the format of a new head; EAGLE-1 ignores the ids and the vocabulary."""
        fields: dict[str, Any] = {"target_hidden_size": target_hidden_size}
        if cls.reduces_vocabulary:
            fields["draft_vocab_size"] = draft_vocab_size
            fields |= {"layer_ids": layer_ids, "id_convention": "inputs"}
        width = cls.input_width(layer.hidden_size, target_hidden_size, len(layer_ids))
        return cls(layer, width, base_model=base_model, **fields)

    @staticmethod
    def input_width(hidden_size: int, target_hidden_size: int, num_layers: int) -> int:
        """Return how many values `fc` reads if `num_layers` target layers are captured."""
        raise NotImplementedError

    def captured_layers(
        self, name: str, num_layers: int, layer_ids: Sequence[int] | None, convention: str | None
    ) -> tuple[int, ...]:
        """Return the target layers to capture in the adapter's numbering.

        Args:
            name: What messages call the head.
            layer_ids: Replaces the format's ids; without either, the usual layers are captured.
            convention: Replaces the format's `id_convention`.
        """
        raise NotImplementedError

    def stated(self, name: str, captured_layers: Sequence[int] | None) -> "EagleFormat":
        """Return the format with nothing left to a reader's defaults, and with `inputs` ids."""
        raise NotImplementedError

    def flags(self) -> dict[str, Any]:
        """Return the config keys that tell one head of this format from another."""
        return {"embed_requires_grad": self.trains_embedding}

    def describe_inputs(self, layers: Sequence[int], num_layers: int) -> str:
        """Name what the head reads of its target."""
        return f"the inputs of layers {', '.join(map(str, layers))} of {num_layers}"


class Eagle1Format(EagleFormat):
    """EAGLE-1 (arXiv 2401.15077) and EAGLE-2 (2406.16858): reads what the LM head reads."""

    version = 1
    proposer = "eagle"
    layouts = ("eagle", "eagle_sglang")
    architecture = "LlamaForCausalLM"
    layer_prefix = "layers.0."
    training_steps = 1
    reduces_vocabulary = False

    @staticmethod
    def input_width(hidden_size: int, target_hidden_size: int, num_layers: int) -> int:
        return hidden_size + target_hidden_size

    def captured_layers(
        self, name: str, num_layers: int, layer_ids: Sequence[int] | None, convention: str | None
    ) -> tuple[int, ...]:
        if layer_ids is not None and tuple(layer_ids) != (FINAL_NORM,):
            raise ValueError(
                f"proposer.layer_ids={list(layer_ids)} is for EAGLE-3; {name} reads the final norm"
            )
        return (FINAL_NORM,)

    def stated(self, name: str, captured_layers: Sequence[int] | None) -> EagleFormat:
        return replace(self, target_hidden_size=self.fc_width - self.layer.hidden_size)

    def flags(self) -> dict[str, Any]:
        return {"bias": self.fc_bias} | super().flags()

    def describe_inputs(self, layers: Sequence[int], num_layers: int) -> str:
        return "the final norm"


class Eagle3Format(EagleFormat):
    """EAGLE-3 (arXiv 2503.01840): reads hidden states of several target layers."""

    version = 3
    proposer = "eagle3"
    layouts = ("eagle3", "speculators")
    architecture = "LlamaForCausalLMEagle3"
    layer_prefix = "midlayer."
    training_steps = 7
    reduces_vocabulary = True

    @staticmethod
    def input_width(hidden_size: int, target_hidden_size: int, num_layers: int) -> int:
        return num_layers * target_hidden_size

    def captured_layers(
        self, name: str, num_layers: int, layer_ids: Sequence[int] | None, convention: str | None
    ) -> tuple[int, ...]:
        if layer_ids is None and self.layer_ids is not None:
            layer_ids = self.layer_ids
            if convention is None and self.id_convention == "outputs":
                warnings.warn(
                    f"{name}: {LAYER_IDS}={list(layer_ids)} in eagle_config is read as the outputs "
                    "of those layers, as its writers mean it; some engines read inputs. Set "
                    "proposer.id_convention to outputs or inputs to say which",
                    stacklevel=4,
                )
            convention = convention or self.id_convention
        captured = usual_layers(num_layers)
        if layer_ids is not None:
            captured = tuple(int(k) + (convention == "outputs") for k in layer_ids)
        if not all(0 <= k <= num_layers for k in captured):
            raise ValueError(
                f"{name} captures the inputs of layers {list(captured)} and the target has "
                f"{num_layers} layers; set proposer.layer_ids"
            )
        return captured

    def stated(self, name: str, captured_layers: Sequence[int] | None) -> EagleFormat:
        if captured_layers is None and self.layer_ids is not None:
            captured_layers = [k + (self.id_convention == "outputs") for k in self.layer_ids]
        if captured_layers is None:
            raise ValueError(
                f"nothing says which target layers {name} captures; give captured_layers"
            )
        return replace(
            self,
            layer_ids=tuple(captured_layers),
            id_convention="inputs",
            target_hidden_size=self.fc_width // len(captured_layers),
        )

    def flags(self) -> dict[str, Any]:
        return {
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_hidden_size,
            LAYER_IDS: list(self.layer_ids or ()),
            "norm_before_residual": self.norm_before_residual,
            "norm_before_fc": self.norm_before_fc,
            "fc_norm": self.num_fc_norms > 0,
            "norm_output": self.norm_output,
        } | super().flags()


FORMATS: dict[int, type[EagleFormat]] = {1: Eagle1Format, 3: Eagle3Format}


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs EAGLE-3 heads capture unless something else is stated."""
    return 2, num_layers // 2, num_layers - 3


def layer_like(target: PreTrainedConfig, vocab_size: int, max_len: int) -> LlamaConfig:
    """Return the config of a new head's layer, which has the proportions of its target's."""
    config: Any = target.get_text_config(decoder=True)
    num_heads = config.num_attention_heads
    settings: dict[str, Any] = {
        "intermediate_size": 4 * config.hidden_size,
        "num_key_value_heads": num_heads,
    }
    for name in COPIED_KEYS:
        value = getattr(config, name, None)
        if value is not None:
            settings[name] = value
    rope = settings.get("rope_parameters", {})
    if "full_attention" in rope:  # one set for each kind of layer
        settings["rope_parameters"] = rope["full_attention"]
    return LlamaConfig(
        **settings,
        hidden_size=config.hidden_size,
        num_attention_heads=num_heads,
        num_hidden_layers=1,
        vocab_size=vocab_size,
        max_position_embeddings=max_len,
        tie_word_embeddings=False,
    )
