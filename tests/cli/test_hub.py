"""Commands do not wait for a hub that does not answer."""

from pathlib import Path

import pytest
from huggingface_hub import constants
from omegaconf import OmegaConf

from specresearch.cli import stay_offline_without_hub
from specresearch.data import hub


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the endpoints that are probed, none of which answers."""
    endpoints: list[str] = []

    def probe(endpoint: str) -> str:
        endpoints.append(endpoint)
        return "no route"

    monkeypatch.setattr(hub, "probe", probe)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return endpoints


@pytest.mark.parametrize(
    "settings",
    [
        {"target": {"model": "owner/name"}, "draft": "zoo:tiny_draft"},
        {"target": {"model": "zoo:tiny"}, "draft": "owner/name"},
        {"target": {"model": "zoo:tiny"}, "proposer": {"head": "out/studnt"}},
        {"head": "out/studnt"},
    ],
)
def test_a_model_of_an_unreachable_hub_is_sought_in_the_local_cache_alone(
    settings: dict[str, object], probed: list[str]
) -> None:
    for _ in range(2):  # jobs of a sweep probe once
        stay_offline_without_hub(OmegaConf.create(settings))
    assert probed == [constants.ENDPOINT]
    assert constants.HF_HUB_OFFLINE


def test_a_hub_that_answers_is_used(probed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "probe", lambda endpoint: None)
    stay_offline_without_hub(OmegaConf.create({"head": "owner/name"}))
    assert not constants.HF_HUB_OFFLINE


def test_models_in_folders_and_in_the_package_need_no_hub(
    tmp_path: Path, probed: list[str]
) -> None:
    for model in ("zoo:tiny", str(tmp_path), "/missing", "./missing", None):
        stay_offline_without_hub(OmegaConf.create({"target": {"model": model}, "draft": None}))
    assert not probed
    assert not constants.HF_HUB_OFFLINE
