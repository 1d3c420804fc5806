"""Every bad command line of bad_inputs.txt ends fast, with one sentence that says what to do."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny_heads
import torch
from forked import Ended, import_everything, run_forked
from safetensors.torch import save_file
from shape_checks import unchecked
from tiny_models import build
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specresearch import CausalLM
from specresearch.cli.commands import COMMANDS
from specresearch.models.head_writing import save_eagle_head
from specresearch.models.loading import ZOO

TABLE = Path(__file__).with_suffix(".py").with_name("bad_inputs.txt")
SECONDS = 5.0  # of a command, imports excluded
MEASURING = 120.0  # of a command that prepares a file, after which it is killed
MAX_LENGTH = 600  # of an error in characters
PLACE = "{files}"
FILES = {
    "empty.jsonl": "",
    "empty.json": "",
    "null.jsonl": '{"prompt": null}\n',
    "blank.jsonl": '{"prompt": ""}\n',
    "number.jsonl": '{"prompt": 5}\n',
    "good.jsonl": '{"prompt": "How are you?"}\n',
    "other.jsonl": '{"foo": 1}\n',
    "list.jsonl": "[1, 2]\n",
    "broken.jsonl": '{"prompt": "hello", ',
    "other.csv": "a,b\n1,2\n",
    "trace.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\n",
    "noon.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,5\n",
    "negative.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-5,5\n",
    "broken_trace.jsonl": '{"timestamp": 0, "input_length": 9, "output_length": 5}\n{broken\n',
    "broken.json": "{not JSON",
    "object.json": '{"a": 1}',
    "empty_config/config.json": "{}",
    "broken_config/config.json": "{",
    "full_folder/notes.txt": "mine",
    "modules/broken_module.py": "1 / 0\n",
    "modules/imports_missing.py": "import nowhere\n",
    "trained/student/config.json": "{}",
    "modules/bad_classes.py": """
from specresearch.proposal import DraftKind, Proposal
from specresearch.proposers import Proposer

class Repeat(Proposer):
    def __init__(self, times):
        self.times = times

    def propose(self, batch, budget):
        raise NotImplementedError

class Abstract(Proposer):
    pass

class Returns(Proposer):
    num_draft_tokens = 2
    kind = DraftKind(scored=True)

class DraftsNothing(Proposer):
    def propose(self, batch, budget):
        raise NotImplementedError

class ReturnsList(Returns):
    def propose(self, batch, budget):
        return [[1, 2] for _ in budget]

class ChainsOneRow(Returns):
    def propose(self, batch, budget):
        return Proposal.chain(batch.roots[:, 0], batch.roots[:, 0])

class ReturnsNone(Returns):
    def propose(self, batch, budget):
        pass

class ReturnsTensor(Returns):
    def propose(self, batch, budget):
        return batch.roots

class Raises(Proposer):
    def __init__(self):
        raise RuntimeError("no luck")

    def propose(self, batch, budget):
        raise NotImplementedError
