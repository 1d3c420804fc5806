"""Requests go through the bridge from an event loop, and come back as the engine decodes them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.batch import Batch
from specresearch.engine import RequestOutput
from specresearch.proposal import Proposal
from specresearch.proposers import NGram
from specresearch.serving.bridge import EngineBridge, RequestStream
from specresearch.serving.driver import EngineFailedError, StepFeed
from specresearch.serving.updates import EngineUpdate, StepProgress

PROMPTS = [[0, 1, 2, 0, 1, 2, 0], [3, 4], [5], [2, 2, 2, 2]]


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM(build("llama", seed=3), letters_tokenizer(), max_len=60, name="letters")


class FailsOnce(NGram):
    """Raises in one step, after `when` good ones."""

    def __init__(self, when: int) -> None:
        super().__init__(4)
        self.when = when
        self.num_resets = 0

    def propose(self, batch: Batch, budget: object) -> Proposal:
        self.when -= 1
        if self.when == 0:
            raise RuntimeError("a secret of the proposer")
        return super().propose(batch, budget)  # pyright: ignore[reportArgumentType]

    def reset(self) -> None:
        self.num_resets += 1
        super().reset()


def requests(max_new_tokens: int = 20) -> list[Request]:
    sampling = SamplingParams(max_new_tokens=max_new_tokens)
    return [Request(ids, sampling, f"r{number}") for number, ids in enumerate(PROMPTS)]


async def read_all(stream: RequestStream) -> list[list[StepProgress]]:
    progress: list[list[StepProgress]] = [[] for _ in stream.ids]
    while not all(parts and parts[-1].output for parts in progress):
        for number, part in await stream.read():
            progress[number].append(part)
    return progress


def serve(
    engine: Engine,
    feed: StepFeed,
    client: Callable[[EngineBridge], Awaitable[None]],
    updates: list[EngineUpdate] | None = None,
) -> None:
    """Run a client beside a bridge, and see that nothing is left behind."""

    async def run() -> None:
        bridge = EngineBridge(engine, feed, None if updates is None else updates.append)
        bridge.start()
        await asyncio.wait_for(client(bridge), 30)
        await asyncio.wait_for(bridge.idle(), 30)
        await bridge.stop()
        assert bridge.num_live == 0

    asyncio.run(run())
    assert not engine.has_work
    assert not engine.target.in_use
    assert not engine.scheduler.counts


def build_engine(
    target: CausalLM, proposer: NGram | None = None, size: int = 2
) -> tuple[Engine, StepFeed]:
    feed = StepFeed()
    engine = Engine(target, proposer or NGram(4), max_batch_size=size, observers=[feed])
    return engine, feed


def alone(target: CausalLM, max_new_tokens: int = 20) -> dict[str, RequestOutput]:
    outputs = Engine(target, NGram(4), max_batch_size=2).generate(requests(max_new_tokens))
    return {output.id: output for output in outputs}


@pytest.mark.parametrize("interval", [1, 8, 10_000])
def test_tokens_are_collected_for_an_interval(target: CausalLM, interval: int) -> None:
    """The first ones come at once, and the last ones with the end."""

    async def client(bridge: EngineBridge) -> None:
        stream = await bridge.submit(requests()[:1], interval=interval)
        sizes, output = [], None
        while output is None:
            progress = [part for _, part in await stream.read()]
            sizes.append(sum(len(part.token_ids) for part in progress))
            output = progress[-1].output
        assert sum(sizes) == len(output.token_ids) == 20
        assert 0 < sizes[0] < 20
        assert all(size >= min(interval, 20 - sizes[0]) for size in sizes[1:-1])
        assert len(sizes) <= 2 + 20 // interval

    engine, feed = build_engine(target)
    serve(engine, feed, client)


def test_tokens_are_those_of_the_engine_alone(target: CausalLM) -> None:
    expected = alone(target)
    updates: list[EngineUpdate] = []

    async def client(bridge: EngineBridge) -> None:
        parts = await read_all(await bridge.submit(requests()))
        for request, progress in zip(requests(), parts, strict=True):
            output = progress[-1].output
            assert output is not None
            assert output.token_ids == expected[request.id].token_ids
            streamed = [token for part in progress for token in part.token_ids]
            assert tuple(streamed) == output.token_ids
            num_accepted = sum(part.num_accepted for part in progress)
            assert num_accepted == output.record.counts.num_accepted_tokens

    engine, feed = build_engine(target)
    serve(engine, feed, client, updates)
    assert len([output for update in updates for output in update.outputs]) == len(PROMPTS)
    assert max(update.num_waiting for update in updates) > 0
    assert updates[-1].num_running == 0
    assert all(0 <= update.cache_usage <= 1 for update in updates)


def test_watched_requests_show_their_trees(target: CausalLM) -> None:
    async def client(bridge: EngineBridge) -> None:
        parts = await read_all(await bridge.submit(requests()[:1], watch=True))
        before = PROMPTS[0][-1]
        for part in parts[0][:-1]:
            tree = part.tree
            assert tree is not None
            assert tree.token_ids[0] == before
            assert tree.parents[0] == -1
            accepted = [tree.token_ids[node] for node in tree.accepted]
            assert accepted == list(part.token_ids[: part.num_accepted])
            before = part.token_ids[-1]
        assert any(part.num_accepted for part in parts[0])

    serve(*build_engine(target), client)


def test_a_cancelled_request_leaves_and_the_others_stay(target: CausalLM) -> None:
    expected = alone(target, 40)

    async def client(bridge: EngineBridge) -> None:
        streams = [await bridge.submit([request]) for request in requests(40)]
        await streams[0].read()
        streams[0].cancel()
        streams[3].cancel()  # it still waits
        for stream in streams[1:3]:
            (progress,) = await read_all(stream)
            output = progress[-1].output
            assert output is not None
            assert output.token_ids == expected[output.id].token_ids

    serve(*build_engine(target), client)


def test_a_refused_request_takes_those_submitted_with_it_along(target: CausalLM) -> None:
    async def client(bridge: EngineBridge) -> None:
        with pytest.raises(ValueError, match="prompt of 70 tokens"):
            await bridge.submit([*requests()[:1], Request([1] * 70, id="long")])
        assert bridge.num_live == 0

    serve(*build_engine(target), client)


def test_a_failed_step_fails_its_requests_and_no_others(target: CausalLM) -> None:
    expected = alone(target)
    proposer = FailsOnce(4)
    engine, feed = build_engine(target, proposer)
    proposer.num_resets = 0

    async def client(bridge: EngineBridge) -> None:
        streams = [await bridge.submit([request]) for request in requests()]
        failed = []
        for stream in streams:
            try:
                (progress,) = await read_all(stream)
            except EngineFailedError as error:
                failed.append((stream.ids[0], str(error)))
                continue
            output = progress[-1].output
            assert output is not None
            assert output.token_ids == expected[output.id].token_ids
        message = "RuntimeError in a step of the engine"
        assert failed == [("r0", message), ("r1", message)]  # the others waited for a slot
        assert bridge.failure is None

    serve(engine, feed, client)
    assert proposer.num_resets == 1


def test_a_thread_that_ends_fails_everybody(
    target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, feed = build_engine(target, FailsOnce(2))

    async def client(bridge: EngineBridge) -> None:
        stream = await bridge.submit(requests())
        with pytest.raises(EngineFailedError):
            await read_all(stream)
        with pytest.raises(EngineFailedError, match="has stopped"):
            await bridge.submit([Request([1], id="late")])

    async def run() -> None:
        bridge = EngineBridge(engine, feed)
        monkeypatch.setattr(engine, "abort", lambda: 1 / 0)
        bridge.start()
        await asyncio.wait_for(client(bridge), 30)
        await bridge.stop()

    asyncio.run(run())
    monkeypatch.undo()
    engine.abort()
