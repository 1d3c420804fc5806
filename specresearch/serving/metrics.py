"""Metrics for Prometheus, by the names and labels of vLLM.

`specresearch:` begins the names of what vLLM does not have.
"""

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specresearch.metrics import RequestRecord, StepRecord
from specresearch.serving.updates import EngineUpdate

ENGINE = "0"  # label; a server has one
QUEUE_FULL = "max_num_queued_reqs"  # reason of a rejection
LABELS = ("model_name", "engine")
FINISHED = {"eos": "stop", "stop": "stop", "length": "length", "error": "error"}

FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SHARES = tuple(round(0.05 * number, 2) for number in range(21))
LENGTHS = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 12, 16, 24)


class ServerMetrics:
    """Counts steps and requests. What a request took is counted when it has ended.

    Args:
        model_name: The served name.
        num_draft_tokens: The most drafts of a step; without drafts their metrics are left out.
    """

    def __init__(self, model_name: str, num_draft_tokens: int) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model_name, ENGINE)
        self._drafts = _Drafts(self, num_draft_tokens) if num_draft_tokens else None
        gauge, counter, histogram = self.gauge, self.counter, self.histogram
        self._running = gauge("num_requests_running", "Requests that have a slot.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait for a slot.")
        self._cache = gauge("kv_cache_usage_perc", "Share of the KV cache in use, from 0 to 1.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens looked up in the cache.")
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._preemptions = counter("num_preemptions", "Requests preempted.")
        self._prefilled = counter("prompt_tokens", "Tokens prefilled.")
        self._generated = counter("generation_tokens", "Tokens generated.")
        self._ended = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._rejected = Counter(
            "vllm:admission_rejections",
            "Requests answered 429.",
            (*LABELS, "reason"),
            registry=self.registry,
        )
        self._step_tokens = histogram(
            "iteration_tokens_total", "Tokens of a step, prefilled and generated.", STEP_TOKENS
        )
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self._output = histogram("request_generation_tokens", "Tokens of an output.", TOKENS)
        self._ttft = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN
        )
        self._itl = histogram(
            "inter_token_latency_seconds", "Between two deliveries of a request.", PER_TOKEN
        )
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean of a request.", PER_TOKEN
        )
        self._e2el = histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", WHOLE
        )
        self._queued = histogram("request_queue_time_seconds", "From arrival to a slot.", WHOLE)
        self._inference = histogram(
            "request_inference_time_seconds", "From the slot to the last token.", WHOLE
        )
        self._prefill = histogram(
            "request_prefill_time_seconds", "From the slot to the first token.", WHOLE
        )
        self._decode = histogram(
            "request_decode_time_seconds", "From the first token to the last.", WHOLE
        )

    def gauge(self, name: str, help: str) -> Gauge:
        return Gauge(f"vllm:{name}", help, LABELS, registry=self.registry).labels(*self._labels)

    def counter(self, name: str, help: str) -> Counter:
        return Counter(f"vllm:{name}", help, LABELS, registry=self.registry).labels(*self._labels)

    def histogram(
        self, name: str, help: str, buckets: Sequence[int | float], prefix: str = "vllm"
    ) -> Histogram:
        full = f"{prefix}:{name}"
        made = Histogram(full, help, LABELS, buckets=buckets, registry=self.registry)
        return made.labels(*self._labels)

    def positions(self, name: str, help: str, num: int) -> list[Counter]:
        """Return a counter for each position of a draft, from 0."""
        made = Counter(f"vllm:{name}", help, (*LABELS, "position"), registry=self.registry)
        return [made.labels(*self._labels, str(position)) for position in range(num)]

    def observe(self, update: EngineUpdate) -> None:
        """Count a step."""
        self._running.set(update.num_running)
        self._waiting.set(update.num_waiting)
        self._cache.set(update.cache_usage)
        if update.record is not None:
            self._observe_step(update.record)
        for output in update.outputs:
            self._ended.labels(*self._labels, FINISHED[output.finish_reason]).inc()
            if output.token_ids:
                self._observe_request(output.record)

    def reject(self) -> None:
        """Count a request that found the queue full."""
        self._rejected.labels(*self._labels, QUEUE_FULL).inc()

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self.registry)

    def _observe_step(self, record: StepRecord) -> None:
        num_new = sum(record.num_new_tokens)
        self._prefilled.inc(record.num_prefill_tokens)
        self._generated.inc(num_new)
        self._step_tokens.observe(record.num_prefill_tokens + num_new)
        if self._drafts is not None:
            self._drafts.observe_step(record)

    def _observe_request(self, record: RequestRecord) -> None:
        self._queries.inc(record.num_prompt_tokens)
        self._hits.inc(min(record.num_reused_tokens, record.num_prompt_tokens))
        self._preemptions.inc(record.num_preemptions)
        self._prompt.observe(record.num_prompt_tokens)
        self._output.observe(record.counts.num_generated_tokens)
        self._ttft.observe(record.ttft)
        for gap in filter(None, record.itl):  # tokens of one step come together
            self._itl.observe(gap)
        if record.itl:
            self._tpot.observe(record.tpot)
        self._e2el.observe(record.e2el)
        self._queued.observe(record.queue_time)
        self._inference.observe(record.e2el - record.queue_time)
        self._prefill.observe(record.ttft - record.queue_time)
        self._decode.observe(record.e2el - record.ttft)
        if self._drafts is not None:
            self._drafts.observe_request(record)


class _Drafts:
    """The metrics of speculative decoding."""

    def __init__(self, metrics: ServerMetrics, num_draft_tokens: int) -> None:
        counter, histogram = metrics.counter, metrics.histogram
        self._drafts = counter("spec_decode_num_drafts", "Drafts of one request in one step.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Draft tokens.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Accepted draft tokens.")
        self._by_position = metrics.positions(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens at each position.",
            num_draft_tokens,
        )
        self._rate = histogram(
            "request_draft_acceptance_rate",
            "Accepted draft tokens of a request over its draft tokens.",
            SHARES,
            "specresearch",
        )
        self._length = histogram(
            "request_mean_acceptance_length",
            "Tokens of a request for each of its steps with drafts.",
            LENGTHS,
            "specresearch",
        )

    def observe_step(self, record: StepRecord) -> None:
        drafted = record.num_draft_tokens
        self._drafts.inc(len(drafted) - drafted.count(0))
        self._drafted.inc(sum(drafted))
        self._accepted.inc(sum(record.num_accepted_tokens))
        for accepted, num_rows in Tally(record.num_accepted_tokens).items():
            for position in range(accepted):
                self._by_position[position].inc(num_rows)

    def observe_request(self, record: RequestRecord) -> None:
        counts = record.counts
        if counts.num_draft_tokens:
            self._rate.observe(counts.num_accepted_tokens / counts.num_draft_tokens)
            self._length.observe(counts.mean_acceptance_length)
