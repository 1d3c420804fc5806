"""How long each part of a simulated step takes."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from specresearch.recording.recording import Recording


@dataclass(frozen=True)
class Work:
    """What a step has to do, as far as it is known by then.

    Attributes:
        num_rows: Requests that decode.
        num_drafts: Drafts of all rows.
        longest: Depth of the deepest draft.
        num_nodes: Nodes of the widest row, root included.
        context: Committed tokens of all rows.
        max_context: Committed tokens of the longest row.
        num_prefill_tokens: Prompt tokens that the target caches in this step.
        attended: Nodes times the tokens that each attends to, without padding.
        num_lazy_prefill_tokens: Tokens that the proposer had put off and prefills now.
        can_draft: True if there is a method, even if it drafts nothing in this step.
    """

    num_rows: int = 0
    num_drafts: int = 0
    longest: int = 0
    num_nodes: int = 1
    context: int = 0
    max_context: int = 0
    num_prefill_tokens: int = 0
    attended: int = 0
    num_lazy_prefill_tokens: int = 0
    can_draft: bool = False

    @property
    def num_tokens(self) -> int:
        """Return the tokens that the target verifies."""
        return self.num_rows + self.num_drafts


class Timing(ABC):
    """A model of a machine: the seconds of each part of a step.

    The methods are called in the order in which they stand here, those without work left out. Only
    `overhead` and `between` are called in every step, and `between` ends it.
    """

    def bind(self, recording: Recording) -> None:
        """Learn from the recording that is simulated; called once.

        Raises:
            ValueError: If the recording does not say enough.
        """

    def restart(self, seed: int) -> None:
        """Begin a pass; the same seed gives the same times."""

    @abstractmethod
    def prefill(self, work: Work) -> float:
        """Return the seconds of the target's prefill, and of a proposer that prefills with it."""

    @abstractmethod
    def lazy_prefill(self, work: Work) -> float:
        """Return the seconds of the prefill that the proposer had put off."""

    @abstractmethod
    def propose(self, work: Work) -> float:
        """Return the seconds of drafting, whether any draft comes of it or not."""

    @abstractmethod
    def verify(self, work: Work) -> float:
        """Return the seconds of the target's pass."""

    @abstractmethod
    def overhead(self, work: Work) -> float:
        """Return the seconds of acceptance, commit and everything else on the host."""

    def between(self, work: Work) -> float:
        """Return the seconds until the next step begins."""
        return 0.0

    def describe(self) -> str:
        """Return one line on what the model knows."""
        return type(self).__name__.lower()

    def caution(self) -> str | None:
        """Return what to doubt of the last pass, if anything."""
        return None


def _check_parameters(parameters: Mapping[str, float], positive: Collection[str] = ()) -> None:
    """Raise ValueError for a parameter below 0, or for a `positive` one that is 0."""
    for name, value in parameters.items():
        if name in positive and value <= 0:
            raise ValueError(f"timing.{name}={value} must be above 0")
        if value < 0:
            raise ValueError(f"timing.{name}={value} must be 0 or more")


class Linear(Timing):
    """Every part is linear in what it depends on. All parameters are seconds.

    Args:
        verify: Each pass of the target.
        verify_token: Each root and draft.
        verify_context: Each committed token that is attended to.
        draft: Each draft of the longest chain, as for a pass of a draft LM.
        draft_token: Each draft of each row.
        prefill: Each step that prefills prompts.
        prefill_token: Each prompt token.
        lazy_prefill_token: Each token that a draft LM prefills for the requests it begins to draft
            for.
        overhead: Each step.
    """

    def __init__(
        self,
        verify: float,
        verify_token: float = 0.0,
        verify_context: float = 0.0,
        draft: float = 0.0,
        draft_token: float = 0.0,
        prefill: float = 0.0,
        prefill_token: float = 0.0,
        lazy_prefill_token: float = 0.0,
        overhead: float = 0.0,
    ) -> None:
        self.parameters = {
            "verify": verify,
            "verify_token": verify_token,
            "verify_context": verify_context,
            "draft": draft,
            "draft_token": draft_token,
            "prefill": prefill,
            "prefill_token": prefill_token,
            "lazy_prefill_token": lazy_prefill_token,
            "overhead": overhead,
        }
        _check_parameters(self.parameters)

    def prefill(self, work: Work) -> float:
        per_token = self.parameters["prefill_token"]
        return self.parameters["prefill"] + per_token * work.num_prefill_tokens

    def lazy_prefill(self, work: Work) -> float:
        return self.parameters["lazy_prefill_token"] * work.num_lazy_prefill_tokens

    def propose(self, work: Work) -> float:
        per_token = self.parameters["draft_token"]
        return self.parameters["draft"] * work.longest + per_token * work.num_drafts

    def verify(self, work: Work) -> float:
        tokens = self.parameters["verify_token"] * work.num_tokens
        context = self.parameters["verify_context"] * work.context
        return self.parameters["verify"] + tokens + context

    def overhead(self, work: Work) -> float:
        return self.parameters["overhead"]

    def describe(self) -> str:
        settings = [f"{name} {value:.3g} s" for name, value in self.parameters.items() if value]
        return "given: " + ", ".join(settings)


