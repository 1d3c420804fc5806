import shlex
from pathlib import Path

from specresearch.cli import resume_command


def test_the_printed_command_resumes_a_run_or_a_sweep() -> None:
    command = resume_command(
        ["+proposer=ngram", "hydra.run.dir=old", "resume=false"],
        Path("/runs/a b"),
        "specresearch.run",
        sweep=False,
    )
    assert shlex.split(command)[2] == "specresearch.run"
    assert shlex.split(command)[3:] == ["+proposer=ngram", "hydra.run.dir=/runs/a b", "resume=true"]
    command = resume_command(
        ["-m", "+proposer=ngram,draft_model"],
        Path("/runs/s/0-ngram-cnndm"),
        "specresearch.run",
        sweep=True,
    )
    assert shlex.split(command)[3:] == [
        "-m",
        "+proposer=ngram,draft_model",
        "hydra.sweep.dir=/runs/s",
        "resume=true",
    ]
