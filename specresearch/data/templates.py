"""How the turns of a row become prompt token ids: by the target's chat template, or plain text.

A dataset picks one of the `Template`s below; the code does not know which dataset a row is from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Template:
    """The prompt of a task. `{text}` stands for a user turn (`chat`) or the only turn (`plain`).

    Attributes:
        chat: The user message for a chat model.
        plain: The whole prompt for a base model. None uses the transcript of `render`.
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
    """Return one of `TEMPLATES`; raises ValueError for an unknown name."""
    if name not in TEMPLATES:
        raise ValueError(
            f"dataset.template={name} is unknown; there are {', '.join(sorted(TEMPLATES))}"
        )
    return TEMPLATES[name]


def render(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[str],
    replies: Sequence[str] = (),
) -> list[int]:
    """Return the token ids of the prompt that asks for the reply to `turns[len(replies)]`.

    Args:
        turns: User turns; those after the first unanswered one are not shown.
        replies: The model's own replies to the first turns.
    """
    conversation = turns[: len(replies) + 1]
    if tokenizer.chat_template is not None:
        messages: list[dict[str, str]] = []
        for index, turn in enumerate(conversation):
            messages.append({"role": "user", "content": template.chat.replace("{text}", turn)})
            if index < len(replies):
                messages.append({"role": "assistant", "content": replies[index]})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tokenizer(str(text), add_special_tokens=False, verbose=False)["input_ids"]
    return tokenizer(plain_text(template, conversation, replies), verbose=False)["input_ids"]


def plain_text(template: Template, turns: Sequence[str], replies: Sequence[str] = ()) -> str:
    """Return the prompt for a base model, which has no chat template."""
    if template.plain is not None and len(turns) == 1:
        return template.plain.replace("{text}", turns[0])
    lines: list[str] = []
    for index, turn in enumerate(turns):
        lines.append(f"User: {turn}")
        lines.append(f"Assistant: {replies[index]}\n" if index < len(replies) else "Assistant:")
    return "\n".join(lines)
