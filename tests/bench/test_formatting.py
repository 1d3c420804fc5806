from specresearch.bench.formatting import NUM_POSITIONS, by_position, describe_target, number


def test_positions_beyond_the_last_one_shown_are_announced() -> None:
    shown = by_position([0.5] * NUM_POSITIONS)
    assert shown.split() == ["0.50"] * NUM_POSITIONS
    assert by_position([0.5, None]) == "0.50 -"
    assert by_position([0.5] * 30) == f"{shown} ... (30 in all)"


def test_numbers_and_targets() -> None:
    assert number(None, 2) == "-"
    assert number(1234.5, 1) == "1,234.5"
    target = {"model": "zoo:tiny", "num_parameters": 11_474_240, "dtype": "float32"}
    assert describe_target(target) == "zoo:tiny (11.5M parameters, float32)"
