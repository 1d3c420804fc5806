"""Measure heads of a target beside lookup and plain decoding, on prompts that no training saw.

    python experiments/tiny_zoo/compare_heads.py --target zoo:tiny \\
        --heads old=eagle:zoo:tiny_eagle new=eagle:WORK/tiny_eagle/student \\
        --real sharegpt=sharegpt_prompts.json cnndm=cnn_dailymail.jsonl --output heads.jsonl

Every prompt is decoded by all sides in turn, at batch size 1 on one thread. Seconds are processor
time, prefill included, which other programs disturb little. The table shows the mean acceptance
length, and the speed over plain decoding of the same prompts with its 95% interval. Prompts that
the output file has are not decoded again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console
from rich.progress import track
from rich.table import Table

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.cli import conf_dir
from specresearch.data import PromptDataset
from specresearch.files.jsonl import read_jsonl, to_line
from specresearch.proposers import Cascade, DraftModel, Eagle, Eagle3, Medusa, NGram, Proposer
from specresearch.statistics import interval_of

PLAIN, TREE = "plain", "tree"
TREE_SIZE, TREE_DEPTH, TREE_WIDTH = 8, 3, 3


def lookup() -> NGram:
    return NGram(10, 4, 2)


def chain_or_tree(method: str, head: str, shape: str) -> Proposer | None:
    """Return a proposer that drafts a chain of `shape` tokens or a small tree; None: has none."""
    length = TREE_SIZE if shape == TREE else int(shape)
    match method:
        case "eagle" | "eagle3":
            kind = Eagle if method == "eagle" else Eagle3
            if shape == TREE:
                return kind(head, length, "dynamic", depth=TREE_DEPTH, top_k=TREE_WIDTH)
            return kind(head, length, "chain")
        case "medusa":
            if shape == TREE:
                return Medusa(head, length)
            return Medusa(head, paths=[[0] * depth for depth in range(1, length + 1)])
        case "cascade":  # what lookup finds, and the head's drafts where it finds nothing
            return None if shape == TREE else Cascade([lookup(), Eagle(head, length, "chain")])
        case "draft_model":
            draft = CausalLM.from_pretrained(head)
            return None if shape == TREE else DraftModel(draft, length)
        case _:
            raise ValueError(f"{method} is none of eagle, eagle3, medusa, draft_model, cascade")


def sides(heads: Sequence[str], shapes: Sequence[str]) -> dict[str, Proposer | None]:
    """Return all that is measured by name, plain decoding first."""
    proposers: dict[str, Proposer | None] = {PLAIN: None, "ngram": lookup()}
    for text in heads:
        name, _, source = text.partition("=")
        method, _, head = source.partition(":")
        for shape in shapes:
            proposer = chain_or_tree(method, head, shape)
            if proposer is not None:
                proposers[f"{name} {shape}"] = proposer
    return proposers


def read_dataset(name: str, path: str, num_prompts: int) -> PromptDataset:
    """Return the first rows of a dataset, as `python -m specresearch.run` reads them."""
    overrides = [f"dataset={name}", f"dataset.path={path}", f"dataset.limit={num_prompts}"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("run", overrides)
    return instantiate(cfg.dataset, _convert_="all")


def decode(engine: Engine, prompt: Sequence[int], sampling: SamplingParams) -> dict[str, float]:
    """Decode one prompt and return its figures."""
    begin = time.process_time()
    (output,) = engine.generate([Request(prompt, sampling)])
    counts = output.record.counts
    return {
        "seconds": time.process_time() - begin,
        "num_tokens": len(output.token_ids),
        "num_drafts": counts.num_drafts,
        "num_accepted_tokens": counts.num_accepted_tokens,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Return mean acceptance length and speed of each side, by dataset and temperature."""
    frame = pd.DataFrame(rows)
    groups = frame[["dataset", "temperature"]].drop_duplicates().itertuples(index=False)
    cells: dict[str, list[str]] = {side: [] for side in frame["side"].unique()}
    titles: list[str] = []
    for dataset, temperature in groups:
        part = frame[(frame["dataset"] == dataset) & (frame["temperature"] == temperature)]
        titles.append(f"{dataset}, temperature {temperature:g}")
        by_side = {side: some.set_index("prompt") for side, some in part.groupby("side")}
        plain = by_side[PLAIN]
        for side, mine in by_side.items():
            length = 1 + mine["num_accepted_tokens"].sum() / max(mine["num_drafts"].sum(), 1)
            columns = ["num_tokens", "seconds"]
            totals = np.concatenate(
                [mine[columns].to_numpy(float), plain.loc[mine.index, columns].to_numpy(float)], 1
            )
            speed = speedup(totals.sum(0))
            spread = interval_of(totals, speedup)
            between = "" if spread is None else f" ({spread[0]:.2f} to {spread[1]:.2f})"
            cells[str(side)].append(f"{length:.2f}; {speed:.2f}{between}")
    shown = Table("", *titles)
    for side, row in cells.items():
        shown.add_row(side, *row)
    return shown


def speedup(totals: Any) -> Any:
    """Return the ratio of two speeds: tokens, seconds, tokens and seconds in the last dimension."""
    return totals[..., 0] / totals[..., 1] / (totals[..., 2] / totals[..., 3])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument(
        "--heads", nargs="+", required=True, metavar="NAME=METHOD:FOLDER", help="what drafts"
    )
    parser.add_argument(
        "--shapes", nargs="+", default=["1", "2", "3", "4", "5", TREE], help="chains, and `tree`"
    )
    parser.add_argument("--real", nargs="+", required=True, metavar="NAME=PATH")
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--output", type=Path, required=True, help="JSON Lines of all prompts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    target = CausalLM.from_pretrained(args.target)
    engines = {
        name: Engine(target, proposer) for name, proposer in sides(args.heads, args.shapes).items()
    }
    known = list(read_jsonl(args.output)) if args.output.exists() else []
    done = {(row["dataset"], row["temperature"], row["prompt"], row["side"]) for row in known}
    for engine in engines.values():  # warm up
        decode(engine, range(100, 200), SamplingParams(max_new_tokens=16, ignore_eos=True))
    with args.output.open("a", encoding="utf-8") as lines:
        for name, path in (pair.split("=", 1) for pair in args.real):
            dataset = read_dataset(name, path, args.num_prompts)
            for number, row in enumerate(track(dataset.rows, name)):
                room = target.max_len - args.new_tokens
                prompt = dataset.prompt(target.tokenizer, row, (), max_tokens=room).token_ids
                for temperature in args.temperatures:
                    sampling = SamplingParams(
                        temperature, max_new_tokens=args.new_tokens, seed=number
                    )
                    for side, engine in engines.items():
                        if (name, temperature, number, side) in done:
                            continue
                        figures = decode(engine, prompt, sampling)
                        place = {"dataset": name, "temperature": temperature, "prompt": number}
                        known.append(place | {"side": side} | figures)
                        lines.write(to_line(known[-1]))
                        lines.flush()
    Console(width=200).print(table(known))


if __name__ == "__main__":
    main()