@dataclass(frozen=True)
class ModelSize:
    """What a pass of a model has to move and to compute.

    Attributes:
        weight_bytes: Bytes of weights, read in every pass.
        parameters: Parameters that every token goes through.
        kv_bytes: Bytes of one cached token.
    """

    weight_bytes: float
    parameters: float
    kv_bytes: float


class Roofline(Timing):
    """A pass takes the longer of moving its bytes and doing its arithmetic.

    It predicts a machine that need not be at hand.

    Args:
        bandwidth: Bytes per second of the accelerator's memory.
        flops: Operations per second.
        weight_bytes: Bytes of the target's weights, read in every pass.
        parameters: Parameters of the target that every token goes through: of a mixture of experts,
            the active ones.
        kv_bytes: Bytes of one cached token of the target.
        draft_weight_bytes: Like `weight_bytes`, of a draft LM, which takes a pass for each draft;
            0 for a proposer that drafts on the host.
        draft_parameters: Like `parameters`, of the draft LM.
        draft_kv_bytes: Like `kv_bytes`, of the draft LM.
        efficiency: Share of bandwidth and flops that is reached.
        overhead: Seconds of every pass besides, such as launches.
        step_overhead: Seconds of every step besides.
    """

    def __init__(
        self,
        bandwidth: float,
        flops: float,
        weight_bytes: float,
        parameters: float,
        kv_bytes: float,
        draft_weight_bytes: float = 0.0,
        draft_parameters: float = 0.0,
        draft_kv_bytes: float = 0.0,
        efficiency: float = 0.7,
        overhead: float = 0.0,
        step_overhead: float = 0.0,
    ) -> None:
        positive = {
            "bandwidth": bandwidth,
            "flops": flops,
            "weight_bytes": weight_bytes,
            "parameters": parameters,
            "kv_bytes": kv_bytes,
            "efficiency": efficiency,
        }
        others = {
            "draft_weight_bytes": draft_weight_bytes,
            "draft_parameters": draft_parameters,
            "draft_kv_bytes": draft_kv_bytes,
            "overhead": overhead,
            "step_overhead": step_overhead,
        }
        _check_parameters(positive | others, positive)
        if efficiency > 1:
            raise ValueError(
                f"timing.efficiency={efficiency} is a share of what the machine can do; give at "
                "most 1"
            )
        self.bandwidth = bandwidth * efficiency
        self.flops = flops * efficiency
        self.target = ModelSize(weight_bytes, parameters, kv_bytes)
        self.draft = ModelSize(draft_weight_bytes, draft_parameters, draft_kv_bytes)
        self.pass_overhead = overhead
        self.step_overhead = step_overhead

    def prefill(self, work: Work) -> float:
        return self._pass(self.target, work.num_prefill_tokens, 0)

    def lazy_prefill(self, work: Work) -> float:
        if not self.draft.weight_bytes:
            return 0.0
        return self._pass(self.draft, work.num_lazy_prefill_tokens, 0)

    def propose(self, work: Work) -> float:
        if not self.draft.weight_bytes:
            return 0.0
        return work.longest * self._pass(self.draft, work.num_rows, work.context)

    def verify(self, work: Work) -> float:
        return self._pass(self.target, work.num_tokens, work.context)

    def overhead(self, work: Work) -> float:
        return self.step_overhead

    def describe(self) -> str:
        bandwidth = f"{self.bandwidth / 1e9:,.0f} GB/s"
        return f"roofline of {bandwidth} and {self.flops / 1e12:,.1f} Tflop/s within reach"

    def _pass(self, model: ModelSize, num_tokens: int, context: int) -> float:
        num_bytes = model.weight_bytes + model.kv_bytes * context
        num_operations = 2 * model.parameters * num_tokens
        longer = max(num_bytes / self.bandwidth, num_operations / self.flops)
        return longer + self.pass_overhead
