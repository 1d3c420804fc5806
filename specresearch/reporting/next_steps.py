"""What to do about a decision: a sentence, and a command that runs."""

from collections.abc import Sequence

from specresearch.reporting.commands import Command
from specresearch.reporting.comparison import Comparison, Outcome
from specresearch.reporting.decision import Answer, Decision
from specresearch.reporting.finding import Finding
from specresearch.reporting.workload import BATCH, CONCURRENCY, REPLAY, Load

BY_LOAD = "Turn it off above that number of running requests:"
BY_CONTROLLER = "Let a controller decide at every step how much to draft:"
UNDER_LOAD = "Measure it with more requests at a time, then report on the new folder, too:"
MORE_LOADS = "Measure more where it is too early to tell, then report on the new folder, too:"
MORE = "Measure more for a narrower interval, then report on the new folder, too:"
BEFORE_GIVING_UP = "Before giving up: let a controller decide at every step how much to draft:"
LOAD_SETTINGS = {BATCH: "batch_size", CONCURRENCY: "arrivals.concurrency"}
LOADS = "1,4,8,16"
FEW_PROMPTS, FEW_REQUESTS = 24, 64
PROMPTS_PER_BATCH = 8  # batches with fewer prompts have no interval
MORE_TIMES = 4  # as many make an interval half as wide


def next_step(decision: Decision) -> Finding | None:
    """Return what acts on the answer, or the next measurement."""
    answer, last, points = decision.answer, decision.last_faster, decision.points
    if answer is Answer.SPEED or any(point.output.is_wrong for point in points):
        return None
    if answer is Answer.MEASURE:
        unclear = decision.with_outcome(Outcome.UNCLEAR)
        if not unclear:
            return _next(UNDER_LOAD, _under_load(decision))
        words = MORE_LOADS if decision.with_outcome(Outcome.FASTER) else MORE
        return _next(words, _measure_more(unclear))
    if answer is Answer.ON:
        unclear = decision.with_outcome(Outcome.UNCLEAR)
        return _next(MORE_LOADS, _measure_more(unclear)) if unclear else None
    if not all(point.setting.is_fixed for point in decision.all_points):
        return None
    if any(point.is_served for point in points):
        return None  # no command here changes how a server drafts
    if last is not None and last.is_closed:
        return _next(BY_LOAD, _cutoff(decision, last))
    words = BEFORE_GIVING_UP if answer is Answer.OFF else BY_CONTROLLER
    return _next(words, _steered(decision))


def other_lengths(point: Comparison) -> str:
    """Return the command that measures half and twice the draft length, or "" for trees."""
    command, length = point.command, point.setting.length
    if point.setting.shape or not point.takes_length or length is None:
        return ""
    if command.program == "load":
        # Sides draft no more than the proposer, whose length this is.
        shorter = sorted({max(1, length // 4), max(1, length // 2)} - {length})
        lengths = f"[{','.join(map(str, shorter))}]"
        return str(command.setting({"compare": lengths})) if shorter else ""
    lengths = f"{length // 2},{2 * length}" if length > 1 else "2,4"
    command = command.without("controller.num_draft_tokens")
    return str(command.setting({"proposer.num_draft_tokens": lengths}))


def _next(words: str, command: Command) -> Finding:
    return Finding("Next", (words,), str(command), is_open=True)


def _under_load(decision: Decision) -> Command:
    """Return a load test of the recommended setting with several requests in flight."""
    command = decision.points[-1].command.under_load().without("num_requests", "arrivals")
    loads = {"arrivals": "closed_loop", "arrivals.concurrency": LOADS}
    return command.setting(loads)


def _steered(decision: Decision) -> Command:
    """Return a load test under a controller, at the loads measured."""
    command = decision.points[-1].command
    is_run = command.program == "run"
    command = _under_load(decision) if is_run else _at_loads(decision.points, command)
    return command.without("controller", "variants").setting({"controller": "goodput"})


def _cutoff(decision: Decision, last: Load) -> Command:
    """Return the setting with drafts up to a number of running requests, at the same loads."""
    settings: dict[str, object] = {
        "controller": "batch_size_cutoff",
        "controller.max_requests": f"{last.amount:.0f}",
    }
    if decision.setting.length is not None and not decision.setting.shape:
        settings["controller.num_draft_tokens"] = decision.setting.length
    command = decision.points[-1].command.without("controller", "variants")
    return _at_loads(decision.points, command).setting(settings)


def _at_loads(points: Sequence[Comparison], command: Command) -> Command:
    """Return the command at the loads of these comparisons, with enough requests for each."""
    axis = points[0].load.axis
    if axis == REPLAY:
        return command
    loads = ",".join(point.load.amount_label for point in points)
    if axis == CONCURRENCY:
        command = command.setting({"arrivals": "closed_loop"})
    if command.number("num_requests", FEW_REQUESTS) < FEW_REQUESTS:
        command = command.without("num_requests")
    return command.setting({LOAD_SETTINGS.get(axis, "arrivals.qps"): loads})


def _measure_more(points: Sequence[Comparison]) -> Command:
    """Return the command of some comparisons with more requests or prompts, or more passes."""
    point = max(points, key=lambda point: point.load)
    command = _at_loads(points, point.command)
    more = {"repeats": MORE_TIMES * command.number("repeats", 1)}
    if command.program == "load":
        if point.load.axis == REPLAY:
            return command.setting(more)
        num_requests = max(FEW_REQUESTS, MORE_TIMES * point.num_requests)
        return command.setting({"num_requests": num_requests})
    num_prompts = max(FEW_PROMPTS, PROMPTS_PER_BATCH * int(point.load.amount))
    if point.num_requests >= num_prompts:
        if point.is_sample:
            return command.setting(more)  # a sample has no more prompts
        num_prompts = MORE_TIMES * point.num_requests
    return command.without("dataset.limit").setting({"num_prompts": num_prompts})
