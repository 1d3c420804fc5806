"""Sums and products along the paths of trees, for all nodes of all rows at once."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped


def flat_parents(parents: Int[np.ndarray, "#B N"], num_rows: int) -> Int[np.ndarray, " BN"]:
    """Return the parents of the nodes of all rows, one row after another.

    A root is its own parent.
    """
    rows, width = num_rows, parents.shape[1]
    above = np.broadcast_to(parents.clip(min=0), (rows, width))
    return (above + width * np.arange(rows)[:, None]).ravel()


def ancestors(parents: Int[np.ndarray, " BN"], max_depth: int) -> list[Int[np.ndarray, " BN"]]:
    """Return the nodes that are 1, 2, 4 .. levels above each, until all reach their root.

    Args:
        parents: As `flat_parents` returns them.
        max_depth: No node is deeper.
    """
    above = [parents]
    while 1 << len(above) < max_depth:
        above.append(above[-1][above[-1]])
    return above


def along_paths(
    combine: np.ufunc, values: Shaped[np.ndarray, " BN"], above: Sequence[Int[np.ndarray, " BN"]]
) -> Shaped[np.ndarray, " BN"]:
    """Combine the values from the root down to each node, e.g. by `np.multiply`.

    Args:
        values: That of a root must be neutral: 1 for products, 0 for sums.
        above: As `ancestors` returns them.
    """
    for nodes in above:  # each pass doubles the reach of a path
        values = combine(values, values[nodes])
    return values
