"""`python -m specresearch.bench_gpu`: what one GPU makes of the engine, in under nine minutes."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import replace
from pathlib import Path

from specresearch.cli import exit_on_user_errors, quick_imports
from specresearch.cli.arguments import OneLineParser
from specresearch.cli.signals import signals_interrupt

PARTS = ("correctness", "roofline", "decoding", "speculation", "attention")
MINUTES = 8.0  # the last case may take longer than its share
FOLDER, REHEARSAL_FOLDER = Path("experiments/gpu"), Path("outputs/gpu_rehearsal")


def main() -> None:
    """Measure, print progress on stderr and the paths of the results on stdout."""
    args = parser().parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched, so nothing should wait
    with exit_on_user_errors(), signals_interrupt() as stop:
        try:
            measure(
                args.output,
                args.only or PARTS,
                args.cases or [""],
                args.minutes,
                is_rehearsal=args.rehearse,
                is_compiled=args.compile,
            )
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(stop.exit_code)


def measure(
    folder: Path | None,
    names: tuple[str, ...],
    containing: list[str],
    minutes: float,
    *,
    is_rehearsal: bool,
    is_compiled: bool,
) -> None:
    """Measure the named parts' cases that contain a text, and write a table and a JSON file.

    Raises:
        ValueError: If there is no GPU, and this is no rehearsal; or if no case is left.
    """
    with quick_imports():
        import torch

        from specresearch.device_bench.bench import Bench
        from specresearch.device_bench.device import CpuDevice, CudaDevice
        from specresearch.device_bench.report import Report
        from specresearch.device_bench.runner import PARTS as KNOWN
        from specresearch.device_bench.runner import measure_all
        from specresearch.device_bench.scale import COMPILED, REAL, REHEARSAL
        from specresearch.files.atomic import check_writable
        from specresearch.results.provenance import describe_process
    if not is_rehearsal and not torch.cuda.is_available():
        raise ValueError(
            "torch sees no GPU, and this command measures one; add --rehearse to run the same code "
            "on the CPU with tiny shapes"
        )
    folder = folder or (REHEARSAL_FOLDER if is_rehearsal else FOLDER)
    check_writable(folder, "--output")
    device = CpuDevice() if is_rehearsal else CudaDevice()
    scale = REHEARSAL if is_rehearsal else REAL
    if is_compiled:
        scale = replace(scale, variants=(COMPILED,))
    provenance = describe_process(("-m", "specresearch.bench_gpu"), device.device)
    report = Report(folder, provenance | {"device": device.describe()}, is_rehearsal=is_rehearsal)
    rows = measure_all(
        Bench(device, scale),
        [part for part in KNOWN if part.name in names],
        60 * minutes,
        write=report.write,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        containing=containing,
    )
    for row in rows:
        if row.value is None:
            print(f"{row.part}, {row.case}, {row.name}: {row.reason}", file=sys.stderr)
    print(report.markdown)
    print(report.json)


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    purpose = (
        "Measure correctness, plain decoding, speculation and attention on one GPU, with random "
        "weights in the shapes of real models, and write a table and a JSON file."
    )
    parser = OneLineParser(prog="python -m specresearch.bench_gpu", description=purpose)
    add = parser.add_argument
    add(
        "--rehearse",
        action="store_true",
        help="run the same code on the CPU with tiny shapes; every figure is marked as such",
    )
    add(
        "--only",
        type=_parts,
        metavar="PARTS",
        help=f"parts to measure, separated by commas: {', '.join(PARTS)}",
    )
    add(
        "--cases",
        action="append",
        metavar="TEXT",
        help="measure only the cases whose name contains this text; may be given more than once",
    )
    add(
        "--minutes",
        type=_minutes,
        default=MINUTES,
        help="time for all parts; what does not fit is left out and named (default: %(default)s)",
    )
    add(
        "--compile",
        action="store_true",
        help="decode and draft with compiled layers, as target.compile=true does",
    )
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help=f"where to write (default: {FOLDER}; for a rehearsal {REHEARSAL_FOLDER})",
    )
    return parser


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in PARTS:
            raise ArgumentTypeError(f"there is no part {name!r}; there are: {', '.join(PARTS)}")
    return names


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise ArgumentTypeError(f"{text} must be a number of minutes above 0")
    return minutes


if __name__ == "__main__":
    main()
