"""What a server does not have, and what comes closest."""

from specresearch.reporting.flags.server import Server, ServerFlags
from specresearch.reporting.speculation import Speculation

NAMES = {
    "cascade": "cascades",
    "draft_model_other_tokenizer": "drafts with another tokenizer",
    "eagle": "EAGLE-1 and EAGLE-2",
    "layer_skip": "self-drafting by skipped layers",
    "lookahead": "lookahead decoding",
    "medusa": "Medusa heads",
    "suffix": "suffix decoding",
    "token_recycling": "token recycling",
}
NO_METHOD = "{} has no {}."
CLOSEST = {
    "medusa": (
        "Of the servers here none loads Medusa heads any more. Train an EAGLE-3 head for the same "
        "target and export it: all four load those."
    ),
    "token_recycling": "Closest is n-gram lookup.",
    "lookahead": "Closest is n-gram lookup.",
    "draft_model_other_tokenizer": (
        "vLLM has `use_heterogeneous_vocab`, for greedy drafts. Elsewhere choose a draft model "
        "with the target's tokenizer."
    ),
    "cascade": "Measure its parts alone to choose the better one.",
}
FIXED = (
    "{} cannot change by load how much this method drafts: these flags draft {} tokens at every "
    "load, where the decision is {}."
)
CHAIN = (
    "{} drafts a chain: the {} levels of this tree of {} nodes become {} drafts in a row. Measure "
    "that first: proposer.tree=chain proposer.num_draft_tokens={}."
)


def missing(server: Server, speculation: Speculation, closest: str = "") -> ServerFlags:
    """Return that a server does not have the method, and what comes closest to it."""
    notes = [NO_METHOD.format(server.name, NAMES.get(speculation.method, speculation.method))]
    closest = closest or CLOSEST.get(speculation.method, "")
    return ServerFlags(server, notes=[*notes, closest] if closest else notes)


def chain_note(server: Server, speculation: Speculation) -> str:
    """Return what becomes of a tree on a server that drafts chains."""
    assert speculation.tree is not None
    num_nodes, depth = speculation.tree.num_nodes, speculation.length
    return CHAIN.format(server.title, depth, num_nodes, depth, depth)


def fixed_note(server: Server, speculation: Speculation) -> str:
    """Return what becomes of lengths by load on a server with one length."""
    return FIXED.format(server.title, speculation.length, speculation.by_load)
