"""The chips that programs are compiled for."""

from typing import NamedTuple

GIB = 2**30


class Chip(NamedTuple):
    """One chip; of a topology of several, its first."""

    topology: str  # as libtpu names it
    bounds: tuple[int, int, int]  # chips of a host
    hbm: float  # bytes that a program may use: what the compiler says when it refuses one
    bandwidth: float  # bytes/s
    peak: float  # FLOP/s in bfloat16


# Bandwidth and peak: cloud.google.com/tpu/docs/v5e, …/v6e and …/v5p (system architecture).
CHIPS = {
    "v5e": Chip("v5e:1x1", (1, 1, 1), 15.75 * GIB, 819e9, 197e12),
    "v6e": Chip("v6e:1x1", (1, 1, 1), 31.24 * GIB, 1640e9, 918e12),
    "v5p": Chip("v5p:2x2x1", (2, 2, 1), 95.73 * GIB, 2765e9, 459e12),
}
