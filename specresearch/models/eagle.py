"""An EAGLE head beside its target, with a slot cache of its own: what a proposer drafts with."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specresearch.models.attention import AttentionPlan, committed_positions
from specresearch.models.causal_lm import CausalLM
from specresearch.models.eagle_format import CONVENTIONS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_fit import lm_head_of
from specresearch.models.hf_adapter import SLOT_ATTENTION
from specresearch.models.slot_model import SlotModel
from specresearch.proposal import Topology


class EagleModel(SlotModel):
    """A head beside its target, with keys and values by slot.

    Column and position t of a slot belong to the pair (feature of token t, token t + 1). Embedding and LM head are the
    target's where the head has none of its own.

    layer_ids, id_convention: the target layers that an EAGLE-3 head captures, as `inputs` (default) or `outputs` of those
    layers; None: what its config says, and otherwise the usual three. captured_layers: in the adapter's numbering.
    Raises ValueError when head and target do not fit, and warns when the head names another target.
    """

    def __init__(
        self,
        head: EagleHead,
        target: CausalLM,
        *,
        layer_ids: Sequence[int] | None = None,
        id_convention: str | None = None,
    ) -> None:
        self.name, self.target = head.name, target
        self.max_len, self.prefill_chunk = target.max_len, target.prefill_chunk
        super().__init__()
        if id_convention not in (None, *CONVENTIONS):
            raise ValueError(
                f"proposer.id_convention={id_convention!r} is unknown; choose one of "
                f"{', '.join(CONVENTIONS)}"
            )
        num_layers = len(target.adapter.layers)
        self.captured_layers = head.format.captured_layers(
            head.name, num_layers, layer_ids, id_convention
        )
        head.check_fit(target, len(self.captured_layers))
        if (
            head.format.layer.hidden_size == lm_head_of(target).in_features
            and not head.format.trains_embedding
        ):
            head.embed_tokens = None
        head.format.layer._attn_implementation = SLOT_ATTENTION
        self.head = head.to(device=self.device, dtype=self.dtype).eval()
        head.rotary_emb = LlamaRotaryEmbedding(head.format.layer).to(
            self.device
        )  # its frequencies stay in float32
        self.target_ids = None if head.target_ids is None else head.target_ids.to(self.device)
        layer = self.head.format.layer
        kv_width = (layer.num_key_value_heads or 1) * (layer.head_dim or 1)
        self.bytes_per_token = 2 * kv_width * self.dtype.itemsize

    @property
    def device(self) -> torch.device:
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        return self.target.dtype

    @property
    def draft_vocab_size(self) -> int:
        """How many tokens it can draft."""
        return self.target.vocab_size if self.target_ids is None else len(self.target_ids)

    def describe(self) -> str:
        """One line on what is easily loaded wrong: captured layers, rotary base, vocabulary, embedding, feedback."""
        format = self.head.format
        inputs = format.describe_inputs(self.captured_layers, len(self.target.adapter.layers))
        rope: dict[str, Any] = dict(format.layer.rope_parameters or {})
        parts = [
            f"{self.name}: EAGLE-{format.version}, reads {inputs} of the target",
            f"rotary base {rope['rope_theta']:g} ({rope['rope_type']})",
            f"drafts from {self.draft_vocab_size} of {self.target.vocab_size} tokens",
            f"embedding {'of the target' if self.head.embed_tokens is None else 'of its own'}",
            *format.notes(),
        ]
        return "; ".join(parts)

    @torch.inference_mode()
    def fuse(self, hidden: Sequence[Float[Tensor, "*rows _"]]) -> Float[Tensor, "*rows H"]:
        """Features, as `extend` takes them, of the target's hidden states at `captured_layers`."""
        return self.head.fuse(hidden)

    @torch.inference_mode()
    def extend(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features: Sequence[Float[Tensor, "_ H"]],
        *,
        want_logits: bool = True,
    ) -> tuple[Float[Tensor, "B _ V"], Float[Tensor, "B _ H"]]:
        """Append pairs, ragged: the target's feature of a token, and the token after it.

        Returns the logits after each row's last token, [B, 1, V], and the feature fed back from there, [B, 1, H]; every row
        then needs a pair. Unless wanted, both have length 0.
        """
        last: dict[int, Tensor] = {}
        for chunk in self._chunks(slots, tokens):
            width = chunk.token_ids.shape[1]
            new = [features[row][chunk.begin : chunk.begin + width] for row in chunk.rows]
            states = pad_sequence(new, batch_first=True)
            topology = Topology.chain(width, self.device)
            out = self._forward(chunk.slots, chunk.token_ids, states, topology, first=0)
            for row, end in chunk.ends.items():
                last[row] = out.flatten(0, 1)[end]
        if not want_logits:
            no_logits = self._empty(len(slots), 0, self.target.vocab_size)
            return no_logits, self._empty(len(slots), 0, self.head.format.layer.hidden_size)
        joined = self._stack(last, len(slots))
        return self._logits(joined), self.head.fed_back(joined)

    @torch.inference_mode()
    def grow(
        self,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B M"],
        features: Float[Tensor, "B M H"],
        topology: Topology,
        first: int,
    ) -> tuple[Float[Tensor, "B M V"], Float[Tensor, "B M H"]]:
        """A pass over the nodes from `first` on, M of them, of a tree whose root is the token of the last pair appended.

        features: fed back from each node's parent. Returns the logits after the nodes and what they feed back. Nothing is
        kept: the next `extend` overwrites the tree.
        """
        out = self._forward(slots, token_ids, features, topology, first, behind=1)
        return self._logits(out), self.head.fed_back(out)

    def unroll(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int,
    ) -> list[Float[Tensor, "B P H"]]:
        """Outputs of `num_steps` drafting steps from each of the P = T - 1 pairs of whole sequences, without a slot.

        In step i the pair t has been fed its own outputs for its last i tokens and the target's features before them, as in
        decoding (the training-time test of EAGLE-3). So the steps are levels of a tree, where pair t of a step hangs below
        pair t - 1 of the step before; the first i pairs of step i mean nothing.
        hidden: the target's states at `captured_layers`. Gradients flow where they are on.
        """
        tokens = token_ids[:, 1:]
        rows, num_pairs = tokens.shape
        embeddings = self._embed(tokens)
        features = self.head.fuse([layer[:, :-1] for layer in hidden])
        topology = Topology.chain(num_pairs, self.device)
        before = (torch.arange(num_pairs, device=self.device) - 1).clamp(min=0)
        cache, outputs = DynamicCache(), []
        for first in range(0, num_steps * num_pairs, num_pairs):
            if outputs:
                topology = topology.with_level((first - num_pairs + before)[None], 2)
                features = self.head.fed_back(outputs[-1])[:, before]
            plan = AttentionPlan(
                (0,) * rows, topology, topology.num_nodes, self.dtype, self.device, first=first
            )
            positions = committed_positions(plan.starts, topology, self.device, first).expand(
                rows, -1
            )
            outputs.append(
                self.head(
                    embeddings, features, positions, past_key_values=cache, attention_plan=plan
                )
            )
        return outputs

    def readout(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows D"]:
        """Logits of an output, in the head's own vocabulary (`target_ids`)."""
        return (self.head.lm_head or lm_head_of(self.target))(self.head.readable(out))

    def _embed(self, token_ids: Int[Tensor, "B M"]) -> Float[Tensor, "B M H"]:
        embedding = self.head.embed_tokens or self.target.model.get_input_embeddings()
        return embedding(token_ids).to(self.device)

    def _forward(
        self,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B M"],
        features: Float[Tensor, "B M H"],
        topology: Topology,
        first: int,
        behind: int = 0,
    ) -> Float[Tensor, "B M H"]:
        plan, positions = self._plan_pass(slots, topology, first, behind=behind)
        positions = positions.expand(token_ids.shape)
        return self.head(
            self._embed(token_ids),
            features,
            positions,
            past_key_values=self.view,
            attention_plan=plan,
        )

    def _logits(self, out: Float[Tensor, "B M H"]) -> Float[Tensor, "B M V"]:
        """In the target's vocabulary; -inf for tokens that the head cannot draft."""
        logits = self.readout(out).to(self.device)
        if self.target_ids is None:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.target.vocab_size), float("-inf"))
        return whole.index_copy_(-1, self.target_ids, logits)
