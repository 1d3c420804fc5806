"""What a report compares: one way of drafting beside plain decoding, on the same requests at the same load."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specresearch.bench.output_check import CHANGED, P_VALUES
from specresearch.reporting.estimates import Estimate
from specresearch.statistics import Histogram

PARTS = ("schedule", "prefill", "control", "propose", "verify", "accept", "commit", "host")
BATCH, CONCURRENCY = "batch", "concurrency"
CLOSED = (BATCH, CONCURRENCY)  # a new request comes when one ends, so a faster side does more work


@dataclass(frozen=True)
class Output:
    """What is known of a method's text, against plain decoding's. words: the finding. is_same: token for token, but for rounding,
    or by proof; None where nobody can say, or the rule is lossy. num_equal: greedy outputs, where all are equal and no others
    were checked."""

    words: str = ""
    is_same: bool | None = None
    num_equal: int = 0

    @property
    def is_wrong(self) -> bool:
        return self.is_same is False

    @staticmethod
    def of(told: Mapping[str, Any], lossless: bool | None) -> "Output":
        """told: the figures of a side. lossless: what its rule claims."""
        words = str(told.get("output_statement") or "outputs were not compared")
        num_compared, num_equal = (
            told.get("num_outputs_compared") or 0,
            told.get("num_outputs_equal") or 0,
        )
        if lossless is False:
            return Output(words)
        p_values = [told[name] for name in P_VALUES if told.get(name) is not None]
        if p_values and min(p_values) < CHANGED:
            return Output(words, False)
        if not num_compared:
            return Output(words, lossless)
        num_same = num_equal + (told.get("num_rounding_ties") or 0)
        is_all = num_equal == num_compared and not p_values
        return Output(words, num_same >= num_compared, num_equal if is_all else 0)


@dataclass(frozen=True)
class Workload:
    """What was decoded, and where: figures of one workload may be compared with one another.

    sampling: in words. distinction: what tells it from others that are called the same.
    """

    data: str
    sampling: str
    max_new_tokens: int | None
    max_prompt_tokens: int | None
    target: str
    machine: str
    distinction: str = ""

    @property
    def label(self) -> str:
        return f"{self.data}, {self.sampling}" + (
            f" ({self.distinction})" if self.distinction else ""
        )


@dataclass(frozen=True, order=True)
class Load:
    """axis: `batch` (requests decoded together), `concurrency` (requests always in flight), or the name of an arrival process,
    whose amount is requests per second."""

    axis: str
    amount: float

    @property
    def is_closed(self) -> bool:
        return self.axis in CLOSED

    @property
    def is_single(self) -> bool:
        """One request at a time."""
        return self.is_closed and self.amount <= 1

    @property
    def unit(self) -> str:
        return {BATCH: "requests in a batch", CONCURRENCY: "requests at a time"}.get(
            self.axis, "requests per second"
        )

    @property
    def axis_label(self) -> str:
        """What a load of this kind is, in a phrase."""
        words = {
            BATCH: "prompts decoded in batches, all of a batch at once",
            CONCURRENCY: "a fixed number of requests always in flight",
            "replay": "requests arriving as in a recorded trace",
        }
        return words.get(self.axis, f"requests arriving by themselves ({self.axis} arrivals)")

    @property
    def short_label(self) -> str:
        return {BATCH: f"batch of {self.amount:g}", CONCURRENCY: f"{self.amount:g} at a time"}.get(
            self.axis, f"{self.amount_label}/s"
        )

    @property
    def amount_label(self) -> str:
        return f"{self.amount:g}" if self.is_closed or self.amount >= 1000 else f"{self.amount:.3g}"

    @property
    def label(self) -> str:
        if self.axis == BATCH:
            return f"batches of {self.amount_label}"
        return f"{self.amount_label} {self.unit.replace('requests', 'request', 1) if self.amount == 1 else self.unit}"


@dataclass(frozen=True)
class Policy:
    """How much is drafted. length: drafts asked for, None where a controller decides. variant: settings that tell it from others
    of the same method."""

    method: str
    controller: str
    length: int | None = None
    variant: str = ""

    @property
    def is_fixed(self) -> bool:
        return self.controller == "fixed"

    @property
    def how(self) -> str:
        """Without the method's name."""
        if not self.is_fixed:
            words = f"{self.controller} controller"
        elif self.length is None:
            words = "fixed length"
        else:
            words = f"{self.length} draft{'' if self.length == 1 else 's'}"
        return words + (f" ({self.variant})" if self.variant else "")

    @property
    def label(self) -> str:
        return f"{self.method}, {self.how}"

    @property
    def phrase(self) -> str:
        """Inside a sentence."""
        return f"{self.method} with {'' if self.is_fixed else 'the '}{self.how}"


