"""`response_format` is followed, through OpenAI's client."""

import json
import sys
from typing import Any

import openai
import pytest
from live_server import Live, serving

from specresearch import CausalLM

MESSAGES: Any = [{"role": "user", "content": "Say who you are, as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"enum": [1, 2, 3]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "person", "strict": True, "schema": SCHEMA},
}


def ask(live: Live, response_format: object, **options: object) -> Any:
    options = {"temperature": 0, "max_tokens": 160} | options
    return live.client().chat.completions.create(
        model="zoo:tiny", messages=MESSAGES, response_format=response_format, **options
    )


@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_follow_their_schema(live: Live, temperature: float) -> None:
    answer = ask(live, SCHEMA_FORMAT, temperature=temperature, seed=1, n=3)
    ended = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert ended
    for choice in ended:
        person = json.loads(choice.message.content)
        assert person.keys() == {"name", "age"}
        assert len(person["name"]) <= 6
        assert person["age"] in (1, 2, 3)


def test_a_stream_has_the_same_text(live: Live) -> None:
    whole = ask(live, SCHEMA_FORMAT).choices[0].message.content
    chunks = ask(live, SCHEMA_FORMAT, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_any_object(live: Live) -> None:
    assert ask(live, {"type": "json_object"}, max_tokens=12).choices[0].message.content[0] == "{"
    free = ask(live, {"type": "text"}, max_tokens=12)
    assert free.choices[0].message.content[0] != "{"


def test_without_grammars_installed_the_answer_says_so(
    target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    with serving(target) as live, pytest.raises(openai.BadRequestError, match="pip install") as got:
        ask(live, {"type": "json_object"})
    assert got.value.param == "response_format"
