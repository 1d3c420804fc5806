"""How long a simulated step takes."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from specresearch.metrics import StepTimes
from specresearch.recording.recording import Recording


@dataclass(frozen=True)
class Work:
    """What a step has to do.

    num_rows: requests that decode. num_drafts: in all. longest: the deepest draft. num_nodes: of the
    widest row, root included. context: committed tokens of all rows. max_context: of the longest.
    num_prefill_tokens: of prompts. attended: nodes times the tokens each looks at, where no row is
    padded to another's. num_lazy_prefill_tokens: tokens that the draft model prefills lazily.
    can_draft: a method is there, whatever it drafts. is_asked: for drafts in this step, whether it
    has any or not.
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
    is_asked: bool = False

    @property
    def num_tokens(self) -> int:
        """That the target verifies."""
        return self.num_rows + self.num_drafts


@dataclass(frozen=True)
class Seconds:
    """Of the parts of a step. overhead: of acceptance, commit and all else on the host. prefill: of the target, and of a drafter
    that reads with it; lazy_prefill: of one that reads later. between: until the next step begins."""

    propose: float = 0.0
    verify: float = 0.0
    overhead: float = 0.0
    prefill: float = 0.0
    lazy_prefill: float = 0.0
    between: float = 0.0

    @property
    def total(self) -> float:
        """Of the step proper, which is what a request waits for between its tokens, but for prefill and `between`."""
        return self.propose + self.verify + self.overhead

    def times(self, prefill: float) -> StepTimes:
        """As the engine would have recorded them. prefill: of the target, all since the last record."""
        return StepTimes(
            self.propose,
            self.verify,
            self.overhead,
            0.0,
            self.total,
            prefill + self.lazy_prefill,
            lazy_prefill=self.lazy_prefill,
        )


class Timing(ABC):
    """A model of a machine, which may learn from the recording that is decoded again."""

    def bind(self, recording: Recording) -> None:
        """Called once. Raises ValueError for a recording that does not say enough."""

    def restart(self, seed: int) -> None:
        """A pass begins; the same seed gives the same times."""

    @abstractmethod
    def step(self, work: Work) -> Seconds:
        """Called once for every step of a pass, in their order."""

    def describe(self) -> str:
        """One line on what it knows."""
        return type(self).__name__.lower()

    def caution(self) -> str | None:
        """What to doubt of the last pass, if anything."""
        return None


def _check_told(arguments: Mapping[str, Any], positive: Collection[str] = ()) -> dict[str, float]:
    """A constructor's arguments by name. Raises ValueError for one below 0, and for a `positive` one that is 0."""
    told = {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
    for name, value in told.items():
        if value < 0 or (value == 0 and name in positive):
            raise ValueError(
                f"timing.{name}={value} must be {'above 0' if name in positive else '0 or more'}"
            )
    return told


class Linear(Timing):
    """Every part linear in what it depends on; seconds, as a user knows or measured them.

    verify_token: of each root and draft; verify_context: of each committed token that is attended to. draft: of each draft of the
    longest, as for a draft LM's pass; draft_token: of each draft of each row. prefill, prefill_token: of a step that reads
    prompts; lazy_prefill_token: of each token that a draft LM
    prefills lazily. overhead: of every step.
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
        self.told = _check_told(locals())

    def step(self, work: Work) -> Seconds:
        told, is_decoding = self.told, work.num_rows > 0
        verify = (
            told["verify"]
            + told["verify_token"] * work.num_tokens
            + told["verify_context"] * work.context
        )
        return Seconds(
            told["draft"] * work.longest + told["draft_token"] * work.num_drafts,
            verify if is_decoding else 0.0,
            told["overhead"],
            told["prefill"] + told["prefill_token"] * work.num_prefill_tokens
            if work.num_prefill_tokens
            else 0.0,
            told["lazy_prefill_token"] * work.num_lazy_prefill_tokens,
        )

    def describe(self) -> str:
        return "given: " + ", ".join(
            f"{name} {value:.3g} s" for name, value in self.told.items() if value
        )


class Roofline(Timing):
    """A pass takes the longer of moving its bytes and doing its arithmetic; of a machine that need not be at hand.

    bandwidth: bytes per second of the accelerator's memory. flops: operations per second. efficiency: share of both that is
    reached. weight_bytes: read in every pass; parameters: used for every token (of a mixture of experts, the active ones).
    kv_bytes: of one cached token. draft_*: of a draft LM, which takes a pass for each draft; 0 for one that drafts on the host.
    overhead: seconds of every pass that are neither, such as launches; step_overhead: of every step.
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
        _check_told(
            locals(), ("bandwidth", "flops", "weight_bytes", "parameters", "kv_bytes", "efficiency")
        )
        if efficiency > 1:
            raise ValueError(
                f"timing.efficiency={efficiency} is a share of what the machine can do and at most 1"
            )
        self.bandwidth, self.flops = bandwidth * efficiency, flops * efficiency
        self.target = (weight_bytes, parameters, kv_bytes)
        self.draft = (draft_weight_bytes, draft_parameters, draft_kv_bytes)
        self.overhead, self.step_overhead = overhead, step_overhead

    def _pass(self, model: tuple[float, float, float], num_tokens: int, context: int) -> float:
        weight_bytes, parameters, kv_bytes = model
        moved, done = weight_bytes + kv_bytes * context, 2 * parameters * num_tokens
        return max(moved / self.bandwidth, done / self.flops) + self.overhead

    def step(self, work: Work) -> Seconds:
        has_draft_model = self.draft[0] > 0
        propose = verify = prefill = lazy_prefill = 0.0
        if work.num_rows:
            verify = self._pass(self.target, work.num_tokens, work.context)
            if has_draft_model:
                propose = work.longest * self._pass(self.draft, work.num_rows, work.context)
        if work.num_prefill_tokens:
            prefill = self._pass(self.target, work.num_prefill_tokens, 0)
        if has_draft_model and work.num_lazy_prefill_tokens:
            lazy_prefill = self._pass(self.draft, work.num_lazy_prefill_tokens, 0)
        return Seconds(propose, verify, self.step_overhead, prefill, lazy_prefill)

    def describe(self) -> str:
        return f"roofline of {self.bandwidth / 1e9:,.0f} GB/s and {self.flops / 1e12:,.1f} Tflop/s within reach"
