"""How much of a target's own text a model would have drafted, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specresearch.engine import Engine
from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.hf_model import HFModel
from specresearch.models.layer_view import Sublayers, layer_view
from specresearch.request import Request
from specresearch.sampling import SamplingParams, argmax
from specresearch.training.acceptance_estimate import expected_steps

CHUNK_ROWS = 256  # whose logits exist at once
BATCH_SIZE = 8


@dataclass(frozen=True)
class TextAcceptance:
    """The probability that each token of some outputs is accepted as a draft.

    Attributes:
        by_text: Of every text its temperature, and a probability for each token of its output.
    """

    by_text: tuple[tuple[float, NDArray[np.float64]], ...]

    def mean(self, temperature: float | None = None) -> float:
        """Return the mean over all tokens, or those of one temperature."""
        return float(np.concatenate(self._of(temperature)).mean())

    def tokens_per_step(self, num_draft_tokens: int, temperature: float | None = None) -> float:
        """Return how many tokens a step with a chain of drafts delivers, the target's included."""
        steps, tokens = 0.0, 0
        for probs in self._of(temperature):
            # the last token of the prompt comes first, as the first root
            row = torch.from_numpy(np.concatenate([[0.0], probs]))
            estimate = expected_steps(row.expand(num_draft_tokens, -1), 1)
            steps += estimate.steps
            tokens += estimate.tokens
        return tokens / steps

    def _of(self, temperature: float | None) -> list[NDArray[np.float64]]:
        return [probs for own, probs in self.by_text if temperature in (None, own)]


class TargetTexts:
    """What the target says after some prompts, at several temperatures.

    Args:
        prompts: Token ids.
        max_new_tokens: Length of the outputs, whatever ends them otherwise.
    """

    def __init__(
        self,
        target: CausalLM,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        max_new_tokens: int,
        seed: int = 0,
    ) -> None:
        self.target = target
        self.temperatures = tuple(temperatures)
        self._texts: list[tuple[float, list[int], int]] = []
        engine = Engine(target, max_batch_size=BATCH_SIZE, seed=seed)
        for temperature in temperatures:
            sampling = SamplingParams(
                temperature=temperature, max_new_tokens=max_new_tokens, ignore_eos=True
            )
            requests = [Request(prompt, sampling) for prompt in prompts]
            for prompt, output in zip(prompts, engine.generate_all(requests), strict=True):
                tokens = [*prompt, *output.checked().token_ids]
                self._texts.append((temperature, tokens, len(prompt)))
        target.free_cache()
        self._log_p = [rows[0] for rows in self._rows(target)]

    @property
    def num_tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(len(tokens) - num_prompt for _, tokens, num_prompt in self._texts)

    def acceptance_without(self, skipped: Sublayers) -> TextAcceptance:
        """Return what is accepted of the target's drafts without some sublayers.

        Token x of the target's text is accepted with probability min(1, q(x) / p(x)), whose mean
        over texts that were drawn from p is the overlap of p and q. At temperature 0 it is
        accepted if q finds it likeliest.
        """
        view = HFModel(
            layer_view(self.target, skipped),
            self.target.tokenizer,
            attention=self.target.adapter.attention,
            pack_weights=False,
            name=self.target.name,
        )
        by_text = []
        texts = zip(self._texts, self._log_p, self._rows(view), strict=True)
        for (temperature, _, _), log_p, (log_q, is_likeliest) in texts:
            probs = is_likeliest if temperature == 0 else (log_q - log_p).exp().clamp(max=1)
            by_text.append((temperature, probs.cpu().numpy()))
        return TextAcceptance(tuple(by_text))

    @torch.inference_mode()
    def _rows(self, model: HFModel) -> list[tuple[Float[Tensor, " T"], Float[Tensor, " T"]]]:
        """Return the log-probability of every output token, and 1 where it is the likeliest."""
        rows = []
        for begin in range(0, len(self._texts), BATCH_SIZE):
            texts = self._texts[begin : begin + BATCH_SIZE]
            ids = [torch.tensor(tokens, device=model.device) for _, tokens, _ in texts]
            states = model.forward_whole(pad_sequence(ids, True), (FINAL_NORM,)).hidden[0]
            for i, (temperature, _, num_prompt) in enumerate(texts):
                before = states[i, num_prompt - 1 : len(ids[i]) - 1]
                parts = zip(
                    before.split(CHUNK_ROWS), ids[i][num_prompt:].split(CHUNK_ROWS), strict=True
                )
                scored = [_score(model.readout(part), x, temperature) for part, x in parts]
                log_probs, likeliest = zip(*scored, strict=True)
                rows.append((torch.cat(log_probs), torch.cat(likeliest)))
        return rows


def _score(
    logits: Float[Tensor, "R V"], tokens: Tensor, temperature: float
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """Return the log-probability of a token of each row, and 1 where it is the likeliest."""
    scaled = logits.float() / (temperature or 1.0)
    log_probs = scaled.gather(1, tokens[:, None])[:, 0] - scaled.logsumexp(-1)
    return log_probs.double(), (argmax(logits) == tokens).double()


def mean_tokens_per_step(
    acceptance: TextAcceptance, num_draft_tokens: int, temperatures: Sequence[float]
) -> float:
    """Return the mean over temperatures, which count alike."""
    return fmean(acceptance.tokens_per_step(num_draft_tokens, t) for t in temperatures)
