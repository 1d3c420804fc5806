"""A recording holds what was decoded, survives interruptions, and is rejected elsewhere."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import Rejection
from specresearch.controllers import Fixed, Goodput
from specresearch.engine import RequestOutput
from specresearch.proposers import DraftModel, NGram, Proposer
from specresearch.recording.recorder import PARTS, Recorder, describe_recording
from specresearch.recording.recording import Recording
from specresearch.recording.schema import RECORDING, SCHEMA

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

PROMPTS = [(1, 2, 3, 1, 2, 3, 1, 2), (4, 5, 4, 5, 4), (6,), (7, 8, 9, 7, 8)]


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM(build("llama", seed=1), max_len=40, name="tiny")


def recorder_of(folder: Path, target: CausalLM, proposer: Proposer) -> Recorder:
    header = describe_recording(
        target, proposer, Rejection(), "tried", {"baseline": None, "method": Fixed(3)}, {"a": 1}
    )
    return Recorder(folder, header)


def decode(
    target: CausalLM, proposer: Proposer | None, recorder: Recorder, temperature: float
) -> list[RequestOutput]:
    requests = [
        Request(
            prompt,
            SamplingParams(temperature, seed=i, max_new_tokens=9 + i, frequency_penalty=0.1),
            str(i),
            category="x",
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    return list(Engine(target, proposer, max_batch_size=3, observers=[recorder]).generate(requests))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampled", [True, False])
def test_the_recording_is_what_was_decoded(
    target: CausalLM, tmp_path: Path, temperature: float, sampled: bool
) -> None:
    proposer = DraftModel(CausalLM(build("llama", seed=2), max_len=40), 3, sample=sampled)
    recorder = recorder_of(tmp_path, target, proposer)
    recorder.begin("method")
    outputs = {output.id: output for output in decode(target, proposer, recorder, temperature)}
    recorder.end()
    recorder.write(complete=True)
    assert not (tmp_path / PARTS).exists()
    recording = Recording(tmp_path)
    requests = {request.id: request for request in recording.requests("method")}
    assert requests.keys() == outputs.keys()
    for id, output in outputs.items():
        request, counts = requests[id], output.record.counts
        assert request.token_ids.tolist() == list(output.token_ids)
        assert request.prompt_ids == PROMPTS[int(id)]
        assert (request.category, request.finish_reason) == ("x", output.finish_reason)
        assert request.sampling.max_new_tokens == 9 + int(id)
        assert sum(len(step.draft_ids) for step in request.steps) == counts.num_draft_tokens
        assert sum(step.num_accepted for step in request.steps) == counts.num_accepted_tokens
        assert len(request.steps) == counts.num_target_forwards
    steps = {name: recording.steps[name].to_numpy() for name in recording.steps}
    assert sum(steps["num_drafts"]) == sum(
        o.record.counts.num_draft_tokens for o in outputs.values()
    )
    assert sum(steps["num_prefill_tokens"]) == sum(len(prompt) - 1 for prompt in PROMPTS)
    assert (steps["total"] >= steps["propose"] + steps["verify"]).all()


def test_p_and_q_are_the_models_own(target: CausalLM, tmp_path: Path) -> None:
    proposer = DraftModel(CausalLM(build("llama", seed=2), max_len=40), 3)
    recorder = recorder_of(tmp_path, target, proposer)
    recorder.begin("method")
    prompt = PROMPTS[0]
    request = Request(prompt, SamplingParams(1.3, seed=3, max_new_tokens=12), "one")
    list(Engine(target, proposer, observers=[recorder]).generate([request]))
    recorder.end()
    recorder.write(complete=True)
    (recorded,) = Recording(tmp_path).requests("method")
    text = [*prompt, *recorded.token_ids.tolist()]
    with torch.no_grad():
        plain = (build("llama", seed=seed) for seed in (1, 2))
        p, q = (model(torch.tensor([text])).logits[0].div(1.3).softmax(-1) for model in plain)
    at = range(len(prompt) - 1, len(text) - 1)
    np.testing.assert_allclose(recorded.p, [float(p[i, text[i + 1]]) for i in at], rtol=1e-5)
    known = np.isfinite(recorded.q)
    assert known.any()
    np.testing.assert_allclose(
        recorded.q[known], np.array([float(q[i, text[i + 1]]) for i in at])[known], rtol=1e-5
    )
    for step in recorded.steps:
        first = len(prompt) - 1 + step.position
        if len(step.draft_ids):
            assert step.p[0] == pytest.approx(float(p[first, step.draft_ids[0]]), rel=1e-5)
            assert step.q[0] == pytest.approx(float(q[first, step.draft_ids[0]]), rel=1e-5)


def test_only_passes_that_ended_are_kept_and_a_second_attempt_replaces_the_first(
    target: CausalLM, tmp_path: Path
) -> None:
    first = recorder_of(tmp_path, target, NGram(3))
    first.begin("baseline")
    decode(target, None, first, 0.0)
    first.end()
    first.begin("method")
    decode(target, NGram(3), first, 0.0)  # killed before its end
    first._flush()
    first.write(complete=False)
    assert Recording(tmp_path).sides == ("baseline",)
    again = recorder_of(tmp_path, target, NGram(3))
    again.begin("method")
    decode(target, NGram(3), again, 0.0)
    again.end()
    decode(target, NGram(3), again, 0.0)  # outside of a pass, as a warm-up is
    again.write(complete=True)
    recording = Recording(tmp_path)
    assert sorted(recording.sides) == ["baseline", "method"]
    assert [len(recording.requests(side)) for side in ("baseline", "method")] == [len(PROMPTS)] * 2
    with pytest.raises(ValueError, match="side=fixed-3 is not in"):
        recording.requests("fixed-3")


def test_what_does_not_belong_is_refused_with_the_difference(
    target: CausalLM, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"does not exist; make one with record=true"):
        Recording(tmp_path)
    (tmp_path / RECORDING).write_text("nothing of the kind")
    with pytest.raises(ValueError, match="cannot be read"):
        Recording(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / RECORDING)
    with pytest.raises(ValueError, match="is no recording"):
        Recording(tmp_path)
    header = describe_recording(target, NGram(3), Rejection(), "tried", {"method": Goodput()}, {})
    assert header.fixed == {"method": None}
    old = replace(header, format=0, package="0.0.1").written_into(SCHEMA)
    pq.write_table(old.empty_table(), tmp_path / RECORDING)
    with pytest.raises(
        ValueError, match=r"format 0 \(specresearch 0.0.1\), and this version reads format 2"
    ):
        Recording(tmp_path)
    pq.write_table(header.written_into(SCHEMA).empty_table(), tmp_path / RECORDING)
    told = {"provenance": {"target": {"model": "tiny", "num_parameters": 7, "dtype": "float64"}}}
    (tmp_path / "results.json").write_text(json.dumps(told))
    with pytest.raises(
        ValueError, match=r"another target than .*: num_parameters is \d+ and not 7$"
    ):
        Recording(tmp_path)
    assert header.target["vocab_size"] == VOCAB