@dataclass(frozen=True)
class Acceptance:
    """Of drafts. rate, p10: of all tokens, and the 10th percentile of a request's own. positions: entries `position`,
    `unconditional`, `conditional`, Estimates or None."""

    rate: Estimate | None
    p10: Estimate | None
    histogram: Histogram | None
    positions: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Side:
    """One side's figures: seconds, tokens and requests per second. step: seconds of a step by part; tokens_per_step: of all
    its requests together."""

    figures: Mapping[str, Estimate]
    acceptance: Acceptance | None = None
    step: Mapping[str, float] = field(default_factory=dict)
    tokens_per_step: float | None = None

    def __getitem__(self, name: str) -> Estimate | None:
        return self.figures.get(name)


@dataclass(frozen=True)
class ClassChange:
    """The requests of one class of a mixed workload. plain, own: figures by name, of the two sides. median, slowest: time per
    output token over plain decoding's, 50th and 99th percentile. has_signature: the first improved while the second got worse;
    None where that cannot be said."""

    name: str
    plain: Mapping[str, float]
    own: Mapping[str, float]
    median: Estimate | None
    slowest: Estimate | None
    has_signature: bool | None


@dataclass(frozen=True)
class Comparison:
    """gain: how many times as fast as plain decoding; None only where nothing could be compared of a load that was too much.
    basis: what that compares, `throughput`, `latency` or `median latency`.

    ideal: the speedup that this run's own step times allow, beside `decode`, what decoding alone reached. missing: what the
    folder lacks. is_behind: requests came faster than this side answered them. classes: of a mixed workload; empty where all
    requests are alike. max_running: requests decoded together, at most. is_interleaved: both sides met the same stretches of the
    machine's time. pooled_with: folders of other runs of the setting, whose figures are in these. num_compared: settings and
    loads for which the interval of the gain holds together.
    """

    folder: Path
    workload: Workload
    load: Load
    policy: Policy
    gain: Estimate | None
    basis: str
    plain: Side
    own: Side
    ideal: float | None = None
    decode: Estimate | None = None
    output: Output = Output()
    is_complete: bool = True
    num_requests: int = 0
    fingerprint: str = ""
    started: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    is_behind: bool = False
    is_plain_behind: bool = False
    classes: tuple[ClassChange, ...] = ()
    max_running: int | None = None
    is_interleaved: bool = True
    pooled_with: tuple[Path, ...] = ()
    num_compared: int = 1

    @property
    def is_overloaded(self) -> bool:
        """A side could not answer what came, so that latencies say how long it was measured, and not how fast it is."""
        return self.is_behind or self.is_plain_behind

    @property
    def neither_keeps_up(self) -> bool:
        """The latencies of both sides are those of the requests that got through."""
        return self.is_behind and self.is_plain_behind


@dataclass(frozen=True)
class Trace:
    """What happened over time under one controller. sides: label -> rows of the timeline; the first is the controller's own.

    own_best: its throughput over that of the better of plain decoding and the best fixed length, which is `best`, known only
    afterwards, and "" where no fixed length was measured. thoughts: what the controller wrote down, by pass and step.
    """

    folder: Path
    workload: Workload
    load: Load
    policy: Policy
    sides: Mapping[str, list[dict[str, Any]]]
    throughputs: Mapping[str, Estimate]
    best: str
    own_best: Estimate | None
    thoughts: tuple[Mapping[str, float], ...] = ()

    def named(self, policy: Policy) -> "Trace":
        """The same of a policy that is called otherwise."""
        old = self.policy.label
        sides, throughputs = (
            {policy.label if label == old else label: value for label, value in told.items()}
            for told in (self.sides, self.throughputs)
        )
        return replace(self, policy=policy, sides=sides, throughputs=throughputs)
