import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from specresearch.cli import conf_dir
from specresearch.sweeps.callback import collect, print_comparison
from specresearch.sweeps.plot import _axis, _series, plot_sweep
from specresearch.sweeps.progress import SweepProgress, swept
from tests.reporting.folders import OUTPUT


def run_row(overrides: str, speedup: float | None = 1.2, **figures: Any) -> dict[str, Any]:
    return {
        "job": "0-ngram",
        "overrides": overrides,
        "method": "ngram",
        "speedup": speedup,
        "speedup_ci95_low": speedup and speedup - 0.1,
        "speedup_ci95_high": speedup and speedup + 0.1,
        "gain": speedup,
        "gain_low": speedup and speedup - 0.1,
        "gain_high": speedup and speedup + 0.1,
    } | figures


def load_row(overrides: str, **figures: Any) -> dict[str, Any]:
    figures_of_load = {
        "kind": "load",
        "controller": "goodput",
        "baseline_throughput": 10.0,
        "throughput_fixed-2": 12.0,
    }
    figures_of_load |= {
        "tpot_p99_ratio": 0.9,
        "e2el_p50_ratio": 0.8,
        "throughput": 12.0,
        "best_fixed": "fixed-2",
    }
    return run_row(overrides, **figures_of_load, **figures)


def test_the_axis_is_the_swept_number_and_other_settings_make_series() -> None:
    rows = [
        run_row(f"+proposer={method} dataset=cnndm batch_size={size}")
        for method in ("ngram", "suffix")
        for size in (1, 2, 4)
    ]
    assert _axis(rows) == "batch_size"
    assert {name: len(series) for name, series in _series(rows, "batch_size").items()} == {
        "ngram": 3,
        "suffix": 3,
    }


def test_a_plot_needs_a_swept_number_and_a_speedup(tmp_path: Path) -> None:
    file = tmp_path / "summary.png"
    assert not plot_sweep([run_row("+proposer=ngram"), run_row("+proposer=suffix")], file)
    assert not plot_sweep([run_row("batch_size=1", None), run_row("batch_size=2", None)], file)
    assert not file.exists()
    assert plot_sweep([run_row(f"batch_size={size}") for size in (1, 8)], file)
    assert file.stat().st_size > 1000
    closed = [load_row(f"arrivals.concurrency={n}", concurrency=n) for n in (1, 4)]
    assert plot_sweep(closed, tmp_path / "closed.png")
    assert plot_sweep([load_row(f"arrivals.qps={n}", qps=n) for n in (1, 4)], tmp_path / "open.png")


def test_load_runs_have_their_own_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, concurrency in enumerate((1, 4)):
        folder = tmp_path / f"{job}-ngram"
        (folder / ".hydra").mkdir(parents=True)
        (folder / ".hydra" / "overrides.yaml").write_text(
            f"- arrivals.concurrency={concurrency}\n- +proposer=ngram\n"
        )
        results = {
            "kind": "load",
            "complete": True,
            "stopped": "plain: the queue grows" if job else None,
            "summary": {
                "speedup": 1.3,
                "best_fixed": "fixed-2",
                "outputs_equal": True,
                "throughput": 20.0,
                "tpot_p99_ratio": 0.5,
                "draft_acceptance_rate": 0.02,
            },
            "comparisons": {
                "method": {"gain": {"value": 1.3, "low": 1.1, "high": 1.5}, "basis": "throughput"}
            },
            "provenance": {"method": {"trees": True, "lossless": True}},
            "outputs": {"method": OUTPUT},
            "intervals": {"speedup": [1.1, 1.5]},
            "sides": {"fixed-2": {"throughput": 12.0, "e2el_p50": 1.0, "tpot_p99": 0.1}},
        }
        (folder / "results.json").write_text(json.dumps(results))
    rows = collect(tmp_path)
    assert [row["speedup_ci95_low"] for row in rows] == [1.1, 1.1]
    assert rows[0]["throughput_fixed-2"] == 12.0
    print_comparison(rows, Console(highlight=False, width=80))
    printed = capsys.readouterr().out
    assert "concurrency=4     1.30 1.10-1.50  faster" in printed
    assert "yes" in printed
    assert "1-ngram: plain: the queue grows" in printed
    assert "2.00" in printed  # half the time is twice the speed
    assert "0.02" not in printed  # a rate per node of a tree
    assert "Speedup: above 1 is faster than plain decoding." in printed


@pytest.mark.parametrize("make", [run_row, load_row])
def test_long_names_stand_above_their_figures_in_80_columns(make: Callable[..., Any]) -> None:
    """Nothing wraps and nothing is cut, whatever is swept."""
    names = [f"+proposer={method} +a.much_too_long_setting=17" for method in ("ngram", "suffix")]
    figures = {"gain": 11.0, "gain_low": 10.12, "gain_high": 12.34}
    figures |= {"output_tv": 0.012, "same": "unknown"}
    rows = [make(name) | figures for name in names]
    for row in rows:
        row["overrides"] += f" dataset={row['overrides'].split()[0][10:]}-and-some-more-words"
    stream = io.StringIO()
    print_comparison(rows, Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    begin = lines.index("ngram ngram-and-some-more-words")
    assert lines[begin + 2] == "suffix suffix-and-some-more-words"
    for line in (lines[begin + 1], lines[begin + 3]):
        assert line.split()[:2] == ["11.00", "10.12-12.34"]
        assert line.split()[-2:] == ["unknown", "0.012"]


def test_a_sweep_says_faster_or_slower_only_by_the_whole_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [run_row("k=1", 1.2), run_row("k=2", 0.8), run_row("k=3", 0.97), run_row("k=4", 0.5)]
    rows[3] |= {"gain_low": None, "gain_high": None}
    print_comparison(rows, Console(highlight=False, width=100))
    lines = capsys.readouterr().out.splitlines()
    told = [next(line for line in lines if line.startswith(f"k={k}")) for k in (1, 2, 3, 4)]
    for line, words in zip(told, ("faster", "slower", "cannot tell", "cannot tell"), strict=True):
        assert words in line


def test_progress_gives_the_number_of_runs_and_the_remaining_time() -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("load", ["+experiment=concurrency"], return_hydra_config=True)
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.overrides.task = [
        "+experiment=concurrency",
        "proposer=ngram,suffix",
        "seed=range(3)",
        "repeats=2",
    ]
    assert swept(cfg) == {"arrivals.concurrency": 5, "proposer": 2, "seed": 3}
    cfg.hydra.overrides.task = ["arrivals.concurrency=1,2"]
    assert swept(cfg) == {"arrivals.concurrency": 2}
    progress = SweepProgress()
    progress.num_jobs, progress._first_job = 4, 0
    assert progress.line(0, "qps=1", 3.0) == "run 1 of 4: qps=1"
    assert progress.line(2, "qps=4", 120.0) == "run 3 of 4: qps=4; 2 min so far, about 2 min to go"
