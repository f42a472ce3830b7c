"""Medians of ratios within rounds, and how sure they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """The median of some values, their range, and a 95% interval of the median."""

    median: float
    low: float
    high: float
    interval: tuple[float, float]


def summary(values: Sequence[float], resamples: int = 10_000) -> Summary:
    """Summarise values, one of each round.

    The interval is the percentile bootstrap (Efron 1979): the middle 95% of the medians of
    `resamples` samples drawn from the values with replacement, from a fixed seed.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("no values; expected at least one round")
    x = np.asarray(values, float)
    draws = np.random.default_rng(0).integers(len(x), size=(resamples, len(x)))
    low, high = np.quantile(np.median(x[draws], axis=1), [0.025, 0.975])
    return Summary(
        float(np.median(x)), float(x.min()), float(x.max()), (float(low), float(high))
    )


def ratio(above: Sequence[float], below: Sequence[float]) -> Summary:
    """Summarise above[i] / below[i]: both belong to round i.

    Raises:
        ValueError: the lengths differ.
    """
    if len(above) != len(below):
        raise ValueError(f"{len(above)} values over {len(below)}; expected one pair a round")
    return summary([a / b for a, b in zip(above, below)])
