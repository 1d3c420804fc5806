"""Compare the steps of two checkouts: `python experiments/gpu/steps.py OTHER [--shapes ...]`.

Each checkout decodes in a process of its own, in turns. What is compared is the median step, and
the part of it that judges and brings the verdict to the host.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import torch

from specresearch import CausalLM, Engine, Request, SamplingParams

SHAPES = ("meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.1-8B-Instruct")
CASES = {"greedy": (1, 0.0), "sampled": (1, 1.0), "greedy, batch 8": (8, 0.0)}
PROMPT, NUM_STEPS, WARMUP = 512, 200, 10
HERE = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout to compare this one with")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    for shape in args.shapes:
        found: dict[str, list[dict[str, list[float]]]] = defaultdict(list)
        for _ in range(args.turns):
            for name, checkout in (("other", args.other.resolve()), ("this", HERE)):
                found[name].append(measured_in(checkout, shape))
        for case in CASES:
            other, this = (
                [statistics.median(turn[case][part] for turn in found[name]) for part in (0, 1)]
                for name in ("other", "this")
            )
            print(
                f"{shape}, {case}: step {1e3 * other[0]:.3f} to {1e3 * this[0]:.3f} ms "
                f"({this[0] / other[0]:.3f}); accept {1e3 * other[1]:.3f} to {1e3 * this[1]:.3f} ms"
            )


def measured_in(checkout: Path, shape: str) -> dict[str, list[float]]:
    """Return the seconds of a step and of its acceptance, by case."""
    path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--measure", shape]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(shape: str) -> None:
    """Print the medians of every case as JSON."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = CausalLM.from_pretrained(shape, weights="random", device=device, max_len=1024)
    medians = {}
    for case, (batch_size, temperature) in CASES.items():
        engine = Engine(target, max_batch_size=batch_size)
        sampling = SamplingParams(temperature, max_new_tokens=NUM_STEPS, ignore_eos=True)
        for number in range(batch_size):
            engine.submit(Request([2 + number] * PROMPT, sampling))
        steps = []
        while engine.has_work:
            steps.append(engine.step())
            list(engine.pop_finished())
        times = [step.times for step in steps[WARMUP:] if step is not None]
        medians[case] = [
            statistics.median(part.total for part in times),
            statistics.median(part.accept for part in times),
        ]
    print(json.dumps(medians))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
    else:
        main()
