"""`python -m specresearch.report outputs/...`: from any set of runs, should speculative decoding be turned on?"""

import argparse
import sys
from pathlib import Path

from specresearch.reporting import Limits, compose, gather, write

FAILED = 2


def main(arguments: list[str] | None = None) -> None:
    """Bad input ends the process with exit code 2 and one line on stderr."""
    told = parser().parse_args(arguments)
    try:
        material = gather(told.folders)
        page = compose(
            material, Limits.of(told.ttft, told.tpot, told.percentile, told.worth, material.limits)
        )
        path = write(page, told.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(FAILED)
    print(page.headline)
    for note in page.notes:
        where = note.folders[0] + (
            f" and {len(note.folders) - 1} more" if len(note.folders) > 1 else ""
        )
        print(f"{where}: {note.text}", file=sys.stderr)
    print(path)


def parser() -> argparse.ArgumentParser:
    shown = argparse.ArgumentParser(
        prog="python -m specresearch.report",
        description="One page from any set of runs and load runs: whether to turn speculative decoding on, and why.",
    )
    shown.add_argument(
        "folders", nargs="+", type=Path, help="of runs, load runs and sweeps; searched through"
    )
    shown.add_argument(
        "--out", type=Path, default=Path("report"), help="folder to write to (default: %(default)s)"
    )
    shown.add_argument(
        "--ttft", type=float, metavar="SECONDS", help="your limit for the time to first token"
    )
    shown.add_argument(
        "--tpot", type=float, metavar="SECONDS", help="your limit for the time per output token"
    )
    shown.add_argument(
        "--percentile",
        type=int,
        choices=(50, 90, 99),
        default=99,
        help="of requests that must keep them (default: 99)",
    )
    shown.add_argument(
        "--worth",
        type=float,
        default=1.0,
        metavar="SPEEDUP",
        help="least speedup worth having (default: 1.0)",
    )
    return shown


if __name__ == "__main__":
    main()
