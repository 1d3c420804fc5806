"""How the turns of a row become prompt token ids: by the target's chat template, or plain text.

A dataset picks one of the `Template`s below; the code does not know which dataset a row is from.
"""

from collections.abc import Mapping, Sequence
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

    def plain_text(self, text: str) -> str:
        """Return the prompt for a base model that asks for the first reply."""
        if self.plain is None:
            return f"User: {text}\nAssistant:"
        return self.plain.replace("{text}", text)


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
    is_chat = tokenizer.chat_template is not None
    if not is_chat and template.plain is not None and len(conversation) == 1:
        return tokenizer(template.plain_text(conversation[0]), verbose=False)["input_ids"]
    messages: list[dict[str, str]] = []
    for index, turn in enumerate(conversation):
        content = template.chat.replace("{text}", turn) if is_chat else turn
        messages.append({"role": "user", "content": content})
        if index < len(replies):
            messages.append({"role": "assistant", "content": replies[index]})
    return render_chat(tokenizer, messages)


def render_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]
) -> list[int]:
    """Return the token ids of the prompt that asks for the next reply in a conversation.

    A base model, which has no chat template, gets a transcript.

    Args:
        messages: Each with a `role`, such as user or assistant, and its `content`.
    """
    if tokenizer.chat_template is not None:
        conversation = [dict(message) for message in messages]
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        return tokenizer(str(text), add_special_tokens=False, verbose=False)["input_ids"]
    lines: list[str] = []
    for message in messages:
        end = "\n" if message["role"] == "assistant" else ""
        lines.append(f"{message['role'].capitalize()}: {message['content']}{end}")
    return tokenizer("\n".join([*lines, "Assistant:"]), verbose=False)["input_ids"]
