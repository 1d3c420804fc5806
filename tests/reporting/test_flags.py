"""Commands for other servers parse back, and hold nothing that the server does not know."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from specresearch.reporting.flags import TRANSLATORS, ServerFlags, servers
from specresearch.reporting.speculation import DraftTree, Speculation, Stage

ROOT = Path(__file__).parents[2]
PROPOSERS = sorted(path.stem for path in (ROOT / "conf" / "proposer").glob("*.yaml"))
UP_TO_4 = (Stage(4, 5), Stage(16, 0))
FALLING = (Stage(4, 5), Stage(8, 2), Stage(16, 0))
RISING = (Stage(1, 0), Stage(8, 5))


def speculation(method: str = "eagle3", **changes: Any) -> Speculation:
    """Return five drafts of a method with the settings of its file in conf/."""
    options = yaml.safe_load((ROOT / "conf" / "proposer" / f"{method}.yaml").read_text())
    draft = "org/draft" if {"draft", "head"} & options.keys() else None
    plain = Speculation(method, "org/target", "temperature 0", draft, length=5, options=options)
    return replace(plain, **changes)


def flags(server: str, method: str = "eagle3", **changes: Any) -> ServerFlags:
    return TRANSLATORS[server](speculation(method, **changes))


def parsed(found: ServerFlags) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options with their values, and the files that the block writes."""
    files = dict(re.findall(r"cat > (\S+) <<'EOF'\n(.*?)\nEOF\n", found.block, re.DOTALL))
    command = found.block.rpartition("\nEOF\n")[2]
    words = shlex.split(command.replace("\\\n", ""))
    assert words == list(found.command)
    options = {}
    for word, value in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            options[word] = "" if value.startswith("--") else value
    return options, files


def keys_of(server: str, found: ServerFlags) -> Sequence[str]:
    options, files = parsed(found)
    if server == "vllm":
        return list(json.loads(options["--speculative-config"]))
    if server == "sglang":
        slots = [json.loads(text).values() for text in files.values()]
        return [key for each in slots for slot in each for key in slot]
    if server == "tensorrt_llm":
        return list(yaml.safe_load(files["speculative.yaml"])["speculative_config"])
    return []


@pytest.mark.parametrize("server", TRANSLATORS)
@pytest.mark.parametrize("method", PROPOSERS)
def test_every_flag_and_key_is_one_of_the_servers(server: str, method: str) -> None:
    trees = (None, DraftTree(40, 5, 8, is_dynamic=True), DraftTree(40, 5, 1, is_dynamic=False))
    for stages, samples, tree in product(((), UP_TO_4, FALLING, RISING), (False, True), trees):
        found = flags(server, method, stages=stages, samples_drafts=samples, tree=tree)
        if not found.command:
            assert found.notes[0].startswith(f"{servers()[server].name} has no ")
            continue
        options, _ = parsed(found)
        assert options.keys() <= set(servers()[server].flags)
        assert set(keys_of(server, found)) <= set(servers()[server].keys)


def method_of(server: str, found: ServerFlags) -> str:
    options, files = parsed(found)
    if server == "vllm":
        return json.loads(options["--speculative-config"])["method"]
    if server == "tensorrt_llm":
        return yaml.safe_load(files["speculative.yaml"])["speculative_config"]["decoding_type"]
    return options["--speculative-algorithm" if server == "sglang" else "--spec-type"]


@pytest.mark.parametrize("server", TRANSLATORS)
def test_methods_are_the_servers(server: str) -> None:
    found = [flags(server, method) for method in PROPOSERS]
    methods = [method_of(server, each) for each in found if each.command]
    assert len(methods) >= 3
    assert set(methods) <= set(servers()[server].methods)


def lookup(schedule: Sequence[Sequence[int]], number: int) -> int:
    """Return the drafts at a number of running requests, by vLLM's reading of its schedule."""
    for first, last, length in schedule:
        if first <= number <= last:
            return length
    return schedule[-1][2]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (UP_TO_4, {1: 5, 4: 5, 5: 0, 16: 0, 99: 0}),
        (FALLING, {1: 5, 4: 5, 5: 2, 8: 2, 9: 0, 99: 0}),
        (RISING, {1: 0, 2: 5, 99: 5}),
    ],
)
def test_load_decides_alike_on_vllm_and_sglang(
    stages: Sequence[Stage], expected: dict[int, int]
) -> None:
    options, _ = parsed(flags("vllm", stages=stages))
    schedule = json.loads(options["--speculative-config"])["num_speculative_tokens_per_batch_size"]
    assert {number: lookup(schedule, number) for number in expected} == expected

    options, files = parsed(flags("sglang", stages=stages))
    slots = json.loads(files[options["--speculative-adaptive-config"]])
    for number, length in expected.items():
        slot = max(int(first) for first in slots if int(first) <= number)
        assert slots[str(slot)]["candidate_steps"] == [length]
    assert options["--speculative-num-steps"] == str(max(expected.values()))


