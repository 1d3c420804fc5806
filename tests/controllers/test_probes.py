"""When probes come, step by step."""

from collections.abc import Container

from specresearch.controllers.probes import Probes


def due(
    probes: Probes, num_steps: int, news: Container[int] = (), strange: Container[int] = ()
) -> list[int]:
    """Return the steps that probe.

    Args:
        news: Steps after which something has changed.
        strange: Steps with surprising times.
    """
    found, num_strange = [], 0
    for step in range(num_steps):
        if probes.is_due(step, num_strange):
            found.append(step)
        num_strange = num_strange + 1 if step in strange else 0
        probes.note_change(step in news)
        probes.observe(step, num_strange)
    return found


def test_they_become_rare_while_nothing_is_new() -> None:
    probes = Probes(10)
    assert due(probes, 200) == [10, 30, 70, 110, 150, 190]
    assert probes.number == 7


def test_news_bring_them_back() -> None:
    assert due(Probes(10), 130, news=[75, 110]) == [10, 30, 70, 110, 120]


def test_a_strange_one_is_repeated_a_few_times() -> None:
    assert due(Probes(10), 40, strange=[10, 11]) == [10, 11, 12, 30]
    assert due(Probes(10), 40, strange=range(10, 40)) == [10, 11, 12, 13, 14, 30]
    probes = Probes(10)
    assert due(probes, 12, strange=[10]) == [10, 11]
    assert not probes.is_first(11)
