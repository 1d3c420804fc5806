"""An EAGLE head beside its target, with a slot cache of its own: what a proposer drafts with."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specresearch.models.attention_plan import AttentionPlan, committed_positions
from specresearch.models.causal_lm import CausalLM
from specresearch.models.draft_vocabulary import DraftVocabulary
from specresearch.models.eagle_format import CONVENTIONS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.fused_norms import fuse_norms
from specresearch.models.head_fit import lm_head_of
from specresearch.models.hf_adapter import SLOT_ATTENTION
from specresearch.models.joint_projections import join_projections
from specresearch.models.kernel_choice import LayerShape, NoKernelError, find_kernel
from specresearch.models.pass_graphs import PassGraphs, Plan
from specresearch.models.slot_model import SlotModel
from specresearch.proposal import Topology, upload


class EagleModel(SlotModel):
    """A head beside its target, with keys and values by slot.

    Column and position t of a slot belong to the pair (feature of token t, token t + 1). A head
    without an embedding or LM head uses the target's.

    Args:
        layer_ids: Target layers that an EAGLE-3 head captures; None means what its config says,
            or else the usual three.
        id_convention: Whether ids mean the `inputs` (default) or `outputs` of those layers.

    Attributes:
        captured_layers: The captured layers in the adapter's numbering.
        target_ids: The target's id of every draft id; None if they are the same.

    Raises:
        ValueError: If head and target do not fit. A head of another target is a warning.
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
        self.device, self.dtype = target.device, target.dtype
        self.max_len, self.prefill_chunk = target.max_len, target.prefill_chunk
        super().__init__()
        if id_convention not in (None, *CONVENTIONS):
            raise ValueError(
                f"proposer.id_convention={id_convention!r} is unknown; choose one of "
                f"{', '.join(CONVENTIONS)}"
            )
        layer, num_layers = head.format.layer, len(target.adapter.layers)
        self.captured_layers = head.format.captured_layers(
            head.name, num_layers, layer_ids, id_convention
        )
        head.check_fit(target, len(self.captured_layers))
        is_as_wide = layer.hidden_size == lm_head_of(target).in_features
        if is_as_wide and not head.format.trains_embedding:
            head.embed_tokens = None
        layer._attn_implementation = SLOT_ATTENTION
        self.layer_config, self.num_layers = layer, 1
        self.module = self.head = head.to(device=self.device, dtype=self.dtype).eval()
        if self.device.type == "cuda":
            fuse_norms(head)
            join_projections(head)
        rotary = LlamaRotaryEmbedding(layer)  # made anew: its frequencies stay in float32
        head.rotary_emb = rotary.to(self.device)
        self.target_ids = None if head.target_ids is None else head.target_ids.to(self.device)
        head_dim = layer.head_dim or 1
        self.bytes_per_token = 2 * (layer.num_key_value_heads or 1) * head_dim * self.dtype.itemsize
        if target.kernel is not None:
            has_window = head.format.window is not None
            with suppress(NoKernelError):
                shape = LayerShape(self.device, self.dtype, head_dim, has_window)
                self.kernel = find_kernel([shape])
        self.windows = (head.format.window,)
        if target.passes is not None:
            self.passes = PassGraphs(self, compile=target.passes.compile)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """The tokens that it can draft."""
        return DraftVocabulary(self.target.vocab_size, self.target_ids)

    def describe(self) -> str:
        """Return one line on what is easily loaded wrong."""
        format = self.head.format
        inputs = format.describe_inputs(self.captured_layers, len(self.target.adapter.layers))
        rope: dict[str, Any] = dict(format.layer.rope_parameters or {})
        parts = [
            f"{self.name}: EAGLE-{format.version}, reads {inputs} of the target",
            f"rotary base {rope['rope_theta']:g} ({rope['rope_type']})",
            f"drafts from {self.vocabulary.size} of {self.target.vocab_size} tokens",
            f"embedding {'of the target' if self.head.embed_tokens is None else 'of its own'}",
            *self.head.notes(),
        ]
        return "; ".join(parts)

    @torch.inference_mode()
    def fuse(self, hidden: Sequence[Float[Tensor, "*rows _"]]) -> Float[Tensor, "*rows H"]:
        """Turn the target's hidden states at `captured_layers` into features for `extend`."""
        return self.head.fuse(hidden)

    @torch.inference_mode()
    def extend(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features: Float[Tensor, "B W H"],
        *,
        want_logits: bool = True,
    ) -> tuple[Float[Tensor, "B _ D"], Float[Tensor, "B _ H"]]:
        """Append pairs, ragged: the target's feature of a token, and the token after it.

        Args:
            features: Right-padded with finite numbers.

        Returns:
            The logits after each row's last token in the head's own vocabulary, [B, 1, D], and the
            feature fed back from there, [B, 1, H]; every row then needs a pair. Unless wanted, both
            have length 0.
        """
        assert max(map(len, tokens)) <= features.shape[1]
        last: dict[int, Tensor] = {}
        for chunk in self._chunks(slots, tokens):
            width = chunk.token_ids.shape[1]
            states = features[:, chunk.begin : chunk.begin + width]
            if chunk.rows != list(range(len(features))):
                states = states.index_select(0, upload(chunk.rows, self.device))
            topology = Topology.chain(width, self.device)
            out = self._forward(chunk.slots, chunk.token_ids, states, topology, first=0)
            for row, end in chunk.ends.items():
                last[row] = out.flatten(0, 1)[end]
        if not want_logits:
            no_logits = self._empty(len(slots), 0, self.vocabulary.size)
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
    ) -> tuple[Float[Tensor, "B M D"], Float[Tensor, "B M H"]]:
        """Run the M nodes from `first` on of a tree whose root is the last pair's token.

        Nothing is committed: the next `extend` overwrites the tree.

        Args:
            features: Fed back from each node's parent.

        Returns:
            The logits after the nodes in the head's own vocabulary, and the features that they feed
            back.
        """
        out = self._forward(slots, token_ids, features, topology, first, behind=1)
        return self._logits(out), self.head.fed_back(out)

    def grow_in_graph(
        self,
        plan: Plan,
        positions: Int[Tensor, "B M"],
        token_ids: Int[Tensor, "B M"],
        features: Float[Tensor, "B M H"],
    ) -> tuple[Float[Tensor, "B M D"], Float[Tensor, "B M H"]]:
        """Do what `grow` does over the region that a graph has set."""
        (out,) = self._run_head(plan, positions, token_ids, features)
        return self._logits(out), self.head.fed_back(out)

    def unroll(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int,
    ) -> list[Float[Tensor, "B P H"]]:
        """Return the outputs of `num_steps` drafting steps from each of the P = T - 1 pairs.

        In step i, pair t has been fed its own outputs for its last i tokens and the target's
        features before them, as in decoding (EAGLE-3's training-time test). So the steps are
        levels of a tree, where pair t of a step hangs below pair t - 1 of the step before; the
        first i pairs of step i are meaningless. No slot is used; gradients flow if enabled.

        Args:
            hidden: The target's states at `captured_layers`.
        """
        tokens = token_ids[:, 1:]
        rows, num_pairs = tokens.shape
        embeddings = self._embed(tokens)
        features = self.head.fuse([layer[:, :-1] for layer in hidden])
        topology = Topology.chain(num_pairs, self.device)
        previous = (torch.arange(num_pairs, device=self.device) - 1).clamp(min=0)
        cache = DynamicCache()
        outputs: list[Tensor] = []
        for first in range(0, num_steps * num_pairs, num_pairs):
            if outputs:
                topology = topology.with_level((first - num_pairs + previous)[None], 2)
                features = self.head.fed_back(outputs[-1])[:, previous]
            starts, width = (0,) * rows, topology.num_nodes
            plan = AttentionPlan(starts, topology, width, self.dtype, self.device, first=first)
            positions = committed_positions(starts, topology, self.device, first)
            out = self.head(
                embeddings,
                features,
                positions.expand(rows, -1),
                attention_plan=plan,
                **{self.head.cache_argument: cache},
            )
            outputs.append(out)
        return outputs

    def readout(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows D"]:
        """Return the logits of an output in the head's own vocabulary."""
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
        if self.passes is not None:
            padded = self.passes.fit(slots, topology, first, behind)
            if padded is None and first == behind == 0:
                padded = self.passes.fit_append(slots, topology)
            if padded is not None:
                inputs = [token_ids, features]
                (out,) = self.passes.run(
                    padded, "head", slots, topology, self._run_head, inputs, behind
                )
                return out
        plan, positions = self._plan_pass(slots, topology, first, behind=behind)
        return self._run_head(plan, positions, token_ids, features)[0]

    def _run_head(
        self,
        plan: AttentionPlan | Plan,
        positions: Int[Tensor, "#B M"],
        token_ids: Int[Tensor, "B M"],
        features: Float[Tensor, "B M H"],
    ) -> tuple[Float[Tensor, "B M H"]]:
        out = self.head(
            self._embed(token_ids),
            features,
            positions.expand(token_ids.shape),
            attention_plan=plan,
            **{self.head.cache_argument: self.view},
        )
        return (out,)

    def _logits(self, out: Float[Tensor, "B M H"]) -> Float[Tensor, "B M D"]:
        return self.readout(out).to(self.device)
