"""What one step of the engine brought to the requests of a server."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from specresearch.engine import RequestOutput, Step
from specresearch.engine.scheduler import Scheduler
from specresearch.metrics import StepRecord
from specresearch.request import TokenLogprob


@dataclass(frozen=True)
class WatchedTree:
    """What was drafted for one request in one step, for whoever watches it.

    Attributes:
        token_ids: The token of each node; node 0 is the last token before the step.
        parents: The parent of each node, -1 for node 0.
        accepted: The nodes on the accepted path, node 0 excluded.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    accepted: tuple[int, ...]

    @staticmethod
    def of(step: Step, row: int) -> "WatchedTree":
        """Return the drafts of one row of a step, without nodes that could not be accepted."""
        drafts, verdict = step.delivery.drafts, step.delivery.verdict
        parents = drafts.parents[row if len(drafts.parents) > 1 else 0].tolist()
        nodes = drafts.acceptable[row].nonzero()[0].tolist()
        index = {node: number for number, node in enumerate(nodes)} | {-1: -1}
        num_accepted = int(verdict.num_accepted[row])
        path = verdict.path[row, 1 : num_accepted + 1].tolist()
        return WatchedTree(
            token_ids=tuple(drafts.tokens[row, nodes].tolist()),
            parents=tuple(index[parents[node]] for node in nodes),
            accepted=tuple(index[node] for node in path),
        )


@dataclass(frozen=True)
class StepProgress:
    """The tokens that one request received in a step.

    Attributes:
        num_accepted: How many of the first ones are accepted drafts: token i was drafted at
            position i + 1. The others are the target's own.
        logprobs: Of each token; empty if the request did not ask for them.
        tree: The drafts of the step, if the request is watched.
        output: The whole request, with its last tokens.
    """

    token_ids: tuple[int, ...] = ()
    num_accepted: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    tree: WatchedTree | None = None
    output: RequestOutput | None = None


@dataclass(frozen=True)
class EngineUpdate:
    """What happened in one step, for metrics.

    Attributes:
        record: None if no request has finished prefill.
        outputs: The requests that ended.
        num_running: Requests with a slot, after the step.
        num_waiting: Requests without one.
        cache_usage: Share of the cache's columns that hold tokens of running requests.
    """

    record: StepRecord | None
    outputs: tuple[RequestOutput, ...]
    num_running: int
    num_waiting: int
    cache_usage: float

    @staticmethod
    def of(
        scheduler: Scheduler, record: StepRecord | None, outputs: tuple[RequestOutput, ...]
    ) -> "EngineUpdate":
        """Return the update after a step."""
        num_columns = scheduler.target.max_len * scheduler.max_batch_size
        num_tokens = sum(len(row.tokens) for row in scheduler.running)
        num_columns = min(num_columns, scheduler.cache_limit)
        return EngineUpdate(
            record=record,
            outputs=outputs,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            cache_usage=min(num_tokens / num_columns, 1.0),
        )


def progress_of(
    step: Step, followed: Collection[str], watched: Collection[str]
) -> Iterator[tuple[str, StepProgress]]:
    """Yield what a step brought to each request that somebody follows, by id.

    Args:
        watched: Ids of the requests whose trees are wanted.
    """
    num_accepted = step.delivery.verdict.num_accepted.tolist()
    for b, (row, num_new) in enumerate(zip(step.batch.rows, step.delivery.num_new, strict=True)):
        if row.id in followed and num_new:
            has_logprobs = row.request.sampling.logprobs is not None
            yield (
                row.id,
                StepProgress(
                    token_ids=tuple(row.newest(num_new)),
                    num_accepted=num_accepted[b],
                    logprobs=tuple(row.logprobs[-num_new:]) if has_logprobs else (),
                    tree=WatchedTree.of(step, b) if row.id in watched else None,
                ),
            )
