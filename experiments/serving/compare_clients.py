"""Do load generators made elsewhere measure what `python -m specresearch.load` measures?

guidellm, aiperf and the load command send the same prompts to one running server, in turns. Each
run's means are divided by what the server itself counted for the same requests, so that runs in
which the machine was slower can be compared.
"""

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

FIGURES = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "latency": "vllm:e2e_request_latency_seconds",
}
NAMES = {"ttft": "TTFT", "tpot": "time per output token", "latency": "latency"}
Figures = Mapping[str, float]


def server_sums(address: str) -> dict[str, float]:
    """Return sums and counts of the server's histograms."""
    page = httpx.get(f"{address}/metrics").raise_for_status().text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.endswith(("_sum", "_count"))
    }


def server_means(before: Figures, after: Figures) -> dict[str, float]:
    """Return means, in seconds, over the requests in between."""
    means = {}
    for figure, name in FIGURES.items():
        num = after[f"{name}_count"] - before[f"{name}_count"]
        means[figure] = (after[f"{name}_sum"] - before[f"{name}_sum"]) / num
    return means


class Clients:
    """Runs each client, and reads its figures in seconds."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.figures: dict[str, Callable[[Path], dict[str, float]]] = {
            "guidellm": self.guidellm,
            "aiperf": self.aiperf,
            "specresearch.load": self.own,
        }

    def guidellm(self, folder: Path) -> dict[str, float]:
        backend = {
            "kind": "openai_http",
            "target": self.arguments.server,
            "request_format": "/v1/completions",
            "model": self.arguments.model,
            "max_tokens": self.arguments.tokens,
            "extras": {"body": {"ignore_eos": True, "temperature": 0}},
        }
        report = folder / "guidellm.json"
        self._run(
            self.arguments.guidellm,
            "run",
            ("--backend", json.dumps(backend)),
            ("--profile", f"kind=concurrent,streams={self.arguments.concurrency}"),
            ("--constraint", f"kind=max_requests,count={self.arguments.requests}"),
            ("--tokenizer", f"kind=hf_auto,model={self.arguments.tokenizer}"),
            ("--data", f"kind=json_file,path={self.arguments.prompts}"),
            ("--output", f"kind=json,path={report}"),
        )
        found = json.loads(report.read_text())["benchmarks"][0]["metrics"]

        def mean(name: str) -> float:
            return float(found[name]["successful"]["mean"])

        return {
            "ttft": mean("time_to_first_token_ms") / 1e3,
            "tpot": mean("inter_token_latency_ms") / 1e3,
            "latency": mean("request_latency"),
        }

    def aiperf(self, folder: Path) -> dict[str, float]:
        inputs = {"max_tokens": self.arguments.tokens, "ignore_eos": "true", "temperature": 0}
        self._run(
            self.arguments.aiperf,
            "profile",
            ("--model", self.arguments.model),
            ("--url", self.arguments.server),
            ("--endpoint-type", "completions"),
            ("--streaming",),
            ("--tokenizer", self.arguments.tokenizer),
            ("--input-file", self.arguments.prompts),
            ("--custom-dataset-type", "single_turn"),
            *(("--extra-inputs", f"{name}:{value}") for name, value in inputs.items()),
            ("--concurrency", self.arguments.concurrency),
            ("--request-count", self.arguments.requests),
            ("--use-server-token-count",),
            ("--output-artifact-dir", folder),
        )
        found = json.loads((folder / "profile_export_aiperf.json").read_text())

        def mean(name: str) -> float:
            assert found[name]["unit"] == "ms"
            return float(found[name]["avg"]) / 1e3

        return {
            "ttft": mean("time_to_first_token"),
            "tpot": mean("inter_token_latency"),
            "latency": mean("request_latency"),
        }

    def own(self, folder: Path) -> dict[str, float]:
        settings = {
            "server": self.arguments.server,
            "client.api": "completions",
            "client.tokenizer": self.arguments.tokenizer,
            "dataset": "prompts",
            "dataset.path": self.arguments.prompts,
            "arrivals": "closed_loop",
            "arrivals.concurrency": self.arguments.concurrency,
            "num_requests": self.arguments.requests,
            "sampling.max_new_tokens": self.arguments.tokens,
            "sampling.ignore_eos": "true",
            "sampling.temperature": 0,
            "repeats": 1,
            "warmup": 0,  # the server would count these too
            "hydra.run.dir": folder,
        }
        overrides = [(f"{name}={value}",) for name, value in settings.items()]
        self._run("python", "-m", ("specresearch.load",), *overrides)
        lines = (folder / "requests.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        names = {"ttft": "ttft", "tpot": "tpot", "latency": "e2el"}
        return {key: statistics.fmean(row[name] for row in rows) for key, name in names.items()}

    def _run(self, program: str, command: str, *options: tuple[Any, ...]) -> None:
        parts = [str(part) for option in options for part in option]
        done = subprocess.run(
            [program, command, *parts], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{program} has failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="http://127.0.0.1:8103")
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--tokenizer", default="specresearch/zoo/tiny")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines: prompt and text")
    parser.add_argument("--guidellm", default="guidellm", help="the program")
    parser.add_argument("--aiperf", default="aiperf", help="the program")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs/clients"))
    arguments = parser.parse_args()
    clients = Clients(arguments)
    ratios: dict[str, list[dict[str, float]]] = {name: [] for name in clients.figures}
    for number in range(arguments.rounds):
        for name, measure in clients.figures.items():
            folder = arguments.output / f"{number}-{name}"
            folder.mkdir(parents=True)
            before = server_sums(arguments.server)
            seen = measure(folder)
            counted = server_means(before, server_sums(arguments.server))
            line = {"client": name, "seen": seen, "counted": counted}
            print(json.dumps(line), flush=True)
            ratios[name].append({key: seen[key] / counted[key] for key in FIGURES})
    print("\n| client | " + " | ".join(NAMES.values()) + " |\n|" + "---|" * (1 + len(NAMES)))
    for name, runs in ratios.items():
        cells = []
        for key in FIGURES:
            values = [run[key] for run in runs]
            middle = statistics.median(values)
            cells.append(f"{middle:.3f} ({min(values):.3f} to {max(values):.3f})")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
