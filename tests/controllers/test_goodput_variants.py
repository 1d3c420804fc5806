"""Every variant of the ablation runs otherwise than goodput, or it would switch nothing off."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simulation import Machine
from stream import Stream
from tree_stream import TreeStream

VARIANTS_FILE = Path(__file__).parents[2] / "experiments/goodput_ablation/variants.py"
DEAR = Machine(draft=0.5e-3, verify=8e-3, verify_token=0.5e-3)
STREAMS: tuple[Stream | TreeStream, ...] = (
    Stream(Machine(), 4, 60, 0.7, busy=Machine(verify_token=3e-3)),
    Stream(Machine(draft=2.8e-3), 4, 40, 0.6, control=1.5e-3),
    TreeStream(DEAR, 4, 100),
    TreeStream(DEAR, 2, 100),
)


def _variants() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("goodput_variants", VARIANTS_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.VARIANTS


VARIANTS = _variants()


def run(variant: str, stream: Stream | TreeStream) -> float:
    """Return the throughput of a stream."""
    with VARIANTS[variant].switched_off():
        return stream.throughput(VARIANTS[variant](), 0)


@cache
def whole(stream: Stream | TreeStream) -> float:
    return run("goodput", stream)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "goodput"])
def test_a_variant_changes_a_run(variant: str) -> None:
    assert any(run(variant, stream) != whole(stream) for stream in STREAMS)


def test_goodput_itself_runs_the_same_again() -> None:
    assert [run("goodput", stream) for stream in STREAMS] == [whole(stream) for stream in STREAMS]
