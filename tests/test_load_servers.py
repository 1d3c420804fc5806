"""The load command on servers, as it is typed."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from command_line import Outcome, Typed, prompts_of
from fake_server import Script, serving

from specresearch import load, report

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*load.log:ResourceWarning")
Measure = Callable[..., Outcome]


@pytest.fixture
def measure(tmp_path: Path, typed: Typed) -> Measure:
    """Run the command on three prompts, in a closed loop of two."""
    base = prompts_of(tmp_path / "prompts.jsonl", ("one", "two", "three"))
    base += ["arrivals=closed_loop", "arrivals.concurrency=2", "num_requests=12", "warmup=1"]
    base += ["sampling.max_new_tokens=6", "hydra.run.dir=out"]

    def run(*overrides: str) -> Outcome:
        given = {override.split("=")[0] for override in overrides}
        return typed(load.main, [*(o for o in base if o.split("=")[0] not in given), *overrides])

    return run


@pytest.fixture
def serve() -> Iterator[Callable[[Script], str]]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(serving(script))


def drafting(**rest: object) -> Script:
    return Script(tokens_per_chunk=3, seconds_per_chunk=0.004, drafts=3, **rest)  # type: ignore[arg-type]


def results_of(folder: Path) -> dict:
    return json.loads((folder / "out" / "results.json").read_text())


def rows_of(folder: Path) -> list[dict]:
    text = (folder / "out" / "requests.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def words(text: str) -> str:
    return " ".join(text.split())


def test_two_servers_are_compared_on_the_same_requests_and_reported(
    measure: Measure, serve: Callable[[Script], str], tmp_path: Path, typed: Typed
) -> None:
    plain = Script(seconds_per_chunk=0.004, failures={4: 429})
    fast = drafting(reports=True)
    urls = [f"server={serve(fast)}", f"baseline_server={serve(plain)}"]
    outcome = measure(*urls, "client.method=eagle3", "repeats=2")
    assert outcome.code == 0, outcome.err
    said = words(outcome.out)
    assert "eagle3 on prompts, closed loop of 2: " in said
    assert "output unchanged: 23 of 23 greedy answers are the same text" in said
    assert "baseline: 1 of 24 requests failed (1 rate limited)" in said
    assert "fake (vllm 0.33.0)" in said
    results = results_of(tmp_path)
    assert results["failures"] == {"baseline": {"rate limited": 1}}
    assert results["summary"]["mean_acceptance_length"] == 3.0
    assert results["summary"]["unpaired"] is None
    assert results["sides"]["method"]["num_preemptions"] is None
    asked = [[body["messages"] for body in script.seen] for script in (plain, fast)]
    assert sorted(map(str, asked[0])) == sorted(map(str, asked[1]))
    again = measure(*urls, "client.method=eagle3", "repeats=2", "resume=true")
    assert again.code == 0
    assert len(plain.seen) == len(asked[0])  # a complete run asks nothing
    made = typed(report.main, ["out", "--output=page"])
    assert made.code == 0, made.err
    page = (tmp_path / "page" / "report.md").read_text()
    assert "eagle3, 3 drafts" in page
    assert "requests that got no answer: 1 rate limited (baseline)" in page
    assert "the server at http://127.0.0.1:" in page


def test_one_server_now_and_one_later_are_unpaired(
    measure: Measure, serve: Callable[[Script], str], tmp_path: Path, typed: Typed
) -> None:
    first = measure(f"baseline_server={serve(Script(seconds_per_chunk=0.004))}")
    assert first.code == 0, first.err
    other = measure(f"server={serve(drafting(model='x'))}", "resume=true")
    assert "was measured with target model 'fake', which is now 'x'" in other.err
    later = measure(f"server={serve(drafting())}", "resume=true")
    assert later.code == 0, later.err
    assert "closed loop of 2: unpaired, " in words(later.out)
    assert "unpaired: its sides were measured in different sessions (baseline " in words(later.out)
    results = results_of(tmp_path)
    assert set(results["sides"]) == {"baseline", "method"}
    assert results["summary"]["draft_acceptance_rate"] == pytest.approx(2 / 3)
    assert results["provenance"]["servers"].keys() == {"baseline", "method"}
    typed(report.main, ["out", "--output=page"])
    page = (tmp_path / "page" / "report.md").read_text()
    assert "unpaired: its sides" in page
    assert "at another time than plain decoding" in page
    assert "0.67" in page  # the acceptance that /metrics shows


def test_a_server_that_takes_drafts_by_request_is_its_own_baseline(
    measure: Measure, serve: Callable[[Script], str], tmp_path: Path
) -> None:
    script = drafting(owned_by="specresearch", reports=True)
    outcome = measure(f"server={serve(script)}", "compare=[2]")
    assert outcome.code == 0, outcome.err
    assert set(results_of(tmp_path)["sides"]) == {"baseline", "method", "fixed-2"}
    asked = [body.get("num_draft_tokens") for body in script.seen]
    assert {asked.count(number) for number in (0, None, 2)} == {13}


def test_the_key_is_in_no_file(
    measure: Measure,
    serve: Callable[[Script], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    script = drafting(key="sk-very-secret", failures={3: 500})
    outcome = measure(f"server={serve(script)}", "client.key_variable=MY_KEY")
    assert outcome.code == 0, outcome.err
    assert "sk-very-secret" not in outcome.out + outcome.err
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file():
            assert b"sk-very-secret" not in file.read_bytes(), file


def test_a_server_that_is_gone_when_resuming_loses_nothing(
    measure: Measure, serve: Callable[[Script], str], tmp_path: Path
) -> None:
    plain = serve(Script(seconds_per_chunk=0.004))
    with serving(drafting()) as url:
        outcome = measure(f"server={url}", f"baseline_server={plain}")
        assert outcome.code == 0, outcome.err
    more = (f"server={url}", f"baseline_server={plain}", "repeats=2", "resume=true")
    lost = measure(*more)
    assert lost.code == 2
    assert f"no server answers at {url}" in lost.err
    assert results_of(tmp_path)["sides"].keys() == {"baseline", "method"}
    rows = rows_of(tmp_path)
    with serving(drafting(), port=int(url.rsplit(":", 1)[1])):
        back = measure(*more)
    assert back.code == 0, back.err
    assert rows_of(tmp_path)[: len(rows)] == rows
    assert {row["repeat"] for row in rows_of(tmp_path)} == {0, 1}


def test_the_tokenizer_cuts_prompts_and_completions_are_tokens(
    measure: Measure, serve: Callable[[Script], str], tmp_path: Path
) -> None:
    script = drafting()
    url = serve(script)
    long = prompts_of(tmp_path / "prompts.jsonl", ("tell me about the sea " * 30,))
    chosen = [*long, f"server={url}", "client.tokenizer=zoo:tiny", "dataset.max_prompt_tokens=40"]
    outcome = measure(*chosen, "client.api=completions")
    assert outcome.code == 0, outcome.err
    assert all(isinstance(body["prompt"], list) for body in script.seen)
    assert max(len(body["prompt"]) for body in script.seen) <= 40
    script.seen.clear()
    assert measure(*chosen, "hydra.run.dir=chat").code == 0
    (message,) = script.seen[0]["messages"]
    assert message["content"].startswith("tell me about the sea tell")
    assert len(message["content"]) < 400


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+proposer=ngram"], "proposer is for an engine of this process"),
        (["record=true"], "record is for an engine of this process"),
        (["compare=[2]"], "drafts as it was started and cannot be told otherwise"),
        (["client.api=chats"], "client.api=chats must be one of chat, completions"),
        (["client.model=other"], "has no model 'other'; it has: fake"),
        (["client.tokenizer=./nowhere"], "client.tokenizer=./nowhere cannot be loaded"),
        (
            ["classes={x:{share:1.0,num_draft_tokens:1}}"],
            "classes.x.num_draft_tokens=1: vllm 0.33.0 at",
        ),
    ],
)
def test_what_a_server_cannot_do_is_one_sentence_before_the_load(
    measure: Measure, serve: Callable[[Script], str], overrides: list[str], message: str
) -> None:
    script = drafting()
    outcome = measure(f"server={serve(script)}", *overrides)
    assert outcome.code == 2
    assert message in outcome.err.strip().splitlines()[-1]
    assert script.seen == []
