"""Acceptance within a step: judge the drafts, and bring to the host what a step needs there."""

from dataclasses import replace

from specresearch.acceptance import AcceptanceSampler, LossySampler, read_shift
from specresearch.batch import GRAMMAR_FAULT, Batch, Delivery
from specresearch.engine.faults import find_faults
from specresearch.engine.grammar_masks import GrammarMasks
from specresearch.engine.logprobs import read_logprobs
from specresearch.engine.rule_graphs import RuleGraphs
from specresearch.metrics.shift import StepShift
from specresearch.models.causal_lm import ModelOutput
from specresearch.models.pass_graphs import PassGraphs
from specresearch.proposal import Proposal
from specresearch.proposers import Proposer
from specresearch.readback import Readback


class Judge:
    """Judges drafts by a rule and appends what was accepted, with one token of the target's own.

    Whatever the host must know of the step comes in one transfer, the only wait for the device
    unless a row has a grammar.

    Args:
        passes: The target's graphs; None if it runs without.
        measure_shift: Measure how far a lossy rule moves the output, in time that counts for no
            request.
    """

    def __init__(
        self,
        rule: AcceptanceSampler,
        proposer: Proposer,
        passes: PassGraphs | None = None,
        *,
        measure_shift: bool,
    ) -> None:
        self.rule = RuleGraphs(rule, passes)
        self.proposer = proposer
        self._measured = rule if measure_shift and isinstance(rule, LossySampler) else None

    def __call__(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, grammars: GrammarMasks
    ) -> tuple[Delivery, StepShift | None]:
        """Return what the rows received, and the shift of the output if that is measured."""
        logits, readback = output.logits, Readback()
        allowed, failed = grammars.apply(logits)
        # A grammar may leave no token behind a draft, which is no fault of the target's.
        faults = None if allowed is logits else find_faults(proposal, logits)
        judgement = self.rule(proposal, allowed, batch.sampling, faults)
        wanted = readback.add_all(self.proposer.readback(batch, proposal, output))
        logprobs = read_logprobs(batch, proposal, logits, judgement, readback)
        shift = None
        if self._measured is not None:
            with batch.clock.paused():
                shift = read_shift(
                    self._measured, proposal, allowed, judgement.verdict, batch.sampling, readback
                )
        delivery = batch.deliver(
            judgement,
            readback,
            is_chain=proposal.topology.is_chain,
            faults=dict.fromkeys(failed, GRAMMAR_FAULT),
        )
        if logprobs is not None:
            logprobs(delivery.num_new)
        fetched = tuple(pending.values for pending in wanted)
        delivery = replace(delivery, verdict=replace(delivery.verdict, readback=fetched))
        return delivery, None if shift is None else StepShift(shift(delivery.num_new))
