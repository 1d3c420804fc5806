"""What the GPUs hold: weights, what passes need, and the keys and values in the room that is left.

All bytes are those of all GPUs together. Weights are divided evenly among the GPUs.
"""

from dataclasses import dataclass

from specresearch.planning.drafters import Drafter
from specresearch.planning.gpus import Gpus
from specresearch.planning.kv_size import KVLayer, kv_bytes
from specresearch.planning.model_size import ModelSize
from specresearch.planning.precision import Precision

BLOCK_SIZE = 16  # tokens of a block of a paged cache, half of which a request leaves empty
LOGIT_BYTES = 3 * 4  # three float32 copies in sampling
PROBABILITY_BYTES = 4
ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class Conditions:
    """What all deployments of a plan share.

    Attributes:
        utilization: Share of the GPUs' memory that the engine takes.
        context: Tokens of a request, prompt and output together.
        max_running: Most requests that decode together, for which sampling buffers are sized.
        prefill_tokens: Tokens of the largest prefill pass.
        cache_itemsize: Bytes of a cached value.
        graphs: Bytes of captured graphs on a GPU for each model that runs passes.
        runtime: Bytes of a GPU for the driver's context and communication.
        weights_only: Leave out everything but weights and cache, as rules of thumb do.
    """

    gpus: Gpus
    utilization: float
    context: int
    max_running: int
    prefill_tokens: int
    cache_itemsize: int
    graphs: float
    runtime: float
    weights_only: bool = False

    @property
    def usable(self) -> float:
        """Bytes that the engine may take."""
        return self.utilization * self.gpus.num * self.gpus.memory

    def kv_bytes(self, layers: tuple[KVLayer, ...], num_tokens: int) -> int:
        return kv_bytes(layers, num_tokens, self.gpus.num, self.cache_itemsize)


@dataclass(frozen=True)
class Deployment:
    """A target and a drafter on the GPUs.

    Attributes:
        drafter: None decodes plainly.
        rule_of_thumb: Bytes of weights by the sizes in the models' names.
        passes: Bytes of activations, or of what sampling makes of logits, if that is more.
        graphs: Bytes of captured graphs and of the runtime.
        left: Bytes for keys and values; below 0 if the weights do not fit.
        kv_per_token: Bytes of a token of a request of the planned length, the drafter's included.
        tokens: Cached tokens that fit.
        requests: Requests of the planned length that fit, at most `max_running`.
        share_of_plain: `tokens` over those of the same target without a drafter.
    """

    target: str
    target_precision: str
    drafter: str | None
    drafter_precision: str | None
    target_weights: float
    drafter_weights: float
    rule_of_thumb: float
    passes: float
    graphs: float
    left: float
    target_kv_per_token: float
    drafter_kv_per_token: float
    tokens: int
    requests: int
    share_of_plain: float | None = None

    @property
    def weights(self) -> float:
        return self.target_weights + self.drafter_weights

    @property
    def kv_per_token(self) -> float:
        return self.target_kv_per_token + self.drafter_kv_per_token

    @property
    def fits(self) -> bool:
        """True if at least one request of the planned length fits."""
        return self.requests > 0


def deploy(
    conditions: Conditions,
    target: ModelSize,
    precision: Precision,
    drafter: Drafter | None = None,
    drafter_precision: Precision | None = None,
) -> Deployment:
    """Return what fits."""
    model = None if drafter is None else drafter.model
    target_weights, rule_of_thumb = target.weight_bytes(precision), target.nominal_bytes(precision)
    drafter_weights, layers = 0.0, target.kv
    if model is not None and drafter_precision is not None:
        drafter_weights = model.weight_bytes(drafter_precision)
        rule_of_thumb += model.nominal_bytes(drafter_precision)
        layers += model.kv
    passes = graphs = 0.0
    if not conditions.weights_only:
        passes = _passes(conditions, target, drafter)
        num_models = 1 if model is None else 2
        graphs = conditions.gpus.num * (conditions.runtime + num_models * conditions.graphs)
    left = conditions.usable - target_weights - drafter_weights - passes - graphs
    room, context = max(int(left), 0), conditions.context
    num_nodes = 0 if drafter is None else drafter.num_nodes
    of_request = conditions.kv_bytes(layers, context + num_nodes + 1 + BLOCK_SIZE // 2)
    of_target = conditions.kv_bytes(target.kv, context)
    of_both = conditions.kv_bytes(layers, context)
    return Deployment(
        target=target.name,
        target_precision=precision.name,
        drafter=None if drafter is None else drafter.label,
        drafter_precision=None
        if model is None or drafter_precision is None
        else drafter_precision.name,
        target_weights=target_weights,
        drafter_weights=drafter_weights,
        rule_of_thumb=rule_of_thumb,
        passes=passes,
        graphs=graphs,
        left=left,
        target_kv_per_token=of_target / context,
        drafter_kv_per_token=(of_both - of_target) / context,
        tokens=room * context // of_both,
        requests=min(room // of_request, conditions.max_running),
    )


def _passes(conditions: Conditions, target: ModelSize, drafter: Drafter | None) -> float:
    """Return the bytes of the pass that takes most: of a prefill, or of a step with its logits."""
    num_gpus = conditions.gpus.num
    prefills = [_prefill(conditions, target)]
    num_nodes = num_features = num_probabilities = 0
    if drafter is not None:
        num_nodes, num_features = drafter.num_nodes, drafter.num_features
        num_probabilities = num_nodes if drafter.samples else 0
        if drafter.model is not None and drafter.model.kv:
            prefills.append(_prefill(conditions, drafter.model))
    logits = (num_nodes + 1) * target.vocab_size * LOGIT_BYTES
    probabilities = num_probabilities * target.vocab_size * PROBABILITY_BYTES
    features = (num_nodes + 1) * num_features * target.hidden * ACTIVATION_BYTES
    step = conditions.max_running * (logits + probabilities + features)
    return float(num_gpus * max(*prefills, step))


def _prefill(conditions: Conditions, model: ModelSize) -> float:
    """Return the bytes of a layer's states and of its MLP on one GPU; the MLP is divided."""
    values = 2 * model.intermediate / conditions.gpus.num + 4 * model.hidden
    return conditions.prefill_tokens * values * ACTIVATION_BYTES
