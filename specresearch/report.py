"""`python -m specresearch.report outputs/...`: should speculative decoding be turned on?"""

import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specresearch.cli import exit_on_user_errors, quick_imports
from specresearch.cli.arguments import parser_of_folders
from specresearch.files import check_exist, check_writable

if TYPE_CHECKING:
    from specresearch.reporting.page import Page

SERVERS, ALL = ("vllm", "sglang", "tensorrt_llm", "llama_cpp"), "all"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a report; bad input exits with code 2 and one line on stderr."""
    args = parser().parse_args(arguments)
    with exit_on_user_errors():
        check_exist(args.folders)  # before the large imports
        check_writable(args.output, "--output")
    with quick_imports():
        from specresearch.reporting import Requirements, compose, gather, write

    with exit_on_user_errors():
        material = gather(args.folders)
        asked = Requirements(args.ttft, args.tpot, args.percentile, args.worth)
        page = compose(material, asked.or_limits_of(material.limits))
        path = write(page, args.output)
    print(page.headline)
    for note in page.notes:
        first, *others = note.folders
        more = f" and {len(others)} more" if others else ""
        print(f"{first}{more}: {note.text}", file=sys.stderr)
    print(path)
    if args.flags is not None:
        _print_flags(page, None if args.flags == ALL else args.flags)


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    purpose = (
        "One page from any set of runs and load runs: whether to turn speculation on, and why."
    )
    parser = parser_of_folders("report", purpose)
    add = parser.add_argument
    output = {"type": Path, "default": "report", "metavar": "FOLDER", "dest": "output"}
    add("--output", "--out", **output, help="folder to write to (default: %(default)s)")
    for name, words in (("ttft", "time to first token"), ("tpot", "time per output token")):
        add(f"--{name}", type=_positive, metavar="SECONDS", help=f"your limit for the {words}")
    percentile = {"type": int, "choices": (50, 90, 99), "default": 99}
    add("--percentile", **percentile, help="of requests that must keep them (default: %(default)s)")
    worth = {"type": _positive, "metavar": "SPEEDUP", "default": 1.0}
    add("--worth", **worth, help="least speedup worth having (default: %(default)s)")
    flags = {"choices": (*SERVERS, ALL), "metavar": "SERVER"}
    words = "print the decisions as flags of a server, too"
    add("--flags", **flags, help=f"{words}: {', '.join(SERVERS)} or {ALL}")
    return parser


def _print_flags(page: "Page", server: str | None) -> None:
    """Print every decision as commands for a server, or for all."""
    from specresearch.reporting.serving import shell_text

    for card in page.cards:
        for recommendation in card.recommendations:
            if recommendation.serving is not None:
                title = f"{card.workload.label}: {recommendation.headline}"
                print(f"\n{shell_text(title, recommendation.serving, server)}")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text} must be a number above 0")
    return value


if __name__ == "__main__":
    main()
