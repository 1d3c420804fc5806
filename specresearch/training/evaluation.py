"""What a student is worth, in the figures that decoding will show."""

from collections.abc import Sequence
from typing import Any

import torch

from specresearch.models import CausalLM
from specresearch.sampling import SamplingParams
from specresearch.training.estimate import estimate
from specresearch.training.examples import Example
from specresearch.training.parity import compare, decode
from specresearch.training.students import Student


class Evaluation:
    """Held-out prompts decoded for real at each of `temperatures`, beside what expected acceptance predicts of these texts; and
    the prediction for texts that were written before, which costs no decoding.

    texts: of the target, prompt and reply, written at `text_temperature`. num_prompts: of them to be decoded again.
    """

    def __init__(
        self,
        target: CausalLM,
        texts: Sequence[Example],
        *,
        text_temperature: float,
        num_prompts: int = 16,
        num_draft_tokens: int = 5,
        max_new_tokens: int = 64,
        temperatures: Sequence[float] = (0.0, 1.0),
        batch_size: int = 8,
        seed: int = 0,
    ) -> None:
        if not texts:
            raise ValueError("no held-out text to evaluate on; raise corpus.heldout_fraction or take a larger dataset")
        self.target, self.num_draft_tokens = target, num_draft_tokens
        split = [(text.token_ids[: text.num_prompt_tokens], text.token_ids[text.num_prompt_tokens :]) for text in texts]
        self.texts, self.text_temperature = split, text_temperature
        self.prompts = [prompt for prompt, _ in split[:num_prompts]]
        self.max_new_tokens, self.temperatures, self.batch_size = max_new_tokens, tuple(temperatures), batch_size
        self.seed = seed

    def __call__(self, student: Student) -> dict[str, Any]:
        """`predicted/...` of the texts; `t<temperature>/...` of decoding: measured and predicted tokens per step, and the largest
        deviation between the two in standard deviations."""
        with torch.no_grad():
            expected = estimate(student, self.target, self.texts, self.num_draft_tokens, self.text_temperature)
        values: dict[str, Any] = {"predicted/mean_acceptance_length": expected.mean_acceptance_length}
        for i, kept in enumerate(expected.acceptance_by_position.tolist()):
            values[f"predicted/acceptance_at_{i + 1}"] = kept
        for temperature in self.temperatures:
            sampling = SamplingParams(temperature=temperature, max_new_tokens=self.max_new_tokens, seed=self.seed)
            trials = decode(student, self.target, self.prompts, self.num_draft_tokens, sampling, self.batch_size)
            parity = compare(student, self.target, trials, self.num_draft_tokens, temperature)
            name = f"t{temperature:g}"
            values[f"{name}/mean_acceptance_length"] = parity.measured
            values[f"{name}/predicted_mean_acceptance_length"] = parity.predicted.mean_acceptance_length
            values[f"{name}/deviation"] = float(abs(parity.z).max(initial=0.0))
        return values
