"""Train the pair's tokenizer: byte-level BPE with single digits and a chat template."""

from collections.abc import Iterator

from corpora import Corpora
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 4096
MAX_LENGTH = 2048
END_OF_TEXT, END = "<|endoftext|>", "<|end|>"
SPECIALS = [END_OF_TEXT, "<|system|>", "<|user|>", "<|assistant|>", END]
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
BOOK_CHARS = 250_000
NUM_MATHS, NUM_FUNCTIONS = 2500, 2000


def train_tokenizer(text: Corpora) -> PreTrainedTokenizerFast:
    """Train a tokenizer of `VOCAB_SIZE` entries; encoding and template add the begin token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(text), trainer)
    begin = tokenizer.token_to_id(END_OF_TEXT)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        pair=f"{END_OF_TEXT} $A $B",
        special_tokens=[(END_OF_TEXT, begin)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        eos_token=END,
        additional_special_tokens=SPECIALS[1:4],
        model_max_length=MAX_LENGTH,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _sample(text: Corpora) -> Iterator[str]:
    for book in text.books:
        yield " ".join(book)[:BOOK_CHARS]
    yield from text.stories
    for chat in text.chats:
        yield from (turn.text for turn in chat)
    for question, answer in text.maths[:NUM_MATHS]:
        yield f"{question}\n{answer}"
    for function in text.functions[:NUM_FUNCTIONS]:
        yield f"{function.head}\n{function.body}"
