"""Whether the device computes what it should, before anything is timed."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specresearch.acceptance import Rejection
from specresearch.bench.logit_gap import LogitGap, measure_rounding
from specresearch.certification.cases import SampledSetting
from specresearch.certification.counts import Tally
from specresearch.certification.targets import Toy, ragged_prompts
from specresearch.device_bench.bench import Bench, BenchCase, sharing_weights
from specresearch.device_bench.library import generate, library_model
from specresearch.device_bench.measurement import Measurement, at_least, at_most
from specresearch.device_bench.timing import decode
from specresearch.engine import Engine
from specresearch.models import CausalLM
from specresearch.proposal import Proposal, Topology
from specresearch.proposers import DraftModel, Eagle3, NGram, Proposer
from specresearch.sampling import SamplingParams

PROMPT_LENGTHS = (23, 9, 40)
PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
MAX_LEN = 256
MAX_ERROR = 1e-4  # of a logit in float32, relative to the largest
MAX_HALF_ERROR = 0.04  # in bfloat16
TOY, VISIBLE_TV, ALPHA, POWER = Toy(4, seed=4), 0.15, 1e-4, 0.95
SAMPLING = SamplingParams(temperature=1.0, top_p=0.9, max_new_tokens=3)


def cases(bench: Bench) -> Iterator[BenchCase]:
    yield BenchCase("tree is sequence", partial(_tree_is_sequence, bench))
    yield BenchCase("greedy is baseline, float32", partial(_greedy_is_baseline, bench))
    yield BenchCase("sampled is target, float64", partial(_sampled_is_target, bench))
    yield BenchCase("greedy divergence, bfloat16", partial(_divergence, bench))
    for attention in ("two_part", "slot", "sdpa"):
        yield BenchCase(f"{attention} beside the CPU's", partial(_attention, bench, attention))


def _prompts(target: CausalLM) -> list[list[int]]:
    """Return prompts of several lengths that repeat themselves."""
    return [[(5 * (i % 7) + 3) % target.vocab_size for i in range(n)] for n in PROMPT_LENGTHS]


def _tree_is_sequence(bench: Bench) -> Iterator[Measurement]:
    weights = bench.few_layers(torch.float32)
    for attention in ("slot", "sdpa"):
        target = CausalLM(sharing_weights(weights), max_len=MAX_LEN, attention=attention)
        error = _tree_error(target)
        how = "ragged trees against one pass for each path; largest error over largest logit"
        yield Measurement.of(attention, error, "", how, at_most(MAX_ERROR))


def _tree_error(target: CausalLM) -> float:
    """Return the largest relative error of a batch of trees against sequential passes."""
    prompts, tokens = _prompts(target), torch.arange(3, 3 + len(PARENTS))
    slots = _slots(target, len(prompts) + 1)
    *rows, spare = slots
    target.extend(rows, prompts, want_logits=False)
    logits = _verify(target, rows, tokens)
    ancestors = _topology("cpu").ancestors[0]
    errors: list[float] = []
    for prompt, found in zip(prompts, logits, strict=True):
        for node in range(len(PARENTS)):
            target.lengths[spare] = 0
            path = tokens[ancestors[node]].tolist()
            expected = target.extend([spare], [prompt + path]).logits[0, 0].cpu()
            errors.append(_error(found[node], expected))
    return max(errors)


def _topology(device: torch.device | str) -> Topology:
    return Topology.from_parents(torch.tensor([PARENTS], device=device))


def _slots(target: CausalLM, num: int) -> list[int]:
    target.allocate(num, len(PARENTS))
    return [slot for _ in range(num) if (slot := target.acquire()) is not None]


def _verify(target: CausalLM, slots: Sequence[int], tokens: Tensor) -> Tensor:
    """Return the logits of one tree for every slot, on the host."""
    device = target.device
    lengths = torch.full((len(slots),), len(tokens), device=device)
    ids = tokens.to(device).expand(len(slots), -1)
    return target.forward(slots, Proposal(ids, _topology(device), lengths)).logits.float().cpu()


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _proposers(bench: Bench, target: CausalLM) -> dict[str, Callable[[], Proposer]]:
    """Return drafters of every kind, with random weights."""

    def draft() -> CausalLM:
        model = bench.build(
            bench.scale.draft,
            target.dtype,
            num_hidden_layers=1,
            vocab_size=bench.scale.vocab_size,
        )
        return CausalLM(model, self_test=False, **bench.options)

    return {
        "n-gram": lambda: NGram(5, n_min=1),
        "draft model, chain": lambda: DraftModel(draft(), 5),
        "draft model, tree": lambda: DraftModel(draft(), 24, tree="dynamic", depth=4),
        "EAGLE-3, tree": lambda: Eagle3.toy(target, 1),
    }


def _greedy_is_baseline(bench: Bench) -> Iterator[Measurement]:
    weights, num_new = bench.few_layers(torch.float32), bench.scale.num_checked
    model = library_model(weights)
    target = CausalLM(sharing_weights(weights), max_len=MAX_LEN, **bench.options)
    prompts = _prompts(target)
    expected = [generate(model, [prompt], num_new).outputs[0] for prompt in prompts]
    sides = {"plain": lambda: None} | _proposers(bench, target)
    for name, build in sides.items():
        engine = Engine(target, build(), max_batch_size=len(prompts))
        outputs = decode(bench.device, engine, prompts, num_new).outputs
        num_equal = sum(a == b for a, b in zip(outputs, expected, strict=True))
        share = 100 * num_equal / len(prompts)
        how = f"of {len(prompts)} outputs, {num_new} tokens each, against generate"
        yield Measurement.of(name, share, "% equal", how, at_least(100.0))


def _sampled_is_target(bench: Bench) -> Iterator[Measurement]:
    device = bench.device.device
    (prompt,) = ragged_prompts(TOY, 4, seed=0)[3:]
    setting = SampledSetting.build(
        "sampled", 0, SAMPLING, prompt, toy=TOY, tv=VISIBLE_TV, alpha=ALPHA, power=POWER
    )
    target = TOY.target(device)
    drafters: dict[str, Callable[[], Proposer]] = {
        "n-gram": lambda: NGram(4, n_max=2, n_min=1),
        "draft model, chain": lambda: DraftModel(TOY.draft(device=device), 3),
        "draft model, tree": lambda: DraftModel(
            TOY.draft(device=device), 5, tree="dynamic", depth=2, top_k=3
        ),
    }
    for name, build in drafters.items():
        engine = Engine(target, build(), Rejection(), max_batch_size=256)
        tally = Tally([0] * len(setting.distribution.outputs))
        for output in engine.generate(setting.requests(0, seed=0)):
            tally.add(output.checked(), setting.distribution)
        how = (
            f"{setting.num_samples} samples against the enumerated distribution, which show a "
            f"total variation of {VISIBLE_TV:g}; p-value"
        )
        p_value = tally.fit(setting.distribution).p_value
        yield Measurement.of(name, p_value, "", how, at_least(ALPHA))


def _divergence(bench: Bench) -> Iterator[Measurement]:
    num_new = bench.scale.num_checked
    weights = bench.few_layers(torch.bfloat16)
    target = CausalLM(sharing_weights(weights), max_len=MAX_LEN, **bench.options)
    prompts = _prompts(target)
    plain = Engine(target, max_batch_size=len(prompts))
    alone = decode(bench.device, plain, prompts, num_new).outputs
    rounding = measure_rounding(
        target,
        [[*prompt, *out[: num_new // 2]] for prompt, out in zip(prompts, alone, strict=True)],
    )
    num_compared, num_different, num_errors = 0, 0, 0
    for build in _proposers(bench, target).values():
        engine = Engine(target, build(), max_batch_size=len(prompts))
        outputs = decode(bench.device, engine, prompts, num_new).outputs
        for prompt, expected, found in zip(prompts, alone, outputs, strict=True):
            num_compared += 1
            if found != expected:
                num_different += 1
                at = int(np.argmax(np.array(found) != np.array(expected)))
                gap = LogitGap.after(target, [*prompt, *expected[:at]], rounding)
                num_errors += not gap.is_rounding
    how = f"of {num_compared}, against plain decoding"
    yield Measurement.of("outputs that differ", num_different, "", how)
    yield Measurement.of(
        "differences that rounding does not explain",
        num_errors,
        "",
        "the gap of the two best logits against its own changes with the shape of a pass",
        at_most(0),
    )


def _attention(bench: Bench, attention: str) -> Iterator[Measurement]:
    rounded = bench.build(
        bench.scale.target,
        bench.scale.dtype,
        num_hidden_layers=2,
        vocab_size=bench.scale.vocab_size,
    )
    exact = _on_cpu(bench, rounded.state_dict())
    tokens = torch.arange(3, 3 + len(PARENTS))
    expected = _tree_logits(exact, tokens)
    is_half = bench.scale.dtype.itemsize == 2
    target = CausalLM(
        sharing_weights(rounded),
        max_len=MAX_LEN,
        attention=attention,
        self_test=False,
        **bench.options,
    )
    error = _error(_tree_logits(target, tokens), expected)
    how = "logits of ragged trees against float32 on the CPU; largest error over largest logit"
    limit = at_most(MAX_HALF_ERROR if is_half else MAX_ERROR)
    yield Measurement.of(target.attention, error, "", how, limit)


def _on_cpu(bench: Bench, state: dict[str, Tensor]) -> CausalLM:
    """Return the model with these weights, computing in float32 on the CPU."""
    model = bench.build(
        bench.scale.target,
        torch.float32,
        torch.device("cpu"),
        num_hidden_layers=2,
        vocab_size=bench.scale.vocab_size,
    )
    model.load_state_dict({name: tensor.cpu().float() for name, tensor in state.items()})
    return CausalLM(model, max_len=MAX_LEN, attention="slot", self_test=False)


def _tree_logits(target: CausalLM, tokens: Tensor) -> Tensor:
    prompts = _prompts(target)
    slots = _slots(target, len(prompts))
    target.extend(slots, prompts, want_logits=False)
    return _verify(target, slots, tokens)
