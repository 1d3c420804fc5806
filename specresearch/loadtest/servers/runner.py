"""A load test of servers: the same requests to one with drafts and to one without."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from specresearch.loadtest.arrivals import Arrivals
from specresearch.loadtest.outputs import SideOutputs
from specresearch.loadtest.pass_runner import PROGRAM, PassRunner
from specresearch.loadtest.progress import LoadProgress
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.servers.failures import count_failures
from specresearch.loadtest.servers.folder import ServerFolder
from specresearch.loadtest.servers.one_pass import ServerPass
from specresearch.loadtest.servers.outputs import compare_texts, text_figures
from specresearch.loadtest.servers.sides import SPECULATION, ClientSettings, ServerSide
from specresearch.loadtest.servers.workload import (
    UNLIMITED,
    ServedModel,
    ServerWorkload,
    load_tokenizer,
)
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.workload import LoadWorkload, RequestClass
from specresearch.openai_client import StreamedAnswer
from specresearch.results.provenance import describe_datasets, describe_process
from specresearch.rows import BASELINE, METHOD, PassKey, RequestRow
from specresearch.trackers import NoTracker, Tracker

FIXED_LENGTH = ("vllm", "sglang")  # servers that draft as many tokens in every step
WHOLE = "a server goes on with its requests, so a pass cannot be paused"


@dataclass
class ServerRunner(PassRunner):
    """Runs one workload through one server or two.

    The passes of a repeat follow one another, the first side rotating.

    Attributes:
        served: The sides that can be measured now.
        asked: How these are asked, for the names in reports.

    Raises:
        ValueError: If a class of requests asks for what the servers cannot do.
    """

    served: Mapping[str, ServerSide]
    classes: Sequence[RequestClass]
    arrivals: Arrivals
    settings: LoadSettings
    folder: ServerFolder
    _: KW_ONLY
    asked: ClientSettings
    tracker: Tracker = field(default_factory=NoTracker)

    def __post_init__(self) -> None:
        self.num_requests = self.settings.count(self.arrivals)
        self.whole_passes = WHOLE
        self._first_answers: dict[str, StreamedAnswer] = {}
        for part in self.classes:
            self._check_class(part)

    def _check_class(self, part: RequestClass) -> None:
        if part.num_draft_tokens is None:
            return
        for side in self.served.values():
            if not side.server.is_switchable:
                raise ValueError(
                    f"classes.{part.name}.num_draft_tokens={part.num_draft_tokens}: "
                    f"{side.server.label} at {side.server.address.url} drafts as it was started "
                    "and cannot be told otherwise by a request; leave it out"
                )

    @property
    def sides(self) -> Sequence[str]:
        return list(self.served)

    @property
    def _main(self) -> ServerSide:
        return self.served.get(METHOD) or self.served[BASELINE]

    def _plan(self, watch: LoadProgress) -> LoadWorkload:
        tokenizer = load_tokenizer(self.asked.tokenizer)
        if tokenizer is not None:
            self.served = {name: side.counted_by(tokenizer) for name, side in self.served.items()}
        server = self._main.server
        model = ServedModel(
            name=server.model,
            tokenizer=tokenizer,
            max_len=min(side.server.max_len or UNLIMITED for side in self.served.values()),
            api=server.api,
        )
        workload = ServerWorkload(
            model,
            self.classes,
            self.num_requests,
            trace=self.arrivals.rows,
            length_spread=self.settings.length_spread,
            seed=self.settings.seed,
            on_prepared=watch.prepared,
        )
        watch.say("asking for a first answer")
        for name, side in self.served.items():
            completion = workload.completion(0, 0, side.num_draft_tokens)
            self._first_answers[name] = asyncio.run(side.server.check(completion))
        return workload

    def _parts(self) -> Sequence[object]:
        return (self.arrivals,)

    def _describe(self, workload: LoadWorkload) -> dict[str, Any]:
        datasets = list({id(part.dataset): part.dataset for part in self.classes}.values())
        server = self._main.server
        drafts = METHOD in self.served or METHOD in self._measured_before
        return {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            **describe_process(("-m", PROGRAM), torch.device("cpu")),
            "target": {
                "model": server.model,
                "num_parameters": None,
                "dtype": None,
                "server": server.label,
                "url": server.address.url,
                "max_len": server.max_len,
            },
            "dataset": describe_datasets(datasets),
            "seed": self.settings.seed,
            "servers": {name: side.describe() for name, side in self.served.items()},
            "method": self._method() if drafts else None,
            "controller": self._controller() if drafts else None,
        }

    @property
    def _measured_before(self) -> set[str]:
        return {key.side for key in self.folder.done}

    def _method(self) -> dict[str, Any]:
        return {
            "name": self.asked.method or SPECULATION,
            "description": f"as {self._main.server.label} was started",
            "num_draft_tokens": self._num_draft_tokens(),
            "trees": False,
            "lossless": True,
        }

    def _num_draft_tokens(self) -> int | None:
        """Return the drafts of a step, as the user, the first answer or the counters say."""
        if self.asked.num_draft_tokens is not None or METHOD not in self.served:
            return self.asked.num_draft_tokens
        report = self._first_answers[METHOD].report
        if report is not None and report.get("num_spec_tokens"):
            return report["num_spec_tokens"]
        return asyncio.run(self.served[METHOD].server.read_counters()).num_positions

    def _controller(self) -> str:
        is_fixed = self._main.server.software in FIXED_LENGTH or self.asked.num_draft_tokens
        return "fixed" if is_fixed and self._num_draft_tokens() else "server"

    def _warm_up(self, workload: LoadWorkload) -> None:
        assert isinstance(workload, ServerWorkload)
        for number in range(1, min(self.settings.warmup, len(workload))):
            for side in self.served.values():
                completion = workload.completion(number, 0, side.num_draft_tokens)
                asyncio.run(side.server.check(completion))

    def _pass(self, key: PassKey, workload: LoadWorkload, watch: LoadProgress) -> ServerPass:
        assert isinstance(workload, ServerWorkload)
        return ServerPass(
            key=key,
            side=self.served[key.side],
            workload=workload,
            feed=self.settings.feed(self.arrivals, len(workload), key.repeat),
            stops=self.settings.stops,
            folder=self.folder,
            on_tick=watch.tick_pass,
        )

    def _outputs(
        self, requests: Sequence[RequestRow], passes: Sequence[PassRow], workload: LoadWorkload
    ) -> Mapping[str, SideOutputs]:
        assert isinstance(workload, ServerWorkload)
        return compare_texts(requests, self._reported(passes), workload)

    def _setting(
        self, outputs: Mapping[str, SideOutputs], passes: Sequence[PassRow]
    ) -> dict[str, Any]:
        drafts = METHOD in self._reported(passes)
        return {
            "method": (self.asked.method or SPECULATION) if drafts else None,
            "controller": None,
            "max_running": None,
            "unpaired": unpaired(passes),
            **text_figures(outputs),
        }

    def _results(
        self, workload: LoadWorkload, complete: bool, provenance: Mapping[str, Any]
    ) -> LoadResults:
        results = super()._results(workload, complete, provenance)
        for figures in (results.summary, *results.sides.values()):
            figures["num_preemptions"] = None  # which a client does not see
        return results

    def _failures(self) -> dict[str, dict[str, int]]:
        return count_failures(self.folder.failures())

    def _ending(self, error: Exception) -> Exception:
        if isinstance(error, ConnectionError):
            return error
        raise error


def unpaired(passes: Sequence[PassRow]) -> str | None:
    """Return how far apart the sides of a repeat were measured; None if one session had them."""
    by_repeat: dict[int, dict[str, PassRow]] = {}
    for row in passes:
        by_repeat.setdefault(row.key.repeat, {})[row.key.side] = row
    for rows in by_repeat.values():
        if len({row.session for row in rows.values()}) > 1:
            times = [f"{side} {row.started[:16]}" for side, row in sorted(rows.items())]
            return f"its sides were measured in different sessions ({', '.join(times)} UTC)"
    return None
