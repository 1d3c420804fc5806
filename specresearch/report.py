"""`python -m specresearch.report outputs/...`: should speculative decoding be turned on?"""

import argparse
import sys
from pathlib import Path

from specresearch.reporting import Limits, compose, gather, write

FAILED = 2


def main(arguments: list[str] | None = None) -> None:
    """Write a report; bad input exits with code 2 and one line on stderr."""
    args = parser().parse_args(arguments)
    try:
        material = gather(args.folders)
        limits = Limits.of(args.ttft, args.tpot, args.percentile, args.worth, material.limits)
        page = compose(material, limits)
        path = write(page, args.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(FAILED)
    print(page.headline)
    for note in page.notes:
        first, *others = note.folders
        more = f" and {len(others)} more" if others else ""
        print(f"{first}{more}: {note.text}", file=sys.stderr)
    print(path)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m specresearch.report",
        description="One page from any set of runs and load runs: whether to turn speculative "
        "decoding on, and why.",
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, help="of runs, load runs and sweeps; searched through"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report"), help="folder to write to (default: %(default)s)"
    )
    parser.add_argument(
        "--ttft", type=float, metavar="SECONDS", help="your limit for the time to first token"
    )
    parser.add_argument(
        "--tpot", type=float, metavar="SECONDS", help="your limit for the time per output token"
    )
    parser.add_argument(
        "--percentile",
        type=int,
        choices=(50, 90, 99),
        default=99,
        help="of requests that must keep them (default: 99)",
    )
    parser.add_argument(
        "--worth",
        type=float,
        default=1.0,
        metavar="SPEEDUP",
        help="least speedup worth having (default: 1.0)",
    )
    return parser


if __name__ == "__main__":
    main()
