"""What was decoded, under which load, and with which setting."""

from dataclasses import dataclass

BATCH, CONCURRENCY, REPLAY = "batch", "concurrency", "replay"
CLOSED = (BATCH, CONCURRENCY)  # a request starts when one ends, so a faster side does more work
UNITS = {BATCH: "requests in a batch", CONCURRENCY: "requests at a time"}
KINDS = {BATCH: "batches", CONCURRENCY: "requests in flight", REPLAY: "a replayed trace"}
MOST_TOY_PARAMETERS = 50_000_000  # no model that anybody serves is as small
FIXED = "fixed"  # the controller with a fixed draft length


@dataclass(frozen=True)
class WorkloadKey:
    """What was decoded, and where: figures of one workload may be compared with one another.

    Attributes:
        sampling: The settings in words.
        num_parameters: Of the target; None for a server's, which it does not say.
        is_greedy: Whether every request has temperature 0.
        caveats: Why its figures compare speeds only, such as "random weights"; empty if they also
            tell how good a drafter is.
        distinction: What tells it from other workloads with the same label.
    """

    data: str
    sampling: str
    max_new_tokens: int | None
    max_prompt_tokens: int | None
    target: str
    machine: str
    num_parameters: int | None
    is_greedy: bool = True
    caveats: str = ""
    distinction: str = ""

    @property
    def is_toy(self) -> bool:
        """Return whether the target is as tiny as the models that ship with the package."""
        return self.num_parameters is not None and self.num_parameters < MOST_TOY_PARAMETERS

    @property
    def target_name(self) -> str:
        """Return the target's id or folder, without its size."""
        return self.target.rpartition(" (")[0] or self.target

    @property
    def label(self) -> str:
        """Return the name in the report."""
        label = ", ".join(filter(None, (self.data, self.sampling, self.caveats)))
        return f"{label} ({self.distinction})" if self.distinction else label


@dataclass(frozen=True, order=True)
class Load:
    """How many requests came.

    Attributes:
        axis: BATCH for requests decoded together, CONCURRENCY for requests always in flight, or the
            name of an arrival process.
        amount: Requests, or requests per second of an arrival process.
    """

    axis: str
    amount: float

    @property
    def is_closed(self) -> bool:
        """Return whether a request starts when another one ends."""
        return self.axis in CLOSED

    @property
    def is_single(self) -> bool:
        """Return whether there is one request at a time."""
        return self.is_closed and self.amount <= 1

    @property
    def unit(self) -> str:
        """Return the unit of the amount."""
        return UNITS.get(self.axis, "requests per second")

    @property
    def kind(self) -> str:
        """Return what a load of this kind is, in a few words."""
        return KINDS.get(self.axis, f"{self.axis} arrivals")

    @property
    def amount_label(self) -> str:
        """Return the amount without its unit."""
        is_exact = self.is_closed or self.amount >= 1000
        return f"{self.amount:g}" if is_exact else f"{self.amount:.3g}"

    @property
    def label(self) -> str:
        """Return the amount with its unit."""
        if self.axis == BATCH:
            return f"batch size {self.amount_label}"
        unit = self.unit.replace("requests", "request", 1) if self.amount == 1 else self.unit
        return f"{self.amount_label} {unit}"


@dataclass(frozen=True)
class Setting:
    """How drafts are made.

    Attributes:
        length: Draft tokens of a step, or nodes of its tree; None if a controller decides.
        shape: Such as `dynamic tree`; empty for a chain.
        variant: What tells it from other settings of the same method.
    """

    method: str
    controller: str
    length: int | None = None
    shape: str = ""
    variant: str = ""

    @property
    def is_fixed(self) -> bool:
        """Return whether every step drafts the same number of tokens."""
        return self.controller == FIXED

    @property
    def is_chain_length(self) -> bool:
        """Return whether every step drafts a chain of the same length."""
        return self.is_fixed and not self.shape

    @property
    def how(self) -> str:
        """Return the label without the method's name."""
        if not self.is_fixed:
            words = f"{self.controller} controller"
        elif self.length is None:
            words = "fixed length"
        elif self.shape:
            words = f"{self.length}-node {self.shape}"
        else:
            words = f"{self.length} draft{'' if self.length == 1 else 's'}"
        return f"{words} ({self.variant})" if self.variant else words

    @property
    def label(self) -> str:
        """Return the name in tables and figures."""
        return f"{self.method}, {self.how}"

    @property
    def phrase(self) -> str:
        """Return the name inside a sentence."""
        article = "" if self.is_fixed else "the "
        return f"{self.method} with {'a ' if self.is_fixed and self.shape else article}{self.how}"
