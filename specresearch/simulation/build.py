"""A simulation from its configuration."""

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from specresearch.recording.recording import Recording
from specresearch.settings.check import plain
from specresearch.simulation.drafting import Drafting
from specresearch.simulation.fitted import Fitted
from specresearch.simulation.recorded_load import RecordedArrivals, RecordedLoad
from specresearch.simulation.recordings import open_recording
from specresearch.simulation.simulator import SimulationSettings, Simulator


def build_simulator(cfg: DictConfig, controller_name: str) -> Simulator:
    """Construct everything that the configuration names.

    Raises:
        ValueError: If the recording cannot answer the question.
    """
    recording = open_recording(Path(cfg.recording))
    if cfg.model is not None:
        recording.header.check(recording.path, {"model": cfg.model}, f"model={cfg.model}")
    drafting = build_drafting(cfg, recording)
    timing = instantiate(cfg.timing, _convert_="all")
    timing.bind(recording)
    if isinstance(timing, Fitted):
        check_draft_length(drafting)
    num_requests = len({request.id for request in drafting.requests})
    load = RecordedLoad.of(recording.header.config, num_requests)
    arrivals = instantiate(cfg.arrivals, _convert_="all")
    if isinstance(arrivals, RecordedArrivals):
        arrivals = arrivals.resolve(load)
    max_running = cfg.max_running or load.running(arrivals)
    settings = SimulationSettings.from_config({**plain(cfg), "max_running": max_running})
    return Simulator(
        drafting=drafting,
        timing=timing,
        arrivals=arrivals,
        settings=settings,
        not_recorded=[
            *load.changes(arrivals, max_running),
            *_other_changes(cfg, drafting, controller_name),
        ],
        controller=instantiate(cfg.controller, _convert_="all"),
        scheduling=instantiate(cfg.scheduler, _convert_="all"),
        controller_name=controller_name,
    )


def build_drafting(cfg: DictConfig, recording: Recording) -> Drafting:
    """Return the side to replay, as the configuration asks for it."""
    header = recording.header
    rule = header.acceptance
    if cfg.get("acceptance"):
        rule = type(instantiate(cfg.acceptance, _convert_="all")).__name__.lower()
    num_draft_tokens = cfg.num_draft_tokens
    if num_draft_tokens is None:
        num_draft_tokens = header.num_draft_tokens
    drafting = Drafting(
        recording=recording,
        side=cfg.side or header.longest_side,
        rule=rule,
        num_draft_tokens=num_draft_tokens,
        seed=cfg.seed,
    )
    check_temperature(drafting, cfg.temperature)
    return drafting


def _other_changes(cfg: DictConfig, drafting: Drafting, controller_name: str) -> list[str]:
    """Return what else than the load is not as recorded."""
    header = drafting.recording.header
    changes = []
    if drafting.rule != header.acceptance:
        changes.append(f"acceptance={drafting.rule} (recorded: {header.acceptance})")
    if drafting.num_draft_tokens > header.num_draft_tokens:
        length = f"num_draft_tokens={drafting.num_draft_tokens}"
        changes.append(f"{length} (recorded: {header.num_draft_tokens})")
    if controller_name != "fixed":
        changes.append(f"controller={controller_name} (recorded: a fixed number of drafts)")
    if cfg.max_len is not None and cfg.max_len != header.target["max_len"]:
        changes.append(f"max_len={cfg.max_len} (recorded: {header.target['max_len']})")
    return changes


def check_draft_length(drafting: Drafting) -> None:
    """Raise ValueError for drafts longer than any pass whose time is known."""
    steps = drafting.recording.steps
    longest = max(
        int((steps["num_rows"] + steps["num_drafts"]).to_numpy().max()) - 1,
        drafting.recording.header.num_draft_tokens,
    )
    if drafting.num_draft_tokens > longest:
        raise ValueError(
            f"num_draft_tokens={drafting.num_draft_tokens}: the largest recorded pass has "
            f"{longest + 1} tokens, and the time of a longer draft is not known; use 1 to "
            f"{longest}, record longer drafts, or give the times yourself by timing=linear"
        )


def check_temperature(drafting: Drafting, temperature: float | None) -> None:
    """Raise ValueError for any temperature but the recorded one."""
    recorded = sorted({request.sampling.temperature for request in drafting.requests})
    if temperature is not None and recorded != [temperature]:
        names = ", ".join(f"{value:g}" for value in recorded)
        raise ValueError(
            f"temperature={temperature}: the recording has temperature {names}, and another one "
            "leads to other texts, which only the model knows; record at that temperature"
        )
