"""What a recording says of a draft at each position, and what stands in where it says nothing."""

import numpy as np
from jaxtyping import Float

from specresearch.simulation.positions import Positions, StandIns


def positions(
    odds: Float[np.ndarray, " E"], logprobs: Float[np.ndarray, " E"], asked: list[bool]
) -> Positions:
    known = np.array(asked)
    told = np.where(known, odds, np.nan)
    return Positions(known, known & (odds >= 1), told, np.minimum(told, 1), logprobs, told, told)


def test_stand_ins_are_alike_where_the_target_is() -> None:
    rng = np.random.default_rng(0)
    logprobs = -rng.exponential(1.0, 4000)
    odds = np.exp(logprobs) * 2
    asked = rng.random(4000) < 0.9
    filled = StandIns([positions(odds, logprobs, asked.tolist())]).fill(
        positions(odds, logprobs, asked.tolist()), rng
    )
    assert np.isfinite(filled.odds).all()
    assert (filled.odds[asked] == odds[asked]).all()
    missing = ~asked & (logprobs > -2)
    assert np.abs(filled.odds[missing] - odds[missing]).mean() < 0.1 * odds[missing].std()
