"""Measure the pair against its gates and show what it writes.

    python experiments/tiny_zoo/evaluate.py --data DATA \\
        --target specresearch/zoo/tiny --draft specresearch/zoo/tiny_draft
"""

import argparse
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import corpora
import torch
from documents import Writer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from specresearch.data.templates import CHAT, SUMMARY, render

COPY_GATE, LOOP_GATE = 0.95, 0.10
MAX_REPEATS = 5
TEMPERATURE, TOP_P = 0.8, 0.95
TEXT_ROWS, TEXT_LENGTH = 8, 1024
SAMPLE_BATCH = 25


def until_stop(tokenizer: PreTrainedTokenizerFast, new: list[int]) -> list[int]:
    """Return `new` up to the token that ends it."""
    stops = {tokenizer.eos_token_id, tokenizer.bos_token_id}
    return next((new[:index] for index, token in enumerate(new) if token in stops), new)


@torch.inference_mode()
def greedy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: list[int], num_tokens: int
) -> list[int]:
    """Decode greedily after `prompt`, without the end token."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False
    )
    return until_stop(tokenizer, out[0, len(prompt) :].tolist())


def copying(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    text: corpora.Corpora,
    num_passages: int,
    seed: int,
) -> dict[str, float]:
    """Greedy summaries of unseen passages of 60 to 900 tokens, against their openings.

    copied: share of quote tokens that greedy decoding got right up to its first mistake, over all
    passages.
    right: share of quote tokens that are right when the ones before are given.
    stopped: share of passages whose output is exactly the quote, its end included.
    """
    writer = Writer(tokenizer, text, seed)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    num_right = num_copied = num_tokens = num_exact = done = 0
    while done < num_passages:
        passage = writer.passage(int(60 * 15 ** writer.random.random()))
        if passage is None:
            continue
        done += 1
        prompt = render(tokenizer, SUMMARY, [passage.text])
        quote = [*writer.encode(passage.quote), end]
        with torch.inference_mode():
            predicted = (
                model(torch.tensor([prompt + quote]))
                .logits[0, len(prompt) - 1 : -1]
                .argmax(-1)
                .tolist()
            )
        agree = [guess == true for guess, true in zip(predicted, quote, strict=True)]
        num_tokens += len(quote)
        num_right += sum(agree)
        num_copied += agree.index(False) if False in agree else len(agree)
        num_exact += all(agree)
    return {
        "passages": num_passages,
        "right": num_right / num_tokens,
        "copied": num_copied / num_tokens,
        "stopped": num_exact / num_passages,
    }


@torch.inference_mode()
def looping(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    text: corpora.Corpora,
    num_samples: int,
    num_tokens: int,
) -> dict[str, float]:
    """Return the share of samples in which a 4-gram occurs more than `MAX_REPEATS` times."""
    chats = [render(tokenizer, CHAT, [chat[0].text[:600]]) for chat in text.chats]
    stories = [tokenizer(story)["input_ids"][:24] for story in text.stories]
    half = num_samples // 2
    prompts = [
        *(chats[i % len(chats)] for i in range(half)),
        *(stories[i % len(stories)] for i in range(half)),
    ]
    num_looping = 0
    for start in track(range(0, len(prompts), SAMPLE_BATCH), description="sampling"):
        batch = prompts[start : start + SAMPLE_BATCH]
        width = max(map(len, batch))
        ids = torch.tensor(
            [[tokenizer.pad_token_id] * (width - len(prompt)) + prompt for prompt in batch]
        )
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=num_tokens,
            do_sample=True,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            top_k=0,
        )
        for row in out[:, width:].tolist():
            new = until_stop(tokenizer, row)
            grams = Counter(tuple(new[at : at + 4]) for at in range(len(new) - 3))
            num_looping += bool(grams) and max(grams.values()) > MAX_REPEATS
    return {
        "samples": len(prompts),
        "new_tokens": num_tokens,
        "looping": num_looping / len(prompts),
    }


def unseen_text(
    tokenizer: PreTrainedTokenizerFast, text: corpora.Corpora
) -> dict[str, list[list[int]]]:
    """Return rows of held-out token ids by kind of text, each starting with the begin token."""
    writer = Writer(tokenizer, text, 0)
    replies = [" ".join(turn.text for turn in chat) for chat in text.chats]
    maths = [f"{question}\n{answer}" for question, answer in text.maths]
    code = [f"{function.head}\n{function.body}" for function in text.functions]
    books = [" ".join(book) for book in text.books]
    sources = {
        "books": books,
        "stories": text.stories,
        "chats": replies,
        "maths": maths,
        "code": code,
    }
    rows: dict[str, list[list[int]]] = {}
    for name, documents in sources.items():
        ids = writer.encode("\n\n".join(documents)[: TEXT_ROWS * TEXT_LENGTH * 6])
        cuts = range(0, min(len(ids), TEXT_ROWS * TEXT_LENGTH) - TEXT_LENGTH + 1, TEXT_LENGTH)
        rows[name] = [[tokenizer.bos_token_id, *ids[cut : cut + TEXT_LENGTH]] for cut in cuts]
    return rows


@dataclass(frozen=True)
class TextFigures:
    """Bits per character of each model on unseen text, and how often their first choices agree."""

    target_bits: float
    draft_bits: float
    agreement: float


@torch.inference_mode()
def on_text(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[list[int]],
) -> TextFigures:
    """Measure the pair on held-out `rows`, each of which starts with the begin token."""
    nats = torch.zeros(2)
    num_same = num_characters = num_tokens = 0
    for row in rows:
        ids = torch.tensor([row])
        logits = [model(ids).logits[0, :-1].float() for model in (target, draft)]
        nats += torch.stack(
            [
                torch.nn.functional.cross_entropy(part, ids[0, 1:], reduction="sum")
                for part in logits
            ]
        )
        num_same += int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum())
        num_characters += len(str(tokenizer.decode(row[1:])))
        num_tokens += len(row) - 1
    bits = (nats / math.log(2) / num_characters).tolist()
    return TextFigures(bits[0], bits[1], num_same / num_tokens)


def agreement_on_own_output(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    num_tokens: int,
) -> float:
    """Return the share of the target's greedy tokens that the draft would choose, too."""
    same = total = 0
    for prompt in prompts:
        new = greedy(target, tokenizer, prompt, num_tokens)
        with torch.inference_mode():
            guesses = (
                draft(torch.tensor([prompt + new]))
                .logits[0, len(prompt) - 1 : -1]
                .argmax(-1)
                .tolist()
            )
        same += sum(guess == token for guess, token in zip(guesses, new, strict=True))
        total += len(new)
    return same / max(1, total)


