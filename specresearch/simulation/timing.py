"""How long each part of a simulated step takes."""

from abc import ABC, abstractmethod
from collections.abc import Collection
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
    `overhead_seconds` and `between_seconds` are called in every step, and the latter ends it.
    """

    def bind(self, recording: Recording) -> None:
        """Learn from the recording that is simulated; called once.

        Raises:
            ValueError: If the recording does not say enough.
        """

    def restart(self, seed: int) -> None:
        """Begin a pass; the same seed gives the same times."""

    @abstractmethod
    def prefill_seconds(self, work: Work) -> float:
        """Return the seconds of the target's prefill, and of a proposer that prefills with it."""

    @abstractmethod
    def lazy_prefill_seconds(self, work: Work) -> float:
        """Return the seconds of the prefill that the proposer had put off."""

    @abstractmethod
    def propose_seconds(self, work: Work) -> float:
        """Return the seconds of drafting, whether any draft comes of it or not."""

    @abstractmethod
    def verify_seconds(self, work: Work) -> float:
        """Return the seconds of the target's pass."""

    @abstractmethod
    def overhead_seconds(self, work: Work) -> float:
        """Return the seconds of acceptance, commit and everything else on the host."""

    def between_seconds(self, work: Work) -> float:
        """Return the seconds until the next step begins."""
        return 0.0

    def describe(self) -> str:
        """Return one line on what the model knows."""
        return type(self).__name__.lower()

    def caution(self) -> str | None:
        """Return what to doubt of the last pass, if anything."""
        return None


def _check_parameters(timing: Timing, positive: Collection[str] = ()) -> None:
    """Raise ValueError for a field below 0, or for a `positive` one that is 0."""
    for name, value in vars(timing).items():
        if name in positive and value <= 0:
            raise ValueError(f"timing.{name}={value} must be above 0")
        if value < 0:
            raise ValueError(f"timing.{name}={value} must be 0 or more")


@dataclass(frozen=True)
class Linear(Timing):
    """Every part is linear in what it depends on. All parameters are seconds.

    Attributes:
        verify: Each pass of the target.
        verify_token: Each root and draft.
        verify_context: Each committed token that is attended to.
        draft: Each draft of the longest chain, as for a pass of a draft LM.
        draft_token: Each draft of each row.
        prefill: Each step that prefills prompts.
        prefill_token: Each prompt token.
        lazy_prefill_token: Each token that a drafter prefills on a request's first draft.
        overhead: Each step.
    """

    verify: float
    verify_token: float = 0.0
    verify_context: float = 0.0
    draft: float = 0.0
    draft_token: float = 0.0
    prefill: float = 0.0
    prefill_token: float = 0.0
    lazy_prefill_token: float = 0.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        _check_parameters(self)

    def prefill_seconds(self, work: Work) -> float:
        return self.prefill + self.prefill_token * work.num_prefill_tokens

    def lazy_prefill_seconds(self, work: Work) -> float:
        return self.lazy_prefill_token * work.num_lazy_prefill_tokens

    def propose_seconds(self, work: Work) -> float:
        return self.draft * work.longest + self.draft_token * work.num_drafts

    def verify_seconds(self, work: Work) -> float:
        tokens = self.verify_token * work.num_tokens
        return self.verify + tokens + self.verify_context * work.context

    def overhead_seconds(self, work: Work) -> float:
        return self.overhead

    def describe(self) -> str:
        settings = [f"{name} {value:.3g} s" for name, value in vars(self).items() if value]
        return "given: " + ", ".join(settings)


@dataclass(frozen=True)
class Roofline(Timing):
    """A pass takes the longer of moving its bytes and doing its arithmetic.

    It predicts a machine that need not be at hand.

    Attributes:
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

    bandwidth: float
    flops: float
    weight_bytes: float
    parameters: float
    kv_bytes: float
    draft_weight_bytes: float = 0.0
    draft_parameters: float = 0.0
    draft_kv_bytes: float = 0.0
    efficiency: float = 0.7
    overhead: float = 0.0
    step_overhead: float = 0.0

    def __post_init__(self) -> None:
        positive = ("bandwidth", "flops", "weight_bytes", "parameters", "kv_bytes", "efficiency")
        _check_parameters(self, positive)
        if self.efficiency > 1:
            raise ValueError(
                f"timing.efficiency={self.efficiency} is a share of what the machine can do; give "
                "at most 1"
            )

    def prefill_seconds(self, work: Work) -> float:
        return self._target_pass(work.num_prefill_tokens, 0)

    def lazy_prefill_seconds(self, work: Work) -> float:
        return self._draft_pass(work.num_lazy_prefill_tokens, 0)

    def propose_seconds(self, work: Work) -> float:
        return work.longest * self._draft_pass(work.num_rows, work.context)

    def verify_seconds(self, work: Work) -> float:
        return self._target_pass(work.num_tokens, work.context)

    def overhead_seconds(self, work: Work) -> float:
        return self.step_overhead

    def describe(self) -> str:
        bandwidth = f"{self.bandwidth * self.efficiency / 1e9:,.0f} GB/s"
        flops = f"{self.flops * self.efficiency / 1e12:,.1f} Tflop/s"
        return f"roofline of {bandwidth} and {flops} within reach"

    def _target_pass(self, num_tokens: int, context: int) -> float:
        num_bytes = self.weight_bytes + self.kv_bytes * context
        return self._pass(num_bytes, 2 * self.parameters * num_tokens)

    def _draft_pass(self, num_tokens: int, context: int) -> float:
        if not self.draft_weight_bytes:
            return 0.0
        num_bytes = self.draft_weight_bytes + self.draft_kv_bytes * context
        return self._pass(num_bytes, 2 * self.draft_parameters * num_tokens)

    def _pass(self, num_bytes: float, num_operations: float) -> float:
        moving = num_bytes / (self.bandwidth * self.efficiency)
        computing = num_operations / (self.flops * self.efficiency)
        return max(moving, computing) + self.overhead
