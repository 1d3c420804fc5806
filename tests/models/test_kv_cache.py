from collections.abc import Sequence

import pytest
import torch

from specresearch.models.kv_cache import SlotCache

SLOTS, COLUMNS, HEADS, KEY_WIDTH, VALUE_WIDTH = 5, 12, 2, 3, 4
CPU = torch.device("cpu")


def new_rows(num_rows: int, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of different widths, as in latent attention."""
    shape = (num_rows, HEADS, num_nodes)
    return torch.randn(*shape, KEY_WIDTH), torch.randn(*shape, VALUE_WIDTH)


@pytest.mark.parametrize("slots", [(0,), (3,), (1, 2, 3), (4, 0, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_writes_and_reads_equal_a_naive_copy(
    slots: Sequence[int], ragged: bool, num_nodes: int
) -> None:
    cache = SlotCache(SLOTS, COLUMNS, CPU)
    naive = torch.zeros(SLOTS, COLUMNS, HEADS, KEY_WIDTH)
    starts = [0] * len(slots)
    for step in range(3):
        region = cache.region(slots, starts, num_nodes)
        for layer in range(2):
            key, value = new_rows(len(slots), num_nodes)
            keys, values = cache.update(layer, region, key, value)
            assert keys.shape == (len(slots), HEADS, max(starts) + num_nodes, KEY_WIDTH)
            assert values.shape == (len(slots), HEADS, max(starts) + num_nodes, VALUE_WIDTH)
            if layer == 0:
                for b, (slot, start) in enumerate(zip(slots, starts, strict=True)):
                    naive[slot, start : start + num_nodes] = key[b].transpose(0, 1)
                assert torch.equal(keys, naive[list(slots), : region.width].transpose(1, 2))
        starts = [start + (1 + (b + step) % 2 if ragged else 1) for b, start in enumerate(starts)]


def test_neighbouring_rows_are_read_without_a_copy() -> None:
    cache = SlotCache(SLOTS, COLUMNS, CPU)
    key, value = new_rows(2, 1)
    keys, _ = cache.update(0, cache.region((1, 2), (4, 6), 1), key, value)
    assert keys.untyped_storage().data_ptr() == cache.buffers[0][0].untyped_storage().data_ptr()


def test_other_slots_are_left_alone() -> None:
    cache = SlotCache(SLOTS, COLUMNS, CPU)
    cache.update(0, cache.region(range(SLOTS), [0] * SLOTS, 4), *new_rows(SLOTS, 4))
    before = cache.buffers[0][0].clone()
    cache.update(0, cache.region((3, 1), (2, 5), 2), *new_rows(2, 2))
    changed = (cache.buffers[0][0] != before).flatten(2).any(2).nonzero().tolist()
    assert changed == [[1, 5], [1, 6], [3, 2], [3, 3]]


@pytest.mark.parametrize(("is_apart", "num_pieces"), [(False, 2), (True, 6)])
def test_buffers_share_memory_unless_they_are_to_lie_apart(is_apart: bool, num_pieces: int) -> None:
    layers = SlotCache(1, 1, CPU)
    for layer in range(3):
        layers.update(layer, layers.region((0,), (0,), 1), *new_rows(1, 1))
    cache = SlotCache(2, 6, CPU, like=layers, is_apart=is_apart)
    buffers = [buffer for pair in cache.buffers for buffer in pair]
    assert len({buffer.untyped_storage().data_ptr() for buffer in buffers}) == num_pieces
    for layer in range(3):
        cache.update(layer, cache.region((0, 1), (0, 0), 6), *new_rows(2, 6))
    before = [buffer.clone() for buffer in buffers]
    cache.move((1,), (4,), (2,))
    for buffer, old in zip(buffers, before, strict=True):
        assert torch.equal(buffer[1, 2], old[1, 4])
        assert torch.equal(buffer[0], old[0])


def test_move_reads_every_source_before_it_writes() -> None:
    cache = SlotCache(2, 6, CPU)
    cache.update(0, cache.region((0, 1), (0, 0), 6), *new_rows(2, 6))
    before = cache.buffers[0][1].clone()
    cache.move((0, 0, 1), (3, 2, 5), (2, 1, 4))
    after = cache.buffers[0][1]
    assert torch.equal(after[0, [1, 2]], before[0, [2, 3]])
    assert torch.equal(after[1, 4], before[1, 5])
    assert torch.equal(after[1, :4], before[1, :4])


def test_running_past_the_last_column_is_an_error() -> None:
    with pytest.raises(IndexError, match="column 13 of a cache of 12 columns"):
        SlotCache(SLOTS, COLUMNS, CPU).region((0, 1), (3, 10), 4)


def test_num_bytes_counts_every_buffer() -> None:
    cache = SlotCache(SLOTS, COLUMNS, CPU)
    assert cache.num_bytes == 0
    for layer in range(3):
        cache.update(layer, cache.region((0,), (0,), 1), *new_rows(1, 1))
    assert cache.bytes_per_column == 3 * HEADS * (KEY_WIDTH + VALUE_WIDTH) * 4
    assert cache.num_bytes == SLOTS * COLUMNS * cache.bytes_per_column
