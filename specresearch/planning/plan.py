"""Plan a deployment from settings: the pair as set, what else would fit, and when drafting pays."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from omegaconf import DictConfig
from transformers import PreTrainedConfig

from specresearch.models.loading import read_config
from specresearch.models.random_weights import shape_names
from specresearch.planning.break_even import LoadPoint, Pair, TimingSettings, load_points
from specresearch.planning.deployment import Conditions, Deployment, deploy
from specresearch.planning.drafters import AUTO_DRAFTS, Drafter, build_drafter, new_eagle3
from specresearch.planning.gpus import Gpus
from specresearch.planning.model_size import ModelSize, causal_lm_size
from specresearch.planning.precision import PRECISIONS, Precision

GB = 1e9
QUANTISED = ("int8", "int4")  # formats that a plan offers for weights which have none
CACHE_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}


@dataclass(frozen=True)
class ServingPlan:
    """What fits on the GPUs, and from which acceptance on drafting pays.

    Attributes:
        plain: The target alone.
        drafting: With the drafter; None without a proposer.
        others: The same target and drafter in other formats, and other drafters.
        loads: None without a drafter.
        acceptance: What `LoadPoint.speedup` assumes.
    """

    conditions: Conditions
    target: ModelSize
    drafter: Drafter | None
    plain: Deployment
    drafting: Deployment | None
    others: list[Deployment]
    loads: list[LoadPoint]
    acceptance: float


def make_plan(cfg: DictConfig) -> ServingPlan:
    """Plan what conf/plan.yaml describes.

    Raises:
        ValueError: If a model or the GPUs are not known, or do not go together.
    """
    conditions, acceptance = _conditions(cfg), float(cfg.draft_acceptance)
    config = _config(cfg.target)
    target = causal_lm_size(cfg.target.model, config)
    target.check_gpus(conditions.gpus.num)
    precision = _precision(cfg.precision.target, target, cfg.target.dtype)
    if cfg.get("proposer") is None:
        plain = deploy(conditions, target, precision)
        others = [deploy(conditions, target, other) for other in _smaller(precision)]
        return ServingPlan(conditions, target, None, plain, None, others, [], acceptance)
    drafter = build_drafter(cfg.proposer, config, _draft_size)
    drafter_precision = precision
    if drafter.model is not None:
        drafter.model.check_gpus(conditions.gpus.num)
        drafter_precision = _precision(cfg.precision.draft, drafter.model, cfg.target.dtype)
    catalog = _Catalog(conditions, target, config, drafter, drafter_precision)
    plain, drafting = catalog.pair(precision, drafter, drafter_precision)
    timing = TimingSettings(*(float(cfg.timing[field.name]) for field in fields(TimingSettings)))
    pair = Pair(conditions, target, precision, drafter, drafter_precision, timing)
    return ServingPlan(
        conditions=conditions,
        target=target,
        drafter=drafter,
        plain=plain,
        drafting=drafting,
        others=catalog.others(precision),
        loads=load_points(pair, plain, drafting, acceptance),
        acceptance=acceptance,
    )


@dataclass(frozen=True)
class _Catalog:
    """The deployments that a plan compares."""

    conditions: Conditions
    target: ModelSize
    config: PreTrainedConfig
    drafter: Drafter
    drafter_precision: Precision

    def pair(
        self, precision: Precision, drafter: Drafter, drafter_precision: Precision
    ) -> tuple[Deployment, Deployment]:
        """Return the target alone and with a drafter, whose share of the first's tokens is set."""
        plain = deploy(self.conditions, self.target, precision)
        drafting = deploy(self.conditions, self.target, precision, drafter, drafter_precision)
        share = drafting.tokens / plain.tokens if plain.tokens else None
        return plain, replace(drafting, share_of_plain=share)

    def others(self, precision: Precision) -> list[Deployment]:
        """Return every format of the target, alone and with each drafter."""
        rows: list[Deployment] = []
        others = self._other_drafters()
        for target_precision in (precision, *_smaller(precision)):
            plain = deploy(self.conditions, self.target, target_precision)
            rows.append(plain)
            for drafter, drafter_precision in self._in_formats(target_precision):
                rows.append(self.pair(target_precision, drafter, drafter_precision)[1])
            for drafter in others:
                rows.append(self.pair(target_precision, drafter, PRECISIONS["bfloat16"])[1])
        return rows

    def _in_formats(self, precision: Precision) -> list[tuple[Drafter, Precision]]:
        """Return the drafter as set, and in the target's format if that is smaller."""
        pairs = [(self.drafter, self.drafter_precision)]
        if self.drafter.model is not None and precision.bits < self.drafter_precision.bits:
            pairs.append((self.drafter, precision))
        return pairs

    def _other_drafters(self) -> list[Drafter]:
        """Return smaller models of the family that the package knows, and a new EAGLE-3 head."""
        drafter = self.drafter
        if drafter.kind != "draft model" or drafter.model is None:
            return [] if drafter.kind == "Eagle3" else [new_eagle3(self.config, AUTO_DRAFTS)]
        smaller = [
            replace(drafter, model=size)
            for size in _family(self.config)
            if size.num_parameters < drafter.model.num_parameters
        ]
        return [*smaller, new_eagle3(self.config, drafter.depth)]


def _family(config: PreTrainedConfig) -> list[ModelSize]:
    """Return the models of the package that are of one family and vocabulary with the target."""
    text: Any = config.get_text_config(decoder=True)
    sizes: list[ModelSize] = []
    for name in shape_names():
        other = read_config(name)
        if other.model_type == config.model_type and other.vocab_size == text.vocab_size:
            sizes.append(causal_lm_size(name, other))
    return sizes


def _conditions(cfg: DictConfig) -> Conditions:
    memory = None if cfg.gpu_memory is None else cfg.gpu_memory * GB
    figures = {key: cfg.timing[key] for key in ("bandwidth", "flops")}
    given = {key: float(value) for key, value in figures.items() if value is not None}
    return Conditions(
        gpus=Gpus.parse(str(cfg.gpu), memory, **given),
        utilization=float(cfg.utilization),
        context=cfg.context,
        max_running=cfg.max_running,
        prefill_tokens=cfg.prefill_tokens,
        cache_itemsize=CACHE_BYTES[cfg.precision.cache],
        graphs=cfg.graphs * GB,
        runtime=cfg.runtime * GB,
        weights_only=cfg.weights_only,
    )


def _config(settings: Mapping[str, Any]) -> PreTrainedConfig:
    return read_config(
        settings["model"],
        revision=settings.get("revision"),
        trust_remote_code=settings.get("trust_remote_code", False),
    )


def _draft_size(settings: Mapping[str, Any]) -> ModelSize:
    return causal_lm_size(settings["model"], _config(settings))


def _precision(setting: str, size: ModelSize, dtype: str) -> Precision:
    if setting != "auto":
        return PRECISIONS[setting]
    if size.stored is not None:
        return size.stored
    return PRECISIONS["bfloat16" if dtype == "auto" else dtype]


def _smaller(precision: Precision) -> list[Precision]:
    return [PRECISIONS[name] for name in QUANTISED if PRECISIONS[name].bits < precision.bits]
