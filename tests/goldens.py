"""Reads the golden files; golden/README.md says who made them."""

import gzip
import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


def read_golden(name: str) -> dict:
    """The arrays or the JSON of one file."""
    path = GOLDEN / name
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
