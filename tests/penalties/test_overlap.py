"""What drafts are foretold to gain on given text, against sums by hand and decoding itself."""

from itertools import product

import pytest
import torch
from tiny_models import build

from specresearch import CausalLM
from specresearch.penalties.overlap import acceptance, divergence, foretold_tokens, logits_on


def test_logits_judge_each_token_of_the_continuation() -> None:
    lm = CausalLM(build("llama"), max_len=40)
    prompt, said = [3, 1, 4], [1, 5, 9, 2]
    found = logits_on(lm, prompt, said)
    lm.allocate(1)
    slot = (0,)
    for i in range(len(said)):
        lm.truncate(slot, (0,))
        expected = lm.extend(slot, [prompt + said[:i]]).logits[0, 0]
        assert torch.allclose(found[i], expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_acceptance_is_what_rejection_sampling_accepts(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    p, q = ((logits / temperature).softmax(-1) for logits in (target, draft))
    by_hand = (q * torch.minimum(torch.ones_like(p), p / q)).sum(-1)
    assert acceptance(target, draft, temperature) == pytest.approx(by_hand.tolist())
    assert acceptance(target, target, temperature) == pytest.approx([1.0] * 3)


def test_greedy_acceptance_is_the_same_first_choice() -> None:
    target = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    draft = torch.tensor([[0.0, 5.0, 4.0], [0.0, 1.0, 0.0]])
    assert acceptance(target, draft, 0.0) == [1.0, 0.0]


def test_a_draft_with_fewer_tokens_shares_the_first_ones() -> None:
    target = torch.zeros(1, 4)
    assert acceptance(target, torch.zeros(1, 2), 1.0) == [0.5]


def test_foretold_tokens_are_expected_lengths_over_all_starts() -> None:
    chances, num_drafts = [0.9, 0.2, 0.5, 0.7], 2
    total, num_starts = foretold_tokens(chances, num_drafts)
    expected = 0.0
    for start in range(3):
        for outcome in product((0, 1), repeat=num_drafts):
            weight, length = 1.0, 1
            for offset, accepted in enumerate(outcome):
                chance = chances[start + offset]
                weight *= chance if accepted else 1 - chance
                length += all(outcome[: offset + 1])
            expected += weight * length
    assert (total, num_starts) == (pytest.approx(expected), 3)
    assert foretold_tokens([0.5], 2) == (0.0, 0)


def test_divergence_is_that_of_the_distributions() -> None:
    p, q = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.75, 0.0]])
    found = divergence(p.log(), q.log())
    assert found.kl == pytest.approx(float((p[0, :2] * (p / q)[0, :2].log()).sum()))
    assert found.tv == pytest.approx(0.25)
    assert divergence(p.log(), p.log()).kl == 0
