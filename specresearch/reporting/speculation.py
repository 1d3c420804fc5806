"""What a decision tells a server to do, in terms that every server has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specresearch.reporting.comparison import Comparison, Outcome
from specresearch.reporting.decision import Answer, Decision, useful_gain

DRAFTING = (Answer.ON, Answer.BELOW, Answer.SOME, Answer.MEASURE)
BOUNDED = (Answer.BELOW, Answer.SOME)
DYNAMIC = "dynamic tree"
LOSSY = ("typical", "threshold")
CUTOFF = "batch_size_cutoff"
BY_RATE = (
    "The decision depends on the rate of requests, and servers switch by the number of running "
    "requests: measure with arrivals=closed_loop to find that number."
)
LOSSY_RULE = "The {} rule changes the output; no server has it, and these flags keep it unchanged."
CONTROLLED = "The {} controller has no equivalent; the lengths here are {}."
FROM_FIXED = "the fixed lengths that were fastest at each load"
FROM_MEAN = "what it drafted on average at each load, which need not be as fast"
SHIPPED = (
    "{} ships with this package under that name, which no server knows: give a folder or an id of "
    "the hub."
)


@dataclass(frozen=True)
class Stage:
    """How much to draft up to a number of running requests.

    Attributes:
        length: Drafts in a row; 0 for plain decoding.
    """

    most_requests: int
    length: int


@dataclass(frozen=True)
class DraftTree:
    """A tree of drafts.

    Attributes:
        num_nodes: Without the root.
        depth: Its levels.
        top_k: Children of a node, at most.
    """

    num_nodes: int
    depth: int
    top_k: int
    is_dynamic: bool


@dataclass(frozen=True)
class Speculation:
    """How to draft.

    Attributes:
        target: The model's id or folder.
        sampling: Of the requests, in words.
        draft: A draft LM's or a head's id or folder; None for methods without one.
        length: The most drafts in a row.
        stages: By load, from low to high; empty if it is the same at every load. The last one
            holds for higher loads, too.
        rule: The acceptance rule.
        samples_drafts: Whether drafts are sampled, and not the likeliest tokens.
        options: The method's other settings.
        notes: Sentences on what no server has.
    """

    method: str
    target: str
    sampling: str
    draft: str | None
    length: int
    tree: DraftTree | None = None
    stages: Sequence[Stage] = ()
    rule: str = "rejection"
    samples_drafts: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def off_above(self) -> int | None:
        """Return the most running requests that draft; None if there is no such bound."""
        return self.stages[-2].most_requests if self.stages and not self.stages[-1].length else None

    @property
    def has_one_length(self) -> bool:
        """Return whether load only decides whether to draft, up to a bound."""
        return len(self.stages) == 2 and self.off_above is not None

    @property
    def by_load(self) -> str:
        """Return how much to draft, such as `5 up to 4 running requests, none above`."""
        if not self.stages:
            return str(self.length)
        parts = []
        for stage in self.stages[:-1]:
            unit = "" if parts else f" running request{'' if stage.most_requests == 1 else 's'}"
            parts.append(f"{stage.length or 'none'} up to {stage.most_requests}{unit}")
        return f"{', '.join(parts)}, {self.stages[-1].length or 'none'} above"


def speculation_of(decision: Decision) -> Speculation | None:
    """Return what carries a decision out; None if nothing is to be drafted."""
    is_wrong = any(point.output.is_wrong for point in decision.points)
    if decision.answer not in DRAFTING or is_wrong:
        return None
    lengths = [_length(decision, point) for point in decision.points]
    if not any(lengths):
        return None
    details, setting = decision.points[0].details, decision.setting
    tree = None
    if setting.shape:
        depth = min(details.get("depth") or max(lengths), max(lengths))
        is_dynamic = setting.shape == DYNAMIC
        tree = DraftTree(max(lengths), depth, details.get("top_k") or 1, is_dynamic)
        lengths = [length and depth for length in lengths]
    is_greedy = decision.workload.is_greedy
    drafter = details.get("head") or details.get("draft")
    draft = None if drafter is None else str(drafter)
    rule = details.get("rule", "rejection")
    return Speculation(
        method=setting.method,
        target=decision.workload.target_name,
        sampling=decision.workload.sampling,
        draft=draft,
        length=max(lengths),
        tree=tree,
        stages=_stages(decision.points, lengths),
        rule=rule,
        samples_drafts=bool(details.get("sample")) and tree is None and not is_greedy,
        options=details,
        notes=_notes(decision, rule, draft),
    )


def _stages(points: Sequence[Comparison], lengths: Sequence[int]) -> list[Stage]:
    """Return how load decides; nothing if it does not, or is a rate and no number of requests."""
    if not points[0].load.is_closed:
        return []
    by_number: dict[int, int] = {}
    for point, length in zip(points, lengths, strict=True):
        number = int(point.load.amount)
        if point.max_running:
            number = min(number, point.max_running)
        by_number[number] = length
    stages: list[Stage] = []
    for number, length in by_number.items():
        if stages and stages[-1].length == length:
            stages.pop()
        stages.append(Stage(number, length))
    return stages if len(stages) > 1 else []


def _length(decision: Decision, point: Comparison) -> int:
    """Return the drafts, or nodes of a tree, at the load of a point; 0 where it is off."""
    last = decision.last_faster
    if point.outcome is Outcome.SLOWER or (last is not None and point.load > last):
        return 0
    setting = decision.setting
    if setting.length is not None:
        return setting.length
    if setting.controller == CUTOFF:
        most = point.details.get("controller.max_requests")
        return 0 if most is not None and point.load.amount > most else _most(point)
    best = decision.best_fixed(point.load)
    if best is not None and best.setting.length is not None:
        return best.setting.length if useful_gain(best) > 1 else 0
    mean = point.speculative.value("mean_draft_length")
    return _most(point) if mean is None else max(1, round(mean))


def _most(point: Comparison) -> int:
    """Return the most drafts that a controller may ask for."""
    asked = point.details.get("controller.num_draft_tokens")
    return int(asked or point.details["num_draft_tokens"])


def _notes(decision: Decision, rule: str, draft: str | None) -> list[str]:
    notes = []
    setting = decision.setting
    if not setting.is_fixed and setting.controller != CUTOFF:
        known = [decision.best_fixed(point.load) for point in decision.points]
        source = FROM_FIXED if all(known) else FROM_MEAN
        notes.append(CONTROLLED.format(setting.controller, source))
    if decision.answer in BOUNDED and not decision.points[0].load.is_closed:
        notes.append(BY_RATE)
    if rule in LOSSY:
        notes.append(LOSSY_RULE.format(rule))
    for name in filter(None, (decision.workload.target_name, draft)):
        if name.startswith("zoo:"):
            notes.append(SHIPPED.format(name))
    return notes
