"""Decode a model's replies to dataset rows into a shard store."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import floor
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from specresearch.data import PromptDataset, Row
from specresearch.engine import Engine
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.request import Request
from specresearch.sampling import SamplingParams
from specresearch.training.corpus.examples import Example, Examples
from specresearch.training.corpus.sources import stable_hash
from specresearch.training.shards import Shard, ShardStore

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
class GenerationSettings:
    """How training text is decoded.

    Attributes:
        temperature: 1 samples the model's own distribution, 0 is greedy.
        greedy_share: Share of the rows decoded greedily, whatever the temperature; spread evenly.
        shard_size: Rows in a file, the most that a killed run loses.
    """

    temperature: float = 1.0
    greedy_share: float = 0.0
    max_new_tokens: int = 256
    batch_size: int = 8
    shard_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "shard_size", "max_new_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"corpus.generation.{name}={value} must be at least 1")
        if self.temperature < 0:
            raise ValueError(
                f"corpus.generation.temperature={self.temperature} must be 0 (greedy) or above"
            )
        if not 0 <= self.greedy_share <= 1:
            raise ValueError(
                f"corpus.generation.greedy_share={self.greedy_share} must be a share from 0 to 1"
            )

    def temperature_of(self, row: int) -> float:
        """Return the temperature of all replies to the row of that number."""
        is_greedy = floor((row + 1) * self.greedy_share) > floor(row * self.greedy_share)
        return 0.0 if is_greedy else self.temperature


class ReplyGenerator:
    """A model that replies to each turn of a row, after its own replies to the earlier turns.

    `max_len` limits prompt and reply together. A proposer drafts for the model, for speed alone.
    """

    def __init__(
        self,
        model: CausalLM,
        dataset: PromptDataset,
        generation: GenerationSettings,
        max_len: int,
        proposer: Proposer | None = None,
    ) -> None:
        if model.tokenizer is None:
            raise ValueError(
                f"{model.name} has no tokenizer, and prompts are text; load one with it"
            )
        max_len = min(max_len, model.max_len)
        self.max_prompt_tokens = max_len - generation.max_new_tokens
        if self.max_prompt_tokens < 1:
            raise ValueError(
                f"corpus.generation.max_new_tokens={generation.max_new_tokens} leaves no room for "
                f"a prompt in {max_len} tokens; lower it, or raise corpus.max_len"
            )
        self.model = model
        self.tokenizer = model.tokenizer
        self.dataset = dataset
        self.generation = generation
        self.proposer = proposer

    def describe(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return everything the replies to `rows` depend on, except the model's weights."""
        turns = [(row.id, row.turns) for row in rows]
        template = (self.tokenizer.chat_template, asdict(self.dataset.template))
        limit = self.dataset.max_prompt_tokens or self.max_prompt_tokens
        decoding = asdict(self.generation)
        del decoding["batch_size"]
        if not (self.generation.greedy_share and self.generation.temperature):
            del decoding["greedy_share"]  # keeps corpora from before this setting valid
        return {
            "model": self.model.name,
            "dataset": self.dataset.name,
            "num_rows": len(rows),
            "rows": f"{stable_hash(turns):016x}",
            "wording": f"{stable_hash(*template):016x}",
            "max_prompt_tokens": min(self.max_prompt_tokens, limit),
            **decoding,
        }

    def fill(self, store: ShardStore, rows: Sequence[Row], title: str, round: int = 0) -> Examples:
        """Return the replies to all rows, decoding the shards that the store lacks.

        Seeds differ between rounds. The model's cache is freed at the end.
        """
        size = self.generation.shard_size
        shards = [rows[begin : begin + size] for begin in range(0, len(rows), size)]

        def start(missing: Sequence[int]) -> Callable[[int], Shard]:
            batch_size = min(self.generation.batch_size, len(rows))
            engine = Engine(self.model, self.proposer, max_batch_size=batch_size)
            return lambda number: self._decode(engine, shards[number], (round, number))

        store.fill([len(shard) for shard in shards], start, title=title, unit="rows")
        self.model.free_cache()
        return Examples(
            example for number in range(len(shards)) for example in _load(store.path(number))
        )

    def _decode(self, engine: Engine, rows: Sequence[Row], shard: tuple[int, int]) -> Shard:
        module = self.model.model
        was_training = module.training
        module.eval()
        try:
            records = self._reply(engine, rows, shard)
        finally:
            module.train(was_training)
        num_tokens = sum(len(record["token_ids"]) for record in records)
        return Shard(partial(_save, records), len(records), num_tokens)

    def _reply(self, engine: Engine, rows: Sequence[Row], shard: tuple[int, int]) -> Records:
        replies: list[list[str]] = [[] for _ in rows]
        records: Records = []
        for turn in range(max(len(row.turns) for row in rows)):
            requests: list[Request] = []
            for index, row in enumerate(rows):
                if len(row.turns) > turn:
                    sampling = self._sampling(shard, index, turn)
                    requests.append(
                        Request(self._prompt(row, replies[index]), sampling, str(index))
                    )
            outputs = {output.id: output.checked() for output in engine.generate(requests)}
            for request in requests:
                output, index = outputs[request.id], int(request.id)
                replies[index].append(output.text)
                records.append(
                    {
                        "row": rows[index].id,
                        "turn": turn,
                        "num_prompt_tokens": len(request.prompt_ids),
                        "token_ids": [*request.prompt_ids, *output.token_ids],
                        "finish_reason": output.finish_reason,
                    }
                )
        return records

    def _prompt(self, row: Row, replies: Sequence[str]) -> list[int]:
        limit = self.max_prompt_tokens
        return self.dataset.prompt(self.tokenizer, row, replies, max_tokens=limit).token_ids

    def _sampling(self, shard: tuple[int, int], index: int, turn: int) -> SamplingParams:
        row = shard[1] * self.generation.shard_size + index
        return SamplingParams(
            temperature=self.generation.temperature_of(row),
            max_new_tokens=self.generation.max_new_tokens,
            seed=stable_hash(self.generation.seed, shard, index, turn),
        )


def _save(records: Records, file: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records, SCHEMA), file)


def _load(file: Path) -> list[Example]:
    table = pyarrow.parquet.read_table(file, columns=["num_prompt_tokens", "token_ids", "row"])
    records = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [Example.reply(ids[:num], ids[num:], f"row {row}") for num, ids, row in records]
