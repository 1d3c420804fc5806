"""Matrix 3, through the engine: outputs have the target's distribution for every proposer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from shape_checks import unchecked
from stale_rows import StaleRows

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Block, Rejection
from specresearch.batch import Batch
from specresearch.certification.cases import CHUNK_SIZE, SampledSetting
from specresearch.certification.counts import Tally
from specresearch.certification.enumeration import OutputDistribution, enumerate_outputs
from specresearch.certification.goodness_of_fit import Fit, samples_needed
from specresearch.certification.sampled_outputs import setting_name
from specresearch.certification.targets import Toy, ragged_prompts
from specresearch.models.pass_graphs import ROWS
from specresearch.proposal import Proposal
from specresearch.proposers import (
    Cascade,
    DraftModel,
    DraftModelOtherTokenizer,
    Eagle,
    Eagle3,
    LayerSkip,
    Lookahead,
    Medusa,
    NGram,
    Proposer,
    Suffix,
    TokenRecycling,
)

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

ALPHA = 1e-4  # some 140 tests of this file are statistical: one false alarm in 71 choices of seeds
VISIBLE_TV, POWER = 0.15, 0.95
VOCAB = 4
PARAMS = {
    "min_p": SamplingParams(temperature=1.3, min_p=0.3, max_new_tokens=3),
    "plain": SamplingParams(temperature=1.0, max_new_tokens=3),
    "top_k": SamplingParams(temperature=0.7, top_k=2, max_new_tokens=5),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8, max_new_tokens=3, stop_token_ids=(1,)),
    "everything": SamplingParams(
        temperature=0.8,
        top_k=3,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.5,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        max_new_tokens=3,
    ),
    "greedy": SamplingParams(max_new_tokens=6),
}
SAMPLED = [name for name, sampling in PARAMS.items() if not sampling.is_greedy]


@lru_cache
def toy() -> Toy:
    return Toy(VOCAB, seed=4)


@lru_cache
def target() -> CausalLM:
    return toy().target()


@lru_cache
def draft() -> CausalLM:
    return toy().draft()


@lru_cache
def settings() -> dict[str, SampledSetting]:
    """Return settings with prompts of several lengths and samples to detect VISIBLE_TV."""
    prompts = ragged_prompts(toy(), 2 * len(PARAMS), seed=0)[::2]
    result = {}
    for number, ((name, sampling), prompt) in enumerate(zip(PARAMS.items(), prompts, strict=True)):
        if sampling.is_greedy:
            distribution = OutputDistribution(tuple(toy().greedy([prompt], sampling)), np.ones(1))
            num_samples = 50
        else:
            distribution = enumerate_outputs(toy(), prompt, sampling)
            num_samples = samples_needed(distribution.probs, VISIBLE_TV, ALPHA, POWER)
        assert num_samples <= CHUNK_SIZE
        result[name] = SampledSetting(
            name=name,
            index=number,
            sampling=sampling,
            prompt=prompt,
            distribution=distribution,
            num_samples=num_samples,
            alpha=ALPHA,
            power=POWER,
        )
    return result


# Synthetic is missing: it refuses whatever is not greedy, see tests/proposers/test_synthetic.py.
DRAFTERS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NGram(4, n_max=2, n_min=1),
    "draft_sampled": lambda: DraftModel(draft(), 3),
    "draft_likeliest": lambda: DraftModel(draft(), 2, sample=False),
    "static_tree_sampled": lambda: DraftModel(
        draft(), tree="static", paths=[[0], [1], [2], [0, 0], [0, 1], [1, 0]]
    ),
    "dynamic_tree": lambda: DraftModel(draft(), 5, tree="dynamic", depth=2, top_k=3),
    "tokens_in_common": lambda: DraftModelOtherTokenizer.toy(target(), 3),
    "tokens_in_common_tree": lambda: DraftModelOtherTokenizer.toy(
        target(), 3, tree="static", paths=[[0], [1], [0, 0], [1, 0]]
    ),
    "text_in_common": lambda: DraftModelOtherTokenizer.toy(target(), 3, mode="slem"),
    "text_where_tokens_differ": lambda: DraftModelOtherTokenizer.toy(target(), 3, mode="hybrid"),
    "medusa": lambda: Medusa.toy(target(), 1),
    "eagle_sampled": lambda: Eagle.toy(target(), 1, tree="chain"),
    "eagle_dynamic": lambda: Eagle.toy(target(), 1),
    "eagle3_sampled": lambda: Eagle3.toy(target(), 1, tree="chain"),
    "eagle3_static": lambda: Eagle3.toy(target(), 1, tree="static"),
    "layer_skip_sampled": lambda: LayerSkip(1, num_draft_tokens=3),
    "layer_skip_static": lambda: LayerSkip(
        skip_attention=[1, 2],
        skip_mlp=[0],
        tree="static",
        paths=[[0], [1], [2], [0, 0], [0, 1], [1, 0]],
    ),
    "token_recycling": lambda: TokenRecycling(6, top_k=3, depth=2),
    "lookahead": lambda: Lookahead(3, 2, 2),
    "suffix": lambda: Suffix(4, offset=2.0),
    "cascade": lambda: Cascade([NGram(2, n_max=2, n_min=2), DraftModel(draft(), 2)]),
    "cascade_to_medusa": lambda: Cascade([NGram(2, n_max=2, n_min=2), Medusa.toy(target(), 1)]),
    "cascade_to_eagle": lambda: Cascade(
        [NGram(2, n_max=2, n_min=2), Eagle.toy(target(), 1, tree="chain")]
    ),
}
BY_BLOCK = ("plain", "everything", "greedy")


def decode(
    proposer: Proposer,
    rule: AcceptanceSampler,
    names: tuple[str, ...],
    num_checked: int | None = None,
    lm: CausalLM | None = None,
) -> dict[str, Tally]:
    """Decode all settings in the same batches of one engine that refills its slots."""
    batch_size = 512 if lm is None else max(ROWS)
    engine = Engine(
        lm or target(), proposer, rule, max_batch_size=batch_size, num_checked=num_checked
    )
    requests = [request for name in names for request in settings()[name].requests(0, seed=0)]
    order = np.random.default_rng(0).permutation(len(requests))
    tallies = {name: Tally([0] * len(settings()[name].distribution.outputs)) for name in names}
    with unchecked():
        for output in engine.generate([requests[i] for i in order]):
            name = setting_name(output)
            tallies[name].add(output, settings()[name].distribution)
    return tallies


@lru_cache
def decoded(
    drafter: str, rule: type[AcceptanceSampler] = Rejection, names: tuple[str, ...] = (*PARAMS,)
) -> dict[str, Tally]:
    return decode(DRAFTERS[drafter](), rule(), names)


def p_value(tally: Tally, distribution: OutputDistribution) -> float:
    return tally.fit(distribution).p_value


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_outputs_have_the_enumerated_distribution(drafter: str) -> None:
    """For every setting, and neither all drafts were accepted nor none."""
    tallies = decoded(drafter)
    p_values = {name: p_value(tallies[name], settings()[name].distribution) for name in PARAMS}
    assert min(p_values.values()) > ALPHA, p_values
    accepted = sum(tally.num_accepted_tokens for tally in tallies.values())
    drafted = sum(tally.num_draft_tokens for tally in tallies.values())
    assert 0.05 < accepted / drafted < 0.9


def translated(target: CausalLM) -> Proposer:
    """Return a proposer whose draft has a tokenizer of its own, and graphs."""
    proposer = DraftModelOtherTokenizer.toy(target, 3)
    proposer.draft = CausalLM(proposer.draft.model, max_len=target.max_len, graphs=True)
    return proposer


BY_GRAPHS: dict[str, tuple[Callable[[CausalLM, CausalLM], Proposer], type[AcceptanceSampler]]] = {
    "draft_sampled": (lambda target, draft: DraftModel(draft, 3), Rejection),
    "block": (lambda target, draft: DraftModel(draft, 3), Block),
    "tokens_in_common": (lambda target, draft: translated(target), Rejection),
    "static_tree_sampled": (
        lambda target, draft: DraftModel(
            draft, tree="static", paths=[[0], [1], [2], [0, 0], [0, 1], [1, 0]]
        ),
        Rejection,
    ),
    "medusa": (lambda target, draft: Medusa.toy(target, 1), Rejection),
    "eagle_sampled": (lambda target, draft: Eagle.toy(target, 1, tree="chain"), Rejection),
    "eagle_dynamic": (lambda target, draft: Eagle.toy(target, 1), Rejection),
    "suffix": (lambda target, draft: Suffix(4, offset=2.0), Rejection),
}


@pytest.mark.parametrize("name", BY_GRAPHS)
def test_decoding_on_the_padded_buffers_of_graphs_gives_the_enumerated_distribution(
    name: str,
) -> None:
    make, rule = BY_GRAPHS[name]
    lm, lm_draft = toy().target(graphs=True), toy().draft(graphs=True)
    tallies = decode(make(lm, lm_draft), rule(), ("plain", "top_k", "min_p"), lm=lm)
    for setting, tally in tallies.items():
        assert p_value(tally, settings()[setting].distribution) > ALPHA
    assert lm.passes is not None
    assert any(key[0] is rule for key in lm.passes.graphs.keys)


def test_block_verification_gives_the_enumerated_distribution() -> None:
    tallies = decoded("draft_sampled", Block, BY_BLOCK)
    for name, tally in tallies.items():
        assert p_value(tally, settings()[name].distribution) > ALPHA
    assert sum(tally.num_accepted_tokens for tally in tallies.values()) > 0


def labelled_as_drawn(proposer: Proposer) -> Proposer:
    """Label a proposer's drafts as drawn from a distribution that they were not drawn from."""
    propose = proposer.propose

    def mislabel(batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = propose(batch, budget)
        peaked = torch.full(
            (*proposal.token_ids.shape, VOCAB), 0.1 / (VOCAB - 1), dtype=torch.float64
        )
        peaked[:, :, 0] = 0.9
        return replace(proposal, draft_probs=peaked)

    proposer.propose = mislabel
    return proposer


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_negative_control_drafts_labelled_with_another_distribution(drafter: str) -> None:
    tallies = decode(labelled_as_drawn(DRAFTERS[drafter]()), Rejection(), ("top_k",), num_checked=0)
    assert p_value(tallies["top_k"], settings()["top_k"].distribution) < ALPHA


def test_negative_control_rows_of_skipped_layers_from_a_stale_cache() -> None:
    tallies = decode(StaleRows(1, num_draft_tokens=3), Rejection(), ("top_k",))
    assert p_value(tallies["top_k"], settings()["top_k"].distribution) < ALPHA


@pytest.mark.parametrize("name", [name for name in SAMPLED if name != "plain"])
def test_negative_control_other_settings_are_told_apart(name: str) -> None:
    setting = settings()[name]
    observed = decoded("ngram")[name].counts
    plain = SamplingParams(temperature=1.0, max_new_tokens=setting.sampling.max_new_tokens)
    other = enumerate_outputs(
        toy(), setting.prompt, replace(plain, stop_token_ids=setting.sampling.stop_token_ids)
    )
    count_of = dict(zip(setting.distribution.outputs, observed, strict=True))
    counts = np.array([count_of.get(output, 0) for output in other.outputs])
    assert Fit.of(counts, other.probs).p_value < ALPHA


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_does_not_depend_on_the_rest_of_the_batch(drafter: str) -> None:
    prompt, sampling = (
        settings()["everything"].prompt,
        replace(PARAMS["everything"], seed=123, max_new_tokens=10),
    )
    engine = Engine(target(), DRAFTERS[drafter](), max_batch_size=6)
    (alone,) = engine.generate([prompt], sampling)
    others = [
        Request((3, 3, 1)[: 1 + i % 3], replace(sampling, seed=i), f"other{i}") for i in range(9)
    ]
    company = [*others[:7], Request(prompt, sampling, "mine"), *others[7:]]
    together = {output.id: output for output in engine.generate(company)}
    assert together["mine"].token_ids == alone.token_ids
    assert len({output.token_ids for output in together.values()}) > 5


def test_the_engine_seed_determines_requests_without_one() -> None:
    def outputs(seed: int) -> list[tuple[int, ...]]:
        engine = Engine(target(), max_batch_size=4, seed=seed)
        return [
            output.token_ids
            for output in engine.generate([settings()["plain"].prompt] * 8, PARAMS["plain"])
        ]

    assert outputs(1) == outputs(1) != outputs(2)
