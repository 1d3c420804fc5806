"""The memory that decoding will take, by part, before its caches are allocated."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specresearch.engine.rule_graphs import MOST_LOGITS
from specresearch.models import CausalLM
from specresearch.models.kv_cache import available_bytes
from specresearch.models.memory import module_of, weight_bytes
from specresearch.models.pass_graphs import ROWS, at_least
from specresearch.models.slot_model import SlotModel
from specresearch.proposers import Proposer
from specresearch.sampling_params import SamplingParams

# Arrays of [rows, nodes, vocabulary] that sampling holds at once, beside the logits: copies in its
# own precision, and what finding the largest tokens or the nucleus adds to them, in bytes.
SAMPLING_COPIES = 3
PENALTY_COPIES = 4
TRUNCATION_BYTES = 42
DRAFT_COPIES = 2  # of a drafter's logits and probabilities: by level, and joined
HIDDEN_COPIES = 3  # of a prompt's hidden states: kept, joined, and padded for the drafter


@dataclass(frozen=True)
class DecodingMemory:
    """Bytes by part. The larger of a prefill and a step counts, since one follows the other.

    Attributes:
        target_weights: Parameters, buffers and packed copies, which are there already.
        draft_weights: The same of the drafter, without what it shares with the target.
        target_cache: Keys and values of all slots.
        draft_cache: The same of all drafters.
        draft_state: What drafters and penalties keep for each slot beside keys and values, hidden
            states of prompts included.
        target_prefill: Activations, masks and hidden states of a pass over prompts.
        draft_prefill: The same of a drafter's pass.
        verification: Activations, masks, hidden states and logits of a pass over draft trees.
        sampling: Probabilities, and what top-k, top-p and penalties make of them.
        drafts: A drafter's logits and probabilities.
        graphs: What captured passes and rules hold for good, padding included.
    """

    target_weights: int
    draft_weights: int
    target_cache: int
    draft_cache: int
    draft_state: int
    target_prefill: int
    draft_prefill: int
    verification: int
    sampling: int
    drafts: int
    graphs: int = 0

    @property
    def passes(self) -> int:
        """Bytes of the larger pass."""
        return max(self.target_prefill, self.draft_prefill, self.step)

    @property
    def step(self) -> int:
        return self.verification + self.sampling + self.drafts

    @property
    def additional(self) -> int:
        """Bytes needed on top of the weights."""
        held = self.target_cache + self.draft_cache + self.draft_state + self.graphs
        return held + self.passes

    @property
    def total(self) -> int:
        return self.target_weights + self.draft_weights + self.additional

    def by_part(self) -> dict[str, int]:
        return asdict(self) | {"total": self.total}


@dataclass(frozen=True)
class Columns:
    """What one slot of a model holds: tokens of the context, and room for a draft tree."""

    model: SlotModel
    spare: int

    def cache_bytes(self, max_len: int) -> int:
        return self.model.bytes_per_token * (max_len + self.spare)


class Forecast:
    """Foretells memory for any number of slots. The models must hold no requests.

    Args:
        proposer: None decodes plainly. It is bound without slots, which loads its models.
        sampling: Of all requests.
        max_step_tokens: The scheduler's limit.
        num_sides: Engines that share the caches, each with slots of its own.

    Attributes:
        num_nodes: The largest draft tree of a request.
    """

    def __init__(
        self,
        target: CausalLM,
        proposer: Proposer | None,
        sampling: Sequence[SamplingParams],
        *,
        max_step_tokens: int | None = None,
        num_sides: int = 1,
    ) -> None:
        self.target, self.proposer = target, proposer
        self.sampling, self.max_step_tokens = sampling, max_step_tokens
        self.num_sides = num_sides
        max_nodes = [1]
        models: tuple[Any, ...] = ()
        if proposer is not None:
            proposer.bind(target, 0)
            max_nodes += [part.max_nodes for part in (proposer, *proposer.proposers)]
            models = proposer.models
        target.allocate(0, *max_nodes)
        self.num_nodes = max(max_nodes)
        self._columns = _columns_of(target, target.max_len)
        drafters = [model for model in models if isinstance(model, SlotModel)]
        self._drafters = [_columns_of(model, target.max_len) for model in drafters]
        self._target_weights = weight_bytes([target.module])
        modules = [module_of(model) for model in models]
        self._draft_weights = weight_bytes(modules, besides=[target.module])

    def of(self, num_running: int, max_len: int | None = None) -> DecodingMemory:
        """Return what `num_running` requests of each side take.

        Args:
            max_len: The longest context; None means the target's.
        """
        max_len = self.target.max_len if max_len is None else max_len
        num_slots = num_running * self.num_sides
        caches = [drafter.cache_bytes(max_len) for drafter in self._drafters]
        states = num_running * max_len * self._hidden_bytes()
        kept = states if self.proposer is not None and self.proposer.keeps_prompt_states else 0
        prefills = [self._prefill(drafter, num_running, max_len) for drafter in self._drafters]
        return DecodingMemory(
            target_weights=self._target_weights,
            draft_weights=self._draft_weights,
            target_cache=num_slots * self._columns.cache_bytes(max_len),
            draft_cache=num_slots * sum(caches),
            draft_state=num_slots * self._slot_state() + kept,
            target_prefill=self._prefill(self._columns, num_running, max_len)
            + HIDDEN_COPIES * states
            - kept,
            draft_prefill=max(prefills, default=0),
            verification=self._verification(num_running, max_len),
            sampling=num_running * self.num_nodes * self.target.vocab_size * self._per_logit(),
            drafts=num_running * self.num_nodes * self.target.vocab_size * self._per_draft_logit(),
            graphs=self._graphs(num_running, max_len),
        )

    def _graphs(self, num_running: int, max_len: int) -> int:
        """Return the bytes of the largest graphs, whose memory the smaller ones share."""
        num_bytes = 0
        for part in (self._columns, *self._drafters):
            passes = part.model.passes
            num_rows = at_least(num_running, ROWS)
            if passes is None or num_rows is None:
                continue
            num_tokens = num_rows * passes.sizes[-1]
            num_bytes += _activations(part.model, num_tokens)
            num_bytes += _attention(part.model, num_tokens, num_rows, max_len)
            if part is self._columns:
                num_logits = min(MOST_LOGITS, num_tokens * self.target.vocab_size)
                num_bytes += num_logits * (self.target.dtype.itemsize + self._per_logit())
        return num_bytes

    @property
    def target_devices(self) -> set[torch.device]:
        return self.target.cache.devices

    @property
    def drafter_devices(self) -> set[torch.device]:
        """Return the devices of drafters that hold nothing of the target."""
        devices = {device for part in self._drafters for device in part.model.cache.devices}
        return devices - self.target_devices

    def held(self) -> int:
        """Return the bytes of caches that are there already, and would be replaced."""
        return sum(part.model.cache.num_bytes for part in (self._columns, *self._drafters))

    def set_max_len(self, max_len: int) -> None:
        """Set the target's longest context, and free the caches, which are for another one."""
        if max_len == self.target.max_len:
            return
        self.target.max_len = max_len
        for part in (self._columns, *self._drafters):
            part.model.free_cache()

    def _slot_state(self) -> int:
        state = 0 if self.proposer is None else self.proposer.slot_bytes
        if any(params.has_penalty for params in self.sampling):
            state += 2 * self.target.vocab_size * torch.int32.itemsize
        return state

    def _prefill(self, columns: Columns, num_rows: int, max_len: int) -> int:
        chunk = min(columns.model.prefill_chunk, max_len)
        num_tokens = num_rows * chunk
        if self.max_step_tokens is not None:
            num_tokens = min(num_tokens, self.max_step_tokens)
        # A prompt that is prefilled whole needs no mask.
        is_whole = max_len <= chunk and self.max_step_tokens is None
        return _activations(columns.model, num_tokens) + _attention(
            columns.model, num_tokens, num_rows, 0 if is_whole else max_len
        )

    def _hidden_bytes(self) -> int:
        """Return the bytes of one token's hidden states that the proposer reads."""
        layers = () if self.proposer is None else self.proposer.hidden_layers
        return len(layers) * _shape_of(self.target).hidden * self.target.dtype.itemsize

    def _verification(self, num_rows: int, max_len: int) -> int:
        num_tokens = num_rows * self.num_nodes
        logits = num_tokens * self.target.vocab_size * self.target.dtype.itemsize
        columns = max_len + self._columns.spare
        return (
            logits
            + num_tokens * self._hidden_bytes()
            + _activations(self.target, num_tokens)
            + _attention(self.target, num_tokens, num_rows, columns)
        )

    def _per_logit(self) -> int:
        """Return the bytes that sampling takes for each logit."""
        size, num_bytes = self._precision, 0
        if not all(params.is_greedy for params in self.sampling):
            num_bytes += SAMPLING_COPIES * size
        if any(params.top_k or params.top_p < 1 or params.min_p for params in self.sampling):
            num_bytes += TRUNCATION_BYTES
        if any(params.has_penalty for params in self.sampling):
            num_bytes += PENALTY_COPIES * size
        return num_bytes

    def _per_draft_logit(self) -> int:
        """Return the bytes that drafting takes for each logit."""
        if self.proposer is None:
            return 0
        num_bytes = 0
        if self.proposer.models:
            num_bytes += DRAFT_COPIES * self.target.dtype.itemsize
        if self.proposer.kind.sampled and not all(params.is_greedy for params in self.sampling):
            num_bytes += DRAFT_COPIES * self._precision
        return num_bytes

    @property
    def _precision(self) -> int:
        """Bytes of a probability."""
        return max(self.target.dtype.itemsize, torch.float32.itemsize)


