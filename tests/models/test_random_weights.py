"""Random weights in the shapes of real models, none of which is allocated at its size."""

import json
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.cli import conf_dir
from specresearch.models import random_weights
from specresearch.models.eagle_checkpoint import read_eagle
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_fit import lm_head_of
from specresearch.models.loading import ModelNotLoadedError, load_model
from specresearch.models.medusa import MedusaHeads
from specresearch.models.random_weights import TENSORS, shape_file, shape_names
from specresearch.proposers import DraftModel, Eagle3, Medusa, Proposer

PUBLISHED = {
    "EleutherAI/pythia-2.8b": 2_775_208_960,
    "EleutherAI/pythia-70m": 70_426_624,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "double7/vicuna-68m": 68_030_208,
    "google/gemma-3-270m": 268_098_176,
    "lmsys/vicuna-7b-v1.3": 6_738_415_616,
    "meta-llama/Llama-3.1-405B-Instruct": 405_853_388_800,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
}
MOST_REHEARSED = 1 << 20  # parameters
TARGETS = sorted(file.stem for file in (conf_dir() / "target").glob("*.yaml"))


MODELS, HEADS = shape_names(), shape_names(heads=True)


def stored(name: str) -> dict[str, Any]:
    return json.loads(shape_file(name, is_head=True).read_text("utf-8"))


def rehearsal(name: str = "rehearsal/target", dtype: str = "float32") -> CausalLM:
    return CausalLM.from_pretrained(name, weights="random", device="cpu", dtype=dtype)


@pytest.mark.parametrize("name", MODELS)
def test_a_shape_has_as_many_parameters_as_the_model(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(shape_file(name)))
    model.tie_weights()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if name.startswith("rehearsal/"):
        assert num_parameters < MOST_REHEARSED
    else:
        assert num_parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_can_be_built_without_a_hub(name: str) -> None:
    conf = yaml.safe_load((conf_dir() / "target" / f"{name}.yaml").read_text("utf-8"))
    models = [conf["target"]["model"], conf.get("draft"), *conf.get("heads", {}).values()]
    for model in models:
        if model not in (None, "???") and not model.startswith("zoo:"):
            assert model in (*MODELS, *HEADS)


