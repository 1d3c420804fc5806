"""Losses in chunks equal losses of full logit matrices, in less memory."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specresearch.training.chunked_loss import DraftRows, chunked_losses
from specresearch.training.objectives import (
    CrossEntropy,
    ForwardKL,
    JensenShannon,
    KLTVHybrid,
    NegLogAcceptance,
    Objective,
    ReverseKL,
    TotalVariation,
    indices_in,
)

R, H, V = 23, 5, 11
IDS = torch.tensor([8, 1, 4, 10, 3])
WEIGHTS = (1.0, 0.8, 0.5)
OTHERS = [ReverseKL(), JensenShannon(), TotalVariation(), NegLogAcceptance()]
OBJECTIVES = [ForwardKL(), CrossEntropy(temperature=0.7), KLTVHybrid(), *OTHERS]


class Case:
    """Two drafts over the full vocabulary with one readout, and one over a part of it."""

    def __init__(self, num_rows: int = R) -> None:
        generator = torch.Generator().manual_seed(0)
        self.target = nn.Linear(H, V).double().requires_grad_(False)
        self.readouts = [
            nn.Linear(H, V).double(),
            nn.Linear(H, len(IDS)).double(),
            nn.Linear(H, 2).double(),
        ]
        self.parameters = [weight for readout in self.readouts for weight in readout.parameters()]
        self.wanted, *self.states = torch.randn(
            (4, num_rows, H), generator=generator, dtype=torch.float64
        ).unbind()
        self.labels = torch.randint(V, (num_rows,), generator=generator)
        self.valid = [
            torch.rand(num_rows, generator=generator) < share for share in (1.1, 0.7, 0.7)
        ]
        for states in self.states:
            states.requires_grad_(True)

    @property
    def drafts(self) -> list[DraftRows]:
        readouts_and_ids = [
            (self.readouts[0], None),
            (self.readouts[0], None),
            (self.readouts[1], IDS),
        ]
        parts = zip(self.states, readouts_and_ids, self.valid, WEIGHTS, strict=True)
        return [
            DraftRows(states, readout, valid, weight, ids)
            for states, (readout, ids), valid, weight in parts
        ]

    def chunked(
        self, objective: Objective, chunk_rows: int, drafts: list[DraftRows] | None = None
    ) -> tuple[Tensor, Tensor]:
        return chunked_losses(
            objective,
            target_states=self.wanted,
            target_readout=self.target,
            labels=self.labels,
            drafts=drafts or self.drafts,
            parameters=self.parameters,
            chunk_rows=chunk_rows,
        )

    def whole(self, objective: Objective) -> tuple[Tensor, Tensor]:
        p_logits, total, sums = self.target(self.wanted), torch.zeros((), dtype=torch.float64), []
        p = (p_logits / objective.temperature).softmax(-1)
        for draft in self.drafts:
            logits, ids = draft.readout(draft.states), draft.target_ids
            ids_of_rows = torch.arange(V) if ids is None else ids
            labels = self.labels if ids is None else indices_in(self.labels, ids)
            losses = objective(p_logits[:, ids_of_rows], logits, labels)
            learns = draft.valid
            if not isinstance(objective, CrossEntropy):
                learns = learns & torch.isin(p_logits.argmax(-1), ids_of_rows)
            loss = losses[learns].sum()
            q = (logits / objective.temperature).softmax(-1)
            accepted = torch.minimum(p[:, ids_of_rows], q).sum(-1)[draft.valid].sum()
            agreeing = (p_logits.argmax(-1) == ids_of_rows[logits.argmax(-1)])[draft.valid].sum()
            total = total + draft.weight * loss
            sums.append(
                torch.stack([loss, accepted, agreeing.double(), draft.valid.sum().double()])
            )
        return total, torch.stack(sums).detach()

    def whole_acceptance(self, objective: Objective, draft: DraftRows) -> Tensor:
        """Return the acceptance over every row of a reduced vocabulary."""
        p, q = (
            (logits.detach() / objective.temperature).softmax(-1)
            for logits in (self.target(self.wanted), draft.readout(draft.states))
        )
        return torch.minimum(p[:, draft.target_ids], q).sum()

    def gradients(self, loss: Tensor) -> list[Tensor]:
        grads = torch.autograd.grad(3 * loss, [*self.states, *self.parameters], allow_unused=True)
        return [torch.zeros(()) if part is None else part for part in grads]


@pytest.mark.parametrize("chunk_rows", [1, 7, R, 100])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_chunks_change_nothing(objective: Objective, chunk_rows: int) -> None:
    case = Case()
    (loss, sums), (expected, expected_sums) = (
        case.chunked(objective, chunk_rows),
        case.whole(objective),
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(sums, expected_sums)
    torch.testing.assert_close(case.gradients(loss), case.gradients(expected))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_a_draft_learns_nothing_from_tokens_outside_its_vocabulary(
    objective: Objective,
) -> None:
    """This means the target's likeliest token or the text's; other figures count every row."""
    case = Case()
    states = case.states[2]
    draft = replace(case.drafts[2], valid=torch.ones(R, dtype=torch.bool))
    loss, sums = case.chunked(objective, 7, [draft])
    (gradient,) = torch.autograd.grad(loss, [states])
    required_ids = (
        case.labels if isinstance(objective, CrossEntropy) else case.target(case.wanted).argmax(-1)
    )
    is_inside = torch.isin(required_ids, IDS)
    assert 5 < is_inside.sum() < R - 5
    assert torch.equal(gradient.abs().sum(-1) > 0, is_inside)
    assert sums[0, 3] == R
    torch.testing.assert_close(sums[0, 1], case.whole_acceptance(objective, draft))


class Widths(ForwardKL):
    """Records the sizes of vocabularies over which it normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def log_probs(self, logits: Tensor) -> Tensor:
        self.seen.add(logits.shape[-1])
        return super().log_probs(logits)


