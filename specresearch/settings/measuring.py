"""Settings of the commands that measure: run, load and simulate."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from specresearch.settings.base import (
    MAX_BATCH,
    TARGET,
    Choice,
    Settings,
    key,
    progress_key,
    seed_key,
)
from specresearch.settings.check import problems_of
from specresearch.settings.clients import ClientSchema, conflicts_with_server
from specresearch.settings.data import DATASET, TRACKER
from specresearch.settings.decoding import (
    ACCEPTANCE,
    CONTROLLER,
    SAMPLING,
    SCHEDULER,
    SamplingSchema,
    longest_chain,
)
from specresearch.settings.drafting import PROPOSER, SELF, SYNTHETIC
from specresearch.settings.pairs import PairSchema
from specresearch.settings.sentences import show


class MeasurementSchema(PairSchema):
    """What run and load share."""

    proposer: Annotated[Any, PROPOSER] = key("how drafts are made", "ngram", default=None)
    dataset: Annotated[Any, DATASET] = key("the prompts", "gsm8k")
    acceptance: Annotated[Any, ACCEPTANCE] = key("which drafts stay", "rejection")
    controller: Annotated[Any, CONTROLLER] = key("how much is drafted", "fixed")
    scheduler: Annotated[Any, SCHEDULER] = key("what a step holds", "first_come")
    tracker: Annotated[Any, TRACKER] = key("where figures are sent", "wandb")
    sampling: Annotated[Any, SAMPLING] = key("how tokens are chosen", None)
    repeats: int = key("number of times that everything is measured", 3, ge=1)
    warmup: int = key("requests decoded first and not counted", 2, ge=0)
    seed: int = seed_key("of all random draws")
    record: bool = key("record what python -m specresearch.simulate needs", True)
    resume: bool = key("continue the run in hydra.run.dir", True)
    progress: bool = progress_key()

    def conflicts(self) -> Iterator[str]:
        draft = (self.proposer or {}).get("draft")
        if isinstance(draft, dict) and draft.get("model") == SELF and not draft["quantization"]:
            yield (
                "proposer.draft=self with the weights as they are drafts as slowly as the target "
                "decodes; add proposer.draft.quantization=int4"
            )
        yield from longest_chain(self.proposer, self.controller)
        is_greedy = self.acceptance[TARGET] == "specresearch.acceptance.Greedy"
        temperature = self.sampling.get("temperature", 0)
        if self.proposer and is_greedy and temperature != 0:
            yield (
                f"acceptance=greedy is exact for sampling.temperature=0 only, not "
                f"{show(temperature)}; use acceptance=rejection"
            )
        if (self.proposer or {}).get(TARGET) == SYNTHETIC and self.sampling["temperature"] != 0:
            yield (
                f"sampling.temperature={show(self.sampling['temperature'])} is not for "
                "proposer=synthetic, which must know the target's next tokens; use "
                "sampling.temperature=0"
            )


BatchSize = Annotated[int, Ge(1), Le(MAX_BATCH)] | Literal["auto"]


class RunSchema(MeasurementSchema):
    batch_size: BatchSize = key(
        "prompts decoded together; auto: as many as fit into free memory", 8
    )
    num_prompts: int | None = key("prompts to decode; null takes the whole dataset", 100, ge=1)
    order: Literal["dataset", "shuffled"] = key(
        "order of the prompts; shuffled (by seed) suits methods that learn across requests",
        "shuffled",
    )
    verify_greedy: bool = key(
        "check whether rounding or an error explains each changed output", True
    )


class LimitsSchema(Settings):
    ttft: float = key("time to first token, in seconds", 0.5, gt=0)
    tpot: float = key("time per output token after the first, in seconds", 0.05, gt=0)


class RequestClassSchema(Settings):
    share: float = key("weight among the classes", 0.6, gt=0)
    dataset: Annotated[Any, DATASET] = key(
        "its prompts; null: those of the run", "gsm8k", default=None
    )
    sampling: dict[str, Any] | None = key("changes to sampling", {"temperature": 0.2}, default=None)
    acceptance: Literal["code", "structured", "prose"] | None = key(
        "preset of acceptance=threshold", "code", default=None
    )
    num_draft_tokens: int | None = key(
        "most drafts of a step for its requests", 2, ge=0, default=None
    )


class PassesSchema(Settings):
    """What load tests and simulations share."""

    num_requests: int | None = key(
        "requests of a pass; null: a whole trace, 4 x the concurrency of a closed loop, or 64",
        200,
        ge=1,
    )
    compare: list[Annotated[int, Ge(1)]] = key("fixed draft lengths, one side each", [2, 5])
    limits: LimitsSchema = key("goodput counts the requests that meet both", None)
    max_waiting: int = key(
        "stop a pass if more requests than this wait: the rate is too high", 256, ge=1
    )
    max_seconds: float = key("stop a pass that takes longer than this", 600.0, gt=0)

    def conflicts(self) -> Iterator[str]:
        if len(set(self.compare)) < len(self.compare):
            yield f"compare={self.compare} names a draft length twice"


class _OpenArrivalsSchema(Settings):
    qps: float = key("requests per second", 2.0, ge=1e-4, le=1e6)


class GammaSchema(_OpenArrivalsSchema):
    cv: float = key(
        "standard deviation of the gaps over their mean; above 1 is bursty", 2.0, ge=0.01, le=100
    )


class ClosedLoopSchema(Settings):
    concurrency: int = key(
        "requests in flight; a new one arrives whenever one finishes", 8, ge=1, le=MAX_BATCH
    )


class ReplaySchema(Settings):
    path: str = key(
        "an Azure (.csv) or Mooncake (.jsonl) trace, also gzipped", "trace.csv", min_length=1
    )
    time_scale: float = key(
        "seconds per second of the trace; 10 replays it ten times slower", 10.0, gt=0
    )
    start: float = key("second of the trace to begin at", 60.0, ge=0)
    duration: float | None = key("seconds of the trace; null goes to its end", 600.0, gt=0)


class RecordedArrivalsSchema(Settings):
    concurrency: int | None = key("requests in flight of a closed loop; null: as recorded", 8, ge=1)
    qps: float | None = key("requests per second of open arrivals; null: as recorded", 2.0, gt=0)


RECORDED = "specresearch.simulation.RecordedArrivals"
ARRIVALS = Choice(
    "arrivals",
    {
        "specresearch.loadtest.arrivals.Poisson": _OpenArrivalsSchema,
        "specresearch.loadtest.arrivals.Constant": _OpenArrivalsSchema,
        "specresearch.loadtest.arrivals.Gamma": GammaSchema,
        "specresearch.loadtest.arrivals.ClosedLoop": ClosedLoopSchema,
        "specresearch.loadtest.arrivals.Replay": ReplaySchema,
        RECORDED: RecordedArrivalsSchema,
    },
    base="specresearch.loadtest.arrivals.Arrivals",
)
LIVE_ARRIVALS = replace(ARRIVALS, excluded=frozenset({RECORDED}))


class LoadSchema(MeasurementSchema, PassesSchema):
    server: str | None = key(
        "measure this OpenAI-compatible server, not an engine here", "http://localhost:8000"
    )
    baseline_server: str | None = key(
        "its model without drafts; null: `server`, if it can be told by request",
        "http://localhost:8001",
    )
    client: ClientSchema = key("how servers are asked", None)
    arrivals: Annotated[Any, LIVE_ARRIVALS] = key("when requests arrive", "poisson")
    max_running: BatchSize = key(
        "largest batch, the same for every side; auto: what fits into free memory", 32
    )
    variants: dict[str, dict[str, Any]] = key(
        "the controller with other settings, one side each", {"bounded": {"max_slowdown": 1.05}}
    )
    length_spread: float = key(
        "outputs have between (1 - this) x max_new_tokens and max_new_tokens tokens, so that not "
        "all end at the same step",
        0.5,
        ge=0,
        lt=1,
    )
    reset: bool = key("controllers forget what they have learned before every pass", False)
    turn_seconds: float | None = key(
        "sides take turns of this many seconds, so that all meet the same conditions; null runs "
        "one pass after another",
        0.1,
        gt=0,
    )
    classes: dict[str, RequestClassSchema] | None = key(
        "a mixed workload, by class", {"code": {"share": 0.5}, "chat": {"share": 0.5}}
    )

    def conflicts(self) -> Iterator[str]:
        yield from MeasurementSchema.conflicts(self)
        yield from PassesSchema.conflicts(self)
        if self.arrivals[TARGET] == RECORDED:
            yield (
                "arrivals=recorded repeats the load of a recording, which only "
                "python -m specresearch.simulate does; choose another, such as arrivals=poisson"
            )
        if self.server is not None or self.baseline_server is not None:
            yield from conflicts_with_server(self)
        for name, requests in (self.classes or {}).items():
            prefix = f"classes.{name}.sampling."
            yield from problems_of(requests.sampling or {}, SamplingSchema, prefix, is_partial=True)
        model = CONTROLLER.models.get(self.controller[TARGET])
        for name, changes in self.variants.items():
            if model is not None:
                variant = {**self.controller, **changes}
                del variant[TARGET]
                yield from problems_of(variant, model, f"variants.{name}.")


class FittedSchema(Settings):
    noise: bool = key("vary step times as in the recording; false takes their mean", False)
    recordings: list[str] = key("more folders to fit to, of the same target and machine", ["rec2"])


def _seconds(description: str) -> Any:
    return key(f"seconds of {description}", 1e-4, ge=0)


class LinearSchema(Settings):
    verify: float = _seconds("each pass of the target")
    verify_token: float = _seconds("each root and draft")
    verify_context: float = _seconds("each committed token that is attended to")
    draft: float = _seconds("each draft of the longest chain, as for a pass of a draft model")
    draft_token: float = _seconds("each draft")
    prefill: float = _seconds("each step that prefills prompts")
    prefill_token: float = _seconds("each prompt token")
    lazy_prefill_token: float = _seconds("each token that a drafter prefills lazily")
    overhead: float = _seconds("each step")


class RooflineSchema(Settings):
    bandwidth: float = key("bytes per second of the accelerator's memory", 3.35e12, gt=0)
    flops: float = key("operations per second, at the precision in use", 9.9e14, gt=0)
    weight_bytes: float = key("bytes of the target, read in every pass", 16e9, gt=0)
    parameters: float = key("parameters that every token goes through", 8e9, gt=0)
    kv_bytes: float = key(
        "bytes of one cached token: 2 x layers x key heads x head size x bytes of a number",
        131072.0,
        gt=0,
    )
    draft_weight_bytes: float = key("of a draft model; 0 without one", 1e9, ge=0)
    draft_parameters: float = key("of a draft model", 5e8, ge=0)
    draft_kv_bytes: float = key("of a draft model", 32768.0, ge=0)
    efficiency: float = key("fraction of bandwidth and flops that is reached", 0.7, gt=0, le=1)
    overhead: float = key("fixed seconds of every pass", 2e-5, ge=0)
    step_overhead: float = key("fixed seconds of every step", 1e-3, ge=0)


TIMING = Choice(
    "timing",
    {
        "specresearch.simulation.Fitted": FittedSchema,
        "specresearch.simulation.Linear": LinearSchema,
        "specresearch.simulation.Roofline": RooflineSchema,
    },
)


class SimulateSchema(PassesSchema):
    recording: str = key(
        "folder of a run with record=true, or its recording.parquet", "rec", min_length=1
    )
    timing: Annotated[Any, TIMING] = key("how long steps take", "roofline")
    arrivals: Annotated[Any, ARRIVALS] = key("when requests arrive; recorded: as it was", "poisson")
    max_running: int | None = key(
        "largest batch; null: as recorded, or a whole closed loop if that is larger",
        32,
        ge=1,
        le=MAX_BATCH,
    )
    acceptance: Annotated[Any, ACCEPTANCE] = key(
        "another rule than the recorded one", "block", default=None
    )
    controller: Annotated[Any, CONTROLLER] = key("how much is drafted", "fixed")
    scheduler: Annotated[Any, SCHEDULER] = key("what a step holds", "first_come")
    model: str | None = key("refuse a recording of another model", "zoo:tiny")
    side: str | None = key(
        "side whose requests are replayed; null: the one with the longest fixed drafts", "method"
    )
    num_draft_tokens: int | None = key(
        "most drafts of a step, no more than were recorded; null: as recorded", 4, ge=1
    )
    temperature: float | None = key("refuse a recording of another temperature", 1.0, ge=0)
    repeats: int = key("passes of every side", 3, ge=1)
    max_len: int | None = key("longest request in tokens; null: as recorded", 4096, ge=2)
    seed: int = seed_key("of arrivals and of all draws that were not recorded")
    progress: bool = progress_key()
