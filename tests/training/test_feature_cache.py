"""Cached features equal those of each example alone, and survive an interruption."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build

from specresearch import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.training import feature_cache
from specresearch.training.corpus.examples import Example, Examples, collate
from specresearch.training.feature_cache import FeatureCache
from specresearch.training.objectives import ForwardKL, Objective

LAYERS = (0, 2, FINAL_NORM)


def examples() -> Examples:
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(VOCAB, (n,), generator=generator).tolist() for n in (5, 9, 3, 12, 7, 4, 9)
    ]
    return Examples(Example.reply(ids[:2], ids[2:]) for ids in [*rows, rows[2]])


def model(seed: int = 0) -> CausalLM:
    return CausalLM(build("llama", seed=seed), name="tiny", self_test=False)


def cache(
    folder: Path,
    target: CausalLM | None = None,
    layers: tuple[int, ...] = LAYERS,
    reduced: Objective | None = None,
) -> FeatureCache:
    return FeatureCache(
        target or model(), layers, examples(), folder, reduced=reduced, batch_size=3, shard_size=3
    )


def test_features_are_those_of_the_target(tmp_path: Path) -> None:
    target, chosen = model(), [examples()[i] for i in (3, 0, 7)]
    features = cache(tmp_path, target)(chosen)
    with torch.no_grad():
        for row, example in enumerate(chosen):
            alone = target.forward_whole(torch.tensor([example.token_ids]), LAYERS).hidden
            for layer, states in zip(features, alone, strict=True):
                torch.testing.assert_close(layer[row, : len(example.token_ids)], states[0])
                assert not layer[row, len(example.token_ids) :].any()
    assert features[0].shape[:2] == collate(chosen)["token_ids"].shape


def test_peaks_are_those_of_the_targets_logits(tmp_path: Path) -> None:
    target, chosen = model(), [examples()[i] for i in (3, 0, 7)]
    assert cache(tmp_path / "whole", target).peaks(chosen) is None
    peaks = cache(tmp_path / "reduced", target, reduced=ForwardKL(0.7)).peaks(chosen)
    assert peaks is not None
    with torch.no_grad():
        for row, example in enumerate(chosen):
            token_ids, length = torch.tensor([example.token_ids]), len(example.token_ids)
            logits = target.forward_whole(token_ids, want_logits=True).logits[0]
            assert torch.equal(peaks["tokens"][row, :length], logits.argmax(-1))
            normaliser = (logits / 0.7).logsumexp(-1)
            torch.testing.assert_close(peaks["log_normaliser"][row, :length], normaliser)
            assert not peaks["log_normaliser"][row, length:].any()


@pytest.mark.parametrize("reduced", [None, ForwardKL()])
def test_the_announced_size_is_the_size_on_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reduced: Objective | None
) -> None:
    feature_cache = cache(tmp_path, reduced=reduced)
    num_tokens = (
        sum(len(example.token_ids) for example in examples()) - 3
    )  # one example stands there twice
    assert f"features of {num_tokens} tokens, 3 layers" in capsys.readouterr().err
    assert 1 <= feature_cache.store.num_bytes / feature_cache.num_bytes(num_tokens) < 1.2


def interrupt(monkeypatch: pytest.MonkeyPatch, num_shards: int, error: BaseException) -> None:
    save, calls = feature_cache.save_file, []

    def save_some(tensors: dict[str, Any], file: Path) -> None:
        if len(calls) == num_shards:
            raise error
        calls.append(file)
        save(tensors, file)

    monkeypatch.setattr(feature_cache, "save_file", save_some)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]
)
def test_an_interrupted_cache_is_finished_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, 2, error)
        with pytest.raises(type(error)):
            cache(tmp_path)
    modified_times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.safetensors")}
    assert len(modified_times) == 2
    cache(tmp_path)
    assert {file: file.stat().st_mtime_ns for file in modified_times} == modified_times
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_an_existing_cache_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache(tmp_path)([examples()[1]])
    interrupt(monkeypatch, 0, AssertionError())
    assert all(map(torch.equal, cache(tmp_path)([examples()[1]]), first))


def test_a_damaged_shard_is_written_again(tmp_path: Path) -> None:
    first = cache(tmp_path)([examples()[0]])
    file = tmp_path / "shard-00000.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-9] ^= 255
    file.write_bytes(damaged)
    assert all(map(torch.equal, cache(tmp_path)([examples()[0]]), first))


def test_too_small_a_disk_is_rejected_in_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = feature_cache.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(feature_cache.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(
        OSError, match=r"GB to write to .*, which has 0\.00 GB free; take fewer examples or layers"
    ):
        cache(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_features_of_another_model_or_other_layers_are_rejected(tmp_path: Path) -> None:
    cache(tmp_path)
    with pytest.raises(ValueError, match="holds data of weights="):
        cache(tmp_path, model(seed=1))
    with pytest.raises(ValueError, match="holds data of hidden_layers="):
        cache(tmp_path, layers=(1,))
    with pytest.raises(ValueError, match=r"holds data of temperature=None, and this run has .*2"):
        cache(tmp_path, reduced=ForwardKL(2.0))


def test_an_example_that_is_not_cached_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not among those whose features are cached"):
        cache(tmp_path)([Example.reply([1], [2])])
