"""`python -m specresearch.distill`: train, save, load and resume drafters."""

import errno
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from command_line import Run, Typed
from safetensors.torch import load_file
from tiny_models import VOCAB, build, letters_tokenizer
from trackers import test_wandb

from specresearch import CausalLM, Engine, Request, SamplingParams, distill, run
from specresearch.metrics import StepRecord
from specresearch.models import packed
from specresearch.models.head_writing import read_provenance, save_medusa_heads
from specresearch.models.medusa import MedusaHeads
from specresearch.proposers import DraftModel, Eagle, Eagle3, Medusa, Proposer
from specresearch.training import feature_cache
from specresearch.training.trainer import DistillTrainer

offline = test_wandb.offline

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file .*distill.log:ResourceWarning",
    "ignore:the target is .* times the draft:UserWarning",
)
STEPS = 4
RECIPES: dict[str, list[str]] = {
    "draft_model": [],
    "draft_model, adapters": ["student.lora={rank:4,dropout:0.1}"],
    "medusa": [],
    "medusa, joint": ["student.joint={warmup:0.25,backbone_learning_rate:0.003}"],
    "eagle": [],
    "eagle3": [],
}
PROPOSERS: dict[str, Any] = {
    "draft_model": DraftModel,
    "medusa": Medusa,
    "eagle": Eagle,
    "eagle3": Eagle3,
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target, a draft, one with another tokenizer, and heads for another width."""
    folder = tmp_path_factory.mktemp("models")
    model_settings: dict[str, dict[str, Any]] = {
        "target": {"num_hidden_layers": 4},
        "draft": {"seed": 2},
        "other": {"seed": 2},
    }
    for name, settings in model_settings.items():
        build(**{"num_hidden_layers": 1, "seed": 3, "spread": 1.0} | settings).save_pretrained(
            folder / name
        )
        letters_tokenizer(VOCAB if name != "other" else VOCAB - 5).save_pretrained(folder / name)
    save_medusa_heads(MedusaHeads(24, VOCAB, 2), folder / "heads", {})
    return folder


@pytest.fixture
def base(models: Path, tmp_path: Path) -> list[str]:
    """Return overrides for a small target, twelve prompts and a run of about a second."""
    letters = random.Random(0)
    texts = ["".join(letters.choices("abcdef", k=12)) for _ in range(12)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    (tmp_path / "text.txt").write_text(
        "\n\n".join("".join(letters.choices("abcdef", k=2000)) for _ in range(4))
    )
    settings = {
        "target": "local",
        "target.model": models / "target",
        "target.device": "cpu",
        "target.dtype": "float64",
        "draft": models / "draft",
        "dataset": "prompts",
        "dataset.path": prompts,
        "corpus.max_len": 40,
        "corpus.heldout_fraction": 0.3,
        "corpus.generation.max_new_tokens": 8,
        "corpus.folder": tmp_path / "corpus",
        "train.steps": STEPS,
        "train.batch_size": 4,
        "train.warmup_steps": 0,
        "train.log_every": 1,
        "train.evaluate_every": STEPS,
        "train.save_every": 2,
        "evaluation.num_prompts": 2,
        "evaluation.num_draft_tokens": 3,
        "evaluation.max_new_tokens": 8,
    }
    return [f"{key}={value}" for key, value in settings.items()]


@pytest.fixture
def command(base: list[str], typed: Typed) -> Run:
    """Run `python -m specresearch.distill` in an empty folder."""
    return lambda *overrides: typed(distill.main, [*base, *overrides])


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def curve(folder: Path) -> dict[int, tuple[float, float]]:
    """Return loss and expected acceptance by step."""
    rows = [row for row in metrics(folder) if "loss" in row]
    assert len({row["step"] for row in rows}) == len(rows)
    return {row["step"]: (row["loss"], row["step_0/expected_acceptance"]) for row in rows}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = (folder / "student").glob("*.safetensors")
    return load_file(file)


@pytest.fixture(params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Dtype of target and drafter. In float32, layers are packed even in these small models."""
    if request.param == "float32":
        monkeypatch.setattr(packed, "SMALLEST_WEIGHT", 0)
    return request.param


def drafter(method: str, folder: Path, dtype: str) -> Proposer:
    """Return the proposer that `specresearch.run` would build, drafting chains of three."""
    if method == "draft_model":
        return DraftModel(CausalLM.from_pretrained(str(folder), dtype=dtype, device="cpu"), 3)
    if method == "medusa":
        return Medusa(str(folder), paths=[(0,) * length for length in (1, 2, 3)])
    return PROPOSERS[method](str(folder), 3, tree="chain")


def tokens_per_step(
    target: CausalLM, proposer: Proposer, prompts: list[list[int]], temperature: float
) -> float:
    records: list[StepRecord] = []
    engine = Engine(
        target, proposer, max_batch_size=8, observers=[lambda step: records.append(step.record)]
    )
    sampling = SamplingParams(temperature=temperature, max_new_tokens=8, seed=0, ignore_eos=True)
    outputs = engine.generate(
        [Request(prompt, sampling, str(i)) for i, prompt in enumerate(prompts)]
    )
    return sum(len(output.token_ids) for output in outputs) / sum(
        len(record.request_ids) for record in records
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_trained_drafter_loads_and_drafts_as_before(
    command: Run, models: Path, tmp_path: Path, recipe: str, dtype: str
) -> None:
    method, is_joint = recipe.split(",")[0], recipe == "medusa, joint"
    arguments = [
        f"+proposer={method}",
        "hydra.run.dir=out",
        "train.learning_rate=0.01",
        "evaluation.num_prompts=4",
    ]
    arguments += [f"target.dtype={dtype}"]
    outcome = command(*arguments, *RECIPES[recipe])
    assert outcome.code == 0, outcome.err
    assert "the trained drafter is in" in outcome.out
    assert "this decodes prompts that it was trained on; name others" in outcome.out
    assert f"trained on {4 * STEPS} examples from " in outcome.out
    assert "{'" not in outcome.out  # the library's own lines
    assert "memory, in GB: in use" in outcome.err
    folder = tmp_path / "out" / "student"
    provenance = read_provenance(str(folder))
    assert (provenance["method"], provenance["objective"]["name"]) == (method, "forward_kl")
    assert (provenance["train"]["steps"], provenance["train"]["learning_rate"]) == (STEPS, 0.01)
    assert provenance["corpus"]["generation"]["max_new_tokens"] == 8
    begun_from = (
        {"checkpoint": str(models / "draft"), "provenance": {}} if method == "draft_model" else None
    )
    assert provenance["begun_from"] == begun_from
    rows = metrics(tmp_path / "out")
    figures = [row for row in rows if "t0/mean_acceptance_length" in row]
    assert [row["step"] for row in figures] == [0, STEPS]
    assert provenance["figures"].items() <= figures[-1].items()
    assert figures[-1]["t0/sample"].replace("|", "").isalpha()
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4]
    assert all(
        row["tokens_per_second"] > 0 and row["peak_memory_gb"] > 0 for row in rows if "loss" in row
    )

    assert ("it belongs to a new target" in outcome.out) == is_joint
    assert ("backbone/total_variation" in figures[-1]) == is_joint
    target_folder = Path("out", "student", "backbone") if is_joint else models / "target"
    target = CausalLM.from_pretrained(str(target_folder), dtype=dtype, device="cpu")
    texts = pq.read_table(tmp_path / "corpus" / "heldout-32" / "shard-00000.parquet").to_pylist()[
        :4
    ]
    prompts = [text["token_ids"][: text["num_prompt_tokens"]] for text in texts]
    for temperature, name in ((0.0, "t0"), (1.0, "t1")):
        measured = tokens_per_step(target, drafter(method, folder, dtype), prompts, temperature)
        assert measured == figures[-1][f"{name}/mean_acceptance_length"]


@pytest.mark.parametrize(
    "recipe",
    [
        "eagle3",
        pytest.param("draft_model", marks=pytest.mark.slow),
        pytest.param("medusa, joint", marks=pytest.mark.slow),
    ],
)
def test_the_run_ends_with_a_command_that_measures_the_drafter(
    command: Run, typed: Typed, recipe: str
) -> None:
    arguments = [f"+proposer={recipe.split(',')[0]}", "hydra.run.dir=out", *RECIPES[recipe]]
    outcome = command(*arguments)
    assert outcome.code == 0, outcome.err
    lines = [line.strip() for line in outcome.out.splitlines()]
    (printed,) = (line for line in lines if line.startswith("python -m specresearch.run"))
    few = ["num_prompts=2", "sampling.max_new_tokens=4", "hydra.run.dir=measured"]
    measured = typed(run.main, [*shlex.split(printed)[3:], *few])
    assert measured.code == 0, measured.err


@pytest.mark.parametrize("dtype", ["float32"], indirect=True)
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if "joint" not in recipe])
def test_the_final_report_describes_the_saved_drafter(
    command: Run, tmp_path: Path, recipe: str, dtype: str
) -> None:
    """The first evaluation of a run initialised from it reports the same."""
    method = recipe.split(",")[0]
    arguments = [f"+proposer={method}", f"target.dtype={dtype}", "train.learning_rate=0.1"]
    assert command(*arguments, *RECIPES[recipe], "hydra.run.dir=out").code == 0
    begun_from = "draft=out/student" if method == "draft_model" else "proposer.head=out/student"
    assert command(*arguments, begun_from, "train.steps=1", "hydra.run.dir=next").code == 0
    before, *_, last = [
        row for row in metrics(tmp_path / "out") if "t0/mean_acceptance_length" in row
    ]
    first = metrics(tmp_path / "next")[0]
    assert abs(last["heldout/step_0/loss"] - before["heldout/step_0/loss"]) > 0.01
    assert last["t1/sample"] == first["t1/sample"]
    for name in last.keys() - {"step", "t0/sample", "t1/sample", "t1/deviation"}:
        assert first[name] == pytest.approx(last[name], rel=1e-4), name


