"""Settings of models and proposers."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen

from specresearch.settings.base import Choice, Settings, key

MAX_DRAFTS = 1024  # of a step; more is a slip of the keyboard
TreeSchema = Literal["auto", "chain", "static", "dynamic"]
Auto = Literal["auto"]
NumDrafts = Annotated[int, Ge(1), Le(MAX_DRAFTS)] | Auto
Paths = list[list[Annotated[int, Ge(0)]]] | str | None
Layers = list[int] | None
Dtype = Literal["auto", "float64", "float32", "bfloat16", "float16"]
Weights = Literal["trained", "random"]
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
SELF = "self"  # in place of a draft model: the target's own weights
Quantization = Literal["int8", "int4", "float8"] | dict[str, Any] | None
Acceptance = Annotated[float, Ge(0), Le(1)]
SYNTHETIC = "specresearch.proposers.Synthetic"


def _weights() -> Any:
    return key("random: only the shape is real, which suffices for speed", "random")


class ModelSchema(Settings):
    model: str = key("folder, hub id or zoo: name", "Qwen/Qwen3-8B", min_length=1)
    weights: Weights = _weights()
    device: str = key("auto, cpu, cuda, cuda:1 or balanced (spread over GPUs)", "cuda")
    dtype: Dtype = key("precision; auto is bfloat16 on a GPU, float32 on a CPU", "bfloat16")
    attention: Literal["auto", "two_part", "slot", "sdpa", "eager"] = key(
        "attention backend; auto is two_part (flash kernels) on a GPU where it works, else slot",
        "two_part",
    )
    max_len: int | None = key(
        "longest prompt and output in tokens; null is the model's own limit",
        4096,
        ge=2,
        default=None,
    )
    prefill_chunk: int = key("prompt tokens of one prefill pass", 1024, ge=1)
    compile: bool = key(
        "compile passes over few tokens: takes minutes at the start, pays where the host is slow",
        True,
    )
    pack_weights: bool | None = key(
        "on a CPU, keep a second copy of the weights, for faster kernels; null: if memory is ample",
        False,
    )
    graphs: bool | None = key(
        "replay passes over few tokens as CUDA graphs; null: on a GPU; true on a CPU only pads",
        False,
    )
    revision: str | None = key("commit, tag or branch on the hub", "main")
    trust_remote_code: bool = key("run code that comes with the model", True)
    allow_pickle: bool = key("read weights that are not safetensors", True)
    quantization: Quantization = key(
        "quantize the weights on loading: a name, {weights: int4, lm_head: int8}, or settings of "
        "torchao or bitsandbytes (pip install 'specresearch[quantization]')",
        "int8",
        default=None,
    )
    gguf_file: str | None = key(
        "GGUF file of the folder or repository, dequantised (pip install 'specresearch[gguf]')",
        "model-Q4_K_M.gguf",
        default=None,
        min_length=6,
    )

    def conflicts(self) -> Iterator[str]:
        if self.gguf_file and (self.weights == "random" or self.quantization):
            yield (
                f"gguf_file={self.gguf_file} names trained weights, which are dequantised; leave "
                "out weights=random and quantization"
            )
        if self.weights == "random" and self.quantization:
            yield "target.weights=random cannot be quantized; leave out target.quantization"


MODEL = Choice(None, {"specresearch.models.CausalLM.from_pretrained": ModelSchema})


class DraftSchema(ModelSchema):
    model: str | None = key(
        "the draft model, ${draft}; self: the target's own weights, quantized",
        "Qwen/Qwen3-0.6B",
        min_length=1,
    )

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.model is None:
            yield "draft is not set, and the target names none; add draft=<folder or hub id>"


DRAFT = Choice(
    None,
    {
        "specresearch.models.load_draft": DraftSchema,
        "specresearch.models.CausalLM.from_pretrained": DraftSchema,
    },
)


class _TreeSchema(Settings):
    tree: TreeSchema = key(
        "a chain, fixed paths of child ranks (static), the most confident nodes (dynamic), or the "
        "fastest of chain and dynamic (auto)",
        "dynamic",
        default="chain",
    )
    num_draft_tokens: NumDrafts | None = key(
        "nodes of a tree, or length of a chain; auto: the fastest; null: 60 (dynamic), 24 "
        "(static), 5 (chain)",
        16,
        default=None,
    )
    depth: int = key("levels of a tree", 6, ge=1, le=MAX_DRAFTS, default=6)
    top_k: int = key(
        "nodes of a dynamic tree expanded in each level", 8, ge=1, le=MAX_DRAFTS, default=8
    )
    paths: Paths = key(
        "paths of a static tree, or a file that specresearch.tree wrote",
        [[0], [1], [0, 0]],
        default=None,
    )
    sample: bool = key(
        "sample a chain's drafts; false takes the likeliest tokens", False, default=True
    )

    def conflicts(self) -> Iterator[str]:
        if self.paths is not None and self.tree != "static":
            yield f"proposer.paths is for proposer.tree=static, not {self.tree}"


class DraftModelSchema(_TreeSchema):
    draft: Annotated[Any, DRAFT] = key("the draft model", None)


class LayerSkipSchema(_TreeSchema):
    exit_layer: int | None = key(
        "draft with so many of the first layers; null: all but what is skipped by name; if "
        "nothing is, what the target was trained for, or half of them",
        4,
        ge=1,
    )
    skip_attention: list[Annotated[int, Ge(0)]] = key(
        "layers whose attention is skipped, counted from 0", [3, 5]
    )
    skip_mlp: list[Annotated[int, Ge(0)]] = key("layers whose MLP is skipped", [3, 4])
    skip_file: str | None = key(
        "file with both lists that specresearch.layers wrote", "layers.json", min_length=1
    )


class OtherTokenizerSchema(DraftModelSchema):
    mode: Literal["tli", "slem", "hybrid"] = key(
        "tli drafts tokens that both vocabularies have, slem text, hybrid text where tli cannot",
        "hybrid",
    )

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.mode != "tli" and self.tree not in ("auto", "chain"):
            yield (
                f"proposer.mode={self.mode} drafts chains, not proposer.tree={self.tree}; use "
                "proposer.tree=chain or proposer.mode=tli"
            )


def _head() -> Any:
    return key(
        "folder, hub id or zoo: name; null: the target's own, if it names one",
        "out/student",
        min_length=1,
    )


class EagleSchema(_TreeSchema):
    head: str | None = _head()
    weights: Weights = _weights()
    revision: str | None = key("commit, tag or branch on the hub", "main")
    overrides: dict[str, Any] | None = key(
        "keys of the head's config to replace", {"rope_theta": 1e4}
    )


class Eagle3Schema(EagleSchema):
    layer_ids: Layers = key(
        "target layers that the head reads; null: its config's, or the usual 3", [2, 16, 29]
    )
    id_convention: Literal["inputs", "outputs"] | None = key(
        "whether layer_ids number the layers' inputs or outputs; null: as in the head's config",
        "outputs",
    )


def _size_beside_paths(num_draft_tokens: NumDrafts, paths: Paths) -> Iterator[str]:
    if paths is not None and num_draft_tokens != "auto":
        yield (
            f"proposer.num_draft_tokens={num_draft_tokens} contradicts proposer.paths, whose "
            "number is that of the drafts; leave it at auto"
        )


class MedusaSchema(Settings):
    head: str | None = _head()
    weights: Weights = _weights()
    revision: str | None = key("commit, tag or branch on the hub", "main")
    num_draft_tokens: NumDrafts = key("nodes of the tree; auto: the fastest", 63)
    paths: Paths = key(
        "paths of another tree, or a file that specresearch.tree wrote", [[0], [1], [0, 0]]
    )

    def conflicts(self) -> Iterator[str]:
        yield from _size_beside_paths(self.num_draft_tokens, self.paths)


class NGramSchema(Settings):
    num_draft_tokens: NumDrafts = key("longest draft; auto: the fastest", 10)
    n_max: int = key("longest match looked for", 4, ge=1, le=MAX_DRAFTS)
    n_min: int = key("shortest match looked for", 2, ge=1, le=MAX_DRAFTS)

    def conflicts(self) -> Iterator[str]:
        if self.n_min > self.n_max:
            yield f"proposer.n_min={self.n_min} is above proposer.n_max={self.n_max}"


class SuffixSchema(Settings):
    num_draft_tokens: NumDrafts = key("nodes of a draft; auto: the fastest", 32)
    max_factor: float = key("at most max_factor x (length of the match) + offset nodes", 1.0, gt=0)
    offset: float = key("see max_factor", 0.0, ge=0)
    min_probability: float = key(
        "draft no tokens that are less likely by their counts", 0.1, ge=0, le=1
    )
    branch: bool = key("draft trees; false drafts chains", False)
    max_depth: int = key(
        "longest sequence that is counted; a match is at most half as long", 64, ge=2
    )
    use_global: bool = key("search earlier outputs as well; use it with order=shuffled", True)
    max_global_nodes: int = key("most nodes kept for use_global", 500000, ge=2, le=10**9)


class TokenRecyclingSchema(Settings):
    num_draft_tokens: NumDrafts = key("nodes of the tree; auto: the fastest", 80)
    top_k: int = key("successors kept for every token", 8, ge=1, le=MAX_DRAFTS)
    depth: int = key("levels of the tree", 6, ge=1, le=MAX_DRAFTS)
    paths: Paths = key(
        "paths of another tree, or a file that specresearch.tree wrote", [[0], [1], [0, 0]]
    )
    warm: bool = key("share one memory among all requests; use it with order=shuffled", True)

    def conflicts(self) -> Iterator[str]:
        yield from _size_beside_paths(self.num_draft_tokens, self.paths)


class LookaheadSchema(Settings):
    window_size: int = key("W: positions guessed at once", 7, ge=1, le=MAX_DRAFTS)
    ngram_size: int = key("N: tokens of an n-gram, the root included", 5, ge=2, le=MAX_DRAFTS)
    num_ngrams: int = key(
        "G: n-grams kept for one token and verified in one step", 7, ge=1, le=MAX_DRAFTS
    )
    num_draft_tokens: NumDrafts | None = key(
        "most drafts, with as large a share of the window; auto: the fastest; null: all n-grams",
        "auto",
    )


PROPOSERS: dict[str, type[Settings]] = {
    "specresearch.proposers.DraftModel": DraftModelSchema,
    "specresearch.proposers.DraftModelOtherTokenizer": OtherTokenizerSchema,
    "specresearch.proposers.Eagle": EagleSchema,
    "specresearch.proposers.Eagle3": Eagle3Schema,
    "specresearch.proposers.LayerSkip": LayerSkipSchema,
    "specresearch.proposers.Lookahead": LookaheadSchema,
    "specresearch.proposers.Medusa": MedusaSchema,
    "specresearch.proposers.NGram": NGramSchema,
    "specresearch.proposers.Suffix": SuffixSchema,
    "specresearch.proposers.TokenRecycling": TokenRecyclingSchema,
}
PROPOSER = Choice("proposer", PROPOSERS, base="specresearch.proposers.Proposer")


class CascadeSchema(Settings):
    proposers: Annotated[list[Any], PROPOSER] = key(
        "each request uses the first that has drafts for it",
        [{"_target_": f"specresearch.proposers.{name}"} for name in ("NGram", "Suffix")],
        min_length=2,
    )
    num_draft_tokens: NumDrafts | None = key(
        "most drafts of each; auto: the fastest; null: as the proposers say", "auto"
    )
    num_proposers: int | None = key("how many of them are asked; null: all", 1, ge=1)


PROPOSERS["specresearch.proposers.Cascade"] = CascadeSchema
DRAFTER = Choice("proposer", dict(PROPOSERS), base="specresearch.proposers.Proposer")


class SyntheticSchema(Settings):
    drafter: Annotated[Any, DRAFTER] = key("the proposer that it costs as much as", "eagle3")
    acceptance: Acceptance | Annotated[list[Acceptance], MinLen(1)] = key(
        "of a draft once all before it were accepted; a list goes by depth, and its last entry on",
        [0.8, 0.7, 0.6],
    )


PROPOSERS[SYNTHETIC] = SyntheticSchema
