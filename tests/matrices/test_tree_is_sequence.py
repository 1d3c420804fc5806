"""Matrix 1: a batched, ragged pass over trees gives the logits of plain passes, one per path."""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from cut_models import SKIPPED, cut, deep
from tiny_models import ARCHITECTURES, VOCAB, build, config_of
from torch import Tensor
from transformers import PreTrainedModel

from specresearch.models import CausalLM, ragged, slot_model, two_part
from specresearch.models.attention_plan import AttentionPlan
from specresearch.models.hf_adapter import FINAL_NORM, UnsupportedModelError, length_limit
from specresearch.models.layer_view import skip_sublayers
from specresearch.models.ragged import Packing
from specresearch.proposal import Proposal, Topology, Verdict

SLOTS = (4, 0, 2)
PROMPT_LENGTHS = (9, 3, 6)
VISIBLE = 1e-2
ROUNDING = 0.04  # of bfloat16

Sabotage = Callable[[Topology], Topology]


def intact(topology: Topology) -> Topology:
    return topology


def random_tree(lengths: Sequence[int], num_nodes: int, generator: torch.Generator) -> Topology:
    """Draw a tree for each row; the parents of padding nodes are arbitrary earlier nodes."""
    rows = []
    for _ in lengths:
        parents = [-1]
        for node in range(1, num_nodes):
            parents.append(int(torch.randint(0, node, (1,), generator=generator)))
        rows.append(parents)
    return Topology.from_parents(torch.tensor(rows))