def test_the_whole_vocabulary_is_normalised_only_for_drafts_over_all_of_it() -> None:
    case = Case()
    reduced, whole = Widths(), Widths()
    case.chunked(reduced, 7, case.drafts[2:])
    case.chunked(whole, 7)
    assert reduced.seen == {len(IDS)}
    assert whole.seen == {len(IDS), V}


def test_tokens_that_the_target_masks_are_never_accepted() -> None:
    case = Case()
    with torch.no_grad():
        case.target.weight[IDS[:2]] = 0
        case.target.bias[IDS[:2]] = float("-inf")
    _, sums = case.chunked(ForwardKL(), 7, case.drafts[2:])
    torch.testing.assert_close(sums[0, 1], case.whole(ForwardKL())[1][2, 1])


def test_no_gradients_are_computed_if_disabled() -> None:
    case = Case()
    with torch.no_grad():
        loss, _ = case.chunked(ForwardKL(), 7)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, case.whole(ForwardKL())[0].detach())


def test_without_rows_the_loss_is_zero() -> None:
    case = Case(0)
    loss, sums = case.chunked(ForwardKL(), 7)
    assert loss == 0
    assert not sums.any()
    assert not any(part.any() for part in case.gradients(loss))


class Watch(TorchDispatchMode):
    """Count the elements of tensors.

    Attributes:
        largest: Elements of the largest tensor that any operation made.
        peak: The most elements alive at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.largest = max(self.largest, tensor.numel())
                if storage._cdata not in self._known:
                    self._known.add(storage._cdata)
                    self.live += storage.nbytes() // tensor.itemsize
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(
                        storage, self._forget, storage._cdata, storage.nbytes() // tensor.itemsize
                    )
        return out

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def test_logits_exist_for_one_chunk_at_a_time() -> None:
    case = Case(400)
    with Watch() as watch:
        case.gradients(case.chunked(ForwardKL(), 8)[0])
    assert watch.largest == 400 * H
    with Watch() as full:
        case.gradients(case.whole(ForwardKL())[0])
    assert full.largest >= 400 * V
    states = 400 * H * len(case.states)  # whose gradients are kept
    assert watch.peak < 2 * states + 60 * 8 * V < full.peak
