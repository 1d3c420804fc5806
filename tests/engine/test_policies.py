import pytest
from scenarios import requests

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.engine import FirstCome, SchedulerSettings, ShortestPrompt

ONE_TOKEN = SamplingParams(max_new_tokens=1)


def order_of(engine: Engine, arrivals: dict[str, tuple[int, float]]) -> list[str]:
    """Return ids in order of service; `arrivals` gives prompt lengths and arrival times."""
    for id, (num_tokens, arrival) in arrivals.items():
        engine.submit(Request([1] * num_tokens, ONE_TOKEN, id), arrival)
    finished = []
    while engine.has_work:
        engine.step()
        finished += [output.id for output in engine.pop_finished()]
    return finished


def test_first_come_serves_by_arrival(target: CausalLM) -> None:
    engine = Engine(target, scheduling=SchedulerSettings(FirstCome()))
    assert order_of(engine, {"c": (2, 3.0), "a": (9, 1.0), "b": (5, 2.0), "d": (1, 3.0)}) == [
        "a",
        "b",
        "c",
        "d",
    ]


def test_the_shortest_prompt_goes_first_until_a_longer_one_has_aged(target: CausalLM) -> None:
    engine = Engine(target, scheduling=SchedulerSettings(ShortestPrompt(ageing=10.0)))
    assert order_of(engine, {"long": (30, 0.0), "short": (5, 2.4), "late": (5, 2.6)}) == [
        "short",
        "long",
        "late",
    ]


@pytest.mark.parametrize("ageing", [10.0, 1e-6])
def test_no_request_starves_beside_a_stream_of_short_prompts(
    target: CausalLM, ageing: float
) -> None:
    """A short prompt arrives for each one served. The negative control hardly ages."""
    engine = Engine(target, scheduling=SchedulerSettings(ShortestPrompt(ageing)))
    engine.submit(Request([1] * 40, ONE_TOKEN, "long"), 0.0)
    served, gap = [], 0.25
    for number in range(40):
        engine.submit(Request([2] * 5, ONE_TOKEN, f"short{number}"), number * gap)
        engine.step()
        served += [output.id for output in engine.pop_finished()]
    engine.abort()
    longest_wait = (40 - 5) / ageing
    if longest_wait < 40 * gap:
        assert served.index("long") == longest_wait / gap
    else:
        assert "long" not in served


def test_every_request_is_served_under_every_policy(target: CausalLM) -> None:
    for policy in (FirstCome(), ShortestPrompt()):
        engine = Engine(
            target, max_batch_size=3, scheduling=SchedulerSettings(policy, max_step_tokens=8)
        )
        assert len(list(engine.generate(requests()))) == len(requests())


@pytest.mark.parametrize("ageing", [0.0, -1.0])
def test_a_policy_without_ageing_is_rejected(ageing: float) -> None:
    with pytest.raises(ValueError, match=r"ageing=.* must be above 0"):
        ShortestPrompt(ageing)
