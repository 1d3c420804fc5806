"""`python -m specresearch.table outputs/...`: measured settings in one table."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from specresearch.cli import exit_on_user_errors, quick_imports
from specresearch.cli.arguments import parser_of_folders
from specresearch.files import check_exist

ALONE = (
    "each interval holds at 95% on its own; the report's are wider, since they hold for all "
    "settings and loads of a decision together"
)
FORMATS = ("markdown", "latex", "csv", "text")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table; bad input exits with code 2 and one line on stderr."""
    args = parser().parse_args(arguments)
    with exit_on_user_errors():
        check_exist(args.folders)  # before the large imports
    with quick_imports():
        from specresearch.files import replace_text
        from specresearch.reporting import gather
        from specresearch.reporting.results_table import results_table

    with exit_on_user_errors():
        material = gather(args.folders)
        columns = args.columns.split(",") if args.columns else None
        table = results_table(material.comparisons, args.format, columns, args.sort)
        if args.output is not None:
            replace_text(args.output, table)
    for note in material.notes:
        print(f"{', '.join(map(str, note.folders))}: {note.text}", file=sys.stderr)
    if len(material.comparisons) > 1:
        print(ALONE, file=sys.stderr)
    print(table if args.output is None else args.output, end="" if args.output is None else "\n")


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    purpose = "A row for every setting that runs, load runs and sweeps compare with plain decoding."
    parser = parser_of_folders("table", purpose)
    add = parser.add_argument
    add("--format", choices=FORMATS, default="markdown", help="default: %(default)s")
    add("--columns", metavar="NAMES", help="separated by commas; a wrong name lists all")
    add("--sort", metavar="NAME", help="column to sort by; figures from high to low")
    add("--output", type=Path, metavar="FILE", help="write here instead of printing")
    return parser


if __name__ == "__main__":
    main()
