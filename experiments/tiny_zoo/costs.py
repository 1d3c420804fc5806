"""Measure what a step costs with drafts of each length, for targets of several shapes.

    python experiments/tiny_zoo/costs.py --shapes 8x320 24x160 --output costs.json

Weights are random, since a step's time does not depend on them; hardly a draft is accepted. All
sides of all shapes take turns, on one thread, by its processor time, which other programs disturb
little. Each figure is the median of its ratios to plain decoding of the same shape in the same
round: the acceptance length at which drafting breaks even.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from pair import shaped
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoTokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.batch import Batch
from specresearch.models.eagle_format import Eagle1Format, Eagle3Format
from specresearch.proposal import Proposal
from specresearch.proposers import Eagle, Eagle3, Medusa, Proposer
from specresearch.results.provenance import describe_process
from specresearch.training.students.initialization import new_eagle_head, new_medusa_heads

PROMPT, NUM_WARM_UP, NUM_NEW = range(100, 400), 4, 32
LENGTHS = (1, 2, 3, 4, 5, 7)
FREE = "free drafts"


class SameToken(Proposer):
    """Drafts the last token again and again, which costs nothing but the target's larger pass."""

    def __init__(self, num_draft_tokens: int) -> None:
        self.num_draft_tokens = num_draft_tokens

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        num_nodes = 1 + min(budget)
        lengths = torch.full((len(budget),), num_nodes)
        tokens = batch.roots.expand(-1, num_nodes)
        return Proposal.chain(tokens, lengths, host_lengths=[num_nodes] * len(budget))


@dataclass(frozen=True)
class Side:
    """One way to decode a target of one shape."""

    shape: str
    name: str
    engine: Engine


def shape_of(text: str) -> dict[str, int | bool]:
    """Return the shape of LAYERSxWIDTH, in the proportions of the tiny target."""
    num_layers, width = map(int, text.split("x"))
    num_heads = width // 32
    return {
        "num_hidden_layers": num_layers,
        "hidden_size": width,
        "intermediate_size": round(2.8 * width / 64) * 64,
        "num_attention_heads": num_heads,
        "num_key_value_heads": 2 if num_heads % 2 == 0 else 1,
        "tie_word_embeddings": False,
    }


def sides(shape: str, *, compile: bool) -> list[Side]:
    """Return plain decoding, then each kind of drafter with chains of each length."""
    tokenizer = AutoTokenizer.from_pretrained("specresearch/zoo/tiny")
    torch.manual_seed(0)
    model = shaped(shape_of(shape), tokenizer).eval()
    target = CausalLM(model, tokenizer, name=shape, compile=compile)
    num_layers = model.config.num_hidden_layers
    eagle = new_eagle_head(target, Eagle1Format, ())
    eagle3 = new_eagle_head(target, Eagle3Format, (2, num_layers // 2, num_layers))
    medusa = new_medusa_heads(target, max(LENGTHS), 1, own_lm_head=False)
    proposers: dict[str, Proposer | None] = {"plain": None}
    for length in LENGTHS:
        proposers[f"{FREE} {length}"] = SameToken(length)
        proposers[f"eagle {length}"] = Eagle(eagle, length, "chain")
        proposers[f"eagle3 {length}"] = Eagle3(eagle3, length, "chain")
        proposers[f"medusa {length}"] = Medusa(
            medusa, paths=[[0] * depth for depth in range(1, length + 1)]
        )
    return [Side(shape, name, Engine(target, proposer)) for name, proposer in proposers.items()]


def step_seconds(engine: Engine, seed: int) -> float:
    """Return the processor seconds of a step: the difference of a long and a short decoding."""
    prompt = [(token * (seed + 1)) % 4000 + 64 for token in PROMPT]
    seconds, num_steps = [], []
    for num_new in (NUM_WARM_UP, NUM_WARM_UP + NUM_NEW):
        sampling = SamplingParams(max_new_tokens=num_new, ignore_eos=True)
        begin = time.process_time()
        (output,) = engine.generate([Request(prompt, sampling)])
        seconds.append(time.process_time() - begin)
        num_steps.append(output.record.counts.num_target_forwards)
    return (seconds[1] - seconds[0]) / (num_steps[1] - num_steps[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["8x320", "24x192"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="compile the targets' passes")
    parser.add_argument("--output", type=Path, help="write all times to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    everything = [side for shape in args.shapes for side in sides(shape, compile=args.compile)]
    times: dict[str, dict[str, list[float]]] = {shape: {} for shape in args.shapes}
    for side in everything:  # warm up
        step_seconds(side.engine, 0)
    for number in track(range(args.rounds), "rounds"):
        for side in everything:
            seconds = step_seconds(side.engine, number)
            times[side.shape].setdefault(side.name, []).append(seconds)
    table = Table("shape", "plain, ms", "drafter", *(f"{length} drafts" for length in LENGTHS))
    for shape, by_name in times.items():
        plain = by_name["plain"]
        for head in (FREE, "medusa", "eagle", "eagle3"):
            costs = [
                median(
                    mine / base
                    for mine, base in zip(by_name[f"{head} {length}"], plain, strict=True)
                )
                for length in LENGTHS
            ]
            table.add_row(
                shape, f"{median(plain) * 1e3:.2f}", head, *(f"{cost:.2f}" for cost in costs)
            )
    Console(width=160).print(table)
    if args.output:
        content = {
            "provenance": describe_process(("experiments/tiny_zoo/costs.py",), torch.device("cpu")),
            "step_seconds": times,
        }
        args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
