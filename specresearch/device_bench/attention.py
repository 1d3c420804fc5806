"""Attention in two parts beside the other implementations, over a few layers of the target."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch

from specresearch.device_bench.bench import Bench, BenchCase, UnreadPrompts, sharing_weights
from specresearch.device_bench.device import seconds
from specresearch.device_bench.measurement import Measurement, at_least
from specresearch.device_bench.timing import take_turns
from specresearch.proposal import Proposal, Topology

CHOICES = ("two_part", "slot", "sdpa")
NUM_PASSES = 10
BATCH = 4
CHAIN_NODES, TREE_WIDTH = 6, 10


def cases(bench: Bench) -> Iterator[BenchCase]:
    scale = bench.scale
    weights = bench.few_layers(scale.dtype)
    longest = max(scale.contexts) + scale.tree_size + 1

    @cache
    def target_with(attention: str) -> UnreadPrompts:
        return UnreadPrompts(
            sharing_weights(weights), max_len=longest, attention=attention, self_test=False
        )

    trees = {
        "one token": Topology.chain(1, bench.device.device),
        f"chain of {CHAIN_NODES}": Topology.chain(CHAIN_NODES, bench.device.device),
        f"tree of {scale.tree_size + 1}": wide_tree(scale.tree_size + 1, bench.device.device),
    }
    for context in scale.contexts:
        for name, tree in trees.items():
            case = f"context {context}, {name}, batch {BATCH}"
            yield BenchCase(case, partial(_measure, bench, target_with, context, tree))


def wide_tree(num_nodes: int, device: torch.device) -> Topology:
    """Return a tree whose levels have `TREE_WIDTH` nodes, each below one of the level above."""
    parents = [-1] + [max(0, node - TREE_WIDTH) for node in range(1, num_nodes)]
    return Topology.from_parents(torch.tensor([parents], device=device))


def _measure(
    bench: Bench, target_with: Callable[[str], UnreadPrompts], context: int, tree: Topology
) -> Iterator[Measurement]:
    device = bench.device
    tokens = torch.arange(tree.num_nodes, device=device.device).expand(BATCH, -1)
    lengths = torch.full((BATCH,), tree.num_nodes, device=device.device)
    proposal = Proposal(tokens, tree, lengths)

    def time_of(attention: str) -> float:
        target = target_with(attention)
        target.allocate(BATCH, tree.num_nodes)
        slots = tuple(slot for _ in range(BATCH) if (slot := target.acquire()) is not None)
        target.extend(slots, [[0] * context] * BATCH, want_logits=False)
        try:
            return seconds(device, lambda: target.forward(slots, proposal), NUM_PASSES)
        finally:
            for slot in slots:
                target.release(slot)

    sides = {choice: partial(time_of, choice) for choice in CHOICES}
    turns = take_turns(bench, sides, bench.scale.repeats)
    how = f"pass over {bench.scale.num_layers} layers, {NUM_PASSES} in a row, in turns"
    for choice in CHOICES:
        if choice in turns.failures:
            yield Measurement(choice, "ms", reason=turns.failures[choice], how=how)
        else:
            yield Measurement.of(choice, [1e3 * t for t in turns.values[choice]], "ms", how)
    others = [turns.values[choice] for choice in CHOICES[1:] if turns.values[choice]]
    if others and turns.values[CHOICES[0]]:
        fastest = map(min, zip(*others, strict=True))
        ratios = [other / own for own, other in zip(turns.values[CHOICES[0]], fastest, strict=True)]
        yield Measurement.of("fastest other over two_part", ratios, "x", how, at_least(1.0))
