"""Settings of what is decoded: sampling, acceptance rules, controllers, schedulers."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen

from specresearch.settings.base import Choice, Settings, key

Temperature = Annotated[float, Ge(0), Le(0)] | Annotated[float, Ge(1e-5), Le(1e5)]


class SamplingSchema(Settings):
    temperature: Temperature = key("0 is greedy", 0.7)
    top_k: int = key("sample from the k likeliest tokens; 0 turns it off", 50, ge=0)
    top_p: float = key(
        "sample from the likeliest tokens of this mass; 1 turns it off", 0.9, gt=0, le=1
    )
    min_p: float = key(
        "drop tokens less likely than this times the likeliest; 0 turns it off", 0.05, ge=0, lt=1
    )
    repetition_penalty: float = key("1 turns it off", 1.1, ge=0.01, le=100)
    presence_penalty: float = key("0 turns it off", 0.5, ge=-1e4, le=1e4)
    frequency_penalty: float = key("0 turns it off", 0.5, ge=-1e4, le=1e4)
    max_new_tokens: int = key("longest output in tokens", 256, ge=1)
    stop: Annotated[str, MinLen(1)] | list[Annotated[str, MinLen(1)]] = key(
        "strings that end an output, which is cut before them", ["###"]
    )
    stop_token_ids: list[Annotated[int, Ge(0)]] = key("token ids that end an output", [2])
    ignore_eos: bool = key("decode past the end of text", True)
    draft_threshold: float | None = key(
        "threshold of acceptance=threshold for these requests", 0.6, ge=0, le=1
    )


SAMPLING = Choice(None, {"specresearch.sampling.SamplingParams": SamplingSchema})


class RuleSchema(Settings):
    """A rule without settings."""


class TypicalSchema(Settings):
    epsilon: float = key("accept a draft with p above this", 0.09, ge=0, le=1)
    delta: float = key("or above delta x exp(-entropy of p), if that is less", 0.3, ge=0, le=1)


class ThresholdSchema(Settings):
    threshold: float | None = key(
        "accept drafts with a higher q; null takes the workload's value", 0.6, ge=0, le=1
    )
    workload: Literal["code", "structured", "prose"] = key(
        "code means 0.75, structured 0.65, prose 0.5", "code"
    )
    entropy_scale: float = key(
        "above 0, asks more of an undecided drafter; needs sampled drafts", 0.5
    )


ACCEPTANCE = Choice(
    "acceptance",
    {
        "specresearch.acceptance.Rejection": RuleSchema,
        "specresearch.acceptance.Greedy": RuleSchema,
        "specresearch.acceptance.Block": RuleSchema,
        "specresearch.acceptance.Typical": TypicalSchema,
        "specresearch.acceptance.Threshold": ThresholdSchema,
    },
)


def _num_draft_tokens() -> Any:
    return key("drafts of a step; null leaves it to the proposer", 5, ge=0)


def _trace_every() -> Any:
    return key("steps averaged into one row of the trace", 100, ge=1)


class FixedSchema(Settings):
    num_draft_tokens: int | None = _num_draft_tokens()


class BatchSizeCutoffSchema(Settings):
    max_requests: int = key("draft nothing while more requests than this run", 8, ge=1)
    num_draft_tokens: int | None = _num_draft_tokens()


class AcceptanceGateSchema(Settings):
    min_acceptance: float = key(
        "a request stops drafting if it accepts less than this", 0.5, ge=0, le=1
    )
    window: int = key("steps with drafts over which acceptance is measured", 16, ge=1)
    probe_every: int = key("steps after which a stopped request tries again", 32, ge=1)
    num_draft_tokens: int | None = _num_draft_tokens()
    trace_every: int = _trace_every()


class ConfidenceSchema(Settings):
    min_confidence: float = key(
        "drop all drafts after the first one with a lower score", 0.4, ge=0, le=1
    )
    num_draft_tokens: int | None = _num_draft_tokens()
    trace_every: int = _trace_every()


class HeuristicSchema(Settings):
    start: int = key("drafts of a request's first step", 5, ge=0)
    min_draft_tokens: int = key("fewest drafts of a step", 1, ge=0)
    max_draft_tokens: int = key("most drafts of a step", 20, ge=1)
    trace_every: int = _trace_every()


class GoodputSchema(Settings):
    max_draft_tokens: int | None = key(
        "longest path to consider; null leaves that to the proposer", 10, ge=1
    )
    max_slowdown: float | None = key(
        "1.05: no request's time per token may exceed plain decoding's by more than 5%, even if "
        "that costs throughput; null maximizes throughput alone",
        1.05,
        ge=1,
    )
    margin: float = key("gain in throughput below which nothing is drafted", 0.02, ge=0, lt=1)
    explore: float = key(
        "share of the time that may be lost by trying drafts where none are made", 0.005, ge=0, lt=1
    )
    prior_weight: float | None = key(
        "number of its own drafts at which a request's acceptance weighs as much as the run's "
        "mean; null: 40, or 10 if max_slowdown is set",
        10.0,
        gt=0,
    )
    memory: float = key("steps after which a measured time has weight 1/e", 50.0, gt=1)
    trace_every: int = _trace_every()


CONTROLLER = Choice(
    "controller",
    {
        "specresearch.controllers.Fixed": FixedSchema,
        "specresearch.controllers.BatchSizeCutoff": BatchSizeCutoffSchema,
        "specresearch.controllers.AcceptanceGate": AcceptanceGateSchema,
        "specresearch.controllers.Confidence": ConfidenceSchema,
        "specresearch.controllers.Heuristic": HeuristicSchema,
        "specresearch.controllers.Goodput": GoodputSchema,
    },
    base="specresearch.controllers.Controller",
)


class FirstComeSchema(Settings):
    """Serves requests in order of arrival."""


class ShortestPromptSchema(Settings):
    ageing: float = key("prompt tokens that one second of waiting makes up for", 100.0, gt=0)


POLICY = Choice(
    None,
    {
        "specresearch.engine.FirstCome": FirstComeSchema,
        "specresearch.engine.ShortestPrompt": ShortestPromptSchema,
    },
)


class SchedulerSchema(Settings):
    policy: Annotated[Any, POLICY] = key("which waiting request is admitted next", None)
    max_step_tokens: int | None = key(
        "prompt tokens and draft nodes of one step; null: whole prompts at once", 512, ge=1
    )
    max_cache_tokens: int | None = key(
        "cached tokens of all requests with drafts; null: max_len for each",
        16384,
        ge=1,
        le=10**9,
    )
    reuse_prefixes: bool = key("begin prompts with what earlier requests left in the cache", True)


SCHEDULER = Choice("scheduler", {"specresearch.engine.SchedulerSettings": SchedulerSchema})


def longest_chain(proposer: Any, controller: Any) -> Iterator[str]:
    """Yield a sentence if a controller is told to draft more than the proposer can."""
    most = (proposer or {}).get("num_draft_tokens")
    wanted = (controller or {}).get("num_draft_tokens")
    if isinstance(most, int) and isinstance(wanted, int) and wanted > most:
        yield (
            f"controller.num_draft_tokens={wanted} is more than proposer.num_draft_tokens={most}; "
            "raise the second or lower the first"
        )
