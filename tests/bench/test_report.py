import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specresearch import SamplingParams
from specresearch.acceptance import Threshold, Typical
from specresearch.bench import Runner, RunSettings, print_report
from specresearch.proposers import NGram, Proposer, Suffix, TokenRecycling
from specresearch.statistics import jackknife
from specresearch.sweeps.callback import print_comparison

Make = Callable[..., Runner]


def printed(runner: Runner) -> str:
    stream = io.StringIO()
    print_report(runner.run(), Path("out"), Console(file=stream, width=80))
    return stream.getvalue()


def test_the_answer_comes_first_and_everything_fits_80_columns(make_runner: Make) -> None:
    text = printed(make_runner(proposer=NGram(4, 3, 1), method="ngram"))
    lines = text.strip().splitlines()
    assert lines[0].startswith("ngram on letters: ")
    assert "plain decoding" in lines[0]
    assert "output unchanged: 7 of 7 greedy outputs equal token for token" in lines[1] + lines[2]
    assert all(len(line) <= 80 for line in lines)
    for term in ("draft acceptance rate", "efficiency", "fingerprint", "Rule of thumb", "category"):
        assert term in text


def test_trees_are_judged_by_depth_and_not_by_a_rate_per_node(make_runner: Make) -> None:
    text = printed(make_runner(proposer=TokenRecycling(12, depth=3), method="recycling"))
    for label in ("accepted tokens per tree", "accepted at depth 1, 2, ...", "drafts on average"):
        assert label in " ".join(text.split())
    for label in ("acceptance rate", "Rule of thumb"):
        assert label not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_memory_of_the_models_is_shown(make_runner: Make) -> None:
    text = printed(make_runner(proposer=NGram(), method="ngram"))
    (line,) = (line for line in text.splitlines() if line.startswith("memory "))
    assert re.search(r"target \d+\.\d MB \+ cache \d+\.\d MB; at most \d", line)


def test_few_groups_give_no_verdict(make_runner: Make) -> None:
    text = " ".join(printed(make_runner(proposer=NGram(), method="ngram")).split())
    assert "of plain decoding, too few prompts for an interval: measure more" in text
    assert "SLOWER" not in text


class Described(NGram):
    def describe(self) -> str:
        layers = "the inputs of layers 2, 16 and 29 of 32 of the target"
        return f"three heads of one layer, which read {layers}; and much more"


def test_a_lossy_rule_shows_by_how_much(
    make_runner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jackknife, "LEAST_UNITS", 2)  # there are four prompts
    sampling = SamplingParams(temperature=1.0, max_new_tokens=12)
    text = printed(
        make_runner(
            proposer=NGram(6, 2, 1),
            method="ngram",
            acceptance=Typical(0.01, 0.9),
            sampling=sampling,
        )
    )
    assert "distribution moved from the target's by a total variation of 0." in " ".join(
        text.split()
    )
    assert all(len(line) <= 80 for line in text.splitlines())
    for label in (
        "total variation from the target",
        "KL divergence from it, nats",
        "refused by the exact rule",
    ):
        (line,) = (line for line in text.splitlines() if line.startswith(label))
        assert " to " in line
    assert "total variation" not in printed(
        make_runner(folder=tmp_path / "exact", proposer=NGram(), method="ngram")
    )


def test_a_sweep_shows_it_where_a_rule_is_lossy() -> None:
    exact = {
        "job": "0",
        "overrides": "acceptance=rejection",
        "speedup": 1.5,
        "outputs_equal": None,
        "output_tv": None,
    }
    lossy = exact | {"job": "1", "overrides": "acceptance=typical", "output_tv": 0.0123}

    def header_and_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
        stream = io.StringIO()
        print_comparison(rows, Console(file=stream, width=100))
        table, _, explanation = stream.getvalue().strip().partition("\nSpeedup: ")
        assert ("total variation" in explanation) == (len(rows) > 1)
        return [line.split() for line in table.splitlines()]

    header, first, second = header_and_rows([exact, lossy])
    assert (header[-1], first[0], first[-1], second[0], second[-1]) == (
        "TV",
        "rejection",
        "-",
        "typical",
        "0.012",
    )
    assert header_and_rows([exact])[0][-1] == "same"


def test_tokens_that_the_target_never_says_are_an_infinite_divergence(make_runner: Make) -> None:
    """At temperature 0 the target says one token only."""
    text = printed(
        make_runner(proposer=Suffix(4, offset=2.0), method="suffix", acceptance=Threshold(0.1))
    )
    assert "OUTPUT CHANGED" in text
    assert "infinite (tokens that the target never says: " in text


@pytest.mark.parametrize(
    ("proposer", "order", "words"),
    [
        (NGram(), "shuffled", None),
        (
            TokenRecycling(4, depth=2),
            "dataset",
            "cold: no request learns from earlier ones; prompts in the dataset's order",
        ),
        (
            Suffix(use_global=True),
            "shuffled",
            "warm: requests learn from all earlier ones since the start of the repeat; "
            "prompts shuffled by seed 3",
        ),
    ],
)
def test_memory_and_order_are_shown_where_a_method_learns(
    make_runner: Make, proposer: Proposer, order: str, words: str | None
) -> None:
    settings = RunSettings(warmup=0, order=order, seed=3)
    text = printed(make_runner(proposer=proposer, method="own", settings=settings))
    assert all(len(line) <= 80 for line in text.splitlines())
    if words is None:
        assert "prompts shuffled" not in text
    else:
        assert words in " ".join(text.split())


def test_a_warm_method_that_was_resumed_began_anew(make_runner: Make) -> None:
    own: dict[str, Any] = {"method": "own", "settings": RunSettings(warmup=0, num_prompts=1)}
    assert "resumed" not in printed(make_runner(proposer=Suffix(use_global=True), **own))
    again = printed(make_runner(resume=True, proposer=Suffix(use_global=True), **own))
    assert "since the start of the repeat or since a session resumed it;" in " ".join(again.split())


def test_what_a_drafter_says_of_itself_is_shown(make_runner: Make) -> None:
    text = printed(make_runner(proposer=Described(), method="own"))
    assert f"drafter {Described().describe()}" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


def test_plain_decoding_reports_its_speed_only(make_runner: Make) -> None:
    text = printed(make_runner())
    assert text.strip().startswith("plain decoding on letters: ")
    assert "acceptance" not in text


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(temperature=1.0, max_new_tokens=8), SamplingParams(max_new_tokens=1)],
)
def test_sampled_and_shortest_runs_print(make_runner: Make, sampling: SamplingParams) -> None:
    assert "tokens per second" in printed(
        make_runner(proposer=NGram(), method="ngram", sampling=sampling)
    )
