"""Measure what trees cost beyond the passes they need, on this machine.

    python scripts/bench_tree.py --output experiments/tree_costs/results.json

The two sides of a ratio take turns in one process. Ratios (the models are the tiny pair, batch 1):

- verify: a pass over a 60-node tree with acceptance and compaction, over a pass of 60 tokens.
- growth: growing an EAGLE-2 tree of depth 6, over the drafter's own passes inside it.
- acceptance: the greedy rule on 8 x 60 nodes and a vocabulary of 32k, over a pass of a target of
  a billion parameters.

Printed are medians and their 95% intervals; fewer than eight repeats have none.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from specresearch import CausalLM, Request, SamplingParams
from specresearch.acceptance import Greedy
from specresearch.batch import Batch
from specresearch.models import loading
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.proposers import DraftModel
from specresearch.request import RequestState
from specresearch.results.provenance import describe_process
from specresearch.statistics import median_of

NUM_NODES, DEPTH, TOP_K, CONTEXT, NUM_WARM = 60, 6, 10, 400, 2


@dataclass(frozen=True)
class Ratio:
    name: str
    median: float
    low: float | None
    high: float | None
    milliseconds: tuple[float, float]


def ratio(name: str, ours: list[float], reference: list[float]) -> Ratio:
    values = np.asarray(ours) / np.asarray(reference)
    median = median_of(values)
    return Ratio(
        name,
        median.value,
        *(median.interval or (None, None)),
        (1e3 * float(np.median(ours)), 1e3 * float(np.median(reference))),
    )


def seconds(task: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    task()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def take_turns(
    name: str,
    ours: Callable[[], object],
    reference: Callable[[], object],
    repeats: int,
    device: torch.device,
) -> Ratio:
    times: tuple[list[float], list[float]] = ([], [])
    for number in track(range(repeats + NUM_WARM), name):
        order = ((0, ours), (1, reference)) if number % 2 else ((1, reference), (0, ours))
        for side, task in order:
            spent = seconds(task, device)
            if number >= NUM_WARM:
                times[side].append(spent)
    return ratio(name, *times)


def batch_of(target: CausalLM, slot: int) -> Batch:
    """Return a greedy request with a context of `CONTEXT` tokens, all but the last cached."""
    tokens = [(7 * i + 3) % target.vocab_size for i in range(CONTEXT)]
    row = RequestState(Request(tokens, SamplingParams()), slot, 0, frozenset(), target.max_len)
    target.extend((slot,), [tokens[:-1]], want_logits=False)
    return Batch([row], target.device, target.vocab_size)


def random_tree(generator: torch.Generator, device: torch.device) -> Proposal:
    """Draw an EAGLE-2 tree: up to ten nodes per level, below random nodes of the level above."""
    parents = [-1] + [0] * TOP_K
    for node in range(TOP_K + 1, NUM_NODES):
        above = (node - 1) // TOP_K * TOP_K - TOP_K + 1
        parents.append(above + int(torch.randint(TOP_K, (1,), generator=generator)))
    topology = Topology(torch.tensor([parents], device=device), max_depth=DEPTH, max_children=TOP_K)
    tokens = torch.randint(0, 4096, (1, NUM_NODES), generator=generator).to(device)
    return Proposal(tokens, topology, torch.tensor([NUM_NODES], device=device))


def deepest_path(topology: Topology) -> Verdict:
    """Return a verdict that accepts the path to the last node, the longest possible move."""
    path, node = [], topology.num_nodes - 1
    while node >= 0:
        path.insert(0, node)
        node = int(topology.parents[0, node])
    return Verdict(torch.tensor([path]), torch.tensor([len(path) - 1]), torch.tensor([0]))


def compare_verify(target: CausalLM, repeats: int) -> Ratio:
    """Time a tree of another shape at every repeat, keeping its longest path."""
    target.allocate(1, NUM_NODES)
    slot = target.acquire()
    assert slot is not None
    batch, generator, greedy = batch_of(target, slot), torch.Generator().manual_seed(0), Greedy()
    trees = [random_tree(generator, target.device) for _ in range(repeats + NUM_WARM)]
    paths = [deepest_path(tree.topology) for tree in trees]
    chain = Proposal.chain(trees[0].token_ids, trees[0].lengths)

    def verify_tree() -> None:
        tree, verdict = trees.pop(), paths.pop()
        output = target.forward((slot,), tree)
        greedy(tree, output.logits, batch.sampling)
        target.commit((slot,), verdict)
        target.truncate((slot,), [CONTEXT - 1])

    measured = take_turns(
        "verify a tree / a chain",
        verify_tree,
        lambda: target.forward((slot,), chain),
        repeats,
        target.device,
    )
    target.release(slot)
    return measured


def compare_growth(target: CausalLM, draft: CausalLM, repeats: int) -> Ratio:
    """Time proposals, and the drafter's passes inside them."""
    proposer = DraftModel(draft, NUM_NODES - 1, tree="dynamic", depth=DEPTH, top_k=TOP_K)
    target.allocate(1, NUM_NODES)
    proposer.bind(target, target.cache.num_slots)
    slot = target.acquire()
    assert slot is not None
    batch = batch_of(target, slot)
    proposer.start(batch.rows, None)
    inside: list[float] = []
    for name in ("extend", "grow"):
        original = getattr(draft, name)

        def timed(
            *args: object, original: Callable[..., object] = original, **named: object
        ) -> object:
            results: list[object] = []
            inside.append(seconds(lambda: results.append(original(*args, **named)), draft.device))
            return results[0]

        setattr(draft, name, timed)
    totals, passes = [], []
    for number in track(range(repeats + NUM_WARM), "grow a tree / its passes"):
        inside.clear()
        spent = seconds(lambda: proposer.propose(batch, [NUM_NODES - 1]), draft.device)
        if number >= NUM_WARM:
            totals.append(spent)
            passes.append(sum(inside))
    return ratio("grow a tree / its passes", totals, passes)


