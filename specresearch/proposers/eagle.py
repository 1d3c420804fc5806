"""EAGLE-1 (arXiv 2401.15077) with EAGLE-2's trees (2406.16858)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.eagle import EagleModel
from specresearch.models.eagle_format import Eagle1Format, EagleFormat
from specresearch.models.eagle_head import EagleHead
from specresearch.models.packed import has_packed_layers, pack_linear_layers
from specresearch.models.random_weights import Weights
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.proposers.draft_shape import AUTO, NumDrafts
from specresearch.proposers.growth_graph import GrowthGraph, PlanLevel
from specresearch.proposers.kept_columns import KeptColumns
from specresearch.proposers.kept_states import KeptStates
from specresearch.proposers.lazy_prefill import MOST_BEHIND, next_chunks
from specresearch.proposers.partial import propose_for
from specresearch.proposers.shapes import small_paths
from specresearch.proposers.tree import grow_dynamic, grow_static
from specresearch.proposers.tree_proposer import TreeProposer
from specresearch.request import RequestState

TOY_LAYERS = (0, 1, 2)


class Eagle(TreeProposer):
    """Drafts with an EAGLE-1 head; the default tree is EAGLE-2's.

    A draft's feature is predicted by the head; once the target has verified the draft, the true
    feature takes its place. Head prefill is lazy: it runs on a request's first draft, and the
    target's hidden states are kept until then. A prompt of one token has none yet, so its first
    step drafts nothing.

    Args:
        head: A folder, hub id or `zoo:` name with its `revision`, or a loaded head.
        tree: chain, static, dynamic or auto; for `num_draft_tokens`, `paths`, `depth` and `top_k`
            see `TreeProposer`.
        sample: Draw the drafts of a chain from the head's distribution and report it. Trees and
            greedy requests get the likeliest tokens as point masses.
        overrides: Replace keys of the head's config, e.g. rope_theta.
        layer_ids: Target layers that an EAGLE-3 head was trained on; None means what its config
            says, or else the usual three.
        id_convention: Whether these are ids of layer `inputs` or `outputs`.
        weights: `random` takes only the shape of the named head.
    """

    format: type[EagleFormat] = Eagle1Format

    def __init__(
        self,
        head: str | EagleHead | None = None,
        num_draft_tokens: NumDrafts | None = None,
        tree: str = "dynamic",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 7,
        top_k: int = 10,
        sample: bool = True,
        overrides: Mapping[str, Any] | None = None,
        revision: str | None = None,
        layer_ids: Sequence[int] | None = None,
        id_convention: str | None = None,
        weights: Weights = "trained",
    ) -> None:
        self.head, self.overrides, self.revision = head, overrides, revision
        self.weights: Weights = weights
        self.layer_ids, self.id_convention = layer_ids, id_convention
        super().__init__(tree, num_draft_tokens, paths, depth, top_k, sample=sample)
        self.model: EagleModel | None = None
        self._unread = KeptStates()

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "Eagle":
        """Return a proposer with a random head and trees small enough to be certified."""
        config: Any = target.model.config
        format = cls.format.new(config, config.hidden_size, TOY_LAYERS, target.vocab_size)
        settings |= {"depth": 3, "top_k": min(4, target.vocab_size)}
        if settings.get("tree") != AUTO:
            settings["num_draft_tokens"] = 24
        if settings.get("tree") == "static" and not settings.get("paths"):
            settings |= {"num_draft_tokens": None, "paths": small_paths(target.vocab_size)}
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            head = EagleHead.of(format)
        return cls(**settings | {"head": head, "layer_ids": None})

    def load(self, target: CausalLM) -> EagleModel:
        """Load the head beside its target."""
        if not self.head:
            raise ValueError(
                "proposer.head names no EAGLE head; set it to a folder or hub id, see "
                "docs/proposers/eagle.md"
            )
        head = self.head
        if isinstance(head, str):
            head = EagleHead.from_pretrained(
                head, revision=self.revision, overrides=self.overrides, weights=self.weights
            )
        if not isinstance(head.format, self.format):
            raise ValueError(
                f"{head.name} is an EAGLE-{head.format.version} head; "
                f"use proposer={head.format.proposer}"
            )
        model = EagleModel(head, target, layer_ids=self.layer_ids, id_convention=self.id_convention)
        if head is not self.head:
            # one that was given loaded may go on training
            pack_linear_layers(head, has_packed_layers(target.model))
        return model

    @property
    def models(self) -> tuple[EagleModel, ...]:
        return () if self.model is None else (self.model,)

    def describe(self) -> str | None:
        return None if self.model is None else self.model.describe()

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.model is None or self.model.target is not target:
            self.model = self.load(target)
        self.hidden_layers = self.model.captured_layers
        self.model.reserve(num_slots, target.max_len, self.max_fed)
        self.bind_shape(self.model.vocabulary.size, target.device)
        self._unread = KeptStates()
        self._columns = KeptColumns(self.model)

    def num_reusable(self, slot: int, num_tokens: int) -> int:
        """Return how many first tokens have a pair or a kept state.

        The last pair that was read depends on the next token too.
        """
        num_read = self._columns.length(slot)
        if num_tokens <= num_read:
            return max(num_tokens - 1, 0)
        return min(num_read + self._unread.count(slot), num_tokens)

    def reuse(self, slot: int, source: int, num_tokens: int) -> None:
        if slot != source:
            self._unread.copy(source, slot)
        self._columns.reuse(slot, source, num_tokens)
        self._unread.keep(slot, num_tokens - self._columns.length(slot))

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        """Keep the states of a prompt for its first draft."""
        self._columns.enter(rows)
        for row in rows:
            self._unread.keep(row.slot, row.num_reused - self._columns.length(row.slot))
        if output is not None:
            counts = [len(row.tokens) - 1 - row.num_reused for row in rows]
            self._unread.add([row.slot for row in rows], output.hidden, counts)

    @property
    def keeps_prompt_states(self) -> bool:
        return True

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        """Read at most one chunk of all prompts together, the first rows first."""
        assert self.model is not None
        slots, chunks = next_chunks(rows, self._unread_tokens, self.model.prefill_chunk)
        if slots:
            features = self.model.fuse(self._unread.take(slots, list(map(len, chunks))))
            self.model.extend(slots, chunks, features, want_logits=False)
        return sum(map(len, chunks))

    def is_behind(self, row: RequestState) -> bool:
        return len(self._unread_tokens(row)) > MOST_BEHIND

    def _unread_tokens(self, row: RequestState) -> list[int]:
        """Return the tokens whose pairs the head has not read.

        They are none if their states are not all here, as after the bind of another engine.
        """
        assert self.model is not None
        tokens = row.tokens[self.model.lengths[row.slot] + 1 :]
        return tokens if len(tokens) == self._unread.count(row.slot) else []

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        return propose_for(batch, budget, lambda row: bool(self._unread_tokens(row)), self._propose)

    def _propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        assert self.model is not None
        unread = list(map(self._unread_tokens, batch.rows))
        features = self.model.fuse(self._unread.take(batch.slots, list(map(len, unread))))
        logits, fed_back = self.model.extend(batch.slots, unread, features)
        growth = _Growth(self.model, batch.slots, fed_back)
        graph = GrowthGraph.of(
            self.model,
            batch.slots,
            partial(_GrowthInGraph, self.model),
            [fed_back],
            max_fed=self.max_fed,
            behind=1,
        )
        if self.shape.static is None:
            return grow_dynamic(
                growth,
                batch,
                logits,
                budget,
                depth=self.shape.depth,
                top_k=self.shape.top_k,
                vocabulary=self.model.vocabulary,
                graph=graph,
            )
        return grow_static(
            growth,
            batch,
            logits,
            self.shape.static,
            budget,
            sample=self.sample and not batch.sampling.all_greedy,
            vocabulary=self.model.vocabulary,
            graph=graph,
        )

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Keep the accepted nodes' hidden states for the next `propose`."""
        counts = [accepted + 1 for accepted in verdict.num_accepted.tolist()]
        hidden = output.hidden
        if hidden[0].shape[1] > 1:
            path = verdict.path.clamp(min=0).to(batch.device, non_blocking=True)[:, :, None]
            hidden = tuple(
                [layer.gather(1, path.expand(-1, -1, layer.shape[2])) for layer in hidden]
            )
        self._unread.add(batch.slots, hidden, counts)

    def finish(self, slots: Sequence[int]) -> None:
        self._unread.drop(self._columns.leave(slots))

    def scrub(self, slots: Sequence[int]) -> None:
        assert self.model is not None
        self.model.cache.scrub(slots)
        self._unread.drop(slots)


