"""Which nodes of a proposal may be accepted, and the empty proposal."""

import torch

from specresearch.proposal import Proposal, Topology


def test_nodes_past_the_length_and_probes_cannot_be_accepted() -> None:
    probe = torch.tensor([[False, True, False, False]])
    proposal = Proposal(
        torch.zeros(2, 4, dtype=torch.long),
        Topology.chain(4),
        torch.tensor([2, 4]),
        probe=probe,
    )
    assert proposal.acceptable.tolist() == [
        [True, False, False, False],
        [True, False, True, True],
    ]


def test_an_empty_proposal_holds_only_the_roots() -> None:
    proposal = Proposal.empty(torch.tensor([[4], [7]]))
    assert proposal.token_ids.tolist() == [[4], [7]]
    assert proposal.topology is Topology.chain(1, proposal.token_ids.device)
    assert tuple(proposal.lengths.tolist()) == proposal.host_lengths == (1, 1)