def compare_acceptance(repeats: int, device: torch.device) -> Ratio:
    """Time the rule against a target of random weights, since only the time of its pass counts."""
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    dtype = loading.resolve_dtype("auto", str(device))
    with torch.device(device):
        model = LlamaForCausalLM(config)
    model.to(dtype=dtype)  # pyright: ignore[reportCallIssue]
    target = CausalLM(model, max_len=64, self_test=False)
    rows, generator = 8, torch.Generator().manual_seed(0)
    target.allocate(rows, NUM_NODES)
    slots = tuple(slot for _ in range(rows) if (slot := target.acquire()) is not None)
    single_tree = random_tree(generator, device)
    trees = Proposal(
        single_tree.token_ids.expand(rows, -1),
        single_tree.topology,
        single_tree.lengths.expand(rows),
    )
    states = [
        RequestState(Request([1], SamplingParams()), slot, 0, frozenset(), 64) for slot in slots
    ]
    batch, greedy = Batch(states, device, target.vocab_size), Greedy()
    logits = target.forward(slots, trees).logits
    return take_turns(
        "accept 8 x 60 nodes / a pass of 1.1 G parameters",
        lambda: greedy(trees, logits, batch.sampling),
        lambda: target.forward(slots, trees),
        repeats,
        device,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default=loading.default_device())
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument(
        "--large-repeats",
        type=int,
        default=3,
        help="passes of the billion-parameter target; 0 leaves it out",
    )
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args()
    target, draft = (
        CausalLM.from_pretrained(name, device=args.device)
        for name in ("zoo:tiny", "zoo:tiny_draft")
    )
    with torch.inference_mode():
        results = [
            compare_verify(target, args.repeats),
            compare_growth(target, draft, args.repeats),
        ]
        if args.large_repeats:
            results.append(compare_acceptance(args.large_repeats, target.device))
    table = Table("ratio", "median", "95%", "ms", "ms of the reference")
    for result in results:
        spread = "-" if result.low is None else f"{result.low:.3f} to {result.high:.3f}"
        figures = (f"{result.median:.3f}", spread)
        table.add_row(result.name, *figures, *(f"{value:.2f}" for value in result.milliseconds))
    Console().print(table)
    if args.output:
        provenance = describe_process(("scripts/bench_tree.py",), torch.device(args.device))
        args.output.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(result) for result in results]
        args.output.write_text(
            json.dumps({"results": rows, "provenance": provenance}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
