import json
import re
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from specresearch.data import PromptDataset
from specresearch.data.files import read_records
from specresearch.data.sources import SAMPLES

CONFIGS = sorted((Path(__file__).parents[2] / "conf" / "dataset").glob("*.yaml"))
PUBLISHED = {
    "cnndm": "cnn_dailymail.jsonl",
    "sharegpt": "sharegpt_chats.json",
    "specbench": "spec_bench.jsonl",
    "mtbench": "mt_bench.jsonl",
    "humaneval": "humaneval.jsonl",
    "gsm8k": "gsm8k_test.jsonl",
    "prompts": "sharegpt_prompts.json",
}


def _load(config: Path, **changes: Any) -> PromptDataset:
    return instantiate(OmegaConf.merge(OmegaConf.load(config), changes))


def test_every_sample_has_a_config_and_a_published_file() -> None:
    assert (
        {config.stem for config in CONFIGS}
        == {file.stem for file in SAMPLES.iterdir()}
        == set(PUBLISHED)
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_every_config_reads_its_sample(config: Path) -> None:
    dataset = _load(config, source="sample")
    assert len(dataset) >= 24
    assert len({row.id for row in dataset}) == len({row.turns for row in dataset}) == len(dataset)
    assert dataset.source.kind == "sample"
    assert dataset.source.num_rows == len(dataset)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_every_config_reads_the_published_file(config: Path, shared_data: Path) -> None:
    file = shared_data / PUBLISHED[config.stem]
    dataset = _load(config, path=str(file), limit=50)
    assert len(dataset) == 50
    assert (dataset.source.kind, dataset.source.location) == ("file", str(file))


def test_the_sample_has_the_fields_of_the_published_file(shared_data: Path) -> None:
    for name, published in PUBLISHED.items():
        if name == "prompts":
            continue
        sample_fields = next(read_records(SAMPLES / f"{name}.jsonl")).fields
        published_fields = next(read_records(shared_data / published)).fields
        assert set(sample_fields) <= set(published_fields), name


def test_no_row_of_real_data_is_lost(shared_data: Path) -> None:
    expected = {
        "cnndm": 500,
        "sharegpt": 200,
        "specbench": 480,
        "mtbench": 80,
        "humaneval": 164,
        "gsm8k": 1319,
    }
    for config in CONFIGS:
        if config.stem in expected:
            assert (
                len(_load(config, path=str(shared_data / PUBLISHED[config.stem])))
                == expected[config.stem]
            )


def test_sample_articles_are_as_long_as_news() -> None:
    for record in read_records(SAMPLES / "cnndm.jsonl"):
        assert 250 <= len(record.fields["article"].split()) <= 450
        assert len(record.fields["highlights"].split("\n")) in (3, 4)


def test_sample_chats_alternate_and_have_replies() -> None:
    for record in read_records(SAMPLES / "sharegpt.jsonl"):
        speakers = [message["from"] for message in record.fields["conversations"]]
        assert speakers == ["human", "gpt"] * (len(speakers) // 2)
        assert len(speakers) >= 4


def test_sample_solutions_pass_their_tests() -> None:
    for record in read_records(SAMPLES / "humaneval.jsonl"):
        fields = record.fields
        names: dict = {}
        exec(fields["prompt"] + fields["canonical_solution"] + "\n" + fields["test"], names)
        names["check"](names[fields["entry_point"]])


def test_sample_sums_are_right() -> None:
    for record in read_records(SAMPLES / "gsm8k.jsonl"):
        answer = record.fields["answer"]
        sums = re.findall(r"<<([\d+*/. -]+)=([\d.]+)>>", answer)
        assert sums
        assert len(sums) == answer.count("<<")
        for calculation, result in sums:
            assert eval(calculation) == pytest.approx(float(result))
        assert answer.endswith(f"#### {sums[-1][1]}")


def test_samples_are_json_lines() -> None:
    for file in SAMPLES.iterdir():
        for line in file.read_text(encoding="utf-8").removesuffix("\n").split("\n"):
            assert isinstance(json.loads(line), dict)
