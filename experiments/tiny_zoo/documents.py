"""Write the documents of the mix: copying, chats, stories, book pages, maths and code.

Documents are token ids with a kind per token. Chats go through the tokenizer's chat template, with
the prompts that the project's datasets use.
"""

import random
import re
from dataclasses import dataclass
from enum import IntEnum

from corpora import Corpora, Turn
from transformers import PreTrainedTokenizerFast

from specresearch.data.templates import CHAT, CODE, MATHS, SUMMARY, Template

MIN_QUOTE, MAX_QUOTE = 96, 168
QUOTE_REQUEST = 'Quote the sentence that begins with "{start}".\n\n{passage}'
ONSETS = (
    "b",
    "br",
    "c",
    "ch",
    "d",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "th",
    "v",
    "w",
    "z",
)
RHYMES = (
    "a",
    "al",
    "an",
    "ar",
    "e",
    "el",
    "en",
    "er",
    "i",
    "in",
    "ing",
    "is",
    "o",
    "on",
    "or",
    "ow",
    "u",
    "um",
    "urn",
    "y",
)
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(A-Z0-9])")


class Kind(IntEnum):
    """The purpose of a token, by which losses are weighted and reported."""

    NOISE = 0
    REPEAT = 1
    PROMPT = 2
    QUOTE = 3
    CHAT = 4
    STORY = 5
    BOOK = 6
    MATHS = 7
    CODE = 8


LOSS_WEIGHTS = {Kind.NOISE: 0.0, Kind.PROMPT: 0.5}


@dataclass(frozen=True)
class Document:
    """A document's token ids and the `Kind` of each."""

    ids: list[int]
    kinds: list[int]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Passage:
    """A passage and its summary: the opening sentences, at least `MIN_QUOTE` tokens."""

    text: str
    quote: str