@dataclass
class _Growth:
    """A head that a tree grows from.

    Attributes:
        fed_back: Features after the nodes of the last level, below which the next ones hang.
        first: The first of these nodes.
    """

    model: EagleModel
    slots: Sequence[int]
    fed_back: Float[Tensor, "B n H"]
    first: int = 0

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M D"]:
        features = _of_parents(self.fed_back, topology, first, self.first)
        logits, self.fed_back = self.model.grow(self.slots, token_ids, features, topology, first)
        self.first = first
        return logits


@dataclass
class _GrowthInGraph:
    """The same inside of a graph."""

    model: EagleModel
    plan: PlanLevel
    fed_back: Float[Tensor, "B n H"]
    first: int = 0

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M D"]:
        features = _of_parents(self.fed_back, topology, first, self.first)
        plan = self.plan(topology, first)
        logits, self.fed_back = self.model.grow_in_graph(*plan, token_ids, features)
        self.first = first
        return logits


def _of_parents(
    fed_back: Float[Tensor, "B n H"], topology: Topology, first: int, first_parent: int
) -> Float[Tensor, "B M H"]:
    """Return the features fed back by the parents of the nodes from `first` on."""
    rows, _, width = fed_back.shape
    parents = topology.parents[:, first:].expand(rows, -1) - first_parent
    return fed_back.gather(1, parents[:, :, None].expand(-1, -1, width))
