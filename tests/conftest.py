"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real prompts and text that cannot be shipped; tests that read them are skipped where they are missing."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real data is not here")
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
