"""Train the arms of a study over seeds, then measure each drafter on unseen real prompts.

    python experiments/training/study.py objectives --prompts WORK/prompts.json --work WORK \\
        --real sharegpt=sharegpt_prompts.json cnndm=cnn_dailymail.jsonl

A row of results/STUDY.jsonl is one trained drafter; existing rows are not measured again.
`table.py` reads them.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.cli import conf_dir
from specresearch.data import PromptDataset
from specresearch.files.jsonl import read_jsonl, to_line
from specresearch.metrics import Counts
from specresearch.proposers import Proposer

HERE = Path(__file__).parent
NUM_DRAFTS, MAX_NEW_TOKENS, BATCH_SIZE = 5, 64, 8
TEMPERATURES = (0.0, 1.0)
NUM_PROMPTS = {"sharegpt": 32, "cnndm": 16}
SHARED = [
    "dataset=sharegpt",
    "corpus.max_len=1024",
    "corpus.generation.temperature=0.7",
    "corpus.generation.max_new_tokens=128",
    "corpus.generation.batch_size=32",
    "corpus.generation.shard_size=256",
    "corpus.refresh_every=50",
    "target.dtype=bfloat16",
    "train.batch_size=2",  # few at a time, since lengths differ
    "train.warmup_steps=20",
    "evaluation.num_texts=48",
    "evaluation.num_prompts=1",
    "progress=false",
]
DRAFT = [
    "+proposer=draft_model",
    "draft=zoo:tiny_draft",
    "train.accumulate=4",
    "train.learning_rate=5e-4",
]
KL = [*DRAFT, "objective=forward_kl"]
OBJECTIVES = (
    "cross_entropy",
    "reverse_kl",
    "jensen_shannon",
    "total_variation",
    "neg_log_acceptance",
    "kl_tv_hybrid",
)
MEDUSA = [
    "+proposer=medusa",
    "student.num_heads=5",
    "student.own_lm_head=false",
    "train.learning_rate=2e-3",
]
EAGLE = ["+proposer=eagle", "train.learning_rate=2e-3"]
EAGLE3 = [
    "+proposer=eagle3",
    "proposer.layer_ids=[2,5,8]",
    "student.num_steps=2",
    "train.learning_rate=3e-3",
]
NEW_HEAD = ["proposer.head=null", "train.accumulate=1"]  # they learn more from many small steps


@dataclass(frozen=True)
class Arm:
    """One way to train a drafter.

    Attributes:
        overrides: Overrides of `python -m specresearch.distill`.
        run: Folder of the training run, which studies share.
        steps: Number of steps, if not the study's.
        features: Name of cached features; arms that share it train on the same text.
    """

    name: str
    overrides: list[str] = field(default_factory=list)
    run: str = ""
    steps: int | None = None
    features: str | None = None


def distilled(name: str) -> Arm:
    """Return the draft model that all three studies include."""
    return Arm(name, KL, "forward_kl", features="target")


def mixed(name: str, run: str, draft_share: float) -> Arm:
    mix = [
        "corpus=mix",
        "corpus.fixed=0",
        f"corpus.target={1 - draft_share:g}",
        f"corpus.draft={draft_share:g}",
    ]
    return Arm(name, [*KL, *mix], run)


STUDIES: dict[str, list[Arm]] = {
    "objectives": [
        Arm("not trained"),
        distilled("forward_kl"),
        *(Arm(name, [*DRAFT, f"objective={name}"], name, features="target") for name in OBJECTIVES),
    ],
    "data": [
        Arm("not trained"),
        Arm(
            "published text, cross-entropy",
            [*DRAFT, "objective=cross_entropy", "corpus=fixed"],
            "fixed_cross_entropy",
            features="fixed",
        ),
        Arm("published text", [*KL, "corpus=fixed"], "fixed", features="fixed"),
        distilled("target's text"),
        mixed("draft's own text", "on_policy", 1.0),
        mixed("half target's, half draft's", "half_on_policy", 0.5),
    ],
    # steps of 2 texts that take as long as the draft's 300 of 8, by scripts/bench_training.py
    "drafters": [
        distilled("draft model"),
        Arm("medusa", [*MEDUSA, *NEW_HEAD], "medusa", steps=490),
        Arm("eagle", [*EAGLE, *NEW_HEAD], "eagle", steps=1060),
        Arm("eagle3", [*EAGLE3, *NEW_HEAD], "eagle3", steps=590),
    ],
}


def train(arm: Arm, seed: int, args: argparse.Namespace) -> Path:
    """Train an arm, unless that is done, and return the drafter's folder."""
    run = args.work / "runs" / arm.run / f"seed{seed}"
    steps = arm.steps or args.steps
    command = [
        *(sys.executable, "-m", "specresearch.distill", *SHARED, *arm.overrides),
        f"dataset.path={args.prompts}",
        f"corpus.folder={args.work / 'corpus'}",
        f"cache={args.work / 'features' / f'{arm.features}{seed}' if arm.features else 'null'}",
        f"corpus.seed={seed}",
        f"train.seed={seed}",
        f"train.steps={steps}",
        f"train.evaluate_every={steps}",
        f"train.save_every={steps}",
        f"hydra.run.dir={run}",
        f"resume={str(run.exists()).lower()}",
    ]
    if not (run / "results.json").exists():
        subprocess.run(command, check=True)
    return run / "student"


