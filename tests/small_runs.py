"""A tiny random target in float64 and a few prompts in its alphabet."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, SamplingParams
from specresearch.bench import ResultsFolder, Runner, RunSettings
from specresearch.data import PromptDataset

TURNS = (["abcabcab"], ["fedfedfed", "cab"], ["aabbccdd"], ["ffffff", "ab", "cd"])


@pytest.fixture(scope="session")
def target() -> CausalLM:
    return CausalLM(build("llama", seed=3), letters_tokenizer(), max_len=60, name="letters")


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"id": f"p{i}", "turns": turns, "category": "even" if i % 2 == 0 else "odd"}
        for i, turns in enumerate(TURNS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def make_runner(target: CausalLM, prompt_file: Path, tmp_path: Path) -> Callable[..., Runner]:
    """Return a runner on all prompts.

    Keywords are those of `RunSettings` and `Runner`, and `max_turns` and `folder`.
    """

    def make(
        *,
        folder: Path = tmp_path / "run",
        resume: bool = False,
        sampling: SamplingParams | None = None,
        max_turns: int | None = None,
        settings: RunSettings | None = None,
        **parts: Any,
    ) -> Runner:
        dataset = PromptDataset(
            "letters", "mtbench", "raw", path=str(prompt_file), max_turns=max_turns
        )
        sampling = sampling or SamplingParams(max_new_tokens=10)
        settings = settings or RunSettings(warmup=1)
        results = ResultsFolder(folder, {"batch_size": settings.batch_size}, resume=resume)
        return Runner(target, dataset, sampling, settings, results, **parts)

    return make
