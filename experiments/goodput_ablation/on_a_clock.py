"""Goodput on the engine, with real models and requests, by a clock that knows what a step takes.

    python experiments/goodput_ablation/on_a_clock.py --method token_recycling --in-flight 8 \
        --chats sharegpt_prompts.json --requests 72

What is accepted is real, and times are those of a machine with a little noise, so that decisions
can be compared that a busy machine would hide. Prints a row for `auto`'s shape and for each of
`--variants`, which are goodput itself and goodput without one of its mechanisms.
"""

import argparse
import os
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from variants import VARIANTS

from specresearch import Batch, CausalLM, Engine, Proposal, Proposer, SamplingParams
from specresearch.calibration import Calibration, settle_shape
from specresearch.clock import ManualClock
from specresearch.controllers import Controller, Fixed, Goodput
from specresearch.data import PromptDataset
from specresearch.metrics import StepRecord
from specresearch.proposers import DraftModel, Eagle, NGram, Suffix, TokenRecycling
from specresearch.request import Request

# Seconds, by steps of zoo:tiny in float32, one thread of an EPYC without AVX-512:
STEP, ROW, ANY_DRAFT, NODE = 16.5e-3, 1.65e-3, 1e-3, 0.52e-3
DECISION = 1e-3  # of goodput
NOISE = 0.04
METHODS: dict[str, Callable[[], Proposer]] = {
    "draft_model": lambda: DraftModel(
        CausalLM.from_pretrained("zoo:tiny_draft"), "auto", tree="auto"
    ),
    "eagle": lambda: Eagle("zoo:tiny_eagle", "auto", tree="auto"),
    "ngram": lambda: NGram("auto"),
    "suffix": lambda: Suffix("auto"),
    "token_recycling": lambda: TokenRecycling("auto"),
}
DRAFTING = {  # of a step with drafts, of each level that takes a pass, and of each node
    "draft_model": (2e-3, 2.2e-3, 20e-6),
    "eagle": (2.5e-3, 2.8e-3, 10e-6),
    "ngram": (0.3e-3, 0.0, 2e-6),
    "suffix": (0.6e-3, 0.0, 10e-6),
    "token_recycling": (1.8e-3, 0.0, 20e-6),
}
NOT_DRAFTING = 0.2e-3
LENGTHS, MAX_PROMPT, NUM_CALIBRATING = (48, 96), 256, 150


class Timed:
    """A target and a drafter whose every call moves the clock."""

    def __init__(self, method: str, target: CausalLM, seed: int) -> None:
        self.method, self.target, self.clock = method, target, ManualClock()
        self._noise = np.random.default_rng(seed)
        self._forward = target.forward
        target.forward = self._verify

    def _verify(self, slots: Sequence[int], proposal: Proposal, **settings: Any) -> Any:
        num_drafts = int(proposal.lengths.sum()) - len(slots)
        seconds = STEP + ROW * len(slots) + ANY_DRAFT * bool(num_drafts) + NODE * num_drafts
        self.clock.advance(seconds * float(np.exp(NOISE * self._noise.standard_normal())))
        return self._forward(slots, proposal, **settings)

    def charge(self, controller: Goodput) -> Goodput:
        """Let the controller's decisions take time."""
        decide = controller._decide

        def timed(batch: Batch) -> None:
            self.clock.advance(DECISION)
            decide(batch)

        controller._decide = timed
        return controller

    def proposer(self) -> Proposer:
        """Return a new drafter that leaves its shape to `auto`."""
        proposer = METHODS[self.method]()
        propose, (once, level, node) = proposer.propose, DRAFTING[self.method]

        def timed(batch: Batch, budget: Sequence[int]) -> Proposal:
            proposal = propose(batch, budget)
            num_drafts = int(proposal.lengths.sum()) - len(batch)
            drafting = once + level * proposal.topology.max_depth + node * num_drafts
            self.clock.advance(drafting if any(budget) else NOT_DRAFTING)
            return proposal

        proposer.propose = timed
        return proposer


def sampling_of(num_tokens: int, temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_new_tokens=num_tokens, ignore_eos=True)


def decode_all(engine: Engine, requests: Sequence[Request], in_flight: int) -> None:
    """Decode all requests, the next one as soon as one has ended."""
    waiting, num_running = deque(requests), 0
    while waiting or num_running:
        while waiting and num_running < in_flight:
            engine.submit(waiting.popleft())
            num_running += 1
        engine.step()
        num_running -= len(list(engine.pop_finished()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--chats", type=Path, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=["goodput"])
    args = parser.parse_args()
    os.environ["SPECRESEARCH_CACHE"] = tempfile.mkdtemp()  # nothing measured otherwise counts
    target = CausalLM.from_pretrained("zoo:tiny")
    assert target.tokenizer is not None
    timed = Timed(args.method, target, args.seed)
    chats = PromptDataset(
        "sharegpt", "sharegpt", "chat", path=str(args.chats), max_prompt_tokens=MAX_PROMPT
    )
    order = random.Random(args.seed)
    rows = order.sample(chats.rows, args.requests + NUM_CALIBRATING)
    prompts = [chats.prompt(target.tokenizer, row).token_ids for row in rows]
    requests = [
        Request(prompt, sampling_of(order.randint(*LENGTHS), args.temperature), id=str(number))
        for number, prompt in enumerate(prompts[: args.requests])
    ]

    def decode(proposer: Proposer | None, controller: Controller | None) -> tuple[float, float]:
        """Return tokens per second and the share of steps with drafts."""
        records: list[StepRecord] = []
        engine = Engine(
            target,
            proposer,
            controller=controller,
            max_batch_size=args.in_flight,
            clock=timed.clock,
            observers=[lambda step: records.append(step.record)],
            num_checked=0,
        )
        begun = timed.clock.now()
        decode_all(engine, requests, args.in_flight)
        num_tokens = sum(sum(record.num_new_tokens) for record in records)
        drafting = np.mean([any(record.num_draft_tokens) for record in records])
        return num_tokens / (timed.clock.now() - begun), float(drafting)

    plain, _ = decode(None, None)
    results = []
    for side in ("auto", *args.variants):
        variant = VARIANTS.get(side)
        with variant.switched_off() if variant else nullcontext():
            controller = timed.charge(variant()) if variant else Fixed()
            proposer = timed.proposer()
            calibration = Calibration(
                target,
                proposer,
                prompts[args.requests :],
                sampling_of(sum(LENGTHS) // 2, args.temperature),
                batch_size=args.in_flight,
                clock=timed.clock,
            )
            settle_shape(calibration, controller, "chats", is_shared=True)
            throughput, drafting = decode(proposer, controller)
        results.append({"side": side, "speedup": throughput / plain, "drafting": drafting})
    pd.DataFrame(results).round(3).to_csv(sys.stdout, index=False)


if __name__ == "__main__":
    main()
