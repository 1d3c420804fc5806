"""Count the operations that a step asks of a GPU, without one: `python scripts/count_operations.py`

Every method decodes on a pretended device (`specresearch.mock_cuda`), which runs each operation on
the CPU and counts it. One operation stands for one launch or one transfer, a rough proxy: some
operations launch several kernels. What models compute is counted apart. With `--graphs`, models,
chains and trees of drafts, and rules are graphs, as they are on a GPU, and each replay counts as
one operation beside its copies.
"""

import argparse
import copy
import csv
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specresearch import CausalLM, Engine, Proposer, Request, SamplingParams
from specresearch.clock import Clock, Lap
from specresearch.mock_cuda import DEVICE, MockCuda
from specresearch.models.slot_model import SlotModel
from specresearch.proposers import (
    DraftModel,
    Eagle,
    Eagle3,
    Lookahead,
    Medusa,
    NGram,
    Suffix,
    TokenRecycling,
)

BATCH_SIZE, WARMUP, STEPS = 8, 2, 4
TEXT = "The market fell on Monday as investors sold shares. " * 6
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "top_k_and_top_p": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "penalized": {"temperature": 1.0, "repetition_penalty": 1.2},
}
Make = Callable[[CausalLM], Proposer]
METHODS: dict[str, Make] = {
    "ngram": lambda draft: NGram(10),
    "suffix": lambda draft: Suffix(),
    "lookahead": lambda draft: Lookahead(),
    "token_recycling": lambda draft: TokenRecycling(),
    "medusa": lambda draft: Medusa("zoo:tiny_medusa"),
    "eagle": lambda draft: Eagle("zoo:tiny_eagle"),
    "eagle3": lambda draft: Eagle3("zoo:tiny_eagle3"),
    "eagle, chain of 4": lambda draft: Eagle("zoo:tiny_eagle", 4, tree="chain"),
    "draft_model, chain of 5": lambda draft: DraftModel(draft, 5),
    "draft_model, tree of 16": lambda draft: DraftModel(draft, 16, tree="dynamic"),
}


class CountingClock(Clock):
    """Counts the operations of every lap, apart from those inside of models."""

    def __init__(self, mock: MockCuda) -> None:
        super().__init__()
        self.mock = mock
        self.in_models = 0
        self.counts: Counter[str] = Counter()

    def _total(self) -> int:
        activity = self.mock.activity
        num_asked = activity.num_launches + activity.uploads + len(activity.waits)
        return num_asked - self.in_models

    @contextmanager
    def lap(self, name: str, *, on_host: bool = False) -> Iterator[Lap]:  # type: ignore[override]
        before = self._total()
        with super().lap(name, on_host=on_host) as lap:
            yield lap
        self.counts[name] += self._total() - before

    def watch(self, model: nn.Module) -> None:
        """Count what this model computes apart."""
        begins: list[int] = []
        activity = self.mock.activity
        model.register_forward_pre_hook(lambda *_: begins.append(activity.num_launches))

        def add(*_: object) -> None:
            self.in_models += activity.num_launches - begins.pop()

        model.register_forward_hook(add)


def on_device(model: CausalLM, graphs: bool) -> CausalLM:
    copied: Any = copy.deepcopy(model.model)
    copied.to(DEVICE)
    return CausalLM(copied, model.tokenizer, graphs=graphs, self_test=False)


def count(
    target: CausalLM, draft: CausalLM, method: str, sampling: str, graphs: bool
) -> dict[str, float]:
    """Return the operations of drafting, and of acceptance with commit, by step."""
    assert target.tokenizer is not None
    prompt = target.tokenizer(TEXT)["input_ids"]
    with MockCuda() as mock:
        clock = CountingClock(mock)
        proposer = METHODS[method](on_device(draft, graphs))
        engine = Engine(on_device(target, graphs), proposer, max_batch_size=BATCH_SIZE, clock=clock)
        for model in proposer.models:
            clock.watch(model.module if isinstance(model, SlotModel) else model)
        params = SamplingParams(max_new_tokens=100, ignore_eos=True, **SAMPLING[sampling])
        for _ in range(1 + graphs):  # at first, graphs are captured
            engine.abort()
            for i in range(BATCH_SIZE):
                engine.submit(Request(prompt[: 60 + 5 * i], params))
            for _ in range(WARMUP):
                engine.step()
            clock.counts.clear()
            for _ in range(STEPS):
                engine.step()
    drafting = clock.counts["propose"]
    accepting = clock.counts["accept"] + clock.counts["commit"]
    return {"drafting": drafting / STEPS, "accepting": accepting / STEPS}


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the operations that a step asks of a GPU.")
    parser.add_argument("--output", type=Path, help="a CSV file to write")
    parser.add_argument("--graphs", action="store_true", help="count graphs as one operation each")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    target = CausalLM.from_pretrained("zoo:tiny", pack_weights=False)
    draft = CausalLM.from_pretrained("zoo:tiny_draft", pack_weights=False)
    rows = []
    for method in METHODS:
        for sampling in SAMPLING:
            row = {"method": method, "sampling": sampling}
            row |= {
                name: f"{number:g}"
                for name, number in count(target, draft, method, sampling, arguments.graphs).items()
            }
            rows.append(row)
            print(*row.values(), sep=", ", flush=True)
    if arguments.output:
        with arguments.output.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
