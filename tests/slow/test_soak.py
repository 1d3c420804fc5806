"""An engine under load for minutes: threads submit and cancel requests, and some steps fail."""

import random
import threading
import time
from collections.abc import Iterator

import pytest

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.engine import SchedulerSettings
from specresearch.models.memory import resident_bytes
from specresearch.proposers import Cascade, DraftModel, NGram, Suffix

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("untyped")]

MINUTES = 4
THREADS = 4
PROMPTS = [
    "Once upon a time there was a little fox who",
    "def fibonacci(n):",
    "Summarise: the harbour was closed on Monday. The harbour was closed",
    "What is 12 times 12?",
    "the the the the",
]


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny", max_len=256)


class Client(threading.Thread):
    """Submit requests, cancel some, and record what must come back."""

    def __init__(
        self, engine: Engine, prompts: list[list[int]], number: int, stop: threading.Event
    ) -> None:
        super().__init__()
        self.engine, self.prompts, self.number, self.stop = engine, prompts, number, stop
        self.random = random.Random(number)
        self.kept: dict[str, int] = {}
        self.dropped: set[str] = set()

    def run(self) -> None:
        for count in self._paced():
            prompt = self.random.randrange(len(self.prompts))
            sampling = SamplingParams(max_new_tokens=self.random.choice([1, 7, 24]))
            id = f"{self.number}/{count}/{sampling.max_new_tokens}"
            try:
                self.engine.submit(Request(self.prompts[prompt], sampling, id))
            except RuntimeError:  # a step has just failed, and the owner is about to abort
                continue
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.05)
                self.engine.cancel(id)
                self.dropped.add(id)
            else:
                self.kept[id] = prompt

    def _paced(self) -> Iterator[int]:
        count = 0
        while not self.stop.is_set():
            yield count
            count += 1
            time.sleep(self.random.random() * 0.2)


class Trouble(RuntimeError):
    """Break a step now and then."""


def test_nothing_is_lost_leaked_or_changed(
    target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that were neither cancelled nor hit by a failed step give their usual tokens."""
    assert target.tokenizer is not None
    prompts = [list(target.tokenizer(text)["input_ids"]) for text in PROMPTS]
    alone = {
        int(output.id): output.token_ids
        for output in Engine(target).generate(prompts, SamplingParams(max_new_tokens=24))
    }
    draft = CausalLM.from_pretrained("zoo:tiny_draft", max_len=256)
    proposer = Cascade([NGram(5), Suffix(6, branch=False, use_global=True), DraftModel(draft, 3)])
    limits = SchedulerSettings(max_step_tokens=48, max_cache_tokens=400)
    engine = Engine(target, proposer, max_batch_size=6, scheduling=limits)
    chance = random.Random(99)
    commit = target.commit

    def sometimes_fails(*arguments: object) -> None:
        if chance.random() < 0.002:
            raise Trouble("now and then")
        commit(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(target, "commit", sometimes_fails)
    stop = threading.Event()
    clients = [Client(engine, prompts, number, stop) for number in range(THREADS)]
    for client in clients:
        client.start()
    outputs: dict[str, tuple[int, ...]] = {}
    lost: set[str] = set()
    memory: list[int] = []
    end = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end or engine.has_work or any(client.is_alive() for client in clients):
        if time.monotonic() >= end:
            stop.set()
        try:
            if engine.step() is None:
                time.sleep(0.001)
        except Trouble:
            lost |= set(engine._inbox._live)
            engine.abort()
        for output in engine.pop_finished():
            assert output.error is None
            assert output.id not in outputs, "delivered twice"
            outputs[output.id] = output.token_ids
        if len(outputs) % 200 == 0:
            memory.append(resident_bytes())
    kept = {id: prompt for client in clients for id, prompt in client.kept.items()}
    dropped = set().union(*(client.dropped for client in clients))
    missing = kept.keys() - outputs.keys() - lost
    assert len(outputs) > 100
    assert lost, "no step failed"
    assert not missing, f"{len(missing)} requests were neither answered nor hit by a failed step"
    assert outputs.keys() <= kept.keys() | dropped
    for id, token_ids in outputs.items():
        if id in kept:
            assert token_ids == alone[kept[id]][: len(token_ids)]
    assert not target.in_use
    assert not engine.scheduler.counts
    third = len(memory) // 3
    assert max(memory[2 * third :]) < 1.2 * max(memory[:third] or memory)
