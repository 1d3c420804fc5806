"""States come back in order, and none that was not added."""

from itertools import chain

import pytest
import torch

from specresearch.proposers.kept_states import JOIN_EVERY, KeptStates

WIDTHS = (3, 2)  # of two layers


def random_layers(
    generator: torch.Generator, num_rows: int, num_states: int
) -> tuple[torch.Tensor, ...]:
    return tuple([torch.randn((num_rows, num_states, w), generator=generator) for w in WIDTHS])


def test_states_come_back_in_order_whatever_the_batch_was() -> None:
    """Rows join, leave, copy and change places; many steps pass without a draft."""
    generator = torch.Generator().manual_seed(1)
    unread, expected = KeptStates(), {slot: [] for slot in range(6)}

    def random(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    for step in range(3000):
        slots = torch.randperm(6, generator=generator)[: 1 + step % 4].tolist()
        width = 100 if step % 23 == 5 else 3  # a prompt, or a step
        layers = random_layers(generator, len(slots), width)
        first = [random(2) for _ in slots]
        counts = torch.randint(0, width, (len(slots),), generator=generator).tolist()
        unread.add(slots, layers, counts, first if any(first) else None)
        for b, (slot, begin, count) in enumerate(zip(slots, first, counts, strict=True)):
            states = range(begin, begin + count)
            expected[slot] += [(layers[0][b, i], layers[1][b, i]) for i in states]
        if step % 31 == 30:
            source, slot = torch.randperm(6, generator=generator)[:2].tolist()
            unread.copy(source, slot)
            expected[slot] = list(expected[source])
        if step % 37 == 36:
            slot = random(6)
            count = random(len(expected[slot]) + 2)
            unread.keep(slot, count)
            expected[slot] = expected[slot][:count]
        if step % 17 == 16:
            taken = [slot for slot in range(6) if expected[slot]]
            is_whole = random(2)
            wanted = [len(expected[s]) if is_whole else 1 + random(len(expected[s])) for s in taken]
            whole = [torch.stack([states[0] for states in expected[s]]) for s in taken]
            for rows, states in zip(unread.read(taken)[0], whole, strict=True):
                assert torch.equal(rows[: len(states)], states)
            for k, rows in enumerate(unread.take(taken, wanted)):
                assert rows.shape == (len(taken), max(wanted), WIDTHS[k])
                for row, slot, count in zip(rows, taken, wanted, strict=True):
                    own = torch.stack([states[k] for states in expected[slot][:count]])
                    assert torch.equal(row[:count], own)
                    assert torch.equal(row[count:], own[-1:].expand(max(wanted) - count, -1))
            for slot, count in zip(taken, wanted, strict=True):
                expected[slot] = expected[slot][count:]
        assert [unread.count(slot) for slot in range(6)] == list(map(len, expected.values()))


def held(states: KeptStates) -> int:
    """Return how many states the tensors hold that are kept for any slot."""
    layers = [part.layers for part in chain(*states._older.values())] + states._sources
    return sum({id(each): len(each[0]) for each in layers}.values())


def test_what_waits_for_long_lets_go_of_other_rows() -> None:
    """Seven rows draft, and one waits; then nobody is left."""
    generator, states = torch.Generator().manual_seed(1), KeptStates()
    drafting = list(range(1, 8))
    for step in range(1, 301):
        if step > 1:
            states.take(drafting, [3] * 7)
        states.add([0, *drafting], random_layers(generator, 8, 4), [1] + [3] * 7)
        assert states.count(0) == step
        assert held(states) <= step + JOIN_EVERY * 8
    states.drop(range(8))
    assert held(states) == 0


def test_what_all_rows_have_read_is_let_go_of() -> None:
    generator, states = torch.Generator().manual_seed(1), KeptStates()
    for _ in range(2 * JOIN_EVERY):
        states.add(range(4), random_layers(generator, 4, 3), [3] * 4)
        assert held(states) == 12
        states.take(range(4), [3] * 4)
        assert held(states) == 0


def test_taking_more_states_than_kept_is_an_error() -> None:
    unread = KeptStates()
    unread.add([2, 4], random_layers(torch.Generator(), 2, 1), [1, 0])
    assert unread.count(4) == 0  # a prompt of one token
    with pytest.raises(ValueError, match="slot 4 has 0 states, not 1"):
        unread.take([2, 4], [1, 1])
    unread.drop([2])
    assert not unread