@pytest.fixture
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the tensors of heads their shape alone, except those that are read."""
    tensor_of = random_weights._random_tensor

    def empty(name: str, shape: list[int], vocab_size: int) -> Tensor:
        if name == "d2t":
            return tensor_of(name, shape, vocab_size)
        return torch.empty(shape, device="meta")

    monkeypatch.setattr(random_weights, "_random_tensor", empty)


@pytest.mark.usefixtures("_no_memory")
@pytest.mark.parametrize("name", [name for name in HEADS if "d2t" in stored(name)[TENSORS]])
def test_an_eagle3_head_has_the_tensors_of_its_format(name: str) -> None:
    files = read_eagle(name, weights="random")
    with torch.device("meta"):
        head = EagleHead.of(files.format)
    shapes = {key: value.shape for key, value in head.state_dict().items()}
    assert shapes == {key: value.shape for key, value in files.tensors.items()}
    assert files.target_ids is not None
    assert len(files.target_ids.unique()) == stored(name)["draft_vocab_size"]
    assert int(files.target_ids.max()) < stored(name)["vocab_size"]


@pytest.mark.usefixtures("_no_memory")
@pytest.mark.parametrize("name", [name for name in HEADS if "d2t" not in stored(name)[TENSORS]])
def test_medusa_heads_have_the_tensors_of_their_shape(name: str) -> None:
    heads = MedusaHeads.from_pretrained(name, weights="random")
    shapes = {key: list(value.shape) for key, value in heads.state_dict().items()}
    assert shapes == stored(name)[TENSORS]
    assert len(heads) == stored(name)["medusa_num_heads"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_weights_have_their_dtype_and_logits_that_name_a_token(dtype: str) -> None:
    lm = rehearsal(dtype=dtype)
    assert {tensor.dtype for tensor in lm.model.parameters()} == {getattr(torch, dtype)}
    assert {tensor.device.type for tensor in lm.model.parameters()} == {"cpu"}
    outputs = Engine(lm).generate_all([[5, 6, 7], [8]], SamplingParams(max_new_tokens=40))
    for output in outputs:
        assert output.finish_reason == "length"
        assert len(set(output.token_ids)) > 20
    with torch.inference_mode():
        logits = lm.forward_whole(torch.tensor([[5, 6, 7]]), want_logits=True).logits.float()
    assert bool(logits.isfinite().all())
    assert 4 < float(logits.std()) < 16


def test_weights_are_seeded_and_leave_other_draws_as_they_were() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one, other = (rehearsal().model.state_dict() for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_the_model_is_the_one_that_transformers_builds_with_these_weights() -> None:
    """Tied weights and the frequencies of rotary embeddings are no weights of a checkpoint."""
    lm = rehearsal("rehearsal/draft", dtype="float64")
    config = AutoConfig.from_pretrained(shape_file("rehearsal/draft"))
    model = AutoModelForCausalLM.from_config(config).double()
    model.load_state_dict(lm.model.state_dict())
    model.tie_weights()
    ids = [3, 1, 4, 1, 5]
    lm.allocate(1)
    actual = lm.extend((0,), [ids]).logits[0, 0]
    torch.testing.assert_close(actual, model(torch.tensor([ids])).logits[0, -1])
    assert lm_head_of(lm).weight is lm.model.get_input_embeddings().weight


def test_a_folder_gives_its_shape_and_its_tokenizer() -> None:
    trained, _ = load_model("zoo:tiny_draft", device="cpu")
    model, tokenizer = load_model("zoo:tiny_draft", weights="random", device="cpu")
    weights, others = trained.state_dict(), model.state_dict()
    assert {name: tensor.shape for name, tensor in weights.items()} == {
        name: tensor.shape for name, tensor in others.items()
    }
    assert not any(torch.equal(tensor, others[name]) for name, tensor in weights.items())
    assert len(tokenizer) == 4096


def test_a_shape_without_a_tokenizer_says_whose_tokens_it_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "specresearch")
    lm = rehearsal()
    assert lm.tokenizer is not None
    assert len(lm.tokenizer) == 4096
    (record,) = caplog.records
    assert "prompts are in the tokens of zoo:tiny" in record.getMessage()
    assert lm.name == "rehearsal/target with random weights"


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ModelNotLoadedError, match=r"no shape of a model 'a/b' .* rehearsal/draft"):
        load_model("a/b", weights="random")
    with pytest.raises(
        ModelNotLoadedError, match=r"no shape of a drafting head .* rehearsal/eagle3"
    ):
        Engine(rehearsal(), Eagle3("rehearsal/draft", weights="random"))
    with pytest.raises(ModelNotLoadedError, match="no shape of a model 'rehearsal/eagle3'"):
        rehearsal("rehearsal/eagle3")
    with pytest.raises(ValueError, match="cannot be quantized"):
        load_model("rehearsal/target", weights="random", quantization={"load_in_4bit": True})


def drafter(kind: str) -> Proposer:
    if kind == "draft_model":
        return DraftModel(rehearsal("rehearsal/draft"), 20, tree="dynamic", depth=5)
    if kind == "medusa":
        return Medusa("rehearsal/medusa", 12, weights="random")
    head = "zoo:tiny_eagle3" if kind == "eagle3_of_the_zoo" else "rehearsal/eagle3"
    return Eagle3(head, 20, weights="random")


@pytest.mark.filterwarnings("ignore:zoo.tiny_eagle3 with random weights was trained for")
@pytest.mark.parametrize("kind", ["eagle3", "draft_model", "medusa", "eagle3_of_the_zoo"])
def test_random_drafters_draft_deep_trees_and_say_what_they_are(kind: str) -> None:
    target = rehearsal("zoo:tiny" if "zoo" in kind else "rehearsal/target")
    proposer = drafter(kind)
    sampling = SamplingParams(max_new_tokens=12)
    (plain,) = Engine(target).generate_all([[5, 6, 7]], sampling)
    depths: list[int] = []
    engine = Engine(
        target, proposer, observers=[lambda step: depths.append(step.proposal.topology.max_depth)]
    )
    (drafted,) = engine.generate_all([[5, 6, 7]], sampling)
    assert drafted.token_ids == plain.token_ids
    assert max(depths) >= 3
    if kind != "draft_model":
        assert "with random weights" in str(proposer.describe())
