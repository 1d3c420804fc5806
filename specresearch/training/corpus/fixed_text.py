"""Published replies of a dataset as a source of examples."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from specresearch.data import PromptDataset, Row
from specresearch.training.corpus.chat_examples import chat_examples, published_replies
from specresearch.training.corpus.examples import Example, Examples
from specresearch.training.corpus.sources import ListSource
from specresearch.training.progress import TokenProgress


class FixedText(ListSource):
    """Replies published with a dataset, or reference answers, with a loss on replies only."""

    def __init__(
        self,
        dataset: PromptDataset,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[Row],
        max_len: int,
    ) -> None:
        self.num_skipped = sum(not published_replies(row) for row in rows)
        self.examples = Examples(_tokenize(dataset, tokenizer, rows, max_len))
        if not len(self.examples):
            raise ValueError(
                f"dataset {dataset.name}: nothing to predict is left of {len(rows)} rows, "
                f"{self.num_skipped} of which have no published reply; take a dataset with replies "
                "(sharegpt, gsm8k), corpus=target to generate them, or corpus=text"
            )


def _tokenize(
    dataset: PromptDataset, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], max_len: int
) -> Iterator[Example]:
    with TokenProgress("reading text", len(rows), "rows") as progress:
        for row in rows:
            examples = chat_examples(dataset, tokenizer, row, max_len)
            for example in examples:
                yield replace(example, row=f"row {row.id}")
            progress.add(1, sum(len(example.token_ids) for example in examples))