@dataclass(frozen=True)
class Available:
    """Free memory of the devices that decoding uses.

    Attributes:
        target: Bytes on the target's devices, with those of its present cache.
        drafter: Bytes on devices that only drafters use; None if there are none.
        reserve: The share that is left free.
    """

    target: int
    drafter: int | None
    reserve: float

    @classmethod
    def of(cls, forecast: Forecast, reserve: float) -> "Available":
        free = sum(map(available_bytes, forecast.target_devices)) + forecast.held()
        apart = forecast.drafter_devices
        return cls(free, sum(map(available_bytes, apart)) if apart else None, reserve)

    @property
    def total(self) -> int:
        return self.target + (self.drafter or 0)

    @property
    def usable(self) -> int:
        """Bytes beside the reserve."""
        return int((1 - self.reserve) * self.total)

    def holds(self, memory: DecodingMemory) -> bool:
        """Return whether this fits beside the reserve."""
        keep = 1 - self.reserve
        if self.drafter is None:
            return memory.additional <= keep * self.target
        apart = memory.draft_cache + memory.draft_prefill
        on_target = memory.additional - memory.draft_cache
        return on_target <= keep * self.target and apart <= keep * self.drafter


@dataclass(frozen=True)
class _Shape:
    """The sizes of a decoder layer that its activations depend on."""

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    is_explicit: bool


