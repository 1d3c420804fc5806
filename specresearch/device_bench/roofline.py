"""The bandwidth of the device's memory, which no decoding step can exceed."""

from collections.abc import Iterator
from functools import partial

from specresearch.device_bench.bench import NUM_COPIES, Bench, BenchCase
from specresearch.device_bench.measurement import Measurement


def cases(bench: Bench) -> Iterator[BenchCase]:
    yield BenchCase("memory", partial(_measure, bench))


def _measure(bench: Bench) -> Iterator[Measurement]:
    how = f"{NUM_COPIES} copies of {bench.scale.copy_bytes / 1e9:.3g} GB, read and written"
    values = [bandwidth / 1e9 for bandwidth in bench.bandwidths]
    yield Measurement.of("copy bandwidth", values, "GB/s", how)
