"""What sublayers cost, as shares of a pass of the target over one token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from specresearch.clock import Clock
from specresearch.models import CausalLM
from specresearch.models.layer_view import Sublayers, skip_sublayers
from specresearch.progress import Progress
from specresearch.proposal import Proposal

CONTEXT = 64  # tokens before the timed one
ROUNDS = 30


@dataclass(frozen=True)
class SublayerCosts:
    """Times in units of a pass of the whole target over one token.

    Attributes:
        attention: Of one layer's attention.
        mlp: Of one layer's MLP.
        verification: Of a pass over several tokens, by their number.
        seconds: The unit.
    """

    attention: float
    mlp: float
    verification: Mapping[int, float]
    seconds: float

    def draft_pass(self, skipped: Sublayers) -> float:
        """Return the time of a draft token without some sublayers."""
        saved = len(skipped.attention) * self.attention + len(skipped.mlp) * self.mlp
        return max(1.0 - saved, 0.0)

    def verify(self, num_draft_tokens: int) -> float:
        """Return the time of a pass that verifies a chain; sizes between are interpolated."""
        sizes = sorted(self.verification)
        times = [self.verification[size] for size in sizes]
        return float(np.interp(num_draft_tokens + 1, sizes, times))

    def speedup(self, tokens_per_step: float, num_draft_tokens: int, draft_pass: float) -> float:
        """Return the speedup over plain decoding, without prefill and host costs."""
        return tokens_per_step / (num_draft_tokens * draft_pass + self.verify(num_draft_tokens))

    def break_even(self, num_draft_tokens: int, draft_pass: float) -> float:
        """Return the acceptance at which a chain is as fast as plain decoding; 1 may not suffice.

        Acceptance a of every draft gives 1 + a + ... + a^k tokens a step.
        """
        needed = num_draft_tokens * draft_pass + self.verify(num_draft_tokens)
        low, high = 0.0, 2.0
        for _ in range(50):
            middle = (low + high) / 2
            if sum(middle**i for i in range(num_draft_tokens + 1)) < needed:
                low = middle
            else:
                high = middle
        return high


def measure_costs(target: CausalLM, max_draft_tokens: int) -> SublayerCosts:
    """Time the target, and it without the attention or without the MLP of all but one layer."""
    layers = range(1, target.num_layers)
    without = {
        "attention": skip_sublayers(target, Sublayers.of(attention=layers)),
        "mlp": skip_sublayers(target, Sublayers.of(mlp=layers)),
    }
    sizes = sorted({1, 2, 1 + max_draft_tokens // 2, 1 + max_draft_tokens})
    passes: dict[str | int, Callable[[], object]] = {size: _pass(target, size) for size in sizes}
    passes |= {name: _pass(view, 1) for name, view in without.items()}
    clock = Clock(target.device)
    seconds: dict[str | int, list[float]] = {name: [] for name in passes}
    with Progress(ROUNDS, "rounds", what="timing passes") as progress:
        for _ in range(ROUNDS):
            for name, run in passes.items():
                begin = clock.now()
                run()
                _wait(target.device)
                seconds[name].append(clock.now() - begin)
            progress.advance()
    for model in (target, *without.values()):
        model.free_cache()
    # shares of the same round meet the same load of the machine
    plain = seconds[1]
    share = {
        name: median(one / whole for one, whole in zip(times, plain, strict=True))
        for name, times in seconds.items()
    }
    return SublayerCosts(
        attention=max(1 - share["attention"], 0.0) / len(layers),
        mlp=max(1 - share["mlp"], 0.0) / len(layers),
        verification={size: share[size] for size in sizes},
        seconds=median(plain),
    )


def _pass(model: CausalLM, num_nodes: int) -> Callable[[], object]:
    """Return a call that runs a chain after a context; nothing is committed."""
    if not model.cache.num_slots:
        model.allocate(1, 64, max_len=min(CONTEXT + 64, model.max_len))
        model.extend((0,), [[0] * min(CONTEXT, model.max_len // 2)], want_logits=False)
    ids = torch.zeros((1, num_nodes), dtype=torch.long, device=model.device)
    proposal = Proposal.chain(ids, torch.tensor([num_nodes], device=model.device))
    return lambda: model.forward((0,), proposal)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
