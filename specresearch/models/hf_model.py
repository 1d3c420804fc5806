"""A Hugging Face model without a cache: what it is, and passes over whole sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from specresearch.models.attention_plan import AttentionPlan, committed_positions
from specresearch.models.fused_norms import fuse_norms
from specresearch.models.hf_adapter import HFAdapter
from specresearch.models.int8_linear import use_int8_kernel
from specresearch.models.joint_projections import join_projections, split_projections
from specresearch.models.packed import (
    linear_kernels,
    pack_linear_layers,
    unpack_linear_layers,
)
from specresearch.models.parameter_count import count_parameters
from specresearch.models.quantizer import describe_weights
from specresearch.proposal import Topology, upload


@dataclass(frozen=True)
class ModelOutput:
    """What one pass returns.

    Attributes:
        logits: Row i is the distribution after node i.
        hidden: The requested layers, in that order, at all M tokens fed.
    """

    logits: Float[Tensor, "B N V"]
    hidden: tuple[Float[Tensor, "B M H"], ...] = ()


class HFModel:
    """A decoder-only model with our attention function. `CausalLM` documents the arguments."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        attention: str,
        pack_weights: bool | None,
        name: str,
    ) -> None:
        self.model = model.eval()
        self.device = model.device  # kept: the library looks it up among all parameters
        self.tokenizer = tokenizer
        self.name = name or model.config.name_or_path or type(model).__name__
        use_int8_kernel(model)
        pack_linear_layers(model, pack_weights)
        if self.device.type == "cuda":
            fuse_norms(model)
            join_projections(model)
        self.adapter = HFAdapter(model, attention)

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def vocab_size(self) -> int:
        return self.adapter.vocab_size

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def weights(self) -> str:
        """How the weights are stored: their precision, or how they are quantised."""
        return describe_weights(self.model) or self.dtype_name

    @property
    def num_parameters(self) -> int:
        return count_parameters(self.model)

    @property
    def linear_kernels(self) -> str:
        """The kernels that multiply by the weights, which a measurement at loading may choose."""
        return linear_kernels(self.model)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The ids that end an output: the generation config's, the config's or the tokenizer's."""
        generation = getattr(self.model, "generation_config", None)
        for owner in (generation, self.model.config, self.tokenizer):
            ids = getattr(owner, "eos_token_id", None)
            if ids is not None:
                return frozenset([ids] if isinstance(ids, int) else ids)
        return frozenset()

    def unpack_weights(self) -> None:
        """Replace packed and joint layers by plain ones, so that the model can be trained."""
        unpack_linear_layers(self.model)
        split_projections(self.model)

    def forward_whole(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden_layers: Sequence[int] = (),
        *,
        want_logits: bool = False,
    ) -> ModelOutput:
        """Run right-padded sequences without a slot, as training does; gradients flow if enabled.

        Returns:
            Logits [B, T, V] if wanted, otherwise [B, 0, V] (see `readout`), and hidden states.
        """
        rows, num_tokens = token_ids.shape
        topology = Topology.chain(num_tokens, self.device)
        plan = AttentionPlan((0,) * rows, topology, num_tokens, self.dtype, self.device)
        logits, hidden = self.adapter.forward(
            token_ids,
            committed_positions(plan.starts, topology, self.device),
            DynamicCache(),
            plan,
            logit_rows=None if want_logits else upload([], self.device, torch.long),
            hidden_layers=hidden_layers,
        )
        if not want_logits:
            logits = logits.new_empty((rows, 0, self.vocab_size))
        return ModelOutput(logits, hidden)

    def readout(
        self, states: Float[Tensor, "*rows H"], token_ids: Int[Tensor, " D"] | None = None
    ) -> Float[Tensor, "*rows V"] | Float[Tensor, "*rows D"]:
        """Return the logits of hidden states after the final norm (`FINAL_NORM`).

        Args:
            token_ids: The tokens whose logits are wanted, by default all.
        """
        return self.adapter.readout(states, token_ids)
