"""Settings of the commands that measure: run, load and simulate."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge

from specresearch.settings.base import TARGET, Choice, Settings, key
from specresearch.settings.check import problems_of
from specresearch.settings.data import DATASET, TRACKER
from specresearch.settings.decoding import (
    ACCEPTANCE,
    CONTROLLER,
    SAMPLING,
    SCHEDULER,
    SamplingSchema,
    longest_chain,
)
from specresearch.settings.drafting import MODEL, PROPOSER

MAX_SEED = 2**63 - 1


class MeasurementSchema(Settings):
    """What run and load share."""

    target: Annotated[Any, MODEL] = key("the model to decode with", None)
    draft: str | None = key(
        "folder, hub id or zoo: name of a draft model", "Qwen/Qwen3-0.6B", default=None
    )
    draft_device: str | None = key("where the draft model runs", "cuda:1", default=None)
    heads: dict[str, str] | None = key("heads made for the target", None, default=None)
    proposer: Annotated[Any, PROPOSER] = key("how drafts are made", None, default=None)
    dataset: Annotated[Any, DATASET] = key("the prompts", None)
    acceptance: Annotated[Any, ACCEPTANCE] = key("which drafts stay", None)
    controller: Annotated[Any, CONTROLLER] = key("how much is drafted", None)
    scheduler: Annotated[Any, SCHEDULER] = key("what a step holds", None)
    tracker: Annotated[Any, TRACKER] = key("where figures are sent", None)
    sampling: Annotated[Any, SAMPLING] = key("how tokens are chosen", None)
    repeats: int = key("times the whole measurement is done", 3, ge=1)
    warmup: int = key("requests decoded first and not counted", 2, ge=0)
    seed: int = key("of everything random", 0, ge=0, le=MAX_SEED)
    record: bool = key("keep what python -m specresearch.simulate needs", True)
    resume: bool = key("continue the run in hydra.run.dir", True)
    progress: bool = key("show progress", False)

    def conflicts(self) -> Iterator[str]:
        yield from longest_chain(self.proposer, self.controller)


class RunSchema(MeasurementSchema):
    batch_size: int = key("prompts decoded together", 8, ge=1)
    num_prompts: int | None = key("prompts to decode; null takes the whole dataset", 100, ge=1)
    order: Literal["dataset", "shuffled"] = key(
        "of the prompts; shuffled (by seed) for methods that learn across requests", "shuffled"
    )
    verify_greedy: bool = key("examine every changed output: rounding or error?", True)


class LimitsSchema(Settings):
    ttft: float = key("time to first token, in seconds", 0.5, gt=0)
    tpot: float = key("time per output token after the first, in seconds", 0.05, gt=0)


class RequestClassSchema(Settings):
    share: float = key("weight among the classes", 0.6, gt=0)
    dataset: Annotated[Any, DATASET] = key("its prompts; the run's without it", None, default=None)
    sampling: dict[str, Any] | None = key("changes to sampling", {"temperature": 0.2}, default=None)
    acceptance: Literal["code", "structured", "prose"] | None = key(
        "preset of acceptance=threshold", "code", default=None
    )
    num_draft_tokens: int | None = key("drafts of its requests at most", 2, ge=0, default=None)


class PassesSchema(Settings):
    """What load tests and simulations share."""

    num_requests: int | None = key("requests of a pass; null: as the arrivals suggest", 200, ge=1)
    max_running: int = key("largest batch, the same for every side", 32, ge=1)
    compare: list[Annotated[int, Ge(1)]] = key("fixed draft lengths, one side each", [2, 5])
    limits: LimitsSchema = key("goodput counts the requests that keep both", None)
    max_waiting: int = key("stop a pass when more requests wait", 256, ge=1)
    max_seconds: float = key("stop a pass that takes longer", 600.0, gt=0)

    def conflicts(self) -> Iterator[str]:
        if len(set(self.compare)) < len(self.compare):
            yield f"compare={self.compare} names a draft length twice"


class _OpenArrivalsSchema(Settings):
    qps: float = key("requests per second", 2.0, gt=0)


class GammaSchema(_OpenArrivalsSchema):
    cv: float = key("standard deviation of the gaps over their mean; above 1 is bursty", 2.0, gt=0)


class ClosedLoopSchema(Settings):
    concurrency: int = key("requests in flight: one comes when another leaves", 8, ge=1)


class ReplaySchema(Settings):
    path: str = key("an Azure (.csv) or Mooncake (.jsonl) trace, also gzipped", "trace.csv")
    time_scale: float = key(
        "seconds per second of the trace; 10 replays it ten times slower", 10.0, gt=0
    )
    start: float = key("second of the trace to begin at", 60.0, ge=0)
    duration: float | None = key("seconds of the trace; null goes to its end", 600.0, gt=0)


ARRIVALS = Choice(
    "arrivals",
    {
        "specresearch.loadtest.arrivals.Poisson": _OpenArrivalsSchema,
        "specresearch.loadtest.arrivals.Constant": _OpenArrivalsSchema,
        "specresearch.loadtest.arrivals.Gamma": GammaSchema,
        "specresearch.loadtest.arrivals.ClosedLoop": ClosedLoopSchema,
        "specresearch.loadtest.arrivals.Replay": ReplaySchema,
    },
)


class LoadSchema(MeasurementSchema, PassesSchema):
    arrivals: Annotated[Any, ARRIVALS] = key("when requests arrive", None)
    variants: dict[str, dict[str, Any]] = key(
        "the controller with other settings, one side each", {"bounded": {"max_slowdown": 1.05}}
    )
    length_spread: float = key(
        "answers have between (1 - this) x max_new_tokens and max_new_tokens", 0.5, ge=0, lt=1
    )
    reset: bool = key("controllers start every pass with nothing learned", False)
    turn_seconds: float | None = key(
        "sides alternate after so long; null runs one pass after the other", 0.1, gt=0
    )
    classes: dict[str, RequestClassSchema] | None = key(
        "a mixed workload, by class", {"code": {"share": 0.5}, "chat": {"share": 0.5}}
    )

    def conflicts(self) -> Iterator[str]:
        yield from MeasurementSchema.conflicts(self)
        yield from PassesSchema.conflicts(self)
        base = {name: value for name, value in self.sampling.items() if name != TARGET}
        for name, requests in (self.classes or {}).items():
            sampling = {**base, **(requests.sampling or {})}
            yield from problems_of(sampling, SamplingSchema, f"classes.{name}.sampling.")
        model = CONTROLLER.models.get(self.controller[TARGET])
        for name, changes in self.variants.items():
            if model is not None:
                variant = {**self.controller, **changes}
                del variant[TARGET]
                yield from problems_of(variant, model, f"variants.{name}.")


class FittedSchema(Settings):
    noise: bool = key("vary steps as the recorded ones did; false takes their mean", False)
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
    lazy_prefill_token: float = _seconds("each token that a draft model prefills lazily")
    overhead: float = _seconds("each step")


class RooflineSchema(Settings):
    bandwidth: float = key("bytes per second of the accelerator's memory", 3.35e12, gt=0)
    flops: float = key("operations per second, at the precision in use", 9.9e14, gt=0)
    weight_bytes: float = key("bytes of the target, read in every pass", 16e9, gt=0)
    parameters: float = key("parameters that every token goes through", 8e9, gt=0)
    kv_bytes: float = key("bytes of one cached token", 131072.0, gt=0)
    draft_weight_bytes: float = key("of a draft model; 0 without one", 1e9, ge=0)
    draft_parameters: float = key("of a draft model", 5e8, ge=0)
    draft_kv_bytes: float = key("of a draft model", 32768.0, ge=0)
    efficiency: float = key("share of bandwidth and flops that is reached", 0.7, gt=0, le=1)
    overhead: float = key("seconds of every pass besides", 2e-5, ge=0)
    step_overhead: float = key("seconds of every step besides", 1e-3, ge=0)


TIMING = Choice(
    "timing",
    {
        "specresearch.simulation.Fitted": FittedSchema,
        "specresearch.simulation.Linear": LinearSchema,
        "specresearch.simulation.Roofline": RooflineSchema,
    },
)


class SimulateSchema(PassesSchema):
    recording: str = key("folder of a run with record=true, or its recording.parquet", "rec")
    timing: Annotated[Any, TIMING] = key("how long steps take", None)
    arrivals: Annotated[Any, ARRIVALS] = key("when requests arrive", None)
    acceptance: Annotated[Any, ACCEPTANCE] = key(
        "another rule than the recorded one", None, default=None
    )
    controller: Annotated[Any, CONTROLLER] = key("how much is drafted", None)
    scheduler: Annotated[Any, SCHEDULER] = key("what a step holds", None)
    model: str | None = key("refuse a recording of another model", "zoo:tiny")
    side: str | None = key("whose requests to replay; null: the longest fixed drafts", "method")
    num_draft_tokens: int | None = key("the most drafts of a step; null as recorded", 4, ge=1)
    temperature: float | None = key("refuse a recording of another temperature", 1.0, ge=0)
    repeats: int = key("passes of every side", 3, ge=1)
    max_len: int | None = key("longest request in tokens; null as recorded", 4096, ge=2)
    seed: int = key("of arrivals and of all draws that were not recorded", 0, ge=0, le=MAX_SEED)
    progress: bool = key("show progress", False)
