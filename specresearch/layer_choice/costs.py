"""What sublayers cost, as shares of a pass of the target over one token."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

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
    for model in (target, *without.values()):
        _prepare(model, max(sizes))
    passes: dict[str | int, Callable[[], object]] = {size: _pass(target, size) for size in sizes}
    passes |= {name: _pass(view, 1) for name, view in without.items()}
    seconds: dict[str | int, list[float]] = {name: [] for name in passes}
    with Progress(ROUNDS, "rounds", what="timing passes") as progress:
        for _ in range(ROUNDS):
            for name, run in passes.items():
                begin = _now(target.device)
                run()
                seconds[name].append(_now(target.device) - begin)
            progress.advance()
    for model in (target, *without.values()):
        model.free_cache()
    plain = median(seconds[1])
    share = {name: median(times) / plain for name, times in seconds.items()}
    return SublayerCosts(
        attention=max(1 - share["attention"], 0.0) / len(layers),
        mlp=max(1 - share["mlp"], 0.0) / len(layers),
        verification={size: share[size] for size in sizes},
        seconds=plain,
    )


def _prepare(model: CausalLM, num_nodes: int) -> None:
    """Fill a slot with a context, and leave room for a chain."""
    num_tokens = min(CONTEXT, model.max_len - 1)
    model.allocate(1, num_nodes, max_len=num_tokens + 1)
    model.truncate((0,), (0,))
    model.extend((0,), [[0] * num_tokens], want_logits=False)


def _pass(model: CausalLM, num_nodes: int) -> Callable[[], object]:
    """Return a call that runs a chain after the context; nothing is committed."""
    ids = torch.zeros((1, num_nodes), dtype=torch.long, device=model.device)
    proposal = Proposal.chain(ids, torch.tensor([num_nodes], device=model.device))
    return lambda: model.forward((0,), proposal)


def _now(device: torch.device) -> float:
    """Return the seconds that a device has worked.

    On a CPU that is processor time, which other work on the machine does not lengthen.
    """
    if device.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize(device)
    return time.perf_counter()
