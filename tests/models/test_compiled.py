"""Compiled passes over packed weights give the same output, for any slots and any lengths."""

import copy
import os
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from tiny_models import build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.engine import SchedulerSettings
from specresearch.models import compiled_layers, packed
from specresearch.proposers import Cascade, DraftModel, NGram

PROMPTS = [(5, 1, 2, 3, 4, 5, 1, 2), (3, 1, 4, 1, 5, 3, 1), (9, 2, 6, 9, 2)]


def model(seed: int, compile: bool, is_packed: bool = True, graphs: bool = False) -> CausalLM:
    """Return a model of one layer, or of two where layers are compiled one by one."""
    network = copy.deepcopy(build("llama", seed=seed, num_hidden_layers=2 if graphs else 1))
    return CausalLM(
        network, max_len=48, compile=compile, pack_weights=compile and is_packed, graphs=graphs
    )


def outputs(
    compile: bool,
    draft_seed: int,
    num_drafts: int,
    is_cascade: bool = False,
    graphs: bool = False,
) -> list[tuple[tuple[int, ...], int]]:
    """Return the tokens of every request and the number of accepted drafts."""
    target = model(1, compile, graphs=graphs)
    draft = model(draft_seed, compile, graphs=graphs)
    requests = [
        Request(p, SamplingParams(max_new_tokens=6 + 4 * i), str(i)) for i, p in enumerate(PROMPTS)
    ]
    proposer = DraftModel(draft, num_drafts)
    engine = Engine(
        target, Cascade([NGram(5, 2, 2), proposer]) if is_cascade else proposer, max_batch_size=2
    )
    done = sorted(engine.generate(requests), key=lambda o: o.id)
    return [(o.token_ids, o.record.counts.num_accepted_tokens) for o in done]


def drafting_from_kept_columns(compile: bool) -> list[tuple[int, int]]:
    """Return the accepted drafts and reused tokens of requests that take over old columns.

    The first request leaves early, and passes over all slots go on while nobody has its slot.
    Weights are not packed, as they are for `outputs`.
    """
    target, draft = (model(1, compile, is_packed=False) for _ in range(2))
    engine = Engine(
        target,
        DraftModel(draft, 3),
        max_batch_size=2,
        scheduling=SchedulerSettings(reuse_prefixes=True),
    )
    first, second = list(range(1, 21)), list(range(20, 0, -1))
    done = []
    for prompts in ([first, second], [first]):
        requests = []
        for i, prompt in enumerate(prompts):
            requests.append(Request(prompt, SamplingParams(max_new_tokens=4 + 16 * i), str(i)))
        done += sorted(engine.generate(requests), key=lambda o: o.id)
    records = [output.record for output in done]
    return [(record.counts.num_accepted_tokens, record.num_reused_tokens) for record in records]


@pytest.mark.parametrize(
    "kind", ["passes", "graphs, traced", pytest.param("graphs", marks=pytest.mark.slow)]
)
def test_compiled_passes_give_the_same_output(kind: str) -> None:
    """It runs in its own process: the compiler cannot trace the tests' annotation checks."""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent)])
    done = subprocess.run(
        [sys.executable, __file__, kind],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_compiling_needs_slot_attention() -> None:
    with pytest.raises(ValueError, match="compile=true needs attention=slot"):
        CausalLM(build("llama"), attention="eager", compile=True)


@pytest.mark.parametrize("compile", [True, False])
def test_graphs_write_to_buffers_that_share_no_memory(compile: bool) -> None:
    """A graph would copy the others whole, for every slot, in every pass."""
    target = CausalLM(build("llama"), max_len=32, compile=compile)
    target.allocate(2)
    buffers = [buffer for pair in target.cache.buffers for buffer in pair]
    pieces = {buffer.untyped_storage().data_ptr() for buffer in buffers}
    assert (len(pieces) == len(buffers)) == compile


if __name__ == "__main__":
    from torch._dynamo.utils import counters

    packed.SMALLEST_WEIGHT = 1  # so that the layers of small models are packed too
    graphs = sys.argv[1].startswith("graphs")
    if sys.argv[1] == "graphs, traced":
        traced = cache(partial(torch.compile, dynamic=True, backend="eager"))
        compiled_layers._compiled = lambda layer_class: traced(layer_class.forward)
    # a draft that is mostly rejected, a copy of the target, and one that must prefill the drafts
    # of others
    cases = [(9, 3, False), (1, 3, False), (1, 1, False), (1, 3, True)]
    for draft_seed, num_drafts, is_cascade in cases[:1] if graphs else cases:
        compiled, plain = (
            outputs(compile, draft_seed, num_drafts, is_cascade, graphs)
            for compile in (True, False)
        )
        if compiled != plain:
            sys.exit(f"compiled {compiled}\nplain {plain}")
    if graphs:
        num_compiled = counters["stats"]["unique_graphs"]
        if not 1 <= num_compiled <= 4:  # one row or several, one token or several
            sys.exit(f"{num_compiled} layers were compiled")
    else:
        compiled, plain = (drafting_from_kept_columns(compile) for compile in (True, False))
        if compiled != plain:
            sys.exit(f"from kept columns: compiled {compiled}\nplain {plain}")
