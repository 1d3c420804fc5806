"""Test cases: one drafter in one trial, with the sampled settings that it decodes."""

import zlib
from dataclasses import dataclass, replace

import numpy as np

from specresearch.certification.enumeration import OutputDistribution, enumerate_outputs
from specresearch.certification.goodness_of_fit import samples_needed, visible_tv
from specresearch.certification.targets import Toy
from specresearch.certification.trials import Trial
from specresearch.proposers import Proposer
from specresearch.request import Request
from specresearch.sampling import SamplingParams

CHUNK_SIZE = 2048  # samples of a setting between two writes to disk
ANY_SEED = 1 << 62


@dataclass(frozen=True)
class SampledSetting:
    """Sampling parameters on one prompt, and the distribution that their outputs must have.

    Attributes:
        index: position among the settings, which enters the seeds.
        alpha, power: level of the test, and the probability that it detects a deviation.
    """

    name: str
    index: int
    sampling: SamplingParams
    prompt: tuple[int, ...]
    distribution: OutputDistribution
    num_samples: int
    alpha: float
    power: float

    @staticmethod
    def build(
        name: str,
        index: int,
        sampling: SamplingParams,
        prompt: tuple[int, ...],
        *,
        toy: Toy,
        tv: float,
        alpha: float,
        power: float,
    ) -> "SampledSetting":
        """Enumerate the outputs, with as many samples as detect a total variation of `tv`."""
        distribution = enumerate_outputs(toy, prompt, sampling)
        if len(distribution.outputs) < 2:
            raise ValueError("it leaves only one output; loosen it, or choose another toy.seed")
        num_samples = samples_needed(distribution.probs, tv, alpha, power, distribution.rounding)
        return SampledSetting(
            name=name,
            index=index,
            sampling=sampling,
            prompt=prompt,
            distribution=distribution,
            num_samples=num_samples,
            alpha=alpha,
            power=power,
        )

    def visible_tv(self, num_samples: int) -> float:
        """Return the total variation that a test of so many samples detects."""
        known = self.distribution
        return visible_tv(num_samples, known.probs, self.alpha, self.power, known.rounding)

    def requests(self, chunk: int, seed: int) -> list[Request]:
        """Return the requests of a chunk, each with a seed of its own; none after the last."""
        first = chunk * CHUNK_SIZE
        num = max(min(CHUNK_SIZE, self.num_samples - first), 0)
        seeds = np.random.default_rng([seed, self.index, chunk]).integers(ANY_SEED, size=num)
        return [self.request(number, seed) for number, seed in enumerate(seeds.tolist(), first)]

    def request(self, number: int, seed: int) -> Request:
        """Return the request for one sample."""
        return Request(self.prompt, replace(self.sampling, seed=seed), f"{self.name}/{number}")


@dataclass(frozen=True)
class Case:
    """One drafter in one trial.

    Attributes:
        drafter: name of the method or the adversary.
        stress: the drafter is an adversary.
        sampled, greedy: names of the settings in which the rule judges these drafts.
        asked_tv: total variation that the tests must detect.
        settings: the sampled settings, with their distributions and sample sizes.
    """

    trial: Trial
    drafter: str
    proposer: Proposer
    stress: bool
    sampled: tuple[str, ...]
    greedy: tuple[str, ...]
    asked_tv: float
    settings: tuple[SampledSetting, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.trial.name}-{self.drafter}"

    def seed(self, seed: int) -> int:
        """Return a seed that differs from those of all other cases."""
        return (seed << 32) + zlib.crc32(self.name.encode())
