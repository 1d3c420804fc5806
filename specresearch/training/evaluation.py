"""Evaluate a student by what decoding accepts of its drafts."""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.sampling import SamplingParams
from specresearch.training.acceptance_estimate import AcceptancePredictor
from specresearch.training.corpus.examples import Example
from specresearch.training.parity import DecodedText, compare, decode
from specresearch.training.parity_causes import likely_cause
from specresearch.training.students import Student

logger = logging.getLogger(__name__)


class Evaluation:
    """Held-out prompts, decoded at each temperature and compared with predicted acceptance.

    Acceptance is also predicted for texts written beforehand, which needs no decoding.

    Args:
        texts: Texts of the target; those without a token to predict are dropped.
        text_temperature: Temperature they were written at.
        num_prompts: Number of their prompts to decode.
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
            "max_new_tokens": max_new_tokens,
        }
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"evaluation.{name}={count} must be at least 1")
        self.examples = [text for text in texts if any(text.loss_mask)]
        if not self.examples:
            raise ValueError(
                "no held-out text to evaluate on; raise corpus.heldout_fraction or take a larger "
                "dataset"
            )
        self.target = target
        self.num_draft_tokens = num_draft_tokens
        self.batch_size = batch_size
        self.text_temperature = text_temperature
        self.texts: list[tuple[list[int], list[int]]] = []
        for example in self.examples:
            end = example.num_prompt_tokens
            self.texts.append((example.token_ids[:end], example.token_ids[end:]))
        self.prompts = [prompt for prompt, _ in self.texts[:num_prompts]]
        self.samplings = [
            SamplingParams(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
            for temperature in temperatures
        ]

    def __call__(self, student: Student) -> dict[str, Any]:
        """Return the metrics of a student.

        If training has changed the target, the changed one decodes, and `backbone/...` measures its
        distance to the original along the texts. `predicted/...` belongs to the texts,
        `t<temperature>/...` to decoding. A disagreement of decoding and prediction that neither
        chance nor rounding explains is logged as a warning, with its likeliest cause.
        """
        target = student.verifier or self.target
        predictor = self._predictor(student, self.text_temperature)
        with torch.no_grad():
            estimate = predictor.estimate(self.texts)
        metrics: dict[str, Any] = {
            "predicted/mean_acceptance_length": estimate.mean_acceptance_length
        }
        for position, rate in enumerate(estimate.acceptance_by_position.tolist(), start=1):
            metrics[f"predicted/acceptance_at_{position}"] = rate
        if target is not self.target:
            metrics |= self._distance_to(target)
        for sampling in self.samplings:
            metrics |= self._decode(student, sampling)
        return metrics

    def _predictor(self, student: Student, temperature: float) -> AcceptancePredictor:
        target = student.verifier or self.target
        return AcceptancePredictor(student, target, self.num_draft_tokens, temperature)

    @torch.no_grad()
    def _distance_to(self, backbone: CausalLM) -> dict[str, float]:
        """Return means over all reply tokens: total variation and argmax agreement."""
        distances, agreements = [], []
        for prompt, output in self.texts:
            token_ids = torch.tensor([[*prompt, *output]], device=self.target.device)
            probs: list[torch.Tensor] = []
            for model in (self.target, backbone):
                states = model.forward_whole(token_ids, (FINAL_NORM,)).hidden[0]
                logits = model.readout(states[0, len(prompt) - 1 : -1])
                probs.append(logits.double().softmax(-1))
            p, q = probs
            distances.append((p - q).abs().sum(-1) / 2)
            agreements.append(p.argmax(-1) == q.argmax(-1))
        return {
            "backbone/total_variation": float(torch.cat(distances).mean()),
            "backbone/greedy_agreement": float(torch.cat(agreements).double().mean()),
        }

    def _decode(self, student: Student, sampling: SamplingParams) -> dict[str, Any]:
        temperature = sampling.temperature
        prefix = f"t{temperature:g}"
        predictor = self._predictor(student, temperature)
        texts = decode(predictor, self.prompts, sampling, self.batch_size)
        parity = compare(predictor, texts)
        predicted = parity.predicted.mean_acceptance_length
        metrics: dict[str, Any] = {
            f"{prefix}/mean_acceptance_length": parity.measured,
            f"{prefix}/predicted_mean_acceptance_length": predicted,
            f"{prefix}/turned": parity.flipped,
        }
        if temperature > 0 and student.samples:
            metrics[f"{prefix}/deviation"] = parity.deviation
        if not parity.holds:
            cause = likely_cause(predictor, texts)
            logger.warning("at temperature %g %s; %s", temperature, parity, cause)
        if self.target.tokenizer is not None:
            metrics[f"{prefix}/sample"] = mark_steps(texts[0], self.target.tokenizer)
        return metrics


def mark_steps(text: DecodedText, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the output with a bar after each step; all but the last token of a step are drafts."""
    ends = [root + accepted + 2 - len(text.prompt) for root, _, accepted in text.steps]
    prefixes = [str(tokenizer.decode(list(text.output[:end]))) for end in [0, *ends]]
    return "|".join(after[len(before) :] for before, after in pairwise(prefixes))
