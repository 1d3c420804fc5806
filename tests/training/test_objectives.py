"""Every objective equals its formula in probabilities."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import yaml
from hydra.utils import instantiate
from torch import Tensor

from specresearch.training import objectives
from specresearch.training.objectives import (
    CrossEntropy,
    Divergence,
    ForwardKL,
    JensenShannon,
    KLTVHybrid,
    NegLogAcceptance,
    Objective,
    ReverseKL,
    TotalVariation,
    indices_in,
)

R, V, INF = 6, 9, math.inf
LABELS = torch.tensor([3, -1, 0, 8, 8, -1])

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain_kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(-1)


def plain_jensen_shannon(beta: float) -> Formula:
    def divergence(p: Tensor, q: Tensor, labels: Tensor) -> Tensor:
        m = beta * p + (1 - beta) * q
        return beta * plain_kl(p, m) + (1 - beta) * plain_kl(q, m)

    return divergence


def plain_hybrid(p: Tensor, q: Tensor, labels: Tensor) -> Tensor:
    acceptance = torch.minimum(p, q).sum(-1)
    weight = (-3 * acceptance.detach()).exp()
    return weight * plain_kl(p, q) + (1 - weight) * (1 - acceptance)


FORMULAS: dict[Callable[..., Objective], Formula] = {
    CrossEntropy: lambda p, q, labels: torch.stack(
        [
            -row[i].log() if i >= 0 else row.sum() * 0
            for row, i in zip(q, labels.tolist(), strict=True)
        ]
    ),
    ForwardKL: lambda p, q, labels: plain_kl(p, q),
    ReverseKL: lambda p, q, labels: plain_kl(q, p),
    JensenShannon: plain_jensen_shannon(0.5),
    lambda temperature=1.0: JensenShannon(0.2, temperature): plain_jensen_shannon(0.2),
    TotalVariation: lambda p, q, labels: 1 - torch.minimum(p, q).sum(-1),
    NegLogAcceptance: lambda p, q, labels: -torch.minimum(p, q).sum(-1).log(),
    KLTVHybrid: plain_hybrid,
}
NAMES = [
    getattr(kind, "__name__", "?").replace("<lambda>", "JensenShannon(0.2)") for kind in FORMULAS
]
KINDS = list(FORMULAS)
DIVERGENCES = [kind for kind in KINDS if kind is not CrossEntropy]
every_objective = pytest.mark.parametrize("kind", KINDS, ids=NAMES)
every_divergence = pytest.mark.parametrize(
    "kind", DIVERGENCES, ids=[n for n in NAMES if n != "CrossEntropy"]
)


def logits(seed: int, rows: int = R, num_tokens: int = V) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(rows, num_tokens, generator=generator, dtype=torch.float64)


def gradients(loss: Tensor, of: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the sum, with zeros where it does not depend on an input."""
    grads = torch.autograd.grad(loss.sum(), of, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(of, grads, strict=True)]


