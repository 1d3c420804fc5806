"""From rows to the figures of a table. This is pure: the same rows give the same figures."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specresearch.penalties.folder import (
    DECODED,
    DIVERGENCE,
    MODEL,
    OVERLAP,
    TRIAL,
    PenaltyFolder,
)
from specresearch.penalties.overlap import foretold_tokens
from specresearch.penalties.variants import WeightVariant
from specresearch.statistics import INTERVALS, POSITIVE, SHARE, Interval, Statistic, interval_of

POINTS = 5.0  # of the rule of thumb
CHANGE = (-1.0, 1.0)
DEFINITIONS = {
    "acceptance": "mean over the tokens of the target's own text of the probability that a draft "
    "for it is accepted: sum of min(p, q) over the vocabulary, or at temperature 0 whether both "
    "models prefer the same token; teacher-forced, the same ids for every draft of a target",
    "points_lost": "100 x (acceptance of the first of `drafts` - this one's), paired by token",
    "within_rule": f"points_lost is at most {POINTS:g}, the field's rule of thumb for when a "
    "quantised draft is still worth having",
    "foretold_tokens_per_step": "mean over all starts in that text of 1 + b_1 + b_1 b_2 + ..., for "
    "chains of `length`",
    "length": "drafts of a step: the fastest of `lengths` on the first num_trials prompts, which "
    "no other figure of the cell's decoding contains",
    "tokens_per_step": "generated tokens / target passes, decoded",
    "speedup": "tokens per second of wall time over plain decoding on the same target, which took "
    "turns with it",
    "outputs_equal": "share of prompts whose output equals plain decoding's; rounding may change "
    "greedy outputs, and sampled ones draw differently",
    "weight_bytes": "parameters and buffers as they are stored, without packed copies",
    "bytes_beside_target": "of these, what the full target does not hold already",
    "read_bytes": "weights that decoding a token reads: all but a table of embeddings",
    "kl": "mean KL(full target || this one) in nats on the full target's own text, temperature 1",
    "tv": "mean total variation on that text",
    "agreement": "share of its tokens at which both targets prefer the same",
    "*_ci95": f"{INTERVALS}; units are prompts",
}


def fastest_length(trials: Sequence[Mapping[str, Any]]) -> int:
    """Return the length with the most tokens per second."""
    tokens: dict[int, int] = defaultdict(int)
    seconds: dict[int, float] = defaultdict(float)
    for row in trials:
        tokens[row["length"]] += row["num_tokens"]
        seconds[row["length"]] += row["seconds"]
    return max(sorted(tokens), key=lambda length: tokens[length] / seconds[length])


def summarize(
    folder: PenaltyFolder,
    targets: Sequence[WeightVariant],
    drafts: Sequence[WeightVariant],
    lengths: Sequence[int],
) -> dict[str, Any]:
    """Return the figures of every target alone, and of every cell that has rows."""
    temperatures = sorted({row["temperature"] for row in folder.of_kind(OVERLAP)})
    cells = []
    for target in targets:
        for temperature in temperatures:
            for draft in drafts:
                key = {
                    "target": target.name,
                    "draft": draft.name,
                    "temperature": temperature,
                }
                if folder.of_kind(OVERLAP, **key):
                    cells.append(key | _cell(folder, key, drafts[0].name, lengths))
    return {"targets": [_target(folder, target) for target in targets], "cells": cells}


def _target(folder: PenaltyFolder, target: WeightVariant) -> dict[str, Any]:
    """Return what a target is, and how far it is from the full one."""
    figures: dict[str, Any] = {"target": target.name}
    figures |= _model(folder, target=target.name, draft=None)
    rows = folder.of_kind(DIVERGENCE, target=target.name)
    for name, bounds in (("kl", POSITIVE), ("tv", SHARE), ("agreement", SHARE)):
        totals = [
            [row[name] * row["num_tokens"], float(row["num_tokens"])] for row in _by_prompt(rows)
        ]
        figures |= _figure(name, totals, _ratio, bounds)
    return figures


def _by_prompt(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Add up the temperatures of a prompt, weighted by tokens."""
    joined: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        joined[row["prompt"]].append(row)
    result = []
    for parts in joined.values():
        num = sum(part["num_tokens"] for part in parts)
        means = {
            name: sum(part[name] * part["num_tokens"] for part in parts) / max(num, 1)
            for name in ("kl", "tv", "agreement")
        }
        result.append(means | {"num_tokens": num})
    return result


