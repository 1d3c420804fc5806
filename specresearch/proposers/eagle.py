"""A one-layer module goes on from the target's own hidden states: EAGLE-1 (arXiv 2401.15077), EAGLE-2's trees (2406.16858)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.eagle import EagleHead, EagleModel
from specresearch.models.head_files import EagleFormat
from specresearch.proposal import DraftKind, Proposal, Topology, Verdict
from specresearch.proposers.base import Proposer, check_num_draft_tokens
from specresearch.proposers.shapes import TreeShape
from specresearch.proposers.tree import StaticTree, grow_dynamic, grow_static

TOY_LAYERS = (0, 1, 2)


class Eagle(Proposer):
    """Drafts with an EAGLE-1 head; the default tree is EAGLE-2's.

    A draft's feature is the head's own guess; once the target has verified it, the true feature takes its place. A prompt of
    one token has no feature yet, so its first step drafts nothing.

    head: a folder, hub id or `zoo:` name with its `revision`, or a loaded head. tree: chain, static or dynamic; paths,
    depth, top_k: see `TreeShape`. sample: draw the drafts of a chain from the head's distribution and report it; trees, and
    greedy requests, get the likeliest tokens as point masses. overrides: replace keys of the head's config, e.g. rope_theta.
    """

    version = 1

    def __init__(
        self,
        head: str | EagleHead | None = None,
        num_draft_tokens: int = 60,
        tree: str = "dynamic",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 7,
        top_k: int = 10,
        sample: bool = True,
        overrides: Mapping[str, Any] | None = None,
        revision: str | None = None,
    ) -> None:
        self.head, self.overrides, self.revision = head, overrides, revision
        self.shape = TreeShape(tree, check_num_draft_tokens(num_draft_tokens), paths, depth, top_k)
        self.num_draft_tokens = self.shape.num_draft_tokens
        self.sample = sample and tree == "chain"
        self.kind = DraftKind(trees=tree != "chain", sampled=self.sample, scored=True)
        self.model: EagleModel | None = None
        self._layers: dict[str, Any] = {}
        self._waiting: dict[int, list[Tensor]] = {}
        self._chains: dict[int, StaticTree] = {}

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "Eagle":
        """Drafts with a random head that fits `target`, in trees small enough to be certified."""
        config: Any = target.model.config
        is_third = cls.version == 3
        fc_width = config.hidden_size * (len(TOY_LAYERS) if is_third else 2)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            vocab_size = target.vocab_size if is_third else None
            head = EagleHead.of(EagleFormat(cls.version, config, fc_width, draft_vocab_size=vocab_size))
        fitting: dict[str, Any] = {"head": head, "num_draft_tokens": 12, "depth": 3, "top_k": 3}
        if is_third:
            fitting["layer_ids"] = TOY_LAYERS
        return cls(**settings | fitting)

    def load(self, target: CausalLM) -> EagleModel:
        """The head beside its target."""
        if not self.head:
            raise ValueError(
                "proposer.head names no EAGLE head; set it to a folder or hub id, see docs/proposers/eagle.md"
            )
        if isinstance(self.head, EagleHead):
            model = EagleModel(self.head, target, **self._layers)
        else:
            own: dict[str, Any] = {"overrides": self.overrides, "revision": self.revision}
            model = EagleModel.from_pretrained(self.head, target, **own, **self._layers)
        version = model.head.format.version
        if version != self.version:
            right = "eagle3" if version == 3 else "eagle"
            raise ValueError(f"{model.name} is an EAGLE-{version} head; use proposer={right}")
        return model

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.model is None or self.model.target is not target:
            self.model = self.load(target)
        self.hidden_layers = self.model.captured_layers
        self.model.allocate(num_slots, target.max_len + self.shape.max_fed)
        self.shape.bind(self.model.draft_vocab_size, target.device)
        self._waiting, self._chains = {}, {}

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
        budget = [allowed if slot in self._waiting else 0 for slot, allowed in zip(batch.slots, budget, strict=True)]
        if not any(budget):
            return Proposal.chain(batch.roots, torch.ones(len(batch), dtype=torch.long, device=batch.device))
        assert self.model is not None
        without = [slot for slot in batch.slots if slot not in self._waiting]
        logits, fed_back = self._catch_up(batch, self.model)
        growth = _Growth(self.model, batch.slots, fed_back)
        if self.shape.name == "dynamic":
            proposal = grow_dynamic(growth, batch, logits, budget, depth=self.shape.depth, top_k=self.shape.top_k)
        else:
            tree = self.shape.static or self._chain(max(budget), batch.device)
            sample = self.sample and not batch.sampling.all_greedy
            proposal = grow_static(growth, batch, logits, tree, budget, sample=sample)
        self.model.truncate(without, [0] * len(without))
        num_nodes = proposal.topology.num_nodes
        return replace(proposal, host_lengths=tuple(min(allowed + 1, num_nodes) for allowed in budget))

    def _catch_up(self, batch: Batch, model: EagleModel) -> tuple[Float[Tensor, "B 1 V"], Float[Tensor, "B 1 H"]]:
        """Append what was accepted since, with the target's true features; a row without any gets a pair of zeros."""
        nothing = torch.zeros((1, model.head.format.layer.hidden_size), dtype=model.dtype, device=batch.device)
        features = [torch.cat(self._waiting.get(slot, [nothing])) for slot in batch.slots]
        tokens = [row.tokens[-len(new) :] for row, new in zip(batch.rows, features, strict=True)]
        self._waiting.update({slot: [] for slot in batch.slots if slot in self._waiting})
        return model.extend(batch.slots, tokens, features)

    def _chain(self, num_drafts: int, device: torch.device) -> StaticTree:
        if num_drafts not in self._chains:
            paths = [(0,) * depth for depth in range(1, num_drafts + 1)]
            self._chains[num_drafts] = StaticTree.from_paths(paths, device)
        return self._chains[num_drafts]

    def observe(self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict) -> None:
        """The accepted nodes' true features wait, each beside the token that follows it, for the next `propose`."""
        assert self.model is not None
        path = verdict.path.clamp(min=0).to(batch.device, non_blocking=True)[:, :, None]
        kept = [layer.gather(1, path.expand(-1, -1, layer.shape[2])) for layer in output.hidden]
        features = self.model.fuse(kept)  # [B, D, H]
        for b, (slot, num_accepted) in enumerate(zip(batch.slots, verdict.num_accepted.tolist(), strict=True)):
            self._waiting.setdefault(slot, []).append(features[b, : num_accepted + 1])

    def finish(self, slots: Sequence[int]) -> None:
        assert self.model is not None
        self.model.truncate(slots, [0] * len(slots))
        for slot in slots:
            self._waiting.pop(slot, None)


@dataclass
class _Growth:
    """A head as the thing a tree grows from. fed_back: features after the nodes passed so far, in the tree's order."""

    model: EagleModel
    slots: Sequence[int]
    fed_back: Float[Tensor, "B n H"]

    def expand(self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int) -> Float[Tensor, "B M V"]:
        rows, num_known, width = self.fed_back.shape
        parents = topology.parents[:, first:].expand(rows, -1)
        features = self.fed_back.gather(1, parents[:, :, None].expand(-1, -1, width))
        logits, new = self.model.grow(self.slots, token_ids, features, topology, first)
        self.fed_back = torch.cat([F.pad(self.fed_back, (0, 0, 0, first - num_known)), new], dim=1)
        return logits