def tensorrt_config(**changes: Any) -> dict[str, Any]:
    _, files = parsed(flags("tensorrt_llm", **changes))
    return yaml.safe_load(files["speculative.yaml"])["speculative_config"]


def test_tensorrt_llm_takes_a_bound_or_a_schedule_that_falls() -> None:
    assert tensorrt_config(stages=UP_TO_4)["max_concurrency"] == 4
    assert tensorrt_config(stages=FALLING)["draft_len_schedule"] == {4: 5, 8: 2}
    assert not {"max_concurrency", "draft_len_schedule"} & tensorrt_config(stages=RISING).keys()
    notes = flags("tensorrt_llm", stages=RISING).notes
    assert any("the decision is none up to 1 running request, 5 above" in note for note in notes)


def test_a_tree_stays_one_where_the_server_has_them_and_becomes_a_chain_elsewhere() -> None:
    tree = DraftTree(40, 5, 8, is_dynamic=True)
    options, _ = parsed(flags("sglang", tree=tree))
    shape = [options[f"--speculative-{name}"] for name in ("num-steps", "eagle-topk")]
    assert shape == ["5", "8"]
    assert options["--speculative-num-draft-tokens"] == "41"  # the root counts
    config = tensorrt_config(tree=tree)
    assert (config["dynamic_tree_max_topK"], config["max_total_draft_tokens"]) == (8, 40)
    for server in ("vllm", "llama_cpp"):
        assert any("this tree of 40 nodes" in note for note in flags(server, tree=tree).notes)


def test_sampled_drafts_are_asked_for_or_their_loss_is_named() -> None:
    options, _ = parsed(flags("vllm", samples_drafts=True, rule="block"))
    config = json.loads(options["--speculative-config"])
    assert config["draft_sample_method"] == "probabilistic"
    assert config["rejection_sample_method"] == "block"
    assert (
        "--speculative-use-block-verification"
        in flags("sglang", "eagle", samples_drafts=True, rule="block").command
    )
    # Heads with a vocabulary of their own are refused with this flag.
    found = flags("sglang", "eagle3", samples_drafts=True)
    assert "--speculative-use-rejection-sampling" not in found.command
    assert any("--speculative-use-rejection-sampling" in note for note in found.notes)


@pytest.mark.parametrize("samples_drafts", [False, True])
def test_another_tokenizer_is_known_to_vllm_for_greedy_drafts(samples_drafts: bool) -> None:
    name = "draft_model_other_tokenizer"
    found = flags("vllm", name, samples_drafts=samples_drafts)
    options, _ = parsed(found)
    config = json.loads(options["--speculative-config"])
    assert config["method"] == "draft_model"
    assert config["use_heterogeneous_vocab"] is True
    assert "draft_sample_method" not in config
    assert any("proposer.mode=tli proposer.sample=false" in note for note in found.notes)
    for server in set(TRANSLATORS) - {"vllm"}:
        notes = flags(server, name).notes
        assert any("use_heterogeneous_vocab" in note for note in notes)


def test_lookup_in_llama_cpp_never_matches_more_than_it_drafts() -> None:
    for length in (1, 3, 10):
        options, _ = parsed(flags("llama_cpp", "ngram", length=length))
        size, drafts = (int(options[f"--spec-ngram-simple-size-{name}"]) for name in "nm")
        assert drafts == length
        assert size <= drafts


def test_names_with_blanks_and_quotes_survive_the_shell() -> None:
    for server in TRANSLATORS:
        found = flags(server, target="my models/it's $HOME", draft="a 'b' \"c\"")
        parsed(found)
        assert any("it's $HOME" in word for word in found.command)


def test_unknown_settings_are_left_to_the_server() -> None:
    for server in TRANSLATORS:
        for method in ("ngram", "suffix"):
            found = flags(server, method, options={})
            if found.command:
                parsed(found)


def test_flags_of_old_articles_are_gone_and_their_translations_known() -> None:
    for server in servers().values():
        known = {*server.flags, *server.keys}
        for old, translation in server.gone.items():
            assert old not in server.flags
            if translation.now is not None:
                assert set(translation.now.split(", ")) <= known


def test_old_flags_and_versions_are_in_the_documentation() -> None:
    page = (ROOT / "docs" / "flags.md").read_text()
    for server in servers().values():
        assert server.version in page
        for old, translation in server.gone.items():
            assert f"`{old}`" in page
            assert translation.now is None or f"`{translation.now}`" in page
