"""Sums and products along the paths of trees, for all nodes of all rows at once."""

import numpy as np
from jaxtyping import Int, Shaped


def flat_parents(parents: Int[np.ndarray, "#B N"], num_rows: int) -> Int[np.ndarray, " BN"]:
    """Return the parents of the nodes of all rows, one row after another.

    A root is its own parent.
    """
    rows, width = num_rows, parents.shape[1]
    above = np.broadcast_to(parents.clip(min=0), (rows, width))
    return (above + width * np.arange(rows)[:, None]).ravel()


def along_paths(
    combine: np.ufunc, values: Shaped[np.ndarray, " BN"], parents: Int[np.ndarray, " BN"]
) -> Shaped[np.ndarray, " BN"]:
    """Combine the values from the root down to each node, e.g. by `np.multiply`.

    Args:
        values: That of a root must be neutral: 1 for products, 0 for sums.
        parents: As `flat_parents` returns them.
    """
    above = parents
    while True:  # each pass doubles the reach of a path
        values, further = combine(values, values[above]), above[above]
        if (further == above).all():
            return values
        above = further
