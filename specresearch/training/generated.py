"""Text of the models themselves: of the target before training, or of the student while it learns.

A student sees in decoding what the target says, and in its own drafts what it says itself; published text is neither
(DistillSpec, arXiv 2310.08461; on-policy text: arXiv 2306.13649).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

from specresearch.batch import Request
from specresearch.data import PromptDataset, Row
from specresearch.engine import Engine
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.sampling import SamplingParams
from specresearch.training.examples import Example, Examples
from specresearch.training.progress import progress
from specresearch.training.shards import ShardStore
from specresearch.training.sources import Draw, Listed, Part, Source, shuffled, stable_hash

SCHEMA = pyarrow.schema(
    {
        "row": pyarrow.string(),
        "turn": pyarrow.int32(),
        "num_prompt_tokens": pyarrow.int32(),
        "token_ids": pyarrow.list_(pyarrow.int32()),
        "finish_reason": pyarrow.string(),
    }
)
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Generation:
    """How text is decoded for training.

    temperature: 1 draws from the model's own distribution, 0 is greedy; best the one that will be decoded at. max_new_tokens: of
    a reply. batch_size: requests decoded together. shard_size: rows of a shard, which is what a killed run loses at most.
    Raises ValueError for settings that cannot be.
    """

    temperature: float = 1.0
    max_new_tokens: int = 256
    batch_size: int = 8
    shard_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "shard_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"corpus.generation.{name}={getattr(self, name)} must be at least 1"
                )
        if self.temperature < 0:
            raise ValueError(
                f"corpus.generation.temperature={self.temperature} must be 0 (greedy) or above"
            )


class Author:
    """A model that replies to the turns of rows, each turn after its own replies to those before.

    max_len: of prompt and reply. proposer: drafts for the model, for speed alone. Raises ValueError where `max_new_tokens` leaves
    no room for a prompt.
    """

    def __init__(
        self,
        model: CausalLM,
        dataset: PromptDataset,
        generation: Generation,
        max_len: int,
        proposer: Proposer | None = None,
    ) -> None:
        if model.tokenizer is None:
            raise ValueError(
                f"{model.name} has no tokenizer, and prompts are text; load one with it"
            )
        self.max_prompt_tokens = min(max_len, model.max_len) - generation.max_new_tokens
        if self.max_prompt_tokens < 1:
            raise ValueError(
                f"corpus.generation.max_new_tokens={generation.max_new_tokens} leaves no room for a prompt in "
                f"{min(max_len, model.max_len)} tokens; lower it, or raise corpus.max_len"
            )
        self.model = model
        self.tokenizer = model.tokenizer
        self.dataset = dataset
        self.generation = generation
        self.proposer = proposer

    def settings(self, rows: Sequence[Row]) -> dict[str, Any]:
        """What the replies to `rows` depend on, but for the model's weights."""
        asked = [(row.id, row.turns) for row in rows]
        decoding = {
            key: value for key, value in asdict(self.generation).items() if key != "batch_size"
        }
        return {
            "model": self.model.name,
            "dataset": self.dataset.name,
            "num_rows": len(rows),
            "rows": f"{stable_hash(asked):016x}",
            "wording": f"{stable_hash(self.tokenizer.chat_template, asdict(self.dataset.template)):016x}",
            "max_prompt_tokens": min(
                self.max_prompt_tokens, self.dataset.max_prompt_tokens or self.max_prompt_tokens
            ),
            **decoding,
        }

    def fill(self, store: ShardStore, rows: Sequence[Row], what: str, round: int = 0) -> Examples:
        """The replies to all rows, shard by shard, but for shards that the store holds. Every round has other seeds.

        The model's cache is freed at the end.
        """
        size = self.generation.shard_size
        shards = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
        with store.writing():
            missing = [number for number in range(len(shards)) if not store.holds(number)]
            if missing:
                done = len(rows) - sum(len(shards[number]) for number in missing)
                engine = Engine(
                    self.model,
                    self.proposer,
                    max_batch_size=min(self.generation.batch_size, len(rows)),
                )
                with progress(what, len(rows), "rows", done) as advance:
                    for number in missing:
                        records = self._decode(engine, shards[number], (round, number))
                        num_tokens = sum(len(record["token_ids"]) for record in records)
                        store.write(
                            number,
                            partial(_save, records),
                            num_examples=len(records),
                            num_tokens=num_tokens,
                        )
                        advance(len(shards[number]), num_tokens)
                self.model.free_cache()
        return Examples(
            example for number in range(len(shards)) for example in _load(store.path(number))
        )

    def _decode(self, engine: Engine, rows: Sequence[Row], shard: tuple[int, int]) -> Records:
        replies: list[list[str]] = [[] for _ in rows]
        records: Records = []
        module = self.model.model
        was_training = module.training
        module.eval()
        try:
            for turn in range(max(len(row.turns) for row in rows)):
                asked = [place for place, row in enumerate(rows) if len(row.turns) > turn]
                prompts = {place: self._prompt(rows[place], replies[place]) for place in asked}
                requests = [
                    Request(prompts[place], self._sampling(shard, place, turn), str(place))
                    for place in asked
                ]
                outputs = {int(output.id): output.checked() for output in engine.generate(requests)}
                for place in asked:
                    output = outputs[place]
                    replies[place].append(output.text)
                    records.append(
                        {
                            "row": rows[place].id,
                            "turn": turn,
                            "num_prompt_tokens": len(prompts[place]),
                            "token_ids": [*prompts[place], *output.token_ids],
                            "finish_reason": output.finish_reason,
                        }
                    )
        finally:
            module.train(was_training)
        return records

    def _prompt(self, row: Row, replies: Sequence[str]) -> list[int]:
        return self.dataset.prompt(
            self.tokenizer, row, replies, max_tokens=self.max_prompt_tokens
        ).token_ids

    def _sampling(self, shard: tuple[int, int], place: int, turn: int) -> SamplingParams:
        settings = self.generation
        seed = stable_hash(settings.seed, shard, place, turn)
        return SamplingParams(
            temperature=settings.temperature, max_new_tokens=settings.max_new_tokens, seed=seed
        )


