"""Any configured method can be built on a toy target."""

import hydra
import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf
from toy_methods import target, toy

from specresearch import CausalLM, Engine
from specresearch.certification.substitution import build_on_toy
from specresearch.cli import conf_dir
from specresearch.proposers import NGram


class Hungry(NGram):
    """A proposer that loads heads, and replaces them by random ones on a toy."""

    def __init__(self, heads: str, num_draft_tokens: int) -> None:
        super().__init__(num_draft_tokens)
        self.heads = heads

    @classmethod
    def toy(cls, target: CausalLM, seed: int, num_draft_tokens: int = 5) -> "Hungry":
        return cls(f"random heads for {target.vocab_size} tokens", num_draft_tokens)


class TestSubstitution:
    @pytest.mark.filterwarnings("ignore:the target is .* times the draft")  # both are toys
    @pytest.mark.parametrize(
        "choice", sorted(path.stem for path in conf_dir().glob("proposer/*.yaml"))
    )
    def test_every_configured_proposer_can_be_certified(self, choice: str) -> None:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = hydra.compose("certify", [f"+proposer={choice}"])
        try:
            proposer = build_on_toy(cfg.proposer, toy(), target())
            Engine(target(), proposer, max_batch_size=2)
        except ValueError as error:
            if hasattr(get_class(cfg.proposer["_target_"]), "toy"):
                raise
            pytest.skip(
                f"it needs a classmethod toy(target, seed, **settings), without which: {error}"
            )

    def test_models_are_replaced_at_any_depth_of_the_config(self) -> None:
        model = {"_target_": "specresearch.models.CausalLM.from_pretrained", "model": "${draft}"}
        inner = {
            "_target_": "specresearch.proposers.DraftModel",
            "draft": model,
            "num_draft_tokens": 3,
        }
        built = build_on_toy(
            OmegaConf.create({"_target_": "builtins.dict", "parts": [inner], "n": 2}),
            toy(),
            target(),
        )
        assert (
            built["parts"][0].draft.vocab_size,
            built["parts"][0].num_draft_tokens,
            built["n"],
        ) == (4, 3, 2)

    def test_a_class_with_a_toy_method_builds_itself(self) -> None:
        node = {"_target_": f"{__name__}.Hungry", "num_draft_tokens": 2, "dtype": "${target.dtype}"}
        built = build_on_toy(OmegaConf.create(node), toy(), target())
        assert (built.heads, built.num_draft_tokens) == ("random heads for 4 tokens", 2)
        with pytest.raises(ValueError, match=r"Hungry: .*unexpected keyword argument 'depth'"):
            build_on_toy(OmegaConf.create(node | {"depth": 3}), toy(), target())
