"""Measure every pair of a target's and a draft's precision on the same prompts and seeds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specresearch.data import PromptDataset
from specresearch.models import CausalLM
from specresearch.models.memory import stored_bytes
from specresearch.penalties.decoding import Decoder, chain
from specresearch.penalties.folder import (
    CONTINUATION,
    DECODED,
    DIVERGENCE,
    MODEL,
    OVERLAP,
    TRIAL,
    PenaltyFolder,
    PenaltyResults,
)
from specresearch.penalties.overlap import acceptance, divergence, logits_on
from specresearch.penalties.summary import DEFINITIONS, fastest_length, summarize
from specresearch.penalties.variants import WeightVariant, read_bytes
from specresearch.progress import Progress
from specresearch.results.provenance import describe, describe_weights
from specresearch.sampling import SamplingParams, derive_seed

PROGRAM = "specresearch.penalty"


@dataclass(frozen=True)
class PenaltySettings:
    """What is measured.

    Attributes:
        lengths: Chains to choose from; each pair is measured at the one that was fastest on the
            first `num_trials` prompts, which are then left out.
    """

    temperatures: Sequence[float]
    lengths: Sequence[int]
    num_prompts: int
    num_trials: int
    max_new_tokens: int
    seed: int


@dataclass
class PenaltyRunner:
    """Fills a folder with rows.

    Args:
        target: In full precision.
        draft: In full precision; the target itself for a self-draft.
        target_settings: Arguments of `CausalLM` for quantised targets.
        draft_settings: The same for drafts.
    """

    target: CausalLM
    draft: CausalLM
    targets: Sequence[WeightVariant]
    drafts: Sequence[WeightVariant]
    dataset: PromptDataset
    settings: PenaltySettings
    folder: PenaltyFolder
    target_settings: dict[str, Any]
    draft_settings: dict[str, Any]

    def __post_init__(self) -> None:
        tokenizer, room = self.target.tokenizer, self.target.max_len - self.settings.max_new_tokens
        if tokenizer is None or room < 1:
            raise ValueError(
                f"{self.target.name} has no tokenizer, or max_new_tokens="
                f"{self.settings.max_new_tokens} leaves no room for a prompt in target.max_len="
                f"{self.target.max_len}"
            )
        rows = list(self.dataset.rows[: self.settings.num_prompts])
        if len(rows) <= self.settings.num_trials:
            raise ValueError(
                f"num_trials={self.settings.num_trials} leaves none of the {len(rows)} prompts to "
                "measure; lower it, or raise num_prompts"
            )
        self.prompts = {
            row.id: self.dataset.prompt(tokenizer, row, max_tokens=room).token_ids for row in rows
        }
        ids = list(self.prompts)
        self.trial_ids = ids[: self.settings.num_trials]
        self.measured_ids = ids[self.settings.num_trials :]

    def run(self, *, progress: bool = True) -> PenaltyResults:
        """Measure what the folder lacks. Ctrl-C ends early with the results so far."""
        provenance = describe(self.target, [self.dataset], self.settings.seed, PROGRAM)
        provenance = self.folder.begin(provenance)
        num_cells = len(self.targets) * len(self.drafts) * len(self.settings.temperatures)
        complete = False
        try:
            with Progress(num_cells, "cells", enabled=progress) as bar:
                for target in self.targets:
                    self._measure_target(target, bar)
            complete = True
        except KeyboardInterrupt:
            pass
        results = PenaltyResults(
            complete=complete,
            summary=summarize(self.folder, self.targets, self.drafts, self.settings.lengths),
            definitions=DEFINITIONS,
            provenance=provenance,
        )
        self.folder.write_results(results)
        return results

    def _measure_target(self, variant: WeightVariant, bar: Progress) -> None:
        """Measure one target alone, then with each draft."""
        bar.say(f"target {variant.name}")
        target = self.target
        if variant.quantization:
            target = variant.of(self.target, **self.target_settings)
        self._describe(variant.name, None, target)
        for temperature in self.settings.temperatures:
            for id in self.prompts:
                self._continue(target, variant.name, temperature, id)
        if variant.quantization:
            self._diverge(target, variant.name)
        for draft in self.drafts:
            model = draft.of(self.draft, **self.draft_settings)
            self._describe(variant.name, draft.name, model)
            for temperature in self.settings.temperatures:
                bar.say(f"target {variant.name}, draft {draft.name}, temperature {temperature:g}")
                cell = {"target": variant.name, "draft": draft.name, "temperature": temperature}
                self._compare(target, model, cell)
                self._decode(target, model, cell)
                bar.advance()

    def _describe(self, target: str, draft: str | None, model: CausalLM) -> None:
        key = {"target": target, "draft": draft}
        if self.folder.find(MODEL, **key) is None:
            figures = {
                "num_parameters": model.num_parameters,
                "weight_bytes": stored_bytes([model.module]),
                "bytes_beside_target": stored_bytes([model.module], [self.target.module]),
                "read_bytes": read_bytes(model),
                **describe_weights(model),
            }
            self.folder.add(MODEL, figures=figures, **key)

    def _sampling(self, temperature: float, id: str) -> SamplingParams:
        """Return the sampling of a prompt: the same seed for every variant."""
        number = list(self.prompts).index(id)
        return SamplingParams(
            temperature=temperature,
            max_new_tokens=self.settings.max_new_tokens,
            seed=derive_seed(self.settings.seed, number),
        )

    def _continue(self, target: CausalLM, name: str, temperature: float, id: str) -> None:
        """Let the target alone go on from a prompt."""
        key = {"target": name, "temperature": temperature, "prompt": id}

        def measure() -> dict[str, Any]:
            sampling = self._sampling(temperature, id)
            decoded = Decoder(target).decode(self.prompts[id], sampling)
            return decoded.figures() | {"token_ids": list(decoded.token_ids)}

        self._once(CONTINUATION, key, measure)

    def _once(self, kind: str, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
        """Add a row unless it is there."""
        if self.folder.find(kind, **key) is None:
            self.folder.add(kind, figures=measure(), **key)

    def _continuation(self, target: str, temperature: float, id: str) -> list[int]:
        row = self.folder.find(CONTINUATION, target=target, temperature=temperature, prompt=id)
        assert row is not None
        return row["token_ids"]

    def _diverge(self, target: CausalLM, name: str) -> None:
        """Compare a quantised target with the full one, on what the full one has said."""
        full = self.targets[0].name
        for temperature in self.settings.temperatures:
            for id, prompt in self.prompts.items():
                said = self._continuation(full, temperature, id)

                def measure(prompt: Sequence[int] = prompt, said: Sequence[int] = said) -> Any:
                    pair = (logits_on(model, prompt, said) for model in (self.target, target))
                    return asdict(divergence(*pair)) | {"num_tokens": len(said)}

                key = {"target": name, "temperature": temperature, "prompt": id}
                self._once(DIVERGENCE, key, measure)

    def _compare(self, target: CausalLM, draft: CausalLM, cell: dict[str, Any]) -> None:
        """Compute how likely each token of the target's own text accepts a draft."""
        temperature = cell["temperature"]
        for id, prompt in self.prompts.items():
            said = self._continuation(cell["target"], temperature, id)

            def measure(prompt: Sequence[int] = prompt, said: Sequence[int] = said) -> Any:
                p, q = (logits_on(model, prompt, said) for model in (target, draft))
                accepted = acceptance(p, q, temperature)
                return {"accepted": [round(chance, 6) for chance in accepted]}

            self._once(OVERLAP, {**cell, "prompt": id}, measure)

    def _decode(self, target: CausalLM, draft: CausalLM, cell: dict[str, Any]) -> None:
        """Find the fastest length, then decode with it and plainly, in turns."""
        temperature = cell["temperature"]
        for length in self.settings.lengths:
            with_drafts = Decoder(target, chain(draft, length))
            for id in self.trial_ids:
                key = {**cell, "prompt": id, "length": length}
                sampling = self._sampling(temperature, id)

                def measure(
                    decoder: Decoder = with_drafts,
                    id: str = id,
                    sampling: SamplingParams = sampling,
                ) -> Any:
                    return decoder.decode(self.prompts[id], sampling).figures()

                self._once(TRIAL, key, measure)
        length = fastest_length(self.folder.of_kind(TRIAL, **cell))
        plain, with_drafts = Decoder(target), Decoder(target, chain(draft, length))
        for id in self.measured_ids:
            sampling = self._sampling(temperature, id)

            def measure_both(id: str = id, sampling: SamplingParams = sampling) -> Any:
                alone = plain.decode(self.prompts[id], sampling)
                decoded = with_drafts.decode(self.prompts[id], sampling)
                is_equal = alone.token_ids == decoded.token_ids
                return decoded.figures() | alone.figures("plain_") | {"is_equal": is_equal}

            self._once(DECODED, {**cell, "prompt": id, "length": length}, measure_both)
