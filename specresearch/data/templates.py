"""How the turns of a dataset row become prompt token ids: by the target's own chat template, or in a plain frame.

Nothing here knows which dataset a row came from; a dataset picks one of the `Template`s below.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Template:
    """A task's wording. `{text}` stands for a user turn (`chat`) or for the only turn (`plain`).

    chat: the user message that a chat model is sent.
    plain: the whole prompt for a base model; None means the transcript frame of `render`.
    """

    chat: str
    plain: str | None = None


SUMMARY = Template(
    chat="Summarize the following article.\n\n{text}", plain="Article:\n{text}\n\nSummary:\n"
)
MATHS = Template(
    chat="{text}\n\nWork it out step by step, then give the answer.",
    plain="Question: {text}\n\nAnswer: ",
)
CODE = Template(chat="Complete this Python function.\n\n```python\n{text}\n```", plain="{text}")
CHAT = Template(chat="{text}")
RAW = Template(chat="{text}", plain="{text}")

TEMPLATES = {"summary": SUMMARY, "maths": MATHS, "code": CODE, "chat": CHAT, "raw": RAW}


def find_template(name: str) -> Template:
    if name not in TEMPLATES:
        raise ValueError(
            f"unknown prompt template {name!r}; there are {', '.join(sorted(TEMPLATES))}"
        )
    return TEMPLATES[name]


def render(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[str],
    replies: Sequence[str] = (),
) -> list[int]:
    """Token ids of the prompt that asks for the reply to `turns[len(replies)]`.

    turns: user turns of the conversation; those past the first unanswered one are not shown.
    replies: the model's own replies to the first turns, as text.
    """
    asked = turns[: len(replies) + 1]
    if tokenizer.chat_template is not None:
        messages: list[dict[str, str]] = []
        for index, turn in enumerate(asked):
            messages.append({"role": "user", "content": template.chat.replace("{text}", turn)})
            if index < len(replies):
                messages.append({"role": "assistant", "content": replies[index]})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tokenizer(str(text), add_special_tokens=False, verbose=False)["input_ids"]
    if template.plain is not None and len(asked) == 1:
        return tokenizer(template.plain.replace("{text}", asked[0]), verbose=False)["input_ids"]
    lines: list[str] = []
    for index, turn in enumerate(asked):
        lines.append(f"User: {turn}")
        lines.append(f"Assistant: {replies[index]}\n" if index < len(replies) else "Assistant:")
    return tokenizer("\n".join(lines), verbose=False)["input_ids"]