def acceptance(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    return torch.minimum(target_logits.softmax(-1), draft_logits.softmax(-1)).sum(-1)


class TestValues:
    @pytest.mark.parametrize("temperature", [1.0, 0.6])
    @every_objective
    def test_values_and_gradients_equal_the_formula(
        self, kind: Callable[..., Objective], temperature: float
    ) -> None:
        target, draft = logits(1).requires_grad_(), logits(2).requires_grad_()
        p, q = (target / temperature).softmax(-1), (draft / temperature).softmax(-1)
        expected = FORMULAS[kind](p, q, LABELS)
        expected_gradients = gradients(expected, [target, draft])
        objective = kind(temperature=temperature)
        loss = objective(target, draft, LABELS)
        assert loss.dtype == torch.float64
        torch.testing.assert_close(loss, expected)
        for actual, gradient in zip(
            gradients(loss, [target, draft]), expected_gradients, strict=True
        ):
            torch.testing.assert_close(actual, gradient)

        single = [x.detach().float().requires_grad_() for x in (target, draft)]
        loss = objective(single[0], single[1], LABELS)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
        for actual, gradient in zip(gradients(loss, single), expected_gradients, strict=True):
            torch.testing.assert_close(actual.double(), gradient, rtol=1e-4, atol=1e-6)

    @every_objective
    def test_low_precision_inputs_are_widened(self, kind: Callable[..., Objective]) -> None:
        target, draft = logits(1).bfloat16(), logits(2).bfloat16()
        loss = kind()(target, draft, LABELS)
        assert torch.equal(loss, kind()(target.float(), draft.float(), LABELS))
        assert loss.dtype == torch.float32

    @every_objective
    def test_adding_a_constant_to_logits_changes_nothing(
        self, kind: Callable[..., Objective]
    ) -> None:
        loss = kind()(logits(1), logits(2), LABELS)
        torch.testing.assert_close(kind()(logits(1) + 7, logits(2) - 5, LABELS), loss)

    def test_cross_entropy_is_zero_in_rows_without_a_label(self) -> None:
        draft = logits(2).requires_grad_()
        loss = CrossEntropy()(logits(1), draft, LABELS)
        (gradient,) = gradients(loss, [draft])
        assert torch.equal(loss == 0, LABELS < 0)
        assert torch.equal((gradient == 0).all(-1), LABELS < 0)

    @every_divergence
    def test_divergences_ignore_labels(self, kind: Callable[..., Objective]) -> None:
        loss = kind()(logits(1), logits(2), LABELS)
        assert torch.equal(kind()(logits(1), logits(2), torch.full_like(LABELS, -1)), loss)
        assert bool((loss > 0).all())

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: ForwardKL(temperature=0.0), "objective.temperature=0.0 must be above 0"),
            (lambda: CrossEntropy(temperature=math.nan), "objective.temperature=nan"),
            (lambda: JensenShannon(beta=1.0), "objective.beta=1.0 must lie between 0 and 1"),
            (lambda: KLTVHybrid(decay=-1.0), "objective.decay=-1.0 must be 0"),
        ],
    )
    def test_meaningless_settings_are_rejected(
        self, make: Callable[[], Objective], words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            make()


class TestDivergences:
    @every_divergence
    def test_divergences_are_zero_only_between_equal_distributions(
        self, kind: Callable[..., Divergence]
    ) -> None:
        target, labels = logits(1, 200), torch.zeros(200, dtype=torch.long)
        assert float(kind()(target, target + 3, labels).abs().max()) < 1e-12
        pair = [target.clone().requires_grad_() for _ in range(2)]
        assert (
            max(
                float(gradient.abs().max())
                for gradient in gradients(kind()(pair[0], pair[1], labels), pair)
            )
            < 1e-12
        )
        nudge = 0.1 * torch.eye(V, dtype=torch.float64)[torch.arange(200) % V]
        assert float(kind()(target, target + nudge, labels).min()) > 1e-10

    def test_total_variation_is_the_rejection_probability(self) -> None:
        target, draft = logits(1), logits(2)
        accepted = acceptance(target, draft)
        torch.testing.assert_close(TotalVariation()(target, draft, LABELS), 1 - accepted)
        torch.testing.assert_close(NegLogAcceptance()(target, draft, LABELS), -accepted.log())

    def test_jensen_shannon_lies_between_its_limits(self) -> None:
        target, draft = logits(1), logits(2)

        def divergence(beta: float, p: Tensor = target, q: Tensor = draft) -> Tensor:
            return JensenShannon(beta)(p, q, LABELS)

        torch.testing.assert_close(divergence(0.5), divergence(0.5, draft, target))
        assert not torch.allclose(divergence(0.3), divergence(0.3, draft, target))
        torch.testing.assert_close(divergence(0.3), divergence(0.7, draft, target))
        forward, reverse = ForwardKL()(target, draft, LABELS), ReverseKL()(target, draft, LABELS)
        torch.testing.assert_close(divergence(1e-7) / 1e-7, forward, rtol=1e-4, atol=0)
        torch.testing.assert_close(divergence(1 - 1e-7) / 1e-7, reverse, rtol=1e-4, atol=0)
        assert bool((divergence(0.5, 50 * target, 50 * draft) <= math.log(2) + 1e-12).all())

    def test_hybrid_goes_from_kl_to_total_variation(self) -> None:
        target, draft = logits(1), logits(2)
        torch.testing.assert_close(
            KLTVHybrid(decay=0.0)(target, draft, LABELS), ForwardKL()(target, draft, LABELS)
        )
        torch.testing.assert_close(
            KLTVHybrid(decay=1e4)(target, draft, LABELS), TotalVariation()(target, draft, LABELS)
        )

    def test_negative_log_acceptance_keeps_its_gradient_where_total_variation_has_none(
        self,
    ) -> None:
        """Even if a token's probability underflows in float32."""
        target = torch.tensor([[300.0, 0.0, 0.0]])
        draft = torch.tensor([[0.0, 300.0, 0.0]], requires_grad=True)
        label = torch.tensor([0])
        assert float(gradients(TotalVariation()(target, draft, label), [draft])[0].norm()) == 0
        (gradient,) = gradients(NegLogAcceptance()(target, draft, label), [draft])
        assert float(gradient[0, 0]) < -0.1
        assert float(gradient[0, 1]) > 0.1


class TestExtremeLogits:
    ROWS: dict[str, tuple[list[float], list[float]]] = {
        "the target rules a token out": ([1.0, -INF, 0.5, 2.0], [0.0, 1.0, 2.0, 3.0]),
        "the draft rules a token out": ([0.0, 1.0, 2.0, 3.0], [1.0, -INF, 0.5, 2.0]),
        "both rule the same out": ([1.0, -INF, 0.5, -INF], [0.0, -INF, 2.0, -INF]),
        "nothing in common": ([1.0, 2.0, -INF, -INF], [-INF, -INF, 0.0, 1.0]),
        "one token each": ([0.0, -INF, -INF, -INF], [-INF, 0.0, -INF, -INF]),
        "the same token": ([-INF, 5.0, -INF, -INF], [-INF, 0.0, -INF, -INF]),
        "huge": ([1e30, -1e30, 0.0, 1e30], [-1e30, 1e30, 1e30, 0.0]),
        "huge and equal": ([1e30, -1e30, 0.0, 1e30], [1e30, -1e30, 0.0, 1e30]),
        "huge beside ruled out": ([-1e30, -INF, 1e30, 0.0], [1e30, 0.0, -INF, -INF]),
        "too small for float32": ([0.0, 200.0, -200.0, 5.0], [200.0, -200.0, 0.0, 5.0]),
    }

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @every_objective
    def test_losses_and_gradients_are_finite(
        self, kind: Callable[..., Objective], dtype: torch.dtype
    ) -> None:
        pair = [
            torch.tensor(rows, dtype=dtype, requires_grad=True)
            for rows in zip(*self.ROWS.values(), strict=True)
        ]
        for label in (0, 1, -1):
            loss = kind()(pair[0], pair[1], torch.full((len(self.ROWS),), label))
            assert bool(((loss > -1e-5) & loss.isfinite()).all())
            for gradient in gradients(loss, pair):
                assert bool(gradient.isfinite().all())

    @every_divergence
    def test_tokens_that_both_models_rule_out_change_nothing(
        self, kind: Callable[..., Divergence]
    ) -> None:
        """As in a vocabulary padded with unused tokens."""
        target, draft = logits(1).requires_grad_(), logits(2).requires_grad_()
        padding = torch.full((R, 4), -INF, dtype=torch.float64)
        loss = kind()(target, draft, LABELS)
        padded = kind()(torch.cat([target, padding], 1), torch.cat([draft, padding], 1), LABELS)
        torch.testing.assert_close(padded, loss)
        for actual, expected_gradients in zip(
            gradients(padded, [target, draft]), gradients(loss, [target, draft]), strict=True
        ):
            torch.testing.assert_close(actual, expected_gradients)

    @every_objective
    def test_padding_of_the_targets_vocabulary_hardly_changes_the_loss(
        self, kind: Callable[..., Objective]
    ) -> None:
        """The target pads its vocabulary with unused tokens; the draft's ends before them."""
        tail = torch.full((R, 3), -40.0, dtype=torch.float64)
        missing = torch.full_like(tail, -INF)
        loss = kind()(torch.cat([logits(1), tail], 1), torch.cat([logits(2), missing], 1), LABELS)
        torch.testing.assert_close(loss, kind()(logits(1), logits(2), LABELS), rtol=1e-6, atol=1e-6)


def test_label_indices_are_rows_of_the_draft_vocabulary() -> None:
    labels = torch.tensor([[0, 9], [1, 9], [2, 9], [5, 9], [7, 9], [8, 9], [-1, 9]])[:, 0]
    assert indices_in(labels, torch.tensor([7, 0, 3, 5, 1])).tolist() == [1, 4, -1, 3, 0, -1, -1]


def test_every_objective_has_a_config_with_its_defaults() -> None:
    conf = Path(__file__).parents[2] / "conf" / "objective"
    built = {}
    for file in conf.glob("*.yaml"):
        settings = yaml.safe_load(file.read_text())
        objective = instantiate(settings)
        assert (
            vars(objective)
            == vars(type(objective)())
            == {k: v for k, v in settings.items() if k != "_target_"}
        )
        built[file.stem] = type(objective)
    kinds = {
        kind
        for kind in vars(objectives).values()
        if isinstance(kind, type) and issubclass(kind, Objective)
    }
    kinds -= {Objective, Divergence}
    assert sorted(built.values(), key=str) == sorted(kinds, key=str)
    assert kinds <= FORMULAS.keys()
