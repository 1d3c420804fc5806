"""The metrics have vLLM's names, count what the engine counts, and the dashboard uses no others."""

import json
import re
from pathlib import Path

import httpx
from live_server import Live
from prometheus_client.parser import text_string_to_metric_families

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.proposers import NGram

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana_dashboard.json"
PROMPT = "the cat sat on the mat the cat sat on the mat the cat"
VLLM = {  # of version 0.32; prometheus-client appends _total to counters
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:spec_decode_num_drafts": "counter",
    "vllm:spec_decode_num_draft_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "counter",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
}


def samples(live: Live) -> dict[str, float]:
    """Return the value of each sample, by name and, where there is one, position or reason."""
    values = {}
    text = httpx.get(f"{live.address}/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "zoo:tiny"
            assert labels.pop("engine") == "0"
            name = sample.name + "".join(f"/{value}" for value in labels.values())
            values[name] = sample.value
    return values


def test_names_and_kinds_are_those_of_vllm(live: Live) -> None:
    text = httpx.get(f"{live.address}/metrics").text
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert VLLM.items() <= kinds.items()


def test_figures_are_those_of_the_engine(live: Live, target: CausalLM) -> None:
    before = samples(live)
    (output,) = Engine(target, NGram(4)).generate([PROMPT], SamplingParams(max_new_tokens=30))
    live.client().completions.create(model="zoo:tiny", prompt=PROMPT, temperature=0, max_tokens=30)
    after = samples(live)

    def change(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    counts = output.record.counts
    assert counts.num_accepted_tokens > 0
    assert change("vllm:spec_decode_num_drafts_total") == counts.num_drafts
    assert change("vllm:spec_decode_num_draft_tokens_total") == counts.num_draft_tokens
    assert change("vllm:spec_decode_num_accepted_tokens_total") == counts.num_accepted_tokens
    for position, accepted in enumerate(counts.accepted):
        name = f"vllm:spec_decode_num_accepted_tokens_per_pos_total/{position}"
        assert change(name) == accepted
    assert change("vllm:generation_tokens_total") == 30
    assert change("vllm:prompt_tokens_total") == output.record.num_prompt_tokens - 1
    assert change("vllm:request_success_total/length") == 1
    for name in ("time_to_first_token", "e2e_request_latency", "request_decode_time"):
        assert change(f"vllm:{name}_seconds_count") == 1
    num_steps = counts.num_target_forwards
    assert change("vllm:inter_token_latency_seconds_count") == num_steps - 1
    assert change("specresearch:request_draft_acceptance_rate_count") == 1
    rate = counts.num_accepted_tokens / counts.num_draft_tokens
    assert abs(change("specresearch:request_draft_acceptance_rate_sum") - rate) < 1e-9
    assert after["vllm:num_requests_running"] == 0


def test_the_dashboard_asks_for_metrics_that_exist(live: Live) -> None:
    live.client().completions.create(model="zoo:tiny", prompt=PROMPT, max_tokens=30)
    exposed = {name.partition("/")[0] for name in samples(live)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert len(queries) > 10
    named = {name for query in queries for name in re.findall(r"\w+:\w+", query)}
    assert named - exposed - {"vllm:admission_rejections_total"} == set()  # nobody was rejected