def proposer_of(arm: Arm, student: Path | None) -> Proposer:
    """Return the overrides that select the drafter for decoding, drafting chains."""
    method = next(
        (value.split("=")[1] for value in arm.overrides if value.startswith("+proposer=")),
        "draft_model",
    )
    settings = {
        "draft_model": [f"draft={student or 'zoo:tiny_draft'}"],
        "medusa": [f"proposer.paths={[[0] * n for n in range(1, NUM_DRAFTS + 1)]}"],
    }
    heads = [] if method == "draft_model" else [f"proposer.head={student}"]
    chain = ["proposer.tree=chain"] if method.startswith("eagle") else []
    overrides = [
        f"+proposer={method}",
        f"proposer.num_draft_tokens={NUM_DRAFTS}",
        *settings.get(method, []),
        *heads,
        *chain,
    ]
    return instantiate(composed(overrides).proposer, _convert_="all")


def composed(overrides: list[str]) -> DictConfig:
    """Compose the configuration of `python -m specresearch.run` with these overrides."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("run", overrides)


def measure(
    target: CausalLM, proposer: Proposer, datasets: dict[str, PromptDataset]
) -> Iterator[dict[str, Any]]:
    """Yield, per dataset and temperature, each prompt's drafting steps and accepted drafts."""
    engine = Engine(target, proposer, max_batch_size=BATCH_SIZE)
    for name, dataset in datasets.items():
        room = target.max_len - MAX_NEW_TOKENS
        prompts = [
            dataset.prompt(target.tokenizer, row, (), max_tokens=room).token_ids
            for row in dataset.rows
        ]
        for temperature in TEMPERATURES:
            sampling = [
                SamplingParams(temperature, max_new_tokens=MAX_NEW_TOKENS, seed=i)
                for i in range(len(prompts))
            ]
            requests = [Request(prompts[i], sampling[i], str(i)) for i in range(len(prompts))]
            counts = {int(out.id): out.record.counts for out in engine.generate(requests)}
            total = Counts.total(list(counts.values()))
            yield {
                "dataset": name,
                "temperature": temperature,
                "num_drafts": [counts[i].num_drafts for i in range(len(prompts))],
                "num_accepted_tokens": [counts[i].num_accepted_tokens for i in range(len(prompts))],
                "mean_acceptance_length": total.mean_acceptance_length,
                "expected_acceptance": total.expected_acceptance,
                "acceptance_at_position": total.acceptance_at_position,
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument(
        "--prompts",
        type=Path,
        required=True,
        help="of training, by experiments/tiny_zoo/prompts.py",
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for corpora and trained drafters"
    )
    parser.add_argument(
        "--real", nargs="+", required=True, metavar="NAME=PATH", help="published data to measure on"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", help="names; all without it")
    args = parser.parse_args()
    results = HERE / "results" / f"{args.study}.jsonl"
    results.parent.mkdir(exist_ok=True)
    done = {(row["arm"], row["seed"]) for row in read_jsonl(results)} if results.exists() else set()
    target = CausalLM.from_pretrained("zoo:tiny")
    datasets = {}
    for name, path in (pair.split("=", 1) for pair in args.real):
        cfg = composed(
            [f"dataset={name}", f"dataset.path={path}", f"dataset.limit={NUM_PROMPTS[name]}"]
        )
        datasets[name] = instantiate(cfg.dataset, _convert_="all")
    for seed in args.seeds:
        for arm in STUDIES[args.study]:
            if (arm.name, seed) in done or (args.arms and arm.name not in args.arms):
                continue
            student = train(arm, seed, args) if arm.overrides else None
            figures = list(measure(target, proposer_of(arm, student), datasets))
            metadata = {
                "arm": arm.name,
                "seed": seed,
                "steps": (arm.steps or args.steps) if arm.overrides else 0,
            }
            with results.open("a", encoding="utf-8") as lines:
                lines.write(to_line(metadata | {"figures": figures}))
            means = ", ".join(
                f"{f['dataset']} t{f['temperature']:g} {f['mean_acceptance_length']:.3f}"
                for f in figures
            )
            print(f"{arm.name}, seed {seed}: {means}", flush=True)


if __name__ == "__main__":
    main()
