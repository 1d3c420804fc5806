"""Measure a target and choose what it skips: the work of `python -m specresearch.layers`."""

from collections.abc import Sequence
from pathlib import Path

from specresearch.data import PromptDataset
from specresearch.layer_choice.costs import measure_costs
from specresearch.layer_choice.curve import Depth, DepthCurve
from specresearch.layer_choice.output import print_curve, save_curve
from specresearch.layer_choice.texts import TargetTexts
from specresearch.machine import device_name
from specresearch.models import CausalLM


def choose(
    target: CausalLM,
    dataset: PromptDataset,
    *,
    temperatures: Sequence[float],
    max_new_tokens: int,
    max_share: float,
    max_draft_tokens: int,
    seed: int = 0,
    output: Path | None = None,
) -> list[Depth]:
    """Measure early exits and ever more skipped sublayers on the target's own text.

    Args:
        max_share: Largest share of the sublayers to skip one by one.
        output: As in `save_curve`.

    Raises:
        ValueError: For a target without a tokenizer or of one layer.
        UnsupportedModelError: If its sublayers cannot be skipped.
    """
    if target.tokenizer is None:
        raise ValueError(f"{target.name} has no tokenizer, and prompts are text; load one with it")
    if target.num_layers < 2:
        raise ValueError(f"{target.name} has one layer, and none of its depth can be skipped")
    max_tokens = target.max_len - max_new_tokens
    if max_tokens < 1:
        raise ValueError(
            f"max_new_tokens={max_new_tokens} leaves no room for a prompt in "
            f"target.max_len={target.max_len}; lower the first or raise the second"
        )
    prompts = [
        dataset.prompt(target.tokenizer, row, max_tokens=max_tokens).token_ids for row in dataset
    ]
    costs = measure_costs(target, max_draft_tokens)
    texts = TargetTexts(target, prompts, temperatures, max_new_tokens, seed)
    curve = DepthCurve(texts, costs, max_draft_tokens)
    num_skipped = max(1, int(max_share * 2 * target.num_layers))
    depths = [*curve.exits(), *curve.skips(num_skipped)]
    print_curve(depths)
    if output is not None:
        measured = {
            "target": target.name,
            "device": device_name(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            "dataset": dataset.name,
            "num_tokens": texts.num_tokens,
            "temperatures": list(temperatures),
            "seconds_per_token": costs.seconds,
            "attention_cost": costs.attention,
            "mlp_cost": costs.mlp,
            "verification_cost": dict(costs.verification),
        }
        save_curve(depths, target.num_layers, measured, output)
        print(f"to draft with the fastest: +proposer=layer_skip proposer.skip_file={output}")
    return depths
