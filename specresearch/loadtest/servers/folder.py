"""The folder of a load test of servers, whose sides may be measured one now and one later."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from specresearch.files import replace_text
from specresearch.files.jsonl import read_jsonl, to_line
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.servers.failures import FailureRow
from specresearch.results.config import read_config
from specresearch.results.folder import REQUESTS
from specresearch.rows import METHOD, PassKey, RequestRow

FAILURES = "failures.jsonl"
ADDRESSES = ("server", "baseline_server")
OF_METHOD = ("target", "method", "controller")  # provenance that a session without drafts lacks
CODE = (
    "data",
    "files",
    "loadtest/arrivals.py",
    "loadtest/loop.py",
    "loadtest/pass_runner.py",
    "loadtest/prompt_pool.py",
    "loadtest/rows.py",
    "loadtest/servers",
    "loadtest/workload.py",
    "metrics",
    "openai_client",
    "rows",
    "sampling.py",
    "sampling_params.py",
)  # what rows depend on


class ServerFolder(LoadFolder):
    """The folder of a load test of servers.

    Attributes:
        session: Number of this session, from 1.
    """

    may_change = (*LoadFolder.may_change, *ADDRESSES, "client.method", "client.num_draft_tokens")
    code = CODE
    identity = (*LoadFolder.identity, ("target", "model"))
    session = 1
    _has_other_servers = False

    def _load(self) -> None:
        before = read_config(self.path)
        self._has_other_servers = any(before.get(key) != self.config[key] for key in ADDRESSES)
        super()._load()
        self._drop_failures()

    @property
    def is_complete(self) -> bool:
        return super().is_complete and not self._has_other_servers

    def begin(self, provenance: Mapping[str, Any], *parts: object) -> dict[str, Any]:
        merged = super().begin(provenance, *parts)
        self.session = merged["num_sessions"]
        return merged

    def _continued(self, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        servers = before["servers"] | now["servers"]
        if METHOD not in now["servers"]:
            return before | {"servers": servers}
        return before | {key: now[key] for key in OF_METHOD} | {"servers": servers}

    def drop(self, keys: Collection[PassKey]) -> None:
        super().drop(keys)
        self._drop_failures()

    @contextmanager
    def write_requests(self) -> Iterator[Callable[[RequestRow], object]]:
        """Return what writes the row of a finished request, while a pass runs."""
        with (self.path / REQUESTS).open("a", encoding="utf-8", buffering=1) as stream:
            yield lambda row: stream.write(to_line(row.to_json()))

    def end_pass(self, row: PassRow, failures: Sequence[FailureRow] = ()) -> None:
        """Mark a pass as finished, after its rows have reached the disk."""
        if failures:
            self._append(FAILURES, [failure.to_json() for failure in failures])
        super().end_pass(row)

    def failures(self) -> list[dict[str, Any]]:
        """Return the failed requests of finished passes, as flat rows."""
        done = self.done
        return [row for row in read_jsonl(self.path / FAILURES) if PassKey.of(row) in done]

    def _drop_failures(self) -> None:
        """Rewrite the file without the rows of unfinished passes."""
        if (self.path / FAILURES).exists():
            replace_text(self.path / FAILURES, "".join(map(to_line, self.failures())))
