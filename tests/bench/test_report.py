import io
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from specresearch import SamplingParams
from specresearch.bench import Runner, print_report, resume_command
from specresearch.proposers import NGram

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


def test_plain_decoding_reports_its_speed_only(make_runner: Make) -> None:
    text = printed(make_runner())
    assert text.strip().startswith("plain decoding on letters: ")
    assert "acceptance" not in text


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=1.0, max_new_tokens=8), SamplingParams(max_new_tokens=1)]
)
def test_sampled_and_shortest_runs_print(make_runner: Make, sampling: SamplingParams) -> None:
    assert "tokens per second" in printed(make_runner(proposer=NGram(), method="ngram", sampling=sampling))


def test_resume_command_of_a_run_and_of_a_sweep() -> None:
    command = resume_command(["+proposer=ngram", "hydra.run.dir=old", "resume=false"], Path("/runs/a b"))
    assert shlex.split(command)[3:] == ["+proposer=ngram", "hydra.run.dir=/runs/a b", "resume=true"]
    sweep = resume_command(["-m", "+proposer=ngram,draft_model"], Path("/runs/s/0-ngram-cnndm"))
    assert shlex.split(sweep)[3:] == ["-m", "+proposer=ngram,draft_model", "hydra.sweep.dir=/runs/s", "resume=true"]
