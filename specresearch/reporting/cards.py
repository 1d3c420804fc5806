"""One card for each workload, with the decisions of every kind of load, and the page's headline."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.reporting.decision import Answer, Decision
from specresearch.reporting.formatting import listed
from specresearch.reporting.recommendation import Recommendation, explain
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.workload import WorkloadKey

ON = (Answer.ON, Answer.BELOW, Answer.SOME)
MIXED = "depends on the kind of load"


@dataclass(frozen=True)
class Card:
    """What to do for one workload.

    Attributes:
        recommendations: One for each kind of load; those that the headline counts come first.
    """

    workload: WorkloadKey
    recommendations: Sequence[Recommendation]

    @property
    def main(self) -> list[Recommendation]:
        """Return what the headline counts."""
        return [each for each in self.recommendations if each.decision.is_main]

    @property
    def answer(self) -> Answer | None:
        """Return the answer, or None if it depends on the kind of load."""
        answers = {each.decision.answer for each in self.main}
        return answers.pop() if len(answers) == 1 else None

    @property
    def headline(self) -> str:
        """Return the answer with its setting."""
        if self.answer is None:
            answers = []
            for each in self.main:
                answers.append(f"{_lowered(each.headline)} for {each.decision.points[0].load.kind}")
            return f"It {MIXED}: {listed(answers)}"
        if len(self.main) > 1:
            return f"{self.answer.value} at every kind of load measured"
        (only,) = self.main
        setting = f": {only.decision.setting.phrase}" if self.answer in ON else ""
        return f"{only.headline}{setting}"


def compose_cards(decisions: Sequence[Decision], requirements: Requirements) -> list[Card]:
    """Return a card for every workload, in the order of the decisions."""
    by_workload: dict[WorkloadKey, list[Recommendation]] = {}
    for decision in sorted(decisions, key=lambda decision: not decision.is_main):
        recommendation = explain(decision, requirements)
        by_workload.setdefault(decision.workload, []).append(recommendation)
    cards = [Card(workload, each) for workload, each in by_workload.items()]
    return sorted(cards, key=lambda card: card.workload.label)


def headline(cards: Sequence[Card]) -> str:
    """Return the answer of the whole report, which counts workloads."""
    if len(cards) == 1:
        return cards[0].headline
    counts = Counter(card.answer for card in cards)
    answers = []
    for answer in (*Answer, None):
        if not counts[answer]:
            continue
        words = answer.value if answer is not None else f"It {MIXED}"
        if len(counts) == 1:
            return f"{words} for all {len(cards)} workloads"
        if answers:
            answers.append(f"{_lowered(words)} for {counts[answer]}")
        else:
            answers.append(f"{words} for {counts[answer]} of {len(cards)} workloads")
    return "; ".join(answers)


def _lowered(words: str) -> str:
    return f"{words[0].lower()}{words[1:]}"
