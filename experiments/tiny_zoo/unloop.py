"""Train the target not to loop, by sequence-level unlikelihood (arXiv 1908.04319).

    python experiments/tiny_zoo/unloop.py --data DATA --work WORK --init FOLDER --minutes 12 \\
        --export specresearch/zoo/tiny

Each round samples replies to the chats and stories of the training text and lowers the probability
of tokens that complete a 4-gram for the third time or later, while it trains on rows of the mix as
before.
"""

import argparse
import copy
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import corpora
import torch
from jaxtyping import Bool, Int
from mix import PHASES
from pair import export
from rich.console import Console
from torch import Tensor
from train import Part, Shards, Trainer
from transformers import AutoTokenizer, LlamaForCausalLM

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.data.templates import CHAT, render

GRAM, ALLOWED = 4, 2
NUM_SAMPLES, NEW_TOKENS, MAX_PROMPT = 32, 160, 160
RATE, WARM_UP = 0.3, 0.1
WEIGHT = 1.0
ROWS = {"512": 4, "1024": 2, "2048": 1}


@dataclass(frozen=True)
class Marked:
    """Sampled sequences, right-padded, and a mask of the tokens that repeat."""

    ids: Int[Tensor, "rows length"]
    repeats: Bool[Tensor, "rows length"]


def repeats(tokens: Sequence[int], begin: int) -> list[bool]:
    """Mark tokens from `begin` on that complete an n-gram seen more than `ALLOWED` times."""
    counts: Counter[tuple[int, ...]] = Counter()
    marks = [False] * len(tokens)
    for end in range(begin + GRAM, len(tokens) + 1):
        gram = tuple(tokens[end - GRAM : end])
        marks[end - 1] = counts[gram] >= ALLOWED
        counts[gram] += 1
    return marks


def sample(target: CausalLM, prompts: Sequence[list[int]], seed: int, temperature: float) -> Marked:
    sampling = SamplingParams(temperature, top_p=0.95, max_new_tokens=NEW_TOKENS)
    engine = Engine(target, max_batch_size=len(prompts), seed=seed)
    requests = [Request(prompt, sampling, str(i)) for i, prompt in enumerate(prompts)]
    rows = [[*prompts[int(done.id)], *done.token_ids] for done in engine.generate(requests)]
    begins = [len(prompts[i]) for i in range(len(prompts))]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    width = len(rows[order[-1]])
    ids, marks = (
        torch.zeros((len(rows), width), dtype=torch.long),
        torch.zeros((len(rows), width), dtype=torch.bool),
    )
    for at, i in enumerate(order):
        ids[at, : len(rows[i])] = torch.tensor(rows[i])
        marks[at, : len(rows[i])] = torch.tensor(repeats(rows[i], min(begins[i], len(rows[i]))))
    return Marked(ids, marks)


def unlikelihood(trainer: Trainer, marked: Marked, num_marks: int) -> Part:
    """Return the gradient of the mean of -log(1 - p) over marked tokens."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=trainer.dtype == torch.bfloat16):
        logits = trainer.model(input_ids=marked.ids, use_cache=False).logits[:, :-1]
    log_p = logits.float().log_softmax(-1).gather(2, marked.ids[:, 1:, None])[:, :, 0]
    losses = -torch.log1p(-log_p.exp().clamp(max=1 - 1e-4)) * marked.repeats[:, 1:]
    total = WEIGHT * losses.sum() / max(num_marks, 1)
    return Part(torch.autograd.grad(total, trainer.parameters), losses.detach())


def spent(args: argparse.Namespace, num_rounds: int, seconds: float) -> float:
    """Return the share of the rounds or minutes that is spent."""
    return num_rounds / args.rounds if args.rounds else seconds / (60 * args.minutes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the shards and the tokenizer"
    )
    parser.add_argument("--init", type=Path, required=True, help="the target so far")
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--rounds", type=int, help="how many instead of minutes")
    parser.add_argument(
        "--share", type=float, default=0.3, help="how far from the first weights to the last"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument(
        "--temperatures",
        type=float,
        nargs=2,
        default=[0.8, 0.8],
        help="at which each half of the replies is sampled; 0 is greedy",
    )
    parser.add_argument("--workers", type=int, default=2, help="threads")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.work / "tokenizer")
    model = LlamaForCausalLM.from_pretrained(args.init, dtype=torch.float32)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    samplers = [
        CausalLM(copy.deepcopy(model), tokenizer, max_len=MAX_PROMPT + NEW_TOKENS) for _ in range(2)
    ]
    trainer = Trainer(model, dtype=getattr(torch, args.dtype), num_workers=args.workers)
    text = corpora.load(args.data, held_out=False)
    chats = [render(tokenizer, CHAT, [chat[0].text[:600]]) for chat in text.chats]
    chats = [prompt for prompt in chats if len(prompt) <= MAX_PROMPT]
    stories = [tokenizer(story)["input_ids"][:24] for story in text.stories]
    choose, shards, console = random.Random(args.seed), Shards(args.work), Console(width=160)
    by_name = {phase.name: phase for phase in PHASES}
    began, number = time.monotonic(), 0
    log = (args.work / "unloop.jsonl").open("a", encoding="utf-8")
    while (share := spent(args, number, time.monotonic() - began)) < 1:
        for sampler in samplers:
            sampler.model.load_state_dict(model.state_dict())
        half = NUM_SAMPLES // 2
        prompts = [choose.sample(chats, half - 4) + choose.sample(stories, 4) for _ in samplers]
        seeds = [args.seed + 2 * number, args.seed + 2 * number + 1]
        batches = list(trainer.pool.map(sample, samplers, prompts, seeds, args.temperatures))
        num_marks = sum(int(batch.repeats.sum()) for batch in batches)
        looping = sum(int((batch.repeats.sum(1) > 0).sum()) for batch in batches)
        cuts = [
            Marked(batch.ids[a : a + 4], batch.repeats[a : a + 4])
            for batch in batches
            for a in range(0, half, 4)
        ]
        others = [
            partial(unlikelihood, trainer, cut, num_marks) for cut in cuts if cut.repeats.any()
        ]
        name = list(ROWS)[number % len(ROWS)]
        rows = shards.rows(by_name[name], 3000 + number * ROWS[name], ROWS[name])
        factor = RATE * min(1.0, share / WARM_UP, (1 - share) / 0.5)
        losses = trainer.step(rows, factor, others)
        number += 1
        row = {
            "round": number,
            "looping": looping / NUM_SAMPLES,
            "marked": num_marks,
            "loss": float(losses.mean()),
        }
        log.write(json.dumps(row) + "\n")
        log.flush()
        console.print(f"{100 * share:3.0f}%", row)
    model.load_state_dict(
        {name: first[name].lerp(value, args.share) for name, value in model.state_dict().items()}
    )
    export(model, tokenizer, args.export)


if __name__ == "__main__":
    main()