@dataclass(repr=False)
class Script:
    """Play one decoding history on the slot cache and on the reference.

    Attributes:
        sabotage: Changes the tree that the model gets, not what the reference computes.
        commit_wrongly: Keep the keys and values of a branch other than the committed one.
        pack: Give the model the row lengths on the host, so that its passes skip padding.
        worst: Largest error of any logit so far, relative to the largest logit of its row.
    """

    lm: CausalLM
    reference: PreTrainedModel
    sabotage: Sabotage = intact
    commit_wrongly: bool = False
    pack: bool = False
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(7))
    contexts: dict[int, list[int]] = field(default_factory=dict)
    worst: float = 0.0

    def tokens(self, num: int) -> list[int]:
        return torch.randint(0, VOCAB, (num,), generator=self.generator).tolist()

    def compare(self, logits: Sequence[Tensor], sequences: Sequence[Sequence[int]]) -> None:
        """Compare logits [V] with the reference's after each sequence.

        Sequences of one length share a pass of the reference, which never sees padding.
        """
        by_length = defaultdict(list)
        for row, sequence in zip(logits, sequences, strict=True):
            by_length[len(sequence)].append((row, sequence))
        for pairs in by_length.values():
            actual = torch.stack([row for row, _ in pairs])
            with torch.no_grad():
                input_ids = torch.tensor([list(sequence) for _, sequence in pairs])
                expected = self.reference(input_ids=input_ids).logits[:, -1]
            errors = (actual - expected).abs().amax(1) / expected.abs().amax(1)
            assert bool(errors.isfinite().all())
            self.worst = max(self.worst, float(errors.max()))

    @torch.inference_mode()
    def fill_with_stale_data(self) -> None:
        slots = list(iter(self.lm.acquire, None))
        self.lm.extend(slots, [self.tokens(20) for _ in slots], want_logits=False)
        for keys, values in self.lm.cache.buffers:
            keys.normal_(generator=self.generator).mul_(5)
            values.normal_(generator=self.generator).mul_(5)
        self.lm.truncate(slots, [0] * len(slots))

    def prefill(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        prompts = [self.tokens(length) for length in lengths]
        logits = self.lm.extend(slots, prompts).logits
        self.contexts |= zip(slots, prompts, strict=True)
        self.compare(list(logits[:, 0]), prompts)

    def verify_and_commit(
        self, slots: Sequence[int], lengths: Sequence[int], topology: Topology | None = None
    ) -> None:
        num_nodes = max(lengths)
        topology = topology or random_tree(lengths, num_nodes, self.generator)
        token_ids = torch.tensor([self.tokens(num_nodes) for _ in slots])
        proposal = Proposal(
            token_ids,
            self.sabotage(topology),
            torch.tensor(lengths),
            host_lengths=tuple(lengths) if self.pack else None,
        )
        logits = self.lm.forward(slots, proposal).logits
        ancestors = topology.ancestors.expand(len(slots), -1, -1)
        paths, node_logits, sequences = [], [], []
        for row, slot in enumerate(slots):
            for node in range(lengths[row]):
                path = ancestors[row, node].nonzero()[:, 0].tolist()
                node_logits.append(logits[row, node])
                sequences.append(self.contexts[slot] + token_ids[row, path].tolist())
            paths.append(path)
            self.contexts[slot] = sequences[-1]
        self.compare(node_logits, sequences)
        width = max(map(len, paths))
        if self.commit_wrongly:
            paths = [list(range(len(path))) for path in paths]
        padded = torch.tensor([path + [-1] * (width - len(path)) for path in paths])
        accepted = torch.tensor([len(path) - 1 for path in paths])
        self.lm.commit(slots, Verdict(padded, accepted, torch.zeros_like(accepted)))

    def play(self) -> float:
        self.lm.allocate(6, 8)
        self.fill_with_stale_data()
        self.prefill(SLOTS, PROMPT_LENGTHS)
        self.verify_and_commit(SLOTS, (8, 4, 6))
        self.verify_and_commit(SLOTS, (3, 7, 5))
        self.verify_and_commit((SLOTS[2], SLOTS[0]), (5, 6))
        return self.worst


@cache
def reference_model(architecture: str) -> PreTrainedModel:
    return build(architecture)


def script_of(
    architecture: str,
    attention: str = "slot",
    sabotage: Sabotage = intact,
    commit_wrongly: bool = False,
    self_test: bool = False,
    graphs: bool = False,
) -> Script:
    reference = reference_model(architecture)
    lm = CausalLM(
        copy.deepcopy(reference),
        attention=attention,
        max_len=48,
        prefill_chunk=4,
        self_test=self_test,
        graphs=graphs,
    )
    return Script(lm, reference, sabotage, commit_wrongly)


EXACT, SINGLE = 1e-12, 1e-5
# These compute a router or a softmax in float32, whatever the dtype of the weights.
IN_SINGLE_PRECISION = {"deepseek_v3", "gemma2", "gptj"}
# They keep an attention of their own, cap their scores, or cache latents.
IN_ONE_PART = ("deepseek_v3", "falcon", "gemma2")
# GPT-J keeps its own before transformers 5.24.
IN_TWO_PARTS = [name for name in ARCHITECTURES if name not in {"gptj", *IN_ONE_PART}]
LIBRARY_ATTENTION = [
    ("llama", "sdpa"),
    ("llama", "eager"),
    ("qwen2_sliding", "sdpa"),
    ("mistral", "eager"),
    ("gemma2", "eager"),
    ("gemma3", "sdpa"),
    ("gpt_oss", "eager"),
    ("gpt2", "sdpa"),
    ("gptj", "eager"),
]


@pytest.mark.parametrize(
    ("architecture", "attention"),
    [
        *((name, "slot") for name in ARCHITECTURES),
        *((name, "two_part") for name in IN_TWO_PARTS),
        *LIBRARY_ATTENTION,
    ],
)
def test_tree_logits_equal_sequential_forwards(architecture: str, attention: str) -> None:
    tolerance = SINGLE if attention == "eager" or architecture in IN_SINGLE_PRECISION else EXACT
    worst = script_of(architecture, attention, self_test=True).play()
    assert worst < tolerance


@pytest.mark.parametrize(
    ("architecture", "attention"),
    [
        *((name, "slot") for name in ARCHITECTURES),
        *((name, "two_part") for name in IN_TWO_PARTS),
    ],
)
def test_passes_on_the_padded_buffers_of_graphs_give_the_same_logits(
    architecture: str, attention: str
) -> None:
    script = script_of(architecture, attention, graphs=True)
    assert script.play() < (SINGLE if architecture in IN_SINGLE_PRECISION else EXACT)
    passes = script.lm.passes
    assert (passes is not None) == script.lm.adapter.uses_slot_attention
    assert passes is None or len(passes.graphs) > 4


@pytest.mark.parametrize("alone", ["none", "drafting", "all"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_passes_without_padding_give_the_same_logits(
    architecture: str, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if some rows, or all, have an attention call of their own."""

    def choose(lengths: Sequence[int], *_: object) -> frozenset[int] | None:
        if alone == "none":
            return None
        return frozenset(b for b, length in enumerate(lengths) if alone == "all" or length > 1)

    monkeypatch.setattr(ragged, "_alone", choose)
    packed: list[Tensor] = []
    pack = Packing.pack
    monkeypatch.setattr(
        Packing, "pack", lambda packing, values: packed.append(values) or pack(packing, values)
    )
    script = script_of(architecture)
    script.pack = True
    assert script.play() < (SINGLE if architecture in IN_SINGLE_PRECISION else EXACT)
    assert bool(packed) == script.lm.adapter.uses_slot_attention


@pytest.mark.parametrize("architecture", IN_TWO_PARTS)
def test_split_keys_and_passes_without_padding_in_two_parts(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are read in several stretches where a GPU has idle multiprocessors."""
    script = script_of(architecture, "two_part")
    assert script.lm.kernel is not None
    script.lm.kernel = replace(script.lm.kernel, splits_keys=False)
    monkeypatch.setattr(two_part, "num_splits_of", lambda *_: 3)
    script.pack = True
    assert script.play() < EXACT


@pytest.mark.parametrize("architecture", IN_ONE_PART)
def test_models_that_flash_kernels_cannot_serve_are_refused(architecture: str) -> None:
    with pytest.raises(ValueError, match=r"^attention=two_part does not work for .*: .*; use "):
        script_of(architecture, "two_part")


@pytest.mark.parametrize("architecture", IN_TWO_PARTS)
def test_trees_behind_empty_prefixes_in_two_parts(architecture: str) -> None:
    """No row has committed tokens, then all but one have some."""
    script = script_of(architecture, "two_part")
    script.lm.allocate(6, 8)
    script.fill_with_stale_data()
    script.contexts = {slot: [] for slot in SLOTS}
    script.verify_and_commit(SLOTS[:2], (7, 4))
    script.verify_and_commit(SLOTS, (3, 7, 5))
    assert script.worst < EXACT


@pytest.mark.parametrize("attention", ["slot", "two_part"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt_oss", "gpt2"])
def test_bfloat16_stays_within_its_rounding(architecture: str, attention: str) -> None:
    assert in_bfloat16(architecture, attention).play() < ROUNDING


def in_bfloat16(architecture: str, attention: str, sabotage: Sabotage = intact) -> Script:
    """Return a script whose reference has the same weights and computes in float32.

    All experts are active, as rounding would change a choice among them.
    """
    rounded = build(architecture, dtype=torch.bfloat16, spread=0.5, num_experts_per_tok=4)
    reference = copy.deepcopy(rounded).float()
    lm = CausalLM(rounded, attention=attention, max_len=48, prefill_chunk=4)
    return Script(lm, reference, sabotage)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("attention", ["slot", "two_part"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3", "gpt2"])
def test_a_tree_that_grows_level_by_level_gives_the_same_logits(
    architecture: str, attention: str, graphs: bool
) -> None:
    """Each level is a pass of its own, over cache columns that are written but not committed."""
    script = script_of(architecture, attention, graphs=graphs)
    script.lm.allocate(6, 8)
    script.fill_with_stale_data()
    script.prefill(SLOTS, PROMPT_LENGTHS)
    tree = Topology.chain(1)
    levels = [
        torch.tensor([[0, 0]] * 3),
        torch.tensor([[1, 1, 2], [2, 2, 1], [1, 2, 2]]),
        torch.tensor([[3, 5]] * 3),
    ]
    tokens = torch.tensor([script.tokens(8) for _ in SLOTS])
    script.lm.grow(SLOTS, tokens[:, :1], tree, 0)
    for parents in levels:
        first = tree.num_nodes
        tree = tree.with_level(parents, 2)
        logits = script.lm.grow(SLOTS, tokens[:, first : tree.num_nodes], tree, first)
        sequences = []
        for row, slot in enumerate(SLOTS):
            for node in range(first, tree.num_nodes):
                path = tree.ancestors[row, node].nonzero()[:, 0]
                sequences.append(script.contexts[slot] + tokens[row, path].tolist())
        script.compare(list(logits.flatten(0, 1)), sequences)
    assert script.worst < EXACT


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_trees_of_a_model_that_skips_sublayers(architecture: str, skipped: str) -> None:
    model = deep(architecture)
    target = CausalLM(copy.deepcopy(model), max_len=48, prefill_chunk=4)
    view = skip_sublayers(target, SKIPPED[skipped])
    assert Script(view, cut(model, SKIPPED[skipped])).play() < EXACT
    assert (
        Script(view, cut(model, SKIPPED["inner_layer" if skipped == "exit" else "exit"])).play()
        > VISIBLE
    )


def test_slot_attention_is_used_where_the_library_allows_it() -> None:
    with_slot_attention = {
        name for name in ARCHITECTURES if script_of(name).lm.adapter.uses_slot_attention
    }
    assert with_slot_attention >= set(ARCHITECTURES) - {"falcon", "gptj"}


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("slots", [(1, 2, 3), (0,), (3, 4)], ids=str)
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("attention", ["slot", "two_part"])
def test_neighbouring_slots_read_as_views_give_the_same_logits(
    architecture: str, slots: tuple[int, ...], ragged: bool, attention: str
) -> None:
    """These passes skip the gather: neighbours at one column or at several, and a single slot."""
    script = script_of(architecture, attention)
    script.lm.allocate(6, 8)
    script.fill_with_stale_data()
    script.prefill(slots, [5 + 2 * i if ragged else 6 for i in range(len(slots))])
    for topology in (
        Topology.chain(4),
        Topology.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0)]),
        Topology.chain(1),
    ):
        script.verify_and_commit(slots, [topology.num_nodes] * len(slots), topology)
    assert script.worst < EXACT


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_size_of_prefill_chunks_does_not_change_the_logits(chunk: int) -> None:
    script = script_of("qwen2_sliding")
    script.lm.prefill_chunk = chunk
    assert script.play() < EXACT


def test_drafts_past_the_last_position_stay_in_range() -> None:
    reference = build("gpt2")
    lm = CausalLM(copy.deepcopy(reference), max_len=64)
    lm.allocate(1, 5)
    script = Script(lm, reference)
    slot = lm.acquire()
    assert slot is not None
    script.prefill([slot], [62])
    logits = lm.forward(
        [slot], Proposal.chain(torch.tensor([script.tokens(5)]), torch.tensor([2]))
    ).logits
    assert bool(logits.isfinite().all())


def flip(topology: Topology) -> Topology:
    """Change one bit of the tree's mask."""
    broken = Topology(
        topology.parents, topology.is_chain, topology.max_depth, topology.max_children
    )
    ancestors = topology.ancestors.clone()
    ancestors[0, 2, 1] ^= True
    broken.__dict__.update(ancestors=ancestors, depth=topology.depth)
    return broken


class TestNegativeControls:
    """Each of these breaks one thing, and the comparison must notice."""

    def test_wrong_position(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def by_index(
            starts: Sequence[int], topology: Topology, device: torch.device, first: int = 0
        ) -> Tensor:
            return torch.tensor(starts)[:, None] + torch.arange(first, topology.num_nodes)

        script = script_of("llama")
        monkeypatch.setattr(slot_model, "committed_positions", by_index)
        assert script.play() > VISIBLE

    @pytest.mark.parametrize("attention", ["slot", "two_part"])
    def test_one_mask_bit(self, attention: str) -> None:
        assert script_of("llama", attention, sabotage=flip).play() > VISIBLE
        assert in_bfloat16("llama", attention, sabotage=flip).play() > ROUNDING

    @pytest.mark.parametrize("attention", ["slot", "two_part"])
    def test_wrong_commit(self, attention: str) -> None:
        assert script_of("llama", attention, commit_wrongly=True).play() > VISIBLE

    def test_window_of_the_root_for_every_node(self) -> None:
        def flatten(topology: Topology) -> Topology:
            flat = Topology(topology.parents, max_depth=0, max_children=topology.max_children)
            flat.__dict__.update(ancestors=topology.ancestors, depth=topology.depth)
            return flat

        assert script_of("mistral", "two_part", sabotage=flatten).play() > VISIBLE

    @pytest.mark.parametrize("is_corrected", [True, False])
    def test_log_sum_exp_of_nothing_is_taken_for_infinite(
        self, is_corrected: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = script_of("llama", "two_part")
        kernel = script.lm.kernel
        assert kernel is not None

        def attend(*args: Any) -> tuple[Tensor, Tensor]:
            out, lse = kernel.attend(*args)
            return out, lse.masked_fill(lse.isneginf(), torch.inf)

        script.lm.kernel = replace(kernel, attend=attend)
        script.lm.allocate(6, 8)
        script.contexts = {slot: [] for slot in SLOTS}
        if is_corrected:
            script.verify_and_commit(SLOTS, (7, 4, 5))
            return
        monkeypatch.setattr(two_part, "nothing_is_negative", lambda lse: lse)
        with pytest.raises(AssertionError):  # not finite
            script.verify_and_commit(SLOTS, (7, 4, 5))

    def test_window_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        script, bias = script_of("mistral"), AttentionPlan.bias
        monkeypatch.setattr(
            AttentionPlan,
            "bias",
            lambda self, window=None, *args, **kwargs: bias(self, None, *args, **kwargs),
        )
        assert script.play() > VISIBLE

    def test_soft_cap_left_out(self) -> None:
        capped = build("gemma2")
        free = CausalLM(build("gemma2", attn_logit_softcapping=None), max_len=48)
        assert Script(free, capped).play() > VISIBLE

    @pytest.mark.parametrize("attention", ["slot", "two_part"])
    def test_sinks_left_out(self, attention: str) -> None:
        model = build("gpt_oss")
        reference = copy.deepcopy(model)
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.data.fill_(-1e9)
        lm = CausalLM(model, attention=attention, max_len=48)
        assert Script(lm, reference).play() > VISIBLE


class TestRefusals:
    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            (hf.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=4), "position"),
            (config_of("falcon", alibi=True), "ALiBi"),
            (hf.MptConfig(vocab_size=VOCAB, d_model=16, n_layers=2, n_heads=4), "position"),
            (
                hf.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, state_size=4),
                "Mamba",
            ),
            (
                hf.Qwen3NextConfig(
                    vocab_size=VOCAB,
                    hidden_size=16,
                    intermediate_size=24,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    head_dim=8,
                    num_experts=4,
                    num_experts_per_tok=2,
                    moe_intermediate_size=12,
                    shared_expert_intermediate_size=12,
                    linear_num_key_heads=2,
                    linear_num_value_heads=2,
                    linear_key_head_dim=8,
                    linear_value_head_dim=8,
                    layer_types=["linear_attention", "full_attention"],
                ),
                "linear_attention",
            ),
            (
                hf.Llama4TextConfig(
                    vocab_size=VOCAB,
                    hidden_size=16,
                    intermediate_size=24,
                    intermediate_size_mlp=24,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    head_dim=8,
                    num_local_experts=2,
                    attention_chunk_size=8,
                    layer_types=["chunked_attention", "full_attention"],
                ),
                "chunked_attention",
            ),
        ],
        ids=["bloom", "falcon_alibi", "mpt", "mamba", "qwen3_next", "llama4_chunked"],
    )
    def test_models_that_cannot_decode_trees(
        self, config: hf.PreTrainedConfig, reason: str
    ) -> None:
        with pytest.raises(UnsupportedModelError, match=reason):
            CausalLM(hf.AutoModelForCausalLM.from_config(config))

    def test_a_model_without_lm_head(self) -> None:
        with pytest.raises(
            UnsupportedModelError, match=r"LlamaModel has no LM head .* load the checkpoint's"
        ):
            CausalLM(build("llama").model)

    def test_an_encoder_decoder(self) -> None:
        config = hf.T5Config(
            vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4
        )
        with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
            CausalLM(hf.T5ForConditionalGeneration(config))

    def test_the_self_test_catches_what_the_rules_miss(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bias = AttentionPlan._make_bias

        def no_tree_mask(self: AttentionPlan, window: int | None) -> Tensor | None:
            chain = AttentionPlan(
                self.starts, Topology.chain(self.num_nodes), self.width, self.dtype, self.device
            )
            return bias(chain, window)

        monkeypatch.setattr(AttentionPlan, "_make_bias", no_tree_mask)
        with pytest.raises(UnsupportedModelError, match="sequential passes"):
            CausalLM(build("llama"))

    def test_a_soft_cap_is_not_dropped_silently(self) -> None:
        """The library's sdpa has no soft cap: it is refused, or replaced by one that has."""
        reference = build("gemma2")
        try:
            lm = CausalLM(copy.deepcopy(reference), attention="sdpa", max_len=48, prefill_chunk=4)
        except ValueError:
            return
        assert Script(lm, reference).play() < EXACT

    @pytest.mark.parametrize("kind", ["dynamic", "longrope"])
    def test_rope_that_depends_on_the_longest_row_limits_the_length(self, kind: str) -> None:
        rope = {
            "rope_type": kind,
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
        if kind == "longrope":
            rope |= {"short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}
        model = build("llama", rope_parameters=rope)
        assert length_limit(model) == 16
        with pytest.raises(ValueError, match="2 to 16 tokens"):
            CausalLM(model, max_len=32)

    def test_an_unknown_attention(self) -> None:
        with pytest.raises(ValueError, match="choose one of auto"):
            CausalLM(build(), attention="fast")


class TestHiddenLayers:
    """Layer k is the input of decoder layer k; FINAL_NORM is the output of the last norm.

    The number of layers stands for the last layer's output, before the norm.
    """

    @pytest.mark.parametrize(
        "architecture", ["llama", "gemma3", "gpt2", "gpt_neox", "falcon", "opt"]
    )
    @pytest.mark.parametrize("stage", ["prefill", "verify"])
    def test_equal_a_plain_forward(self, architecture: str, stage: str) -> None:
        script = script_of(architecture)
        reference = copy.deepcopy(script.reference)
        last: list[Tensor] = []

        def keep(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            last.append(output[0] if isinstance(output, tuple) else output)

        blocks = [
            m
            for m in reference.modules()
            if isinstance(m, hf.modeling_layers.GradientCheckpointingLayer)
        ]
        blocks[-1].register_forward_hook(keep)
        lm, layers = script.lm, (2, FINAL_NORM, 0, 1)
        lm.allocate(6, 6)
        script.fill_with_stale_data()
        prompts = [script.tokens(length) for length in PROMPT_LENGTHS]
        prefilled = lm.extend(SLOTS, prompts, hidden_layers=layers)
        topology = random_tree(PROMPT_LENGTHS, 6, script.generator)
        token_ids = torch.tensor([script.tokens(6) for _ in SLOTS])
        verified = lm.forward(
            SLOTS, Proposal(token_ids, topology, torch.tensor([6, 6, 6])), hidden_layers=layers
        )

        hidden = prefilled.hidden if stage == "prefill" else verified.hidden
        for row, prompt in enumerate(prompts):
            path = topology.ancestors[row, 5].nonzero()[:, 0]
            sequence = prompt if stage == "prefill" else prompt + token_ids[row, path].tolist()
            last.clear()
            with torch.no_grad():
                states = reference(torch.tensor([sequence]), output_hidden_states=True)
            inputs = states.hidden_states
            for actual, expected in zip(
                hidden, [last[0], inputs[2], inputs[0], inputs[1]], strict=True
            ):
                if stage == "prefill":
                    actual, expected = actual[row, : len(prompt)], expected[0]
                else:
                    actual, expected = actual[row, path], expected[0, len(prompt) :]
                torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)

    def test_a_layer_that_does_not_exist(self) -> None:
        lm = CausalLM(build())
        lm.allocate(1, 2)
        with pytest.raises(ValueError, match="layers 0 to 2"):
            lm.forward(
                (0,), Proposal.chain(torch.tensor([[1]]), torch.tensor([1])), hidden_layers=(3,)
            )