def test_medusa_2_saves_a_new_target_and_leaves_the_old_one_unchanged(
    command: Run, models: Path, tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in (models / "target").iterdir()}
    arguments = [
        "+proposer=medusa",
        "hydra.run.dir=out",
        "student.joint={warmup:0.25,lora:{rank:4}}",
    ]
    outcome = command(*arguments, "objective=cross_entropy", "train.learning_rate=0.01")
    assert outcome.code == 0, outcome.err
    assert "target=local target.model=out/student/backbone" in " ".join(outcome.out.split())
    assert {path.name: path.read_bytes() for path in (models / "target").iterdir()} == before
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["provenance"]["decodes_with"] == "backbone"
    assert results["provenance"]["target"]["model"] == str(models / "target")
    assert results["provenance"]["student"]["joint"] == {"warmup": 0.25, "lora": {"rank": 4}}
    assert results["first"]["backbone/total_variation"] < 1e-9
    assert results["last"]["backbone/total_variation"] > 1e-6
    heads = MedusaHeads.from_pretrained("out/student")
    with pytest.warns(UserWarning, match="for out/student/backbone and the target is"):
        heads.check_fit(
            CausalLM.from_pretrained(str(models / "target"), dtype="float64", device="cpu")
        )


def test_training_on_features_from_disk_gives_the_same_curve(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["+proposer=eagle3", "student.num_steps=2", "train.learning_rate=0.01"]
    assert command(*arguments, "hydra.run.dir=whole").code == 0
    save, calls = feature_cache.save_file, []

    def fill_the_disk(tensors: dict[str, Any], file: Path) -> None:
        calls.append(file)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(tensors, file)

    arguments += ["cache=features", "hydra.run.dir=cached"]
    monkeypatch.setattr(feature_cache, "SHARD_SIZE", 3)
    with monkeypatch.context() as patched:
        patched.setattr(feature_cache, "save_file", fill_the_disk)
        outcome = command(*arguments)
    assert outcome.code == 2
    assert "the disk of features is full: shard 1 was not written; 1 shards of" in outcome.err
    outcome = command(*arguments)
    assert outcome.code == 0, outcome.err
    assert "GB to write to features" in outcome.err
    assert "GB to write to features" not in command(*arguments[:-1], "hydra.run.dir=again").err
    expected = curve(tmp_path / "whole")
    for folder in ("cached", "again"):
        for step, figures in curve(tmp_path / folder).items():
            assert figures == pytest.approx(expected[step], rel=1e-6)


def test_another_corpus_does_not_change_the_vocabulary_of_a_run(
    command: Run, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("\n\n".join("fed" * 700 for _ in range(4)))
    arguments = [
        "+proposer=eagle3",
        "student.draft_vocab_size=12",
        "student.num_steps=2",
        "corpus=text",
    ]
    texts = [f"corpus.text_files=[{tmp_path}/{name}.txt]" for name in ("text", "other")]
    vocabularies = {}
    runs = (
        ("first", texts[0], []),
        ("other", texts[1], []),
        ("first", texts[1], ["resume=true", "force=true"]),
    )
    for folder, text, more in runs:
        steps = f"train.steps={3 if more else 2}"
        outcome = command(*arguments, text, steps, f"hydra.run.dir={folder}", *more)
        assert outcome.code == 0, outcome.err
        vocabularies[folder, bool(more)] = weights(tmp_path / folder)["t2d"]
    assert torch.equal(vocabularies["first", True], vocabularies["first", False])
    assert not torch.equal(vocabularies["first", True], vocabularies["other", False])
    changed = [
        "student.draft_vocab_size=13",
        "train.steps=4",
        "resume=true",
        "force=true",
        "hydra.run.dir=first",
    ]
    assert (
        "is of another drafter: it holds [12] for choice.target_ids"
        in command(*arguments, texts[0], *changed).err
    )


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """The student decodes new text before every step, so the data depend on all earlier steps.

    It decodes in 16 bits while 32 are trained, or with layers that could be packed.
    """
    monkeypatch.setattr(packed, "SMALLEST_WEIGHT", 0)
    uninterrupted, broken = tmp_path / "whole", tmp_path / "broken"
    arguments = [
        "+proposer=draft_model",
        "corpus.target=0.5",
        "corpus.draft=0.5",
        "corpus.refresh_every=1",
    ]
    arguments += [
        "train.accumulate=2",
        "train.batch_size=2",
        "train.log_every=4",
        "train.learning_rate=0.01",
    ]
    arguments += [f"target.dtype={precision}"]
    assert command(*arguments, f"hydra.run.dir={uninterrupted}").code == 0
    compute = DistillTrainer.compute_loss

    def interrupt(self: DistillTrainer, *inputs: Any, **named: Any) -> torch.Tensor:
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return compute(self, *inputs, **named)

    with monkeypatch.context() as patched:
        patched.setattr(DistillTrainer, "compute_loss", interrupt)
        outcome = command(*arguments, f"hydra.run.dir={broken}")
    assert outcome.code == distill.INTERRUPTED
    assert outcome.out.strip().endswith(f"hydra.run.dir={broken} resume=true")
    assert (
        "holds a run already; add resume=true" in command(*arguments, f"hydra.run.dir={broken}").err
    )
    for number in (2, 3):  # what was written after the checkpoint
        shutil.rmtree(broken / "draft" / f"round-{number:05d}")
    (broken / "checkpoint-3").mkdir()
    with (broken / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    outcome = command(
        *arguments, f"hydra.run.dir={broken}", "resume=true", "train.keep_checkpoints=5"
    )
    assert outcome.code == 0, outcome.err
    assert curve(broken) == curve(uninterrupted)
    assert list(curve(uninterrupted)) == [2, 4]
    figures = [
        [row for row in metrics(folder) if "t1/sample" in row] for folder in (uninterrupted, broken)
    ]
    assert figures[0] == figures[1]
    for name, weight in weights(uninterrupted).items():
        assert torch.equal(weight, weights(broken)[name])
    written = "draft/round-00003/shard-00000.parquet"
    assert (uninterrupted / written).read_bytes() == (broken / written).read_bytes()


def test_a_killed_process_can_be_resumed(command: Run, base: list[str], tmp_path: Path) -> None:
    arguments = [
        "+proposer=eagle",
        "train.learning_rate=0.01",
        "train.steps=80",
        "train.save_every=1",
        "train.evaluate_every=80",
    ]
    assert command(*arguments, "hydra.run.dir=whole").code == 0
    settings = [*base, *arguments, "hydra.run.dir=broken"]
    process = subprocess.Popen(
        [sys.executable, "-m", "specresearch.distill", *settings], stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(
        (tmp_path / "broken").glob("checkpoint-*/trainer_state.json")
    ):
        time.sleep(0.05)
    assert process.poll() is None, "it ended before it was killed"
    process.kill()
    process.wait()
    assert not (tmp_path / "broken" / "results.json").exists()
    assert command(*arguments, "hydra.run.dir=broken", "resume=true").code == 0
    assert curve(tmp_path / "broken") == curve(tmp_path / "whole")
    for name, weight in weights(tmp_path / "whole").items():
        assert torch.equal(weight, weights(tmp_path / "broken")[name])


def test_resuming_with_other_settings_needs_force(command: Run, tmp_path: Path) -> None:
    arguments = [
        "+proposer=medusa",
        "hydra.run.dir=out",
        "corpus=text",
        f"corpus.text_files=[{tmp_path}/text.txt]",
    ]
    assert command(*arguments, "train.steps=2").code == 0
    changed = [
        "train.steps=3",
        "train.learning_rate=0.002",
        "evaluation.num_prompts=1",
        "resume=true",
    ]
    refused = command(*arguments, *changed)
    assert refused.code == 2
    assert (
        "train.learning_rate was 0.001 and is now 0.002; train.steps was 2 and is now 3"
        in refused.err
    )
    assert "num_prompts" not in refused.err
    assert list(curve(tmp_path / "out")) == [1, 2]
    assert command(*arguments, *changed, "force=true").code == 0
    assert list(curve(tmp_path / "out")) == [1, 2, 3]


def test_resuming_with_other_text_needs_force(command: Run, tmp_path: Path) -> None:
    arguments = [
        "+proposer=medusa",
        "hydra.run.dir=out",
        "corpus=text",
        f"corpus.text_files=[{tmp_path}/text.txt]",
    ]
    assert command(*arguments).code == 0
    (tmp_path / "text.txt").write_text("\n\n".join("fed" * 700 for _ in range(4)))
    refused = command(*arguments, "resume=true")
    assert refused.code == 2
    assert "the text has changed since" in refused.err
    assert command(*arguments, "resume=true", "force=true").code == 0


def test_evaluation_settings_may_change_on_resuming(command: Run) -> None:
    arguments = ["+proposer=medusa", "hydra.run.dir=out"]
    assert command(*arguments).code == 0
    outcome = command(*arguments, "resume=true", "evaluation.num_texts=2")
    assert outcome.code == 0, outcome.err


@pytest.fixture
def any_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let through what the schema refuses, such as a ruinous learning rate."""
    monkeypatch.setattr("specresearch.cli.entry.check_settings", lambda settings, schema: None)


@pytest.mark.usefixtures("any_setting")
def test_a_loss_that_is_not_a_number_stops_the_run(command: Run, tmp_path: Path) -> None:
    arguments = [
        "+proposer=eagle",
        "hydra.run.dir=out",
        "train.save_every=1",
        "train.keep_checkpoints=1",
    ]
    ruinous = [
        "train.learning_rate=1e200",
        "train.warmup_steps=1",
    ]  # the first step is taken at a rate of 0
    outcome = command(*arguments, *ruinous)
    assert outcome.code == 2
    assert "error: the loss is nan after step 2, on example 4 (row " in outcome.err
    assert "continue from it with a lower rate" in outcome.err
    assert outcome.err.rstrip().endswith("resume=true train.learning_rate=1e+199 force=true")
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-1"]
    outcome = command(*arguments, "train.learning_rate=0.01", "resume=true", "force=true")
    assert outcome.code == 0, outcome.err
    figures = curve(tmp_path / "out")
    assert list(figures) == [1, 2, 3, 4]
    assert all(np.isfinite(figures[step]).all() for step in figures)


@pytest.mark.usefixtures("any_setting")
@pytest.mark.parametrize("steps", [1, 4])
def test_weights_ruined_by_a_step_are_not_saved(command: Run, tmp_path: Path, steps: int) -> None:
    """If the last step ruins them, no drafter is written."""
    arguments = [
        "+proposer=eagle",
        "hydra.run.dir=out",
        "train.save_every=1",
        f"train.steps={steps}",
    ]
    outcome = command(*arguments, "train.learning_rate=1e200")
    assert outcome.code == 2
    assert "the loss is nan after step 1" in outcome.err
    assert "no checkpoint was saved: start again with a lower rate" in outcome.err
    assert not [*(tmp_path / "out").glob("checkpoint-*"), *(tmp_path / "out").glob("student*")]


def test_two_processes_train_the_same_weights_as_one(
    command: Run, base: list[str], tmp_path: Path
) -> None:
    arguments = [
        "+proposer=eagle3",
        "student.num_steps=2",
        "corpus=text",
        f"corpus.text_files=[{tmp_path}/text.txt]",
    ]
    arguments += ["train.learning_rate=0.01"]
    assert command(*arguments, "hydra.run.dir=one").code == 0
    module = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "specresearch.distill",
    ]
    settings = [*base, *arguments, "hydra.run.dir=two", "train.batch_size=2"]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HYDRA_FULL_ERROR": "0",
    }
    command_line = [sys.executable, *module, *settings]
    done = subprocess.run(
        command_line, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert one.keys() == two.keys()
    for step, figures in one.items():
        assert two[step] == pytest.approx(figures, rel=1e-6)
    for name, weight in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], weight, rtol=1e-6, atol=1e-9)
    assert done.stdout.count("the trained drafter is in") == 1
    assert (
        json.loads((tmp_path / "two" / "results.json").read_text())["provenance"]["num_processes"]
        == 2
    )


def test_a_missing_login_is_reported_before_anything_is_written(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "0")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    outcome = command("+proposer=medusa", "hydra.run.dir=run", "push_to_hub=me/heads")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == (
        "error: push_to_hub=me/heads needs a login; run `hf auth login`, or set HF_TOKEN"
    )
    assert not (tmp_path / "corpus").exists()


def test_a_trained_drafter_has_a_model_card(command: Run, tmp_path: Path) -> None:
    outcome = command("+proposer=medusa", "hydra.run.dir=run", "license=mit")
    assert outcome.code == 0, outcome.err
    card = (tmp_path / "run" / "student" / "README.md").read_text()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    length = results["last"]["t0/mean_acceptance_length"]
    assert f"| 0 | {length:.2f} |" in card
    assert f"| steps | {STEPS} |" in card
    assert "license: mit" in card


def test_wandb_gets_the_metrics_and_the_drafter(
    command: Run, offline: Path, tmp_path: Path
) -> None:
    assert (
        command(
            "+proposer=medusa", "hydra.run.dir=run", "tracker=wandb", "tracker.mode=offline"
        ).code
        == 0
    )
    records = test_wandb.read_back(tmp_path / "run")
    history = [
        test_wandb.items(record.history.item) for record in records if record.HasField("history")
    ]
    assert [row["optimiser_step"] for row in history if "step_0/expected_acceptance" in row] == [
        1,
        2,
        3,
        4,
    ]
    assert all(
        {"loss", "learning_rate", "tokens_per_second"} <= row.keys()
        for row in history
        if "step_0/loss" in row
    )
    evaluated = [row for row in history if "t0/mean_acceptance_length" in row]
    assert [row["optimiser_step"] for row in evaluated] == [0, STEPS]
    assert evaluated[-1]["t0/sample"]
    artifacts = [
        r.request.log_artifact.artifact for r in records if r.request.HasField("log_artifact")
    ]
    artifacts += [record.artifact for record in records if record.HasField("artifact")]
    names = {entry.path for entry in artifacts[0].manifest.contents}
    student = {"README.md", "config.json", "medusa_lm_head.safetensors"}
    assert names == {"metrics.jsonl", "results.json"} | student


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("", "proposer is not set; add +proposer=..."),
        (
            "+proposer=ngram",
            "proposer=ngram has nothing to train; choose one of draft_model, medusa, eagle, eagle3",
        ),
        ("+proposer=draft_model student=medusa", "student=medusa is not for proposer=draft_model"),
        ("+proposer=medusa corpus=fixed", "nothing to predict is left of"),
        (
            "+proposer=medusa corpus.heldout_fraction=0.0",
            "falls to split=heldout at corpus.heldout_fraction",
        ),
        (
            "+proposer=medusa corpus.target=0.5 corpus.draft=0.5",
            "which only a draft model can; set corpus.draft=0",
        ),
        (
            "+proposer=eagle3 student.draft_vocab_size=9 corpus.target=0.5 corpus.draft=0.5",
            "which only a draft model can",
        ),
        (
            "+proposer=draft_model cache=features corpus.target=0.5 corpus.draft=0.5",
            "set corpus.draft=0, or cache=null",
        ),
        (
            "+proposer=medusa student.joint={} cache=features",
            "with student.joint the states change",
        ),
        (
            "+proposer=draft_model student.lora={rank:0}",
            "student.lora.rank=0 must be a whole number from 1",
        ),
        (
            "+proposer=draft_model student.lora={} student.from_scratch=true",
            "student.from_scratch=true discards those",
        ),
        ("+proposer=draft_model draft=$models/other", "tokenizers differ in 5 tokens"),
        ("+proposer=draft_model draft=''", "proposer.draft.model= must be text that is not empty"),
        ("+proposer=draft_model target.compile=true", "set proposer.draft.compile=false"),
        (
            "+proposer=medusa proposer.head=$models/heads",
            "the Medusa heads are for hidden states of 24 and 31 tokens",
        ),
        (
            "+proposer=eagle +student.draft_vocab_size=9",
            "an EAGLE-1 head drafts from the whole vocabulary",
        ),
        (
            "+proposer=medusa student.own_lm_head=false student.draft_vocab_size=9",
            "set student.own_lm_head=true",
        ),
        ("+proposer=eagle3 student.draft_vocab_size=99", "must lie between 1 and the target's 31"),
        ("+proposer=medusa train.steps=0", "train.steps=0 must be a whole number from 1"),
        (
            "+proposer=medusa train.max_grad_norm=-1.0",
            "train.max_grad_norm=-1 must be a number of at least 0",
        ),
        (
            "+proposer=medusa train.schedule=wavy",
            "train.schedule='wavy' is unknown; choose one of linear, cosine",
        ),
        (
            "+proposer=medusa evaluation.num_prompts=0",
            "evaluation.num_prompts=0 must be a whole number from 1",
        ),
        ("+proposer=medusa output=$models", "is not empty; choose another folder"),
        ("+proposer=medusa resume=true", "add hydra.run.dir=<folder>"),
        ("+proposer=medusa resume=true hydra.run.dir=empty", "holds no run to resume"),
        (
            "+proposer=medusa +nope=1",
            "there is no setting nope; there are: cache, corpus, dataset, draft, draft_device, ",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    command: Run, models: Path, overrides: str, message: str
) -> None:
    outcome = command(*overrides.replace("$models", str(models)).split())
    assert outcome.code == 2
    last = outcome.err.strip().splitlines()[-1]
    assert message in last
    assert last.startswith("error: ")


def test_settings_that_need_a_single_process_are_rejected(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (
        "2 processes need one folder between them: add hydra.run.dir"
        in command("+proposer=medusa").err
    )
    arguments = [
        "+proposer=draft_model",
        "hydra.run.dir=out",
        "corpus.target=0.5",
        "corpus.draft=0.5",
    ]
    assert (
        "text of the student (corpus.draft) is written by one process, and there are 2"
        in command(*arguments).err
    )
