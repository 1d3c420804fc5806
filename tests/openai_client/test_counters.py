"""Counters of drafting on the /metrics pages of three servers."""

import pytest

from specresearch.openai_client import Counters

VLLM = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.78e9
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {second}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} 3.0
"""
NAMES = ("drafts", "drafted", "accepted", "first", "second", "generated")
BEFORE = dict(zip(NAMES, (10, 20, 12, 8, 4, 30), strict=True))
AFTER = dict(zip(NAMES, (110, 220, 132, 88, 44, 290), strict=True))
SGLANG = """\
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{{engine_type="unified"}} {verified}
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{is_streaming="true"}} {generated}
sglang:generation_tokens_total{{is_streaming="false"}} 5
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{is_streaming="true"}} {requests}
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{{engine_type="unified"}} 2.5
"""


def test_vllm_counts_drafts_by_position() -> None:
    counts = Counters.parse(VLLM.format(**AFTER)).since(Counters.parse(VLLM.format(**BEFORE)))
    assert counts is not None
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (
        100,
        200,
        120,
    )
    assert counts.acceptance_at_position == [0.8, 0.4]
    assert counts.num_target_forwards == 140
    assert Counters.parse(VLLM.format(**BEFORE)).num_positions == 2


def test_llama_server_uses_the_same_names() -> None:
    pages = [VLLM.format(**values).replace("vllm:", "llamacpp:") for values in (BEFORE, AFTER)]
    before, after = map(Counters.parse, pages)
    counts = after.since(before)
    assert after.source == "llamacpp"
    assert counts is not None
    assert counts.draft_acceptance_rate == 0.6


def test_sglang_counts_verify_steps_only() -> None:
    pages = [
        SGLANG.format(verified=10, generated=100, requests=4),
        SGLANG.format(verified=50, generated=210, requests=14),
    ]
    before, after = map(Counters.parse, pages)
    counts = after.since(before)
    assert counts is not None
    assert (counts.num_drafts, counts.num_accepted_tokens) == (40, 60)
    assert (counts.mean_acceptance_length, counts.num_draft_tokens) == (2.5, 0)


def test_other_pages_restarts_and_servers_at_rest_say_nothing() -> None:
    before = Counters.parse(VLLM.format(**AFTER))
    assert before.since(before) is None
    assert Counters.parse(VLLM.format(**BEFORE)).since(before) is None
    assert before.since(Counters()) is None
    first = before.since(Counters.parse(""))
    assert first is not None
    assert first.num_drafts == 110
    python = Counters.parse("# TYPE python_info gauge\npython_info 1.0\n")
    assert (python.source, python.since(python), python.num_positions) == ("", None, None)
    with pytest.raises(ValueError, match="invalid metric name"):
        Counters.parse("<html>not found</html>")
