"""Speculative decoding in JAX, made of the chapters of a book: one module each.

The names below load their module when they are first used, so that
`import dflash_lite` loads neither jax nor flax.

Made from the chapters by tools/tangle.py:
edit a chapter, not this file.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_lite.checkpoints import (
        Checkpoint,
        Tokenizer,
        UserError,
        fetch,
        open_checkpoint,
    )
    from dflash_lite.transformer import Transformer, load, save_model
    from dflash_lite.decoding import DenseCache, Generation, generate
    from dflash_lite.flash_attention import tiled_attention
    from dflash_lite.paged_attention import PagedCache, PagedMemory, PagePool
    from dflash_lite.speculative import DraftModel, EarlyExit, PromptLookup, Replay
    from dflash_lite.training import (
        Batch,
        Heads,
        Learner,
        Responses,
        TrainSettings,
        forecast,
        read_metrics,
        read_shards,
        train,
        write_responses,
    )
    from dflash_lite.eagle import DraftLearner, Eagle, load_eagle, save_eagle
    from dflash_lite.block_diffusion import BlockDrafter
    from dflash_lite.dflash import DFlash, load_drafter, save_drafter
    from dflash_lite.dual_cache import CheckedMemory, DualBatch
    from dflash_lite.traces import (
        Trace,
        TraceStep,
        player,
        read_trace,
        record_trace,
        save_trace,
    )

__all__ = [
    "Checkpoint",
    "Tokenizer",
    "UserError",
    "fetch",
    "open_checkpoint",
    "Transformer",
    "load",
    "save_model",
    "DenseCache",
    "Generation",
    "generate",
    "tiled_attention",
    "PagedCache",
    "PagedMemory",
    "PagePool",
    "DraftModel",
    "EarlyExit",
    "PromptLookup",
    "Replay",
    "Batch",
    "Heads",
    "Learner",
    "Responses",
    "TrainSettings",
    "forecast",
    "read_metrics",
    "read_shards",
    "train",
    "write_responses",
    "DraftLearner",
    "Eagle",
    "load_eagle",
    "save_eagle",
    "BlockDrafter",
    "DFlash",
    "load_drafter",
    "save_drafter",
    "CheckedMemory",
    "DualBatch",
    "Trace",
    "TraceStep",
    "player",
    "read_trace",
    "record_trace",
    "save_trace",
]

_MODULES = {
    "Checkpoint": "checkpoints",
    "Tokenizer": "checkpoints",
    "UserError": "checkpoints",
    "fetch": "checkpoints",
    "open_checkpoint": "checkpoints",
    "Transformer": "transformer",
    "load": "transformer",
    "save_model": "transformer",
    "DenseCache": "decoding",
    "Generation": "decoding",
    "generate": "decoding",
    "tiled_attention": "flash_attention",
    "PagedCache": "paged_attention",
    "PagedMemory": "paged_attention",
    "PagePool": "paged_attention",
    "DraftModel": "speculative",
    "EarlyExit": "speculative",
    "PromptLookup": "speculative",
    "Replay": "speculative",
    "Batch": "training",
    "Heads": "training",
    "Learner": "training",
    "Responses": "training",
    "TrainSettings": "training",
    "forecast": "training",
    "read_metrics": "training",
    "read_shards": "training",
    "train": "training",
    "write_responses": "training",
    "DraftLearner": "eagle",
    "Eagle": "eagle",
    "load_eagle": "eagle",
    "save_eagle": "eagle",
    "BlockDrafter": "block_diffusion",
    "DFlash": "dflash",
    "load_drafter": "dflash",
    "save_drafter": "dflash",
    "CheckedMemory": "dual_cache",
    "DualBatch": "dual_cache",
    "Trace": "traces",
    "TraceStep": "traces",
    "player": "traces",
    "read_trace": "traces",
    "record_trace": "traces",
    "save_trace": "traces",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value = version("dflash_lite")
    elif name in _MODULES:
        value = getattr(import_module(f"dflash_lite.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'dflash_lite' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
