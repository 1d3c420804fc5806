"""What decoding will accept, from whole sequences: the law of the engine's steps along a text that the target wrote.

If token x of an output was drafted, the engine kept the draft with probability min(1, q(x) / p(x)); where drafts are the
likeliest tokens, it kept it if x was the draft. Given the text, these decisions are independent, so a dynamic programme over the
places where steps begin gives the expected number of steps, and what each position of a draft accepts, without decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.training.students import Student

ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Estimate:
    """Expected counts over texts.

    steps: of the engine. tokens: it delivers. drafted, accepted: at each position of the draft, the steps that drafted so
    far, and those that kept so many.
    """

    steps: float
    tokens: int
    drafted: NDArray[np.float64]
    accepted: NDArray[np.float64]

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step, the target's own one included."""
        return self.tokens / self.steps

    @property
    def acceptance_by_position(self) -> NDArray[np.float64]:
        """Probability that a draft of a step is kept to this position."""
        return self.accepted / np.maximum(self.drafted, 1e-300)

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )


@torch.no_grad()
def chances(
    student: Student,
    target: CausalLM,
    token_ids: Int[Tensor, "1 T"],
    num_drafts: int,
    temperature: float,
) -> Float[Tensor, "K T"]:
    """Row i, column g: the chance that token g is kept when it is the draft i + 1 places behind the root, those between having
    been kept. K: `num_drafts`, if the student can draft so many. temperature: of target and draft; 0 is greedy.
    """
    num_drafts = min(num_drafts, student.max_drafts or num_drafts)
    layers = (FINAL_NORM, *student.hidden_layers)
    final, *hidden = target.forward_whole(token_ids, layers).hidden
    num_tokens = token_ids.shape[1]
    table = torch.zeros((num_drafts, num_tokens), dtype=torch.float64)
    steps = list(student.steps(token_ids, hidden, num_drafts))[:num_drafts]
    for i, step in enumerate(steps):
        first = step.shift + 1
        rows = min(step.states.shape[1], num_tokens - first)
        for begin in range(step.first_row, rows, ROWS_AT_ONCE):
            end = min(begin + ROWS_AT_ONCE, rows)
            drafted = step.readout(step.states[0, begin:end])
            wanted = target.readout(final[0, begin + step.shift : end + step.shift])
            labels = token_ids[0, begin + first : end + first]
            kept = _kept(
                wanted.double(),
                drafted.double(),
                labels,
                step.target_ids,
                temperature if student.samples else 0.0,
            )
            table[i, begin + first : end + first] = kept.cpu()
    table[len(steps) :] = table[len(steps) - 1]
    return table


def _kept(
    target_logits: Float[Tensor, "R V"],
    draft_logits: Float[Tensor, "R D"],
    labels: Int[Tensor, " R"],
    target_ids: Int[Tensor, " D"] | None,
    temperature: float,
) -> Float[Tensor, " R"]:
    if target_ids is not None:
        whole = draft_logits.new_full(target_logits.shape, float("-inf"))
        draft_logits = whole.index_copy_(-1, target_ids, draft_logits)
    if temperature == 0:
        return (draft_logits.argmax(-1) == labels).double()
    at = labels[:, None]
    p = (target_logits / temperature).log_softmax(-1).gather(1, at)[:, 0]
    q = (draft_logits / temperature).log_softmax(-1).gather(1, at)[:, 0]
    return (q - p).exp().clamp(max=1)


def expect(chance: Float[Tensor, "K T"], num_prompt_tokens: int) -> Estimate:
    """The engine's steps along one text whose first `num_prompt_tokens` tokens were given.

    The last of these is the first root, and no step drafts beyond the last token but one, as in decoding up to a limit.
    chance: as `chances` gives it.
    """
    table = chance.numpy()
    num_drafts, num_tokens = table.shape
    begins = np.zeros(num_tokens)  # probability that a step has this token as its root
    begins[num_prompt_tokens - 1] = 1.0
    drafted, accepted = np.zeros(num_drafts), np.zeros(num_drafts)
    for root in range(num_prompt_tokens - 1, num_tokens - 1):
        allowed = min(num_drafts, num_tokens - 2 - root)
        reach = begins[root]
        for i in range(allowed):
            drafted[i] += begins[root]
            kept = reach * table[i, root + 1 + i]
            accepted[i] += kept
            begins[root + i + 1] += reach - kept
            reach = kept
        begins[root + allowed + 1] += reach
    return Estimate(float(begins[:-1].sum()), num_tokens - num_prompt_tokens, drafted, accepted)


def estimate(
    student: Student,
    target: CausalLM,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    num_drafts: int,
    temperature: float,
) -> Estimate:
    """Over texts of the target, each a prompt and what the target said at `temperature`."""
    if not texts:
        raise ValueError("no texts to estimate acceptance on")
    rows = (torch.tensor([[*prompt, *output]], device=target.device) for prompt, output in texts)
    tables = (chances(student, target, row, num_drafts, temperature) for row in rows)
    return reduce(
        add, (expect(table, len(prompt)) for table, (prompt, _) in zip(tables, texts, strict=True))
    )
