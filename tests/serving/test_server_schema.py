"""The schema that a server publishes is the one that it keeps."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import Live, serving

from specresearch import CausalLM
from specresearch.serving.schema import numbers_to
from specresearch.serving.settings import ServeSettings

KEY = {"Authorization": "Bearer k-123"}
MOST = 7  # tokens of an answer


@pytest.fixture(scope="module")
def live(target: CausalLM) -> Iterator[Live]:
    settings = ServeSettings(api_key="k-123", max_output_tokens=MOST)
    with serving(target, settings=settings) as live:
        yield live


@pytest.fixture(scope="module")
def schema(live: Live) -> dict[str, Any]:
    return httpx.get(f"{live.address}/openapi.json", headers=KEY).raise_for_status().json()


def fields(schema: dict[str, Any], body: str) -> dict[str, Any]:
    return schema["components"]["schemas"][body]["properties"]


def test_what_paths_answer(schema: dict[str, Any]) -> None:
    paths = schema["paths"]
    answers = paths["/v1/completions"]["post"]["responses"]
    assert answers.keys() == {"200", "400", "401", "404", "413", "429", "431", "500", "503"}
    assert answers["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert "content" not in paths["/health"]["get"]["responses"]["200"]
    assert paths["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in paths["/metrics"]["get"]
    assert "HTTPValidationError" not in schema["components"]["schemas"]


def test_every_reference_is_there(schema: dict[str, Any]) -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", str(schema)))
    assert names <= schema["components"]["schemas"].keys()
    assert {"ChatChunk", "ErrorAnswer"} <= names


def test_fields_are_those_that_this_server_takes(schema: dict[str, Any], target: CausalLM) -> None:
    chat, completion = fields(schema, "ChatBody"), fields(schema, "CompletionBody")
    for body, name in ((chat, "max_tokens"), (chat, "max_completion_tokens")):
        assert body[name]["anyOf"][0]["maximum"] == MOST
    assert chat["acceptance"]["anyOf"] == [{"type": "null"}]
    assert chat["seed"]["anyOf"][0]["maximum"] == 2**64 - 1
    last = target.vocab_size - 1
    assert completion["prompt"]["anyOf"][1]["items"]["maximum"] == last
    assert completion["prompt"]["anyOf"][3]["items"]["items"]["maximum"] == last


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"max_tokens": 3.0, "seed": 1e19}, 200),  # integers in JSON
        ({"prompt": [1.0, 2]}, 200),
        ({"max_tokens": 3.5}, 400),
        ({"echo": False, "suffix": ""}, 200),
        ({"echo": 0}, 400),
        ({"response_format": {"type": "text"}}, 200),
        ({"response_format": {"type": "json_object"}}, 200),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}}, 200),
        ({"response_format": {"type": "json_schema"}}, 400),
        ({"response_format": {"type": "json_schema", "json_schema": None}}, 400),
        ({"response_format": {"type": "xml"}}, 400),
        ({"prompt": ["a"] * 257}, 400),
    ],
)
def test_bodies_are_taken_as_the_schema_says(live: Live, body: dict[str, Any], status: int) -> None:
    sent = {"prompt": "a b", "max_tokens": 2} | body
    answer = httpx.post(f"{live.address}/v1/completions", json=sent, headers=KEY, timeout=60)
    assert answer.status_code == status, answer.text


def test_both_limits_of_a_chat_are_checked(live: Live) -> None:
    sent = {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 1}
    url = f"{live.address}/v1/chat/completions"
    answer = httpx.post(url, json=sent | {"max_tokens": MOST + 1}, headers=KEY, timeout=60)
    assert answer.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("largest", [0, 7, 10, 99, 100, 1999, 4095])
def test_patterns_of_numbers(largest: int) -> None:
    pattern = re.compile(numbers_to(largest))
    for number in range(2 * largest + 12):
        assert bool(pattern.search(str(number))) == (number <= largest)
