"""The body of a request, from the parameters that all of the project's measurements use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specresearch.sampling_params import SamplingParams

CHAT, COMPLETIONS = "chat", "completions"
PATHS = {CHAT: "chat/completions", COMPLETIONS: "completions"}
MAX_SEED = 2**31 - 1  # what every server takes
# parameters with the value that they need not be sent for; the last four are extensions
OPTIONAL = {
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": False,
}


@dataclass(frozen=True)
class CompletionRequest:
    """One request.

    Attributes:
        prompt: A user's message or a text, or the token ids of the whole prompt.
        num_draft_tokens: Drafts of every step, on servers that can be told; 0 decodes plainly.
    """

    prompt: str | Sequence[int]
    sampling: SamplingParams
    num_draft_tokens: int | None = None

    def body(self, model: str, api: str, *, counts_tokens: bool) -> dict[str, Any]:
        """Return what to send.

        Parameters that are off are left out, because servers refuse extensions they do not know.

        Args:
            api: CHAT or COMPLETIONS.
            counts_tokens: Whether the server can count tokens in every chunk.
        """
        sampling = self.sampling
        body: dict[str, Any] = {"model": model, **self._prompt(api), "stream": True}
        options = {"include_usage": True}
        if counts_tokens:
            options["continuous_usage_stats"] = True
        body |= {"stream_options": options, "max_tokens": sampling.max_new_tokens}
        body["temperature"] = sampling.temperature
        for name, off in OPTIONAL.items():
            if getattr(sampling, name) != off:
                body[name] = getattr(sampling, name)
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            body["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.seed is not None and not sampling.is_greedy:
            body["seed"] = sampling.seed % MAX_SEED
        if self.num_draft_tokens is not None:
            body["num_draft_tokens"] = self.num_draft_tokens
        return body

    def _prompt(self, api: str) -> dict[str, Any]:
        if api == CHAT:
            return {"messages": [{"role": "user", "content": self.prompt}]}
        is_text = isinstance(self.prompt, str)
        return {"prompt": self.prompt if is_text else list(self.prompt)}
