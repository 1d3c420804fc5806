"""The settings of a paired run."""

from dataclasses import dataclass

from specresearch.bench.memory_fit import AUTO

ORDERS = ("dataset", "shuffled")


@dataclass(frozen=True)
class RunSettings:
    """What is decoded, how often, and in which order.

    Attributes:
        batch_size: Prompts decoded together, which are a group; "auto" chooses what fits into free
            memory.
        num_prompts: None for all.
        warmup: Prompts decoded first, which are not counted.
        verify_greedy: Examine every changed greedy output, in units of rounding as measured on the
            run's own texts.
        order: The dataset's, or shuffled by the seed. The same prompts are decoded with the same
            seeds either way.
    """

    batch_size: int | str = 1
    num_prompts: int | None = None
    repeats: int = 1
    warmup: int = 2
    seed: int = 0
    verify_greedy: bool = False
    order: str = "dataset"

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "num_prompts": 1, "repeats": 1, "warmup": 0}.items():
            value = getattr(self, name)
            if (name, value) in (("num_prompts", None), ("batch_size", AUTO)):
                continue
            if type(value) is not int or value < least:
                raise ValueError(f"{name}={value} must be a whole number from {least}")
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order} is not known; use one of {', '.join(ORDERS)}")
