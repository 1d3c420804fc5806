"""The counters of drafting on a server's `/metrics` page, recognised by their names."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from specresearch.metrics import Counts

# vLLM's names, which llama-server and this project's server have taken over
DRAFTS, DRAFTED, ACCEPTED = "num_drafts", "num_draft_tokens", "num_accepted_tokens"
BY_POSITION = "num_accepted_tokens_per_pos"
_SPECULATION = re.compile(r"(?P<server>\w+):spec_decode_(?P<counter>num_\w+?)(_total)?")
_GENERATED = re.compile(r"(vllm|specresearch):generation_tokens(_total)?")
# SGLang counts verify steps, and says nothing of how much they drafted
_SGLANG = re.compile(
    r"sglang:(?P<counter>spec_verify_calls|generation_tokens|num_requests)(_total)?"
)


@dataclass(frozen=True)
class Counters:
    """What a server has counted since it was started.

    Attributes:
        source: Whose names the counters have, such as "vllm"; "" if there are none of drafting.
        is_read: Whether there was a page to read. A counter that it lacks stands at 0.
    """

    source: str = ""
    is_read: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    by_position: Mapping[int, float] = field(default_factory=dict)

    @staticmethod
    def parse(page: str) -> "Counters":
        """Return the counters of a page in Prometheus' text format.

        Raises:
            ValueError: If it has another format.
        """
        source = ""
        values: dict[str, float] = defaultdict(float)
        by_position: dict[int, float] = defaultdict(float)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                found = _SPECULATION.fullmatch(sample.name) or _SGLANG.fullmatch(sample.name)
                if found and found["counter"] == BY_POSITION:
                    position = sample.labels.get("position", sample.labels.get("pos", "0"))
                    by_position[int(position)] += sample.value
                elif found:
                    values[found["counter"]] += sample.value
                    source = found.groupdict().get("server") or "sglang"
                elif _GENERATED.fullmatch(sample.name):
                    values["generation_tokens"] += sample.value
        if not values.keys() & {DRAFTS, "spec_verify_calls"}:
            source = ""
        return Counters(source, True, dict(values), dict(by_position))

    @property
    def num_positions(self) -> int | None:
        """Return the longest draft that the server makes, if it counts by position."""
        return max(self.by_position, default=-1) + 1 or None

    def since(self, before: "Counters") -> Counts | None:
        """Return what was counted since an earlier reading.

        Returns None if nothing was drafted, or if the server was started again in between.
        """
        if not self.source or not before.is_read:
            return None
        change = {name: value - before.values.get(name, 0.0) for name, value in self.values.items()}
        if min(change.values()) < 0:
            return None
        counts = _of_sglang(change) if self.source == "sglang" else self._of_drafts(change, before)
        return counts if counts.num_drafts else None

    def _of_drafts(self, change: Mapping[str, float], before: "Counters") -> Counts:
        accepted = []
        for position in range(self.num_positions or 0):
            earlier = before.by_position.get(position, 0.0)
            accepted.append(round(self.by_position.get(position, 0.0) - earlier))
        num_drafts, num_accepted = round(change[DRAFTS]), round(change.get(ACCEPTED, 0))
        num_generated = round(change.get("generation_tokens", 0))
        return Counts(
            num_target_forwards=max(num_generated - num_accepted, num_drafts),
            num_drafts=num_drafts,
            num_draft_tokens=round(change.get(DRAFTED, 0)),
            num_accepted_tokens=num_accepted,
            num_generated_tokens=num_generated or num_drafts + num_accepted,
            reached=[num_drafts, *accepted[:-1]] if accepted else [],
            accepted=accepted,
            expected=list(map(float, accepted)),
        )


def _of_sglang(change: Mapping[str, float]) -> Counts:
    """Return the counts of SGLang's verify steps.

    Each yields the accepted drafts and one more token; prefill yields the first token of a request.
    """
    num_drafts = round(change.get("spec_verify_calls", 0))
    num_generated = round(change.get("generation_tokens", 0))
    num_decoded = num_generated - round(change.get("num_requests", 0))
    return Counts(
        num_target_forwards=num_drafts,
        num_drafts=num_drafts,
        num_accepted_tokens=max(num_decoded - num_drafts, 0),
        num_generated_tokens=max(num_decoded, num_drafts),
    )