class TargetGenerated(Listed):
    """What the target says to the prompts of a dataset, one example a turn; decoded into `folder` on construction.

    A folder that holds all of it is only read. Raises ValueError for one that holds other text: of another model, or of
    other prompts or settings.
    """

    def __init__(
        self,
        target: CausalLM,
        dataset: PromptDataset,
        folder: Path,
        generation: Generation,
        max_len: int,
        part: Part | None = None,
        *,
        num_rows: int | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        author = Author(target, dataset, generation, max_len, proposer)
        rows = (part or Part()).rows(dataset)[:num_rows]
        store = ShardStore(
            folder, {**author.settings(rows), "weights": weights_digest(target)}, ".parquet"
        )
        self.examples = author.fill(store, rows, "decoding with the target")


class DraftGenerated(Source):
    """What the student itself says to the prompts of a dataset, anew in every round with the weights it has by then.

    A round is decoded, as many examples as it will give, when its first example is drawn, into a folder of its own; what is there
    already is reused, so that a run that resumes sees the text that it had seen before. A look ahead into a later round has it
    decoded too early.
    """

    def __init__(
        self,
        draft: CausalLM,
        dataset: PromptDataset,
        folder: Path,
        generation: Generation,
        max_len: int,
        part: Part | None = None,
    ) -> None:
        self.author = Author(draft, dataset, generation, max_len)
        self.rows = (part or Part()).rows(dataset)
        self.folder = folder
        self._latest: tuple[int, Examples] | None = None

    @property
    def fingerprint(self) -> str:
        """Of prompts and settings; the text depends on how the student has been trained."""
        return f"{stable_hash(self.author.settings(self.rows)):016x}"

    def draw(self, draw: Draw) -> Example:
        if self._latest is None or self._latest[0] != draw.round:
            self._latest = draw.round, self._decode(draw.round, draw.of)
        return self._latest[1][draw.place]

    def _decode(self, round: int, num_examples: int) -> Examples:
        rows: list[Row] = []
        num_turns = passes = 0
        while num_turns < num_examples:
            for place in shuffled(len(self.rows), self.author.generation.seed, round, passes):
                if num_turns >= num_examples:
                    break
                rows.append(self.rows[place])
                num_turns += len(rows[-1].turns)
            passes += 1
        store = ShardStore(
            self.folder / f"round-{round:05d}",
            self.author.settings(rows) | {"round": round},
            ".parquet",
        )
        return self.author.fill(store, rows, f"decoding with the draft, round {round}", round)


@torch.no_grad()
def weights_digest(model: CausalLM) -> str:
    """A hash over the first numbers of every weight, rounded so that it is the same in whatever dtype they were loaded."""
    parts = [
        weight.flatten()[:64].to("cpu", torch.bfloat16).view(torch.int16).numpy()
        for weight in model.model.parameters()
    ]
    return f"{stable_hash(np.concatenate(parts).tolist()):016x}"


def _save(records: Records, file: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records, SCHEMA), file)


def _load(file: Path) -> list[Example]:
    table = pyarrow.parquet.read_table(file, columns=["num_prompt_tokens", "token_ids", "row"])
    records = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [Example.reply(ids[:num], ids[num:], f"row {row}") for num, ids, row in records]
