"""The worked example of docs/add_a_proposer.md runs as it stands there, and drafts losslessly."""

import re
from pathlib import Path

import pytest
import yaml
from hydra.utils import instantiate

import specresearch.proposers
from specresearch import CausalLM, Engine, SamplingParams
from tests.tiny_models import build

PAGE = Path(__file__).parents[1] / "docs" / "add_a_proposer.md"


def test_worked_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, config = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "repeat.py").write_text(code)
    monkeypatch.setattr(
        specresearch.proposers, "__path__", [*specresearch.proposers.__path__, str(tmp_path)]
    )
    proposer = instantiate(yaml.safe_load(config))
    target = CausalLM(build("llama"))
    prompts = [[1, 2, 3], [4, 5], [6]]
    sampling = SamplingParams(max_new_tokens=20)
    plain = {
        o.id: o.token_ids for o in Engine(target, max_batch_size=2).generate(prompts, sampling)
    }
    drafted = {
        o.id: o for o in Engine(target, proposer, max_batch_size=2).generate(prompts, sampling)
    }
    assert {id: o.token_ids for id, o in drafted.items()} == plain
    assert sum(o.record.counts.num_draft_tokens for o in drafted.values()) > 0
