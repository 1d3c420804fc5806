import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from datasets import config as datasets_config

from specresearch.data import PromptDataset, hub

ROWS = [{"question": "cached?", "answer": "#### 1"}, {"question": "again?", "answer": "#### 2"}]
COMMIT = "0123456789abcdef"


@pytest.fixture(autouse=True)
def online_without_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide this machine's cache and network; the default endpoint is a closed port."""
    for name in (
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{_closed_port()}")
    monkeypatch.setattr(datasets_config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets_config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that answers only the probe."""
    server = HTTPServer(("127.0.0.1", 0), _NotFound)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


class _NotFound(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *args: Any) -> None:
        pass


def _closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _gsm8k(**settings: Any) -> PromptDataset:
    location: dict[str, Any] = {"hub_id": "openai/gsm8k", "config": "main", "split": "test"}
    return PromptDataset("gsm8k", "gsm8k", "maths", **(location | settings))


def _fill_cache(folder: Path) -> None:
    """Write the cache that `datasets` leaves after loading gsm8k from the hub."""
    table = pyarrow.Table.from_pylist(ROWS)
    features = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.Value("string")}
    )
    copy = folder / "openai___gsm8k" / "main" / "0.0.0" / COMMIT
    copy.mkdir(parents=True)
    with (
        pyarrow.OSFile(str(copy / "gsm8k-test.arrow"), "wb") as sink,
        pyarrow.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)
    split = {"name": "test", "num_bytes": 1, "num_examples": len(ROWS), "dataset_name": "gsm8k"}
    splits = datasets.SplitDict.from_split_dict([split])
    info = datasets.DatasetInfo(
        features=features, config_name="main", dataset_name="gsm8k", splits=splits
    )
    info.write_to_directory(str(copy))


def _refuse_network(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("the network was used")


def test_no_network_falls_back_to_the_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = _gsm8k()
    assert dataset.source.kind == "sample"
    assert dataset.source.location == "samples/gsm8k.jsonl"
    assert "hub unreachable (http://127.0.0.1" in dataset.source.note
    assert "using the small sample that ships with the package (hub unreachable" in caplog.text


def test_a_hub_that_never_answers_times_out() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        reason = hub.probe(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3)
    assert reason is not None
    assert "timed out" in reason or "no answer" in reason


def test_a_name_lookup_that_hangs_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def urlopen(*args: Any, **kwargs: Any) -> None:
        released.wait(10)
        raise OSError("too late")

    monkeypatch.setattr(hub, "urlopen", urlopen)
    # The answer is the probe's own: it did not wait for the lookup, which ends in another error.
    assert hub.probe("https://example.invalid", seconds=0.1) == "no answer in 0.1 s"
    released.set()


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_switches_are_honoured_without_a_probe(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(hub, "probe", _refuse_network)
    dataset = _gsm8k()
    assert dataset.source.kind == "sample"
    assert (
        f"{name} is set and the local cache has no usable copy of openai/gsm8k main test"
        in dataset.source.note
    )


def test_source_hub_is_an_error_without_a_hub() -> None:
    with pytest.raises(
        ValueError, match=r"dataset gsm8k, source=hub: hub unreachable .*; use dataset.path="
    ):
        _gsm8k(source="hub")
    with pytest.raises(ValueError, match="it has no location on the hub"):
        _gsm8k(source="hub", hub_id=None)


def test_source_sample_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub, "load", _refuse_network)
    assert _gsm8k(source="sample").source.kind == "sample"
    assert not caplog.records


def test_no_sample_and_no_hub_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"no sample of it ships with the package; use dataset\.path="
    ):
        PromptDataset("unheard-of", "prompts", "raw")


def test_a_path_with_a_source_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contradict each other"):
        _gsm8k(source="hub", path=str(tmp_path / "a.jsonl"))


def test_the_local_cache_is_used_without_a_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fill_cache(tmp_path / "cache")
    monkeypatch.setattr(hub, "probe", _refuse_network)
    dataset = _gsm8k()
    assert [row.turns for row in dataset] == [("cached?",), ("again?",)]
    assert dataset.source.kind == "cache"
    assert dataset.source.location == f"openai/gsm8k main test @ {COMMIT}"
    assert _gsm8k(revision=COMMIT).source.kind == "cache"
    assert datasets_config.HF_HUB_OFFLINE is False


def test_a_cached_copy_of_another_revision_is_not_used(tmp_path: Path) -> None:
    _fill_cache(tmp_path / "cache")
    assert _gsm8k(revision="another").source.kind == "sample"


def test_a_reachable_hub_is_loaded_as_configured(
    monkeypatch: pytest.MonkeyPatch, endpoint: None
) -> None:
    calls: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str, split: str, revision: str | None) -> datasets.Dataset:
        if datasets_config.HF_HUB_OFFLINE:
            raise ConnectionError("offline")
        calls.append((path, name, split, revision))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    dataset = _gsm8k(limit=1)
    assert calls == [("openai/gsm8k", "main", "test", None)]
    assert (dataset.source.kind, dataset.source.num_rows) == ("hub", 1)


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: None) -> Path:
    """A set on the hub in three parquet files, which the `datasets` library streams from here."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(3):
        questions = [f"{shard}-{number}" for number in range(20)]
        table = pyarrow.table({"question": questions, "answer": ["#### 1"] * 20})
        pyarrow.parquet.write_table(table, folder / f"train-0000{shard}-of-00003.parquet")
    load_dataset = datasets.load_dataset

    def load(path: str, *, split: str, revision: str | None, streaming: bool = False, **_: Any):
        if not streaming:
            raise ConnectionError("not in the cache")
        assert (path, revision) == ("openai/gsm8k", COMMIT)
        return load_dataset(str(folder), split=split, streaming=True)

    info = SimpleNamespace(sha=COMMIT)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: info)
    return folder


def test_streaming_downloads_only_the_shards_it_needs(shards: Path) -> None:
    (shards / "train-00002-of-00003.parquet").write_bytes(b"PAR1 broken PAR1")
    dataset = _gsm8k(split="train", streaming=True, limit=25)
    assert [row.turns[0] for row in dataset][::24] == ["0-0", "1-4"]
    assert dataset.source.location == f"openai/gsm8k main train @ {COMMIT}"
    assert dataset.source.kind == "hub"
    with pytest.raises(
        ValueError, match=r"gsm8k main train, after row 40: .*set dataset.streaming=false"
    ):
        _gsm8k(split="train", streaming=True, limit=50)


def test_streamed_and_downloaded_rows_are_the_same(shards: Path, tmp_path: Path) -> None:
    streamed = _gsm8k(split="train", streaming=True, limit=30)
    rows = []
    for file in sorted(shards.iterdir()):
        rows += pyarrow.parquet.read_table(file).to_pylist()
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = _gsm8k(path=str(path), source="auto", limit=30)
    assert streamed.source.fingerprint == local.source.fingerprint


def test_a_broken_download_falls_back_and_reports_why(
    monkeypatch: pytest.MonkeyPatch, endpoint: None
) -> None:
    def load_dataset(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert "openai/gsm8k main test: ConnectionError: reset by peer" in _gsm8k().source.note


def test_a_wrong_split_is_the_users_error(monkeypatch: pytest.MonkeyPatch, endpoint: None) -> None:
    def load_dataset(*args: Any, **kwargs: Any) -> None:
        raise ValueError("Unknown split \"tests\". Should be one of ['train', 'test'].")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match="the hub's openai/gsm8k main tests: Unknown split"):
        _gsm8k(split="tests")
    split = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: split)
    with pytest.raises(
        ValueError, match=r"it has the splits train; choose one with dataset\.split="
    ):
        _gsm8k(split=None)


def test_a_file_of_the_hub_is_read_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: None
) -> None:
    file = tmp_path / COMMIT / "chats" / "all.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps([{"id": "a", "conversations": [{"from": "human", "value": "hi"}]}]))
    calls: list[bool] = []

    def hf_hub_download(
        repo_id: str, filename: str, *, local_files_only: bool, **kwargs: Any
    ) -> str:
        calls.append(local_files_only)
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    dataset = PromptDataset(
        "sharegpt", "sharegpt", "chat", hub_id="someone/chats", hub_file="chats/all.json"
    )
    assert calls == [True, False]
    assert dataset.source.location == f"someone/chats chats/all.json @ {COMMIT}"
    assert dataset.rows[0].turns == ("hi",)