def sentences(text: str) -> list[str]:
    """Split `text` after each sentence, so that joining the parts restores it."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return [
        text[start:end]
        for start, end in zip([0, *ends], [*ends, len(text)], strict=True)
        if end > start
    ]


class Writer:
    """Draw documents from `text`; the same seed gives the same documents in the same order."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, text: Corpora, seed: int) -> None:
        self.tokenizer = tokenizer
        self.text = text
        self.random = random.Random(seed)
        self.num_specials = len(tokenizer.all_special_ids) + 1
        self.words = [word for story in text.stories[:300] for word in story.split()]
        self.words += [word for book in text.books for word in " ".join(book[200:260]).split()]
        self.words += [
            word for chat in text.chats for turn in chat for word in turn.text.split()[:60]
        ]
        self.next_row: dict[Kind, int] = {}
        self.order: dict[Kind, list[int]] = {}
        self.pending: dict[Kind, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` without a begin token; chat markers are special tokens."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def chat(
        self, turns: list[Turn], template: Template, reply: Kind, prompt: Kind = Kind.PROMPT
    ) -> Document:
        """Return a conversation in the chat template, with user turns phrased by `template`."""
        messages = [
            {
                "role": turn.role,
                "content": template.chat.replace("{text}", turn.text)
                if turn.role == "user"
                else turn.text,
            }
            for turn in turns
        ]
        ids: list[int] = []
        kinds: list[int] = []
        for index in range(0, len(messages), 2):
            prompt_ids = self._render(messages[: index + 1], generate=True)[len(ids) :]
            answered = self._render(messages[: index + 2], generate=False)[
                len(ids) + len(prompt_ids) :
            ]
            ids += prompt_ids + answered
            kinds += [prompt] * len(prompt_ids) + [reply] * len(answered)
        return Document(ids, kinds)

    def write(self, kind: Kind, room: int, longest: int) -> Document | None:
        """A document of `kind` of at most `room` tokens, or None if this draw did not fit.

        longest: tokens that passages may have in this phase of the curriculum.
        """
        match kind:
            case Kind.REPEAT:
                return self._repeat(room, longest)
            case Kind.QUOTE:
                return self._quote(room, longest)
            case Kind.STORY | Kind.BOOK:
                return self._pages(kind, room)
            case Kind.CHAT:
                return self._conversation(room)
            case Kind.MATHS:
                question, answer = self.text.maths[self._row(kind, len(self.text.maths))]
                return self._fit(
                    self.chat([Turn("user", question), Turn("assistant", answer)], MATHS, kind),
                    room,
                )
            case Kind.CODE:
                function = self.text.functions[self._row(kind, len(self.text.functions))]
                if self.random.random() < 0.3:
                    ids = [
                        self.tokenizer.bos_token_id,
                        *self.encode(f"{function.head}\n{function.body}\n"),
                    ]
                    return self._fit(Document(ids, [kind] * len(ids)), room)
                return self._fit(
                    self.chat(
                        [Turn("user", function.head), Turn("assistant", function.body)], CODE, kind
                    ),
                    room,
                )
            case _:
                raise ValueError(
                    f"no documents of kind {kind!r}; ask for one of REPEAT, QUOTE, CHAT, STORY, "
                    "BOOK, MATHS, CODE"
                )

    def passage(self, num_tokens: int) -> Passage | None:
        """Return a passage of about `num_tokens` tokens, or None if no sentence ends near there."""
        text = self._prose(num_tokens)
        quote, length = "", 0
        for sentence in sentences(text):
            size = len(self.encode(sentence))
            if length + size > MAX_QUOTE:
                return None
            quote, length = quote + sentence, length + size
            if length >= MIN_QUOTE:
                break
        return Passage(text, quote.rstrip()) if quote.strip() else None

    def word(self) -> str:
        """Return a word of any text, or a made-up name."""
        if self.random.random() < 0.5:
            return self.random.choice(self.words)
        syllables = (
            self.random.choice(ONSETS) + self.random.choice(RHYMES)
            for _ in range(self.random.randint(2, 3))
        )
        return "".join(syllables).capitalize()

    def _render(self, messages: list[dict[str, str]], *, generate: bool) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generate
        )
        return self.encode(str(text))

    def _row(self, kind: Kind, num_rows: int) -> int:
        if self.next_row.get(kind, num_rows) >= num_rows:
            self.order[kind] = self.random.sample(range(num_rows), num_rows)
            self.next_row[kind] = 0
        self.next_row[kind] += 1
        return self.order[kind][self.next_row[kind] - 1]

    def _fit(self, document: Document, room: int) -> Document | None:
        return document if len(document) <= room else None

    def _repeat(self, room: int, longest: int) -> Document | None:
        limit = min((room - 1) // 2, longest)
        if limit < 4:
            return None
        length = int(4 * (limit / 4) ** self.random.random())
        if self.random.random() < 0.5:
            span = [
                self.random.randrange(self.num_specials, len(self.tokenizer)) for _ in range(length)
            ]
        else:
            span = self.encode(" ".join(self.random.choices(self.words, k=length)))[:length]
        size = min(room - 1, length * self.random.randint(2, 6))
        ids = [self.tokenizer.bos_token_id, *(span * 6)[:size]]
        return Document(ids, [Kind.NOISE] * (length + 1) + [Kind.REPEAT] * (size - length))

    def _quote(self, room: int, longest: int) -> Document | None:
        limit = min(longest, room - 24)
        if limit < 24:
            return None
        length = int(24 * (limit / 24) ** (self.random.random() ** 0.5))
        if self.random.random() < 0.2:
            passage = self._prose(length)
            parts = [part.strip() for part in sentences(passage)]
            chosen = self.random.choice(parts)
            start = " ".join(chosen.split()[: self.random.randint(3, 5)])
            request, answer = QUOTE_REQUEST.format(start=start, passage=passage), chosen
            return self._fit(
                self.chat([Turn("user", request), Turn("assistant", answer)], CHAT, Kind.QUOTE),
                room,
            )
        chosen_passage = self.passage(length)
        if chosen_passage is None:
            return None
        return self._fit(
            self.chat(
                [Turn("user", chosen_passage.text), Turn("assistant", chosen_passage.quote)],
                SUMMARY,
                Kind.QUOTE,
            ),
            room,
        )

    def _prose(self, num_tokens: int) -> str:
        draw = self.random.random()
        if draw < 0.55:
            book = self.random.choice(self.text.books)
            start = self.random.randrange(len(book))
            paragraphs = book[start : start + 40]
        elif draw < 0.7:
            paragraphs = [
                self.random.choice(self.text.stories).replace("\n", " ") for _ in range(6)
            ]
        elif draw < 0.92:
            turns = [self.random.choice(self.random.choice(self.text.chats)) for _ in range(8)]
            paragraphs = [
                turn.text.replace("\n", " ") for turn in turns if len(turn.text) > 60
            ] or [self.text.stories[0]]
        else:
            paragraphs = [" ".join(self.random.choice(self.text.maths)) for _ in range(6)]
        joined = "\n\n" if self.random.random() < 0.15 else " "
        text = self._disturb(joined.join(paragraphs)[: num_tokens * 5])
        ids = self.encode(text)
        if len(ids) > num_tokens:
            text = str(self.tokenizer.decode(ids[:num_tokens]))
            parts = sentences(text)
            text = "".join(parts[:-1]) if len(parts) > 1 else text
        return text.strip()

    def _disturb(self, text: str) -> str:
        """Insert made-up names, datelines and foreign words, so that likely text is not enough."""
        draw = self.random.random()
        if draw < 0.5:
            share = self.random.choice([0.05, 0.15, 0.4])
            text = " ".join(
                self.word() if self.random.random() < share else word for word in text.split(" ")
            )
        elif draw < 0.7:
            agency = "".join(
                self.random.choices("ABCDEFGHIJKLMNOPRSTUVW", k=self.random.randint(2, 4))
            )
            place_name = self.random.choice(self.words).strip(".,;:!?\"'()").capitalize()
            leads = [
                f"({agency}) -- ",
                f"({agency})",
                f"{place_name} ({agency}) ",
                f"{place_name}, {place_name.upper()} ",
                "By . ",
            ]
            text = self.random.choice(leads) + text
        return text

    def _pages(self, kind: Kind, room: int) -> Document | None:
        if room < 16:
            return None
        waiting = self.pending.get(kind, [])
        if not waiting:
            if kind == Kind.STORY:
                waiting = self.encode(self.text.stories[self._row(kind, len(self.text.stories))])
            else:
                book = self.text.books[self.random.randrange(len(self.text.books))]
                start = self.random.randrange(max(1, len(book) - 20))
                waiting = self.encode("\n\n".join(book[start : start + 20]))
        selected = waiting[: room - 1]
        self.pending[kind] = waiting[room - 1 :] if len(waiting) - len(selected) > 32 else []
        return Document([self.tokenizer.bos_token_id, *selected], [kind] * (len(selected) + 1))

    def _conversation(self, room: int) -> Document | None:
        chat = self.text.chats[self._row(Kind.CHAT, len(self.text.chats))]
        for num_turns in range(len(chat), 0, -2):
            document = self.chat(chat[:num_turns], CHAT, Kind.CHAT)
            if len(document) <= room:
                return document
        if room < 200:
            return None
        cut = self.chat(chat[:2], CHAT, Kind.CHAT)
        return (
            Document(cut.ids[:room], cut.kinds[:room])
            if cut.kinds[: room // 2].count(Kind.CHAT)
            else None
        )