def _cell(
    folder: PenaltyFolder, key: dict[str, Any], first_draft: str, lengths: Sequence[int]
) -> dict[str, Any]:
    rows = {row["prompt"]: row["accepted"] for row in folder.of_kind(OVERLAP, **key)}
    figures = _model(folder, target=key["target"], draft=key["draft"])
    totals = [[sum(accepted), float(len(accepted))] for accepted in rows.values()]
    figures |= _figure("acceptance", totals, _ratio, SHARE)
    figures |= _points_lost(folder, rows, {**key, "draft": first_draft})
    for length in lengths:
        figures |= _foretold(rows, length, f"foretold_tokens_per_step_{length}")
    trials, decoded = folder.of_kind(TRIAL, **key), folder.of_kind(DECODED, **key)
    if not (trials and decoded):
        return figures
    length = fastest_length(trials)
    figures |= {"length": length, "num_prompts": len(decoded)}
    figures |= _foretold(rows, length, "foretold_tokens_per_step")
    columns = ("num_tokens", "num_forwards")
    figures |= _figure("tokens_per_step", _columns(decoded, columns), _ratio, (1.0, length + 1.0))
    columns = ("num_tokens", "seconds", "plain_num_tokens", "plain_seconds")
    figures |= _figure("speedup", _columns(decoded, columns), _speedup, POSITIVE)
    figures["outputs_equal"] = sum(row["is_equal"] for row in decoded) / len(decoded)
    return figures


def _model(folder: PenaltyFolder, **key: Any) -> dict[str, Any]:
    row = folder.find(MODEL, **key) or {}
    names = ("num_parameters", "weight_bytes", "bytes_beside_target", "read_bytes")
    return {name: row.get(name) for name in (*names, "weights", "cache_dtype")}


def _points_lost(
    folder: PenaltyFolder, rows: Mapping[str, list[float]], first: dict[str, Any]
) -> dict[str, Any]:
    """Return the difference to the first draft on the same tokens, and the rule's verdict."""
    reference = {row["prompt"]: row["accepted"] for row in folder.of_kind(OVERLAP, **first)}
    totals = [
        [sum(reference[id]), sum(accepted), float(len(accepted))]
        for id, accepted in rows.items()
        if id in reference
    ]
    figures = _figure("points_lost", totals, lambda t: (t[..., 0] - t[..., 1]) / t[..., 2], CHANGE)
    lost, interval = figures["points_lost"], figures["points_lost_ci95"]
    return {
        "points_lost": None if lost is None else 100 * lost,
        "points_lost_ci95": interval and [100 * end for end in interval],
        "within_rule": None if lost is None else 100 * lost <= POINTS,
    }


def _foretold(rows: Mapping[str, list[float]], length: int, name: str) -> dict[str, Any]:
    totals = []
    for accepted in rows.values():
        total, num_starts = foretold_tokens(accepted, length)
        if num_starts:
            totals.append([total, float(num_starts)])
    return _figure(name, totals, _ratio, (1.0, length + 1.0))


def _figure(
    name: str, totals: Sequence[Sequence[float]], statistic: Statistic, bounds: Interval
) -> dict[str, Any]:
    """Return a figure and its interval over prompts."""
    array = np.array(totals, dtype=float)
    if not len(array) or not array[:, -1].sum():
        return {name: None, f"{name}_ci95": None}
    value = float(statistic(array.sum(0)))
    return {name: value, f"{name}_ci95": interval_of(array, statistic, bounds)}


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[list[float]]:
    return [[float(row[name]) for name in names] for row in rows]


def _ratio(totals: Any) -> Any:
    return totals[..., 0] / totals[..., 1]


def _speedup(totals: Any) -> Any:
    return totals[..., 0] / totals[..., 1] / (totals[..., 2] / totals[..., 3])
