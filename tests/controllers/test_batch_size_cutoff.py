import pytest
from simulation import batch_of, rows_of

from specresearch.controllers import BatchSizeCutoff


def test_drafts_up_to_the_cutoff() -> None:
    assert BatchSizeCutoff(3).budget(batch_of(rows_of(3))) == [None] * 3
    assert BatchSizeCutoff(3, 2).budget(batch_of(rows_of(3))) == [2] * 3
    assert BatchSizeCutoff(3, 2).budget(batch_of(rows_of(4))) == [0] * 4


def test_settings_out_of_range() -> None:
    with pytest.raises(ValueError, match="max_requests=0 must be at least 1"):
        BatchSizeCutoff(0)
    with pytest.raises(ValueError, match="num_draft_tokens=-1"):
        BatchSizeCutoff(num_draft_tokens=-1)
