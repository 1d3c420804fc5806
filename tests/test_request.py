from collections.abc import Sequence

import pytest
import torch
from tiny_models import letters

from specresearch.request import Request, RequestState
from specresearch.sampling import SamplingParams

EOS = 30


def state(prompt: Sequence[int] = (1, 2), max_total_tokens: int = 100, **sampling) -> RequestState:
    return RequestState(
        Request(prompt, SamplingParams(**sampling)), 0, 0, frozenset({EOS}), max_total_tokens
    )


def alphabet(tokens: list[int]) -> str:
    return "".join("abcdefghijklmnopqrstuvwxyz"[token] for token in tokens)


class TestAppend:
    @pytest.mark.parametrize(
        ("sampling", "num_appended", "reason"),
        [
            ({}, 6, None),
            ({"max_new_tokens": 4}, 4, "length"),
            ({"max_new_tokens": 6}, 6, "length"),
            ({"stop_token_ids": (12,)}, 3, "stop"),
            ({"stop_token_ids": (15, 11)}, 2, "stop"),
            ({"stop_token_ids": (12,), "max_new_tokens": 3}, 3, "stop"),
        ],
    )
    def test_cuts_an_accepted_run_at_its_first_end(
        self, sampling: dict, num_appended: int, reason: str | None
    ) -> None:
        row = state(**sampling)
        assert row.append([10, 11, 12, 13, 14, 15], None) == num_appended
        assert row.output_ids == [10, 11, 12, 13, 14, 15][:num_appended]
        assert row.finish_reason == reason

    def test_eos_is_kept_and_can_be_ignored(self) -> None:
        row, deaf = state(), state(ignore_eos=True)
        assert row.append([4, EOS, 5], None) == 2
        assert (row.output_ids, row.finish_reason) == ([4, EOS], "eos")
        assert deaf.append([4, EOS, 5], None) == 3
        assert deaf.finish_reason is None

    def test_end_ids_in_the_prompt_do_not_count(self) -> None:
        row = state(prompt=[EOS, 5], stop_token_ids=(5,))
        assert row.append([1], None) == 1
        assert row.finish_reason is None

    def test_context_limit_bounds_the_output(self) -> None:
        row = state(prompt=[1] * 8, max_total_tokens=10)
        assert row.num_remaining == 2
        assert row.append([1, 1, 1], None) == 2
        assert row.finish_reason == "length"


class TestStopStrings:
    @pytest.mark.parametrize("split", range(1, 5))
    def test_across_the_borders_of_steps(self, split: int) -> None:
        row = state(stop=("hello",))
        tokens = [alphabet(list(range(26))).index(c) for c in "xxhello"]
        first = row.append(tokens[: 2 + split], alphabet)
        assert (first, row.finish_reason) == (2 + split, None)
        assert row.append([*tokens[2 + split :], 0, 0], alphabet) == 5 - split
        assert (row.finish_reason, row.stop_at) == ("stop", 2)

    def test_inside_one_token(self) -> None:
        row = state(stop=("bc",))
        assert row.append([0, 1, 2], lambda ids: "".join(["x", "abcd", "y"][i] for i in ids)) == 2
        assert row.stop_at == 2

    def test_the_earliest_of_several_wins(self) -> None:
        row = state(stop=("cd", "bcd"))
        row.append([0, 1, 2, 3, 4], alphabet)
        assert row.stop_at == 1

    def test_text_of_the_prompt_does_not_count(self) -> None:
        row = state(prompt=[0, 1], stop=("bc",))
        assert row.append([2, 3], alphabet) == 2
        assert row.finish_reason is None

    def test_characters_of_several_bytes_split_over_tokens(self) -> None:
        data = "añb€c".encode()

        def decode(ids: list[int]) -> str:
            return bytes(ids).decode(errors="replace")

        for stop in ("ñ", "€", "b€", "€c"):
            row = state(stop=(stop,), max_new_tokens=50)
            row.append(list(data), decode)
            assert row.finish_reason == "stop"
            assert decode(row.output_ids).endswith(stop)
            assert decode(row.output_ids)[: row.stop_at] + stop == decode(row.output_ids)

    @pytest.mark.parametrize("num_silent", [1, 3, 40])
    def test_with_tokens_inside_that_stand_for_no_text(self, num_silent: int) -> None:
        """Special tokens are skipped, and others may decode to nothing."""
        silent = 25
        row = state(stop=("hello",), max_new_tokens=400, max_total_tokens=500)
        letters_of = [alphabet(list(range(26))).index(c) for c in "xhello"]
        tokens = [token for letter in letters_of for token in (letter, *[silent] * num_silent)]
        row.append([*tokens, 3, 4], lambda ids: alphabet([id for id in ids if id != silent]))
        assert row.finish_reason == "stop"
        assert alphabet([id for id in row.output_ids if id != silent]) == "xhello"
        assert row.stop_at == 1

    def test_equal_to_a_rescan_of_the_whole_text(self) -> None:
        for seed in range(60):
            generator = torch.Generator().manual_seed(seed)
            tokens = torch.randint(0, 25, (40,), generator=generator).tolist()
            stop = letters(torch.randint(0, 25, (2,), generator=generator).tolist())
            row = state(stop=(stop,), max_new_tokens=100)
            row.append(tokens, letters)
            expected = next((n for n in range(1, 41) if stop in letters(tokens[:n])), 40)
            assert len(row.output_ids) == expected


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="request 'r7' has an empty prompt"):
        Request([], id="r7")
