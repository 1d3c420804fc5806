import errno
import os
from pathlib import Path

import pytest

from specresearch.files import atomic, means_full, replace_text, written_whole


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_text_that_does_not_fit_leaves_only_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    replace_text(file, "old")
    monkeypatch.setattr(atomic, "sync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        replace_text(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert file.read_text() == "old"


def test_a_file_is_synced_before_it_is_renamed_and_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        atomic, "sync", lambda path: calls.append((path.name, (tmp_path / "results.json").exists()))
    )
    replace_text(tmp_path / "results.json", "{}")
    assert calls == [("results.json.part", False), (tmp_path.name, True)]


def test_an_interruption_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "steps.parquet"
    file.write_text("old")

    def interrupted() -> None:
        with written_whole(file) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (
            RuntimeError(
                "[enforce fail at inline_container.cc:672] . unexpected pos 49216 vs 49104"
            ),
            True,
        ),
        (
            RuntimeError(
                'IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'
            ),
            True,
        ),
        (OSError(errno.EACCES, "x"), False),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_a_full_disk_is_recognized_whichever_library_raises(
    error: Exception, is_full: bool
) -> None:
    assert means_full(error) is is_full
    outer = RuntimeError("while saving")
    outer.__cause__ = error
    assert means_full(outer) is is_full