def look_at_articles(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    path: Path,
    num_articles: int,
    num_tokens: int,
    console: Console,
) -> dict[str, float]:
    """Print greedy summaries of news articles, and measure how far they copy the opening.

    Articles are cut to 1000 tokens.

    Returns:
        `opening`, the median number of output tokens before the first that leaves the article,
        and `ended`, the share of summaries that stop by themselves.
    """
    rows = [
        json.loads(line)
        for line in path.read_text(encoding="utf-8").split("\n")[: num_articles + 1]
        if line.strip()
    ]
    lengths: list[int] = []
    num_ended = 0
    for row in rows[:num_articles]:
        article = tokenizer(row["article"], add_special_tokens=False)["input_ids"][:1000]
        new = greedy(
            model,
            tokenizer,
            render(tokenizer, SUMMARY, [str(tokenizer.decode(article))]),
            num_tokens,
        )
        length = next(
            (i for i, (a, b) in enumerate(zip(new, article, strict=False)) if a != b), len(new)
        )
        lengths.append(length)
        num_ended += len(new) < num_tokens
        console.print(f"[bold]{len(article)} tokens in, {len(new)} out, {length} copied[/bold]")
        console.print(str(tokenizer.decode(new)), markup=False, highlight=False)
    return {
        "articles": len(lengths),
        "median_opening_tokens": sorted(lengths)[len(lengths) // 2],
        "fully_copied": sum(length >= 90 for length in lengths) / len(lengths),
        "ended": num_ended / len(lengths),
    }


def main() -> None:
    """Run every measurement, print the table of gates and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument(
        "--articles", type=Path, help="JSON Lines with an `article` field, only looked at"
    )
    parser.add_argument("--num-articles", type=int, default=8)
    parser.add_argument("--num-passages", type=int, default=200)
    parser.add_argument("--num-samples", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=192)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "gates.json"
    )
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    console = Console(width=140)
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    models = {
        name: LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for name, path in (("target", arguments.target), ("draft", arguments.draft))
    }
    text = corpora.load(arguments.data, held_out=True)
    rows = unseen_text(tokenizer, text)
    writer = Writer(tokenizer, text, 1)
    passages = [
        passage for passage in (writer.passage(400) for _ in range(24)) if passage is not None
    ]
    summary_prompts = [render(tokenizer, SUMMARY, [passage.text]) for passage in passages[:8]]
    chat_prompts = [render(tokenizer, CHAT, [chat[0].text[:600]]) for chat in text.chats[:8]]
    copied = {
        name: copying(model, tokenizer, text, arguments.num_passages, 7)
        for name, model in models.items()
    }
    loops = looping(models["target"], tokenizer, text, arguments.num_samples, arguments.new_tokens)
    results: dict[str, object] = {
        "date": date.today().isoformat(),
        "parameters": {
            name: sum(p.numel() for p in model.parameters()) for name, model in models.items()
        },
        "copying": copied,
        "loops": loops,
        "unseen_text": {
            kind: asdict(on_text(models["target"], models["draft"], tokenizer, part))
            for kind, part in rows.items()
        },
        "greedy_agreement_on_own_output": {
            "summaries": agreement_on_own_output(
                models["target"], models["draft"], tokenizer, summary_prompts, 128
            ),
            "chats": agreement_on_own_output(
                models["target"], models["draft"], tokenizer, chat_prompts, 128
            ),
        },
    }
    if arguments.articles:
        results["articles"] = look_at_articles(
            models["target"],
            tokenizer,
            path=arguments.articles,
            num_articles=arguments.num_articles,
            num_tokens=200,
            console=console,
        )
    right, looped = copied["target"]["right"], loops["looping"]
    results["gates_met"] = {"copying": right >= COPY_GATE, "loops": looped < LOOP_GATE}
    table = Table("gate", "measured", "asked for")
    table.add_row("greedy tokens right, unseen passages", f"{right:.3f}", f"at least {COPY_GATE}")
    table.add_row("samples that loop", f"{looped:.3f}", f"under {LOOP_GATE}")
    console.print(table)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    console.print_json(json.dumps(results))


if __name__ == "__main__":
    main()