def _shape_of(model: SlotModel) -> _Shape:
    config: Any = model.layer_config
    heads = config.num_attention_heads
    explicit = getattr(config, "attn_logit_softcapping", None) is not None
    return _Shape(
        hidden=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        num_layers=model.num_layers,
        is_explicit=explicit or any(hasattr(part, "sinks") for part in model.module.modules()),
    )


def _activations(model: SlotModel, num_tokens: int) -> int:
    """Return the bytes of a pass through a layer: its states, norms in float32, and the MLP."""
    shape, size = _shape_of(model), model.dtype.itemsize
    states = 4 * shape.hidden * size + 2 * shape.hidden * max(size, torch.float32.itemsize)
    attention = 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_dim * size
    return num_tokens * (states + max(attention, 3 * shape.intermediate * size))


def _attention(model: SlotModel, num_tokens: int, num_rows: int, num_columns: int) -> int:
    """Return the bytes of masks, and of keys and values that one layer gathers from slots."""
    if model.kernel is not None:
        return 0
    shape, size = _shape_of(model), model.dtype.itemsize
    group = shape.num_heads // shape.num_kv_heads
    per_pair = (1 + group) * size
    if shape.is_explicit:
        per_pair += 3 * shape.num_heads * max(size, torch.float32.itemsize)
    gathered = num_rows * num_columns * model.bytes_per_token // shape.num_layers
    return num_tokens * num_columns * per_pair + gathered


def _columns_of(model: SlotModel, max_len: int) -> Columns:
    return Columns(model, model.cache.num_columns - max_len)