""",
}


class _Code:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("true",))


@dataclass(frozen=True)
class Case:
    command: str
    arguments: list[str]
    words: list[str]


def cases() -> Iterator[Case]:
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            typed, _, words = line.partition(" => ")
            command, *arguments = shlex.split(typed)
            yield Case(command, arguments, [word.strip() for word in words.split(" & ")])


def _ids(case: Case) -> str:
    return shlex.join([case.command, *case.arguments])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prepare the files that the table names, in a process that has imported everything."""
    folder = tmp_path_factory.mktemp("files")
    import_everything()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("binary.bin", "binary.jsonl", "binary.csv", "binary.parquet"):
        (folder / name).write_bytes(bytes(range(255, 0, -1)) * 9)
    (folder / "folder").mkdir()
    with unchecked(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "modules"))
        patch.syspath_prepend(str(folder / "modules"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(sys, "dont_write_bytecode", True)  # of the modules among the files
        _write_models(folder, patch)
        _save_drafts(folder)
        _measure(folder)
        yield folder


def _write_models(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Write a model without weights, pickles that hold code, and heads of another width."""
    (folder / "only_config").mkdir()
    shutil.copy(ZOO / "tiny" / "config.json", folder / "only_config")
    for name, original, file in (
        ("unsafe", "tiny", "pytorch_model.bin"),
        ("unsafe_head", "tiny_medusa", "medusa_lm_head.pt"),
    ):
        ignored = shutil.ignore_patterns("*.safetensors")
        shutil.copytree(ZOO / original, folder / name, ignore=ignored)
        torch.save({"0.0.linear.weight": _Code()}, folder / name / file)
    patch.setattr(tiny_heads, "VOCAB", CausalLM.from_pretrained("zoo:tiny").vocab_size)
    for version in (1, 3):
        head = tiny_heads.eagle_head(version)
        name = "narrow_eagle" if version == 1 else "narrow_eagle3"
        save_eagle_head(head, folder / name, {}, captured_layers=(1, 3, 5))
    shutil.copytree(ZOO / "tiny_medusa", folder / "narrow_medusa")
    tensors = {"0.0.linear.weight": torch.zeros(16, 16), "0.0.linear.bias": torch.zeros(16)}
    save_file(tensors, folder / "narrow_medusa" / "medusa_lm_head.safetensors")
    config = json.loads((ZOO / "tiny_medusa" / "config.json").read_text())
    config |= {"medusa_num_heads": 1, "medusa_num_layers": 1}
    (folder / "narrow_medusa" / "config.json").write_text(json.dumps(config))


def _save_drafts(folder: Path) -> None:
    """Write drafts whose tokenizers tell no bytes, or share none with the targets."""
    words = {word: id for id, word in enumerate(["[UNK]", "a", "##b"])}
    tokenizer = Tokenizer(models.WordPiece(words))
    tokenizer.decoder = decoders.WordPiece()
    cyrillic = Tokenizer(models.BPE({letter: id for id, letter in enumerate("жшя")}, []))
    cyrillic.decoder = decoders.Fuse()
    for name, backend in (("words", tokenizer), ("cyrillic", cyrillic)):
        build(vocab_size=3, dtype=torch.float32).save_pretrained(folder / name)
        PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder / name)


def _measure(folder: Path) -> None:
    """Record a short run, test a method under load, and write a certificate."""
    small = "num_prompts=3 warmup=0 sampling.max_new_tokens=24 dataset.max_prompt_tokens=20"
    recorded = f"+proposer=draft_model record=true {small} hydra.run.dir={folder}/recorded"
    certificate = f"+proposer=lookahead acceptance=block hydra.run.dir={folder}/certificate"
    loaded = "+proposer=ngram arrivals=closed_loop arrivals.concurrency=1 num_requests=4 warmup=0"
    loaded += f" sampling.max_new_tokens=4 hydra.run.dir={folder}/loaded"
    commands = {"run": recorded, "load": loaded, "certify": certificate}
    for command, typed in commands.items():
        ended = run_forked(command, typed.split(), folder, folder, MEASURING)
        assert ended.code == 0, ended.err


def failures(case: Case, ended: Ended, left: list[str], files: Path) -> Iterator[str]:
    """Yield what is wrong with the end of a command."""
    text = ended.err.strip()
    lines = [line for line in text.splitlines() if not line.startswith("warning: ")]
    if ended.code != 2:
        yield f"exit code {ended.code}"
    if "Traceback" in text or "weights_only" in text:
        yield "not for users"
    if len(lines) != 1 or not lines[0].startswith("error: ") or len(lines[0]) > MAX_LENGTH:
        yield "not one short error"
    if "error" in ended.out.lower():
        yield "an error on stdout"
    for word in case.words:
        if word.replace(PLACE, str(files)) not in text:
            yield f"lacks {word!r}"
    if ended.seconds > SECONDS:
        yield f"took {ended.seconds:.1f} s"
    if left:
        yield f"left {left}"


@pytest.mark.parametrize("case", list(cases()), ids=_ids)
def test_a_bad_command_ends_with_one_sentence(case: Case, files: Path, tmp_path: Path) -> None:
    folder, logs = tmp_path / "empty", tmp_path / "logs"
    folder.mkdir()
    logs.mkdir()
    before = set(files.rglob("*"))
    arguments = [word.replace(PLACE, str(files)) for word in case.arguments]
    ended = run_forked(case.command, arguments, folder, logs)
    left = [] if "-m" in arguments else [path.name for path in folder.rglob("*")]
    left += [path.name for path in set(files.rglob("*")) ^ before]  # or is gone
    assert list(failures(case, ended, left, files)) == [], ended.err


def test_the_table_covers_every_command() -> None:
    assert {case.command for case in cases()} == set(COMMANDS)


def test_a_good_command_fails_the_checks(files: Path, tmp_path: Path) -> None:
    arguments = ["run=" + str(files / "recorded")]
    ended = run_forked("tree", arguments, tmp_path, tmp_path)
    assert "exit code 0" in list(failures(Case("tree", arguments, []), ended, [], files))
