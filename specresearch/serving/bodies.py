"""The bodies of requests: OpenAI's fields, vLLM's for sampling, and this project's for drafting.

Unknown fields are tolerated. A field that would change the output and is not supported is refused,
unless it holds the value that changes nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from specresearch.acceptance.threshold import WORKLOADS
from specresearch.sampling_params import COLDEST, HOTTEST, LARGEST_SEED, MOST_BIAS

MOST_CHOICES = 128
MOST_LOGPROBS = 20
LARGEST_TOKEN = 2**31 - 1
MOST_STOPS = 16
MOST_BIASES = 1024
MOST_PROMPTS = 256  # of one request


def _whole(value: Any) -> Any:
    """Return 3 for 3.0, which is an integer in JSON, also inside of lists."""
    if isinstance(value, list):
        return [_whole(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


Temperature = Annotated[
    float,
    Field(ge=0, le=HOTTEST),
    WithJsonSchema(
        {"type": "number", "anyOf": [{"const": 0}, {"minimum": COLDEST}], "maximum": HOTTEST}
    ),
]
Bias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=LARGEST_TOKEN)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]


class Body(BaseModel):
    """Base of all parts of a request: a value has the type that its schema says."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    _whole_numbers = field_validator("*", mode="before")(_whole)


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="send a last chunk with the usage")
    include_speculation: bool | None = Field(
        None, description="send with every chunk who wrote its tokens, and the drafts of the step"
    )


class JsonSchema(Body):
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"type": {"enum": ["text", "json_object"]}}},
                {"properties": {"json_schema": {"type": "object"}}, "required": ["json_schema"]},
            ]
        }
    )

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError('{"type": "json_schema"} needs the field json_schema')
        return self

    @property
    def schema_to_follow(self) -> dict[str, Any] | None:
        """Return the JSON schema of the answer; None if it may be any text."""
        if self.type == "json_object":
            return {"type": "object"}
        if self.type == "json_schema" and self.json_schema is not None:
            return self.json_schema.schema_ or {}
        return None


class GenerationBody(Body):
    """What both endpoints share."""

    model: str | None = Field(None, description="the served model; null means that one")
    temperature: Temperature | None = Field(None, description="0 is greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=LARGEST_TOKEN, description="0 or -1 turns it off")
    min_p: float | None = Field(None, ge=0, lt=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED)
    n: int | None = Field(None, ge=1, le=MOST_CHOICES, description="answers to each prompt")
    stop: StopString | Annotated[list[StopString], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOPS)] | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = Field(None, ge=1, le=LARGEST_TOKEN)
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Bias], Field(max_length=MOST_BIASES)
        ]
        | None
    ) = Field(None, description="added to the logits of token ids")
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    num_draft_tokens: int | None = Field(
        None, ge=0, le=1024, description="drafts in every step; 0 decodes plainly"
    )
    controller: bool | None = Field(
        None, description="false: draft as much as the proposer can, whatever the controller says"
    )
    acceptance: Literal["code", "structured", "prose"] | None = Field(
        None, description="preset of a server with acceptance=threshold"
    )

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the answer; None if it may be any text."""
        return None if self.response_format is None else self.response_format.schema_to_follow

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def sends_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def sends_speculation(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_speculation)

    @property
    def draft_threshold(self) -> float | None:
        return None if self.acceptance is None else WORKLOADS[self.acceptance]


class TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1, le=LARGEST_TOKEN)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    tools: Annotated[list[Any], WithJsonSchema({"type": "array", "maxItems": 0})] | None = None

    @field_validator("tools")
    @classmethod
    def _no_tools(cls, tools: list[Any] | None) -> list[Any] | None:
        if tools:
            raise ValueError("tools are not supported; leave them out")
        return tools

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS)]
    )
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    echo: Annotated[bool, WithJsonSchema({"type": "boolean", "const": False})] | None = None
    suffix: Annotated[str, WithJsonSchema({"type": "string", "maxLength": 0})] | None = None
    best_of: int | None = None

    @field_validator("echo", "suffix")
    @classmethod
    def _not_supported(cls, value: object) -> object:
        if value:
            raise ValueError("is not supported; leave it out")
        return value

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts, also of a body with a single one."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]  # pyright: ignore[reportReturnType]
        return prompt  # pyright: ignore[reportReturnType]
