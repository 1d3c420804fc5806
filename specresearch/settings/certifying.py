"""Settings of certificates."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from specresearch.settings.base import (
    MAX_BATCH,
    TARGET,
    Choice,
    Settings,
    key,
    progress_key,
    seed_key,
)
from specresearch.settings.check import problems_of
from specresearch.settings.decoding import ACCEPTANCE, CONTROLLER, SCHEDULER, SamplingSchema
from specresearch.settings.drafting import PROPOSER, SYNTHETIC


class ToySchema(Settings):
    vocab_size: int = key("tokens of the vocabulary", 9, ge=3, le=64)
    seed: int = seed_key("of the weights")
    sharpness: float = key("higher values give sharper distributions", 1.0, gt=0, le=100)
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = key(
        "precision of weights and passes", "float32"
    )


TOY = Choice(None, {"specresearch.certification.targets.Toy": ToySchema})


class TrialSchema(Settings):
    sampled: list[str] | None = key(
        "names of the sampled settings; null takes all", ["top_k"], default=None
    )
    stress: list[str] = key(
        "sampled settings that adversaries decode as well", ["top_k"], default=[]
    )
    greedy: list[str] | None = key(
        "names of the greedy settings; null takes all", ["plain"], default=None
    )
    toy: dict[str, Any] = key("changes to the toy target", {"vocab_size": 9}, default={})
    batch_size: int = key("requests decoded together", 256, ge=1, le=MAX_BATCH, default=256)
    shortest_prompt: int = key("tokens of the first setting's prompt", 14, ge=1, le=32, default=5)
    max_step_tokens: int | None = key(
        "tokens of a step, beside probes of 3 rows", 36, ge=1, default=None
    )
    max_cache_tokens: int | None = key("tokens in the cache, likewise", 120, ge=1, default=None)
    max_draft_tokens: int | None = key("most drafts of a request per step", 6, ge=1, default=None)
    equal_seeds: bool = key("decode in waves whose requests share a seed", True, default=False)
    coarseness: float = key("the trial detects this many times visible_tv", 2.0, ge=1, default=1.0)


class StrengthSchema(Settings):
    visible_tv: float = key("see visible_tv", 0.15, gt=0, lt=1)
    num_tokens: int = key("max_new_tokens of most sampled settings", 3, ge=2, le=8)
    seeds_coarseness: float = key("coarseness of trials.equal_seeds", 2.0, ge=1)
    crowded_coarseness: float = key("coarseness of trials.crowded", 1.5, ge=1)
    bfloat16_coarseness: float = key("coarseness of trials.bfloat16", 2.0, ge=1)
    num_greedy_prompts: int = key("see num_greedy_prompts", 24, ge=1)


class CertifySchema(Settings):
    proposer: Annotated[Any, PROPOSER] = key("the method to test", "ngram", default=None)
    acceptance: Annotated[Any, ACCEPTANCE] = key("the rule to test", "rejection")
    controller: Annotated[Any, CONTROLLER] = key("how much is drafted", "fixed")
    scheduler: Annotated[Any, SCHEDULER] = key("what a step holds", "first_come")
    strength: StrengthSchema = key("how sharp the tests are: quick, standard or sharp", None)
    alpha: float = key("probability that a lossless method is refuted", 0.001, gt=0, lt=1)
    power: float = key("probability that a deviation of visible_tv is detected", 0.9, gt=0, lt=1)
    visible_tv: float = key("total variation that every test detects", 0.05, gt=0, lt=1)
    num_greedy_prompts: int = key("prompts of greedy tests", 36, ge=1)
    max_draft_tokens: int | None = key(
        "limit of drafts per step; null leaves it to the method", 4, ge=1
    )
    seed: int = seed_key("of samples and prompts")
    toy: Annotated[Any, TOY] = key("the target: a random Llama", None)
    sampled: dict[str, dict[str, Any]] = key(
        "sampled settings, by name", {"plain": {"temperature": 1.0}}
    )
    greedy: dict[str, dict[str, Any]] = key(
        "greedy settings, by name", {"plain": {"temperature": 0.0}}
    )
    trials: dict[str, TrialSchema | None] = key("conditions to test under, by name", {"mixed": {}})
    resume: bool = key("continue the counts in hydra.run.dir", True)
    progress: bool = progress_key()

    def conflicts(self) -> Iterator[str]:
        if (self.proposer or {}).get(TARGET) == SYNTHETIC:
            yield (
                "proposer=synthetic drafts for greedy decoding alone, and a certificate samples, "
                "too; certify the drafter itself, as in +proposer=draft_model"
            )
        for group in ("sampled", "greedy"):
            for name, changes in getattr(self, group).items():
                prefix = f"{group}.{name}."
                yield from problems_of(changes, SamplingSchema, prefix, is_partial=True)
        for name, trial in self.trials.items():
            if trial is not None:
                prefix = f"trials.{name}.toy."
                yield from problems_of(trial.toy, ToySchema, prefix, is_partial=True)
