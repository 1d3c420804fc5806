"""What drafters add: heads by their tensors, or as new ones."""

from pathlib import Path

import pytest
from planned import SEVENTY, planned

from specresearch.models.eagle_checkpoint import read_eagle
from specresearch.models.eagle_head import EagleHead
from specresearch.models.loading import ModelNotLoadedError, read_config
from specresearch.models.medusa import MedusaHeads
from specresearch.planning import ServingPlan
from specresearch.planning.drafters import Drafter
from specresearch.planning.gpus import Gpus
from specresearch.planning.head_size import eagle_size, medusa_size
from specresearch.planning.kv_size import kv_bytes

TINY = ["target=tiny", "gpu=l4", "context=100"]


def drafter_of(plan: ServingPlan) -> Drafter:
    assert plan.drafter is not None
    return plan.drafter


@pytest.mark.parametrize(("version", "checkpoint"), [(1, "zoo:tiny_eagle"), (3, "zoo:tiny_eagle3")])
def test_a_stored_head_has_the_size_of_the_loaded_one(version: int, checkpoint: str) -> None:
    head = EagleHead.of(read_eagle(checkpoint).format)
    size = eagle_size(version, checkpoint, read_config("zoo:tiny"))
    assert size.size.num_parameters == sum(p.numel() for p in head.parameters())
    layer = head.format.layer
    assert layer.num_key_value_heads is not None
    assert layer.head_dim is not None
    assert kv_bytes(size.size.kv, 1) == 2 * 2 * layer.num_key_value_heads * layer.head_dim
    assert size.has_lm_head == (head.lm_head is not None)


def test_stored_medusa_heads_have_the_size_of_the_loaded_ones() -> None:
    heads = MedusaHeads.from_pretrained("zoo:tiny_medusa")
    size = medusa_size("zoo:tiny_medusa", read_config("zoo:tiny"))
    assert size.size.num_parameters == sum(p.numel() for p in heads.parameters())
    assert size.size.kv == ()


def test_a_head_whose_config_alone_is_there_is_sized_as_new(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, '
        '"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99, "draft_vocab_size": 50}'
    )
    target = read_config("zoo:tiny")
    size = eagle_size(3, str(tmp_path), target).size
    assert (size.hidden, size.num_heads) == (64, 4)
    assert kv_bytes(size.kv, 1) == 2 * 2 * 2 * 16
    assert size.num_parameters < eagle_size(3, None, target).size.num_parameters
    with pytest.raises(ModelNotLoadedError, match="do not give their sizes"):
        medusa_size(str(tmp_path), target)


def test_a_folder_of_something_else_is_no_head() -> None:
    with pytest.raises(ModelNotLoadedError, match=r"lacks fc\.weight"):
        eagle_size(3, "zoo:tiny", read_config("zoo:tiny"))
    with pytest.raises(ModelNotLoadedError, match="no Medusa heads"):
        medusa_size("zoo:tiny", read_config("zoo:tiny"))


def test_medusa_drafts_in_one_pass_and_caches_nothing() -> None:
    drafter = drafter_of(planned(*TINY, "+proposer=medusa"))
    assert (drafter.num_passes, drafter.num_nodes) == (1, 5)
    assert planned(*TINY, "+proposer=medusa").drafting is not None


@pytest.mark.parametrize("proposer", ["eagle", "eagle3", "medusa", "ngram", "suffix"])
def test_every_planned_proposer(proposer: str) -> None:
    plan = planned(*TINY, f"+proposer={proposer}")
    assert plan.drafting is not None
    assert plan.drafting.fits
    assert (plan.drafting.drafter_weights == 0) == (proposer in ("ngram", "suffix"))


def test_a_synthetic_proposer_takes_what_its_drafter_takes() -> None:
    names = ["+proposer=synthetic", "proposer@proposer.drafter=eagle3"]
    assert planned(*TINY, *names).drafting == planned(*TINY, "+proposer=eagle3").drafting


def test_sampled_drafts_keep_their_probabilities() -> None:
    sampled, greedy = (
        planned(*SEVENTY, "+proposer=draft_model", f"proposer.sample={value}").drafting
        for value in ("true", "false")
    )
    assert sampled is not None
    assert greedy is not None
    assert sampled.passes - greedy.passes == 2 * 256 * 5 * 128_256 * 4


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    full, half = (planned(*SEVENTY, f"precision.cache={name}") for name in ("bfloat16", "fp8"))
    assert half.plain.tokens // 2 == full.plain.tokens


def test_gpus_have_their_own_figures_unless_others_are_given() -> None:
    gpus = Gpus.parse("2xH100")
    assert (gpus.num, gpus.name, str(gpus)) == (2, "h100", "2 x h100")
    assert gpus.memory == pytest.approx(85.04e9, rel=1e-4)
    assert Gpus.parse("h200").num == 1
    assert "unverified" in Gpus.parse("a100").memory_source
    other = Gpus.parse("4xmine", 10e9, 1e12, 1e14)
    assert (other.memory, other.bandwidth, other.flops) == (10e9, 1e12, 1e14)
    with pytest.raises(ValueError, match=r"add timing\.bandwidth, timing\.flops"):
        Gpus.parse("4xmine", 10e9)
