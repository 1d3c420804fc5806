"""A one-layer module goes on from the target's own hidden states: EAGLE-1 (arXiv 2401.15077), EAGLE-2's trees (2406.16858)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.eagle import EagleModel
from specresearch.models.eagle_format import Eagle1Format, EagleFormat
from specresearch.models.eagle_head import EagleHead
from specresearch.proposal import DraftKind, Proposal, Topology, Verdict
from specresearch.proposers.base import Proposer
from specresearch.proposers.shapes import TreeShape, small_paths
from specresearch.proposers.tree import grow_dynamic, grow_static

TOY_LAYERS = (0, 1, 2)


class Eagle(Proposer):
    """Drafts with an EAGLE-1 head; the default tree is EAGLE-2's.

    A draft's feature is the head's own guess; once the target has verified it, the true feature takes its place. A prompt of
    one token has no feature yet, so its first step drafts nothing.

    head: a folder, hub id or `zoo:` name with its `revision`, or a loaded head. tree: chain, static or dynamic;
    num_draft_tokens, paths, depth, top_k: see `TreeShape`. sample: draw the drafts of a chain from the head's distribution and
    report it; trees, and greedy requests, get the likeliest tokens as point masses. overrides: replace keys of the head's
    config, e.g. rope_theta.
    layer_ids, id_convention: of EAGLE-3, the target layers that the head was trained on, and whether these are ids of layer
    `inputs` or `outputs`; None: what its config says and its author means, and otherwise the usual three.
    """

    format: type[EagleFormat] = Eagle1Format

    def __init__(
        self,
        head: str | EagleHead | None = None,
        num_draft_tokens: int | None = None,
        tree: str = "dynamic",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 7,
        top_k: int = 10,
        sample: bool = True,
        overrides: Mapping[str, Any] | None = None,
        revision: str | None = None,
        layer_ids: Sequence[int] | None = None,
        id_convention: str | None = None,
    ) -> None:
        self.head, self.overrides, self.revision = head, overrides, revision
        self.layer_ids, self.id_convention = layer_ids, id_convention
        self.shape = TreeShape(tree, num_draft_tokens, paths, depth, top_k)
        self.num_draft_tokens = self.shape.num_draft_tokens
        is_chain = self.shape.name == "chain"
        self.sample = sample and is_chain
        self.kind = DraftKind(trees=not is_chain, sampled=self.sample, scored=True)
        self.model: EagleModel | None = None
        self._waiting: dict[int, list[Tensor]] = {}

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "Eagle":
        """Drafts with a random head that fits `target`, in trees small enough to be certified."""
        config: Any = target.model.config
        format = cls.format.new(config, config.hidden_size, TOY_LAYERS, target.vocab_size)
        fitting: dict[str, Any] = {
            "num_draft_tokens": 24,
            "depth": 3,
            "top_k": min(4, target.vocab_size),
            "layer_ids": None,
        }
        if settings.get("tree") == "static" and not settings.get("paths"):
            fitting |= {"num_draft_tokens": None, "paths": small_paths(target.vocab_size)}
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            fitting["head"] = EagleHead.of(format)
        return cls(**settings | fitting)

    def load(self, target: CausalLM) -> EagleModel:
        """The head beside its target."""
        if not self.head:
            raise ValueError(
                "proposer.head names no EAGLE head; set it to a folder or hub id, see docs/proposers/eagle.md"
            )
        head = self.head
        if isinstance(head, str):
            head = EagleHead.from_pretrained(head, revision=self.revision, overrides=self.overrides)
        if not isinstance(head.format, self.format):
            raise ValueError(
                f"{head.name} is an EAGLE-{head.format.version} head; "
                f"use proposer={head.format.proposer}"
            )
        return EagleModel(head, target, layer_ids=self.layer_ids, id_convention=self.id_convention)

    def describe(self) -> str | None:
        return None if self.model is None else self.model.describe()

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.model is None or self.model.target is not target:
            self.model = self.load(target)
        self.hidden_layers = self.model.captured_layers
        self.model.reserve(num_slots, target.max_len + self.shape.max_fed)
        self.shape.bind(self.model.draft_vocab_size, target.device)
        self._waiting = {}

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        """Feed the prompt but its last pair, which waits for the first `propose`."""
        slots = [row.slot for row in rows]
        self.finish(slots)
        if output is None:
            return
        assert self.model is not None
        features = self.model.fuse(output.hidden)  # [B, N, H]
        last = [max(len(row.tokens) - 2, 0) for row in rows]  # the token before the root
        early = [features[b, :end] for b, end in enumerate(last)]
        if any(last):
            tokens = [row.tokens[1 : end + 1] for row, end in zip(rows, last, strict=True)]
            self.model.extend(slots, tokens, early, want_logits=False)
        for b, (row, end) in enumerate(zip(rows, last, strict=True)):
            if len(row.tokens) > 1:
                self._waiting[row.slot] = [features[b, end : end + 1].clone()]

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        budget = [
            allowed if slot in self._waiting else 0
            for slot, allowed in zip(batch.slots, budget, strict=True)
        ]
        if not any(budget):
            return Proposal.empty(batch.roots)
        assert self.model is not None
        without = [slot for slot in batch.slots if slot not in self._waiting]
        logits, fed_back = self._catch_up(batch, self.model)
        growth = _Growth(self.model, batch.slots, fed_back)
        if self.shape.static is None:
            proposal = grow_dynamic(
                growth, batch, logits, budget, depth=self.shape.depth, top_k=self.shape.top_k
            )
        else:
            sample = self.sample and not batch.sampling.all_greedy
            proposal = grow_static(growth, batch, logits, self.shape.static, budget, sample=sample)
        self.model.truncate(without, [0] * len(without))
        return proposal

    def _catch_up(
        self, batch: Batch, model: EagleModel
    ) -> tuple[Float[Tensor, "B 1 V"], Float[Tensor, "B 1 H"]]:
        """Append what was accepted since, with the target's true features; a row without any gets a pair of zeros."""
        nothing = torch.zeros(
            (1, model.head.format.layer.hidden_size), dtype=model.dtype, device=batch.device
        )
        features = [torch.cat(self._waiting.get(slot, [nothing])) for slot in batch.slots]
        tokens = [row.tokens[-len(new) :] for row, new in zip(batch.rows, features, strict=True)]
        self._waiting.update({slot: [] for slot in batch.slots if slot in self._waiting})
        return model.extend(batch.slots, tokens, features)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """The accepted nodes' true features wait, each beside the token that follows it, for the next `propose`."""
        assert self.model is not None
        path = verdict.path.clamp(min=0).to(batch.device, non_blocking=True)[:, :, None]
        kept = [layer.gather(1, path.expand(-1, -1, layer.shape[2])) for layer in output.hidden]
        features = self.model.fuse(kept)  # [B, D, H]
        for b, (slot, num_accepted) in enumerate(
            zip(batch.slots, verdict.num_accepted.tolist(), strict=True)
        ):
            waiting, new = self._waiting.setdefault(slot, []), features[b, : num_accepted + 1]
            waiting.append(
                new.clone() if waiting else new
            )  # a view that stays would keep the whole batch's

    def finish(self, slots: Sequence[int]) -> None:
        assert self.model is not None
        self.model.truncate(slots, [0] * len(slots))
        for slot in slots:
            self._waiting.pop(slot, None)

    def scrub(self, slots: Sequence[int]) -> None:
        assert self.model is not None
        self.model.cache.scrub(slots)


@dataclass
class _Growth:
    """A head as the thing a tree grows from. fed_back: features after the nodes passed so far, in the tree's order."""

    model: EagleModel
    slots: Sequence[int]
    fed_back: Float[Tensor, "B n H"]

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M V"]:
        rows, num_known, width = self.fed_back.shape
        parents = topology.parents[:, first:].expand(rows, -1)
        features = self.fed_back.gather(1, parents[:, :, None].expand(-1, -1, width))
        logits, new = self.model.grow(self.slots, token_ids, features, topology, first)
        self.fed_back = torch.cat([F.pad(self.fed_back, (0, 0, 0, first - num_known)), new], dim=1)
        return logits
