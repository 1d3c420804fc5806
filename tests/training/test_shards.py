"""A shard store holds only complete shards of its settings, whatever interrupts the writing."""

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from specresearch.training.shards import Shard, ShardStore

SETTINGS = {"model": "tiny", "temperature": 1.0, "layers": (1, 2)}


def store(folder: Path, **changes: object) -> ShardStore:
    return ShardStore(folder, SETTINGS | changes, ".txt")


def shard(text: str) -> Shard:
    return Shard(lambda file: file.write_text(text), num_examples=len(text), num_tokens=0)


def fill(folder: Path, *texts: str) -> ShardStore:
    shards = store(folder)
    shards.fill([1] * len(texts), lambda _: lambda i: shard(texts[i]), title="", unit="rows")
    return shards


def test_written_shards_are_read_back(tmp_path: Path) -> None:
    fill(tmp_path / "new" / "folder", "zero", "one")
    again = store(tmp_path / "new" / "folder")
    assert [again.holds(number) for number in range(3)] == [True, True, False]
    assert again.path(1).read_text() == "one"
    assert again.num_bytes == len("zeroone")
    manifest = json.loads((tmp_path / "new" / "folder" / "manifest.json").read_text())
    assert manifest["settings"] == {"model": "tiny", "temperature": 1.0, "layers": [1, 2]}
    assert manifest["shards"]["shard-00001.txt"]["num_examples"] == len("one")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), RuntimeError("broken"), OSError("other")])
def test_an_unfinished_shard_does_not_count(tmp_path: Path, stop: BaseException) -> None:
    shards = fill(tmp_path, "zero")

    def torn(file: Path) -> None:
        file.write_text("half")
        raise stop

    with pytest.raises(type(stop)):
        shards.write(1, Shard(torn, 1, 1))
    again = store(tmp_path)
    assert (again.holds(0), again.holds(1)) == (True, False)
    assert not again.path(1).exists()
    again.write(1, shard("whole"))
    assert store(tmp_path).path(1).read_text() == "whole"


def test_a_shard_without_a_manifest_entry_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = fill(tmp_path, "zero")

    def interrupted(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specresearch.training.shards.replace_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shards.write(1, shard("one"))
    assert shards.path(1).exists()
    assert (store(tmp_path).holds(0), store(tmp_path).holds(1)) == (True, False)


@pytest.mark.parametrize(
    "damage", [lambda file: file.write_text("zerp"), lambda file: file.unlink()]
)
def test_a_damaged_shard_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]
) -> None:
    shards = fill(tmp_path, "zero", "one")
    damage(shards.path(0))
    messages: list[str] = []
    monkeypatch.setattr(
        "specresearch.training.shards.logger.warning",
        lambda text, *parts: messages.append(text % parts),
    )
    assert (shards.holds(0), shards.holds(1)) == (False, True)
    assert "shard-00000.txt is damaged or missing" in " ".join(messages)


def test_other_settings_are_rejected_by_name(tmp_path: Path) -> None:
    fill(tmp_path, "zero")
    with pytest.raises(
        ValueError,
        match=r"holds data of temperature=1\.0, and this run has temperature=0\.0; choose another",
    ):
        store(tmp_path, temperature=0.0)
    with pytest.raises(ValueError, match="holds data of seed=None, and this run has seed=1"):
        store(tmp_path, seed=1)


def test_the_error_for_a_damaged_manifest_names_a_remedy(tmp_path: Path) -> None:
    fill(tmp_path, "zero")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json is damaged .*; delete"):
        store(tmp_path)


@pytest.mark.parametrize(
    "full",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError('IoError(StorageFull, "No space left on device")'),
    ],
)
def test_a_full_disk_keeps_the_written_shards_and_is_reported(
    tmp_path: Path, full: Exception
) -> None:
    shards = fill(tmp_path, "zero", "one")

    def overflow(file: Path) -> None:
        file.write_text("ha")
        raise full

    with pytest.raises(
        OSError,
        match="is full: shard 2 was not written; 2 shards of 7 bytes are kept, and the same "
        "command",
    ):
        shards.write(2, Shard(overflow, 1, 1))
    assert sorted(file.name for file in tmp_path.glob("*.part")) == []
    assert [store(tmp_path).holds(number) for number in range(3)] == [True, True, False]


def test_a_second_writer_waits_and_reads_the_firsts_work(tmp_path: Path) -> None:
    computed: list[str] = []

    def writer(name: str) -> Callable[[], None]:
        def compute(number: int) -> Shard:
            computed.append(name)
            if name == "first":
                second.start()
                second.join(0.2)
                assert second.is_alive(), "it did not wait"
            return shard(name)

        return lambda: store(tmp_path).fill([1], lambda _: compute, title="", unit="rows")

    second = threading.Thread(target=writer("second"))
    writer("first")()
    second.join(10)
    assert computed == ["first"]
    assert store(tmp_path).path(0).read_text() == "first"
