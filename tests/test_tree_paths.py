"""Products and sums along paths, against a walk from every node to its root."""

import numpy as np

from specresearch.tree_paths import along_paths, ancestors, flat_parents


def test_each_node_combines_the_values_of_its_path() -> None:
    rng, width = np.random.default_rng(0), 9
    parents = np.array([[-1, *(int(rng.integers(0, n)) for n in range(1, width))] for _ in "abc"])
    values = rng.uniform(0.1, 1.0, parents.shape)
    values[:, 0] = 1.0
    flat = flat_parents(parents, len(parents))
    above = ancestors(flat, width - 1)
    products = along_paths(np.multiply, values.ravel(), above).reshape(parents.shape)
    depths = along_paths(np.add, (parents >= 0).ravel() * 1, above).reshape(parents.shape)
    for b, row in enumerate(parents.tolist()):
        for node in range(width):
            product, depth, above = 1.0, 0, node
            while above > 0:
                product, depth, above = product * values[b, above], depth + 1, row[above]
            assert np.isclose(products[b, node], product)
            assert depths[b, node] == depth


def test_rows_may_share_their_parents() -> None:
    chain = np.array([[-1, 0, 1]])
    above = ancestors(flat_parents(chain, 2), 2)
    depths = along_paths(np.add, np.array([0, 1, 1, 0, 1, 1]), above)
    assert depths.tolist() == [0, 1, 2, 0, 1, 2]
