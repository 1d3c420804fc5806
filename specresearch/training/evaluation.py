"""What a student is worth, in the figures that decoding will show."""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.sampling import SamplingParams
from specresearch.training.estimate import estimate
from specresearch.training.examples import Example
from specresearch.training.parity import Trial, compare, decode, likely_cause
from specresearch.training.students import Student

logger = logging.getLogger(__name__)


class Evaluation:
    """Held-out prompts decoded for real at each of `temperatures`, beside what expected acceptance predicts of these texts; and
    the prediction for texts that were written before, which costs no decoding.

    texts: of the target, prompt and reply, written at `text_temperature`; those without a token to predict are left out.
    num_prompts: of them to be decoded again. Raises ValueError when no text is left, or for settings that cannot be.
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
        counts = {
            "num_prompts": num_prompts,
            "num_draft_tokens": num_draft_tokens,
            "batch_size": batch_size,
        }
        for name, count in (counts | {"max_new_tokens": max_new_tokens}).items():
            if count < 1:
                raise ValueError(f"evaluation.{name}={count} must be at least 1")
        texts = [text for text in texts if any(text.loss_mask)]
        if not texts:
            raise ValueError(
                "no held-out text to evaluate on; raise corpus.heldout_fraction or take a larger dataset"
            )
        self.target, self.num_draft_tokens = target, num_draft_tokens
        self.examples = texts
        split = [
            (text.token_ids[: text.num_prompt_tokens], text.token_ids[text.num_prompt_tokens :])
            for text in texts
        ]
        self.texts, self.text_temperature = split, text_temperature
        self.prompts = [prompt for prompt, _ in split[:num_prompts]]
        self.batch_size = batch_size
        self.samplings = [
            SamplingParams(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
            for temperature in temperatures
        ]

    def __call__(self, student: Student) -> dict[str, Any]:
        """A student that has changed the target decodes with what it has made of it: its `verifier` takes the target's place, and
        `backbone/...` says how far that has moved from the target, along the texts.

        `predicted/...` of the texts; `t<temperature>/...` of decoding: tokens per step as measured and as predicted, the
        share of decisions without chance that went the other way, the largest deviation in standard deviations where chance
        decides, and the first output with a bar behind what each step delivered.

        What neither chance nor rounding explains is logged as a warning with its likeliest cause.
        """
        target = student.verifier or self.target
        with torch.no_grad():
            expected = estimate(
                student, target, self.texts, self.num_draft_tokens, self.text_temperature
            )
        values: dict[str, Any] = {
            "predicted/mean_acceptance_length": expected.mean_acceptance_length
        }
        for i, kept in enumerate(expected.acceptance_by_position.tolist()):
            values[f"predicted/acceptance_at_{i + 1}"] = kept
        if target is not self.target:
            values |= self._moved(target)
        for sampling in self.samplings:
            values |= self._decoded(student, target, sampling)
        return values

    @torch.no_grad()
    def _moved(self, backbone: CausalLM) -> dict[str, float]:
        """Means over the tokens of all replies: total variation, and where the likeliest tokens agree."""
        apart, agreeing = [], []
        for prompt, output in self.texts:
            token_ids = torch.tensor([[*prompt, *output]], device=self.target.device)
            sides = [
                model.readout(
                    model.forward_whole(token_ids, (FINAL_NORM,)).hidden[0][0, len(prompt) - 1 : -1]
                )
                for model in (self.target, backbone)
            ]
            p, q = (side.double().softmax(-1) for side in sides)
            apart.append((p - q).abs().sum(-1) / 2)
            agreeing.append(p.argmax(-1) == q.argmax(-1))
        return {
            "backbone/total_variation": float(torch.cat(apart).mean()),
            "backbone/greedy_agreement": float(torch.cat(agreeing).double().mean()),
        }

    def _decoded(
        self, student: Student, target: CausalLM, sampling: SamplingParams
    ) -> dict[str, Any]:
        num_drafts, temperature = self.num_draft_tokens, sampling.temperature
        name = f"t{temperature:g}"
        trials = decode(student, target, self.prompts, num_drafts, sampling, self.batch_size)
        parity = compare(student, target, trials, num_drafts, temperature)
        values: dict[str, Any] = {
            f"{name}/mean_acceptance_length": parity.measured,
            f"{name}/predicted_mean_acceptance_length": parity.predicted.mean_acceptance_length,
        }
        values[f"{name}/turned"] = parity.turned
        if temperature > 0 and student.samples:
            values[f"{name}/deviation"] = parity.deviation
        if not parity.holds:
            cause = likely_cause(student, target, trials, num_drafts, temperature)
            logger.warning("at temperature %g %s; %s", temperature, parity, cause)
        if self.target.tokenizer is not None:
            values[f"{name}/sample"] = barred(trials[0], self.target.tokenizer)
        return values


def barred(trial: Trial, tokenizer: PreTrainedTokenizerBase) -> str:
    """The output, with a bar behind what each step of decoding delivered: all but the last token of each was drafted."""
    ends = [root + accepted + 2 - len(trial.prompt) for root, _, accepted in trial.steps]
    texts = [str(tokenizer.decode(list(trial.output[:end]))) for end in [0, *ends]]
    return "|".join(now[len(before) :] for before, now in pairwise(texts))
