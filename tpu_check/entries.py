"""The list: what is compiled for every chip. A line is a program."""

from typing import NamedTuple

SMOLLM2, QWEN3 = "SmolLM2-135M", "Qwen3-4B"


class Entry(NamedTuple):
    """A function of `functions.FUNCTIONS` at a size."""

    function: str
    model: str
    batch: int = 1
    tokens: int = 1  # of each text in one call
    context: int = 0  # rows of the cache, or keys
    mode: str = "greedy"
    copies: float = 0  # times the whole cache that the compiler is known to copy
    chips: tuple[str, ...] = ("v5e", "v6e", "v5p")

    @property
    def label(self) -> str:
        """The entry as a name: what --only searches."""
        mode = "" if self.mode == "greedy" else f" {self.mode}"
        return (f"{self.function}{mode} {self.model} batch {self.batch} tokens {self.tokens} "
                f"context {self.context}")  # fmt: skip


ENTRIES = [
    Entry("prefill", SMOLLM2, tokens=128, context=256),
    Entry("prefill", SMOLLM2, tokens=8192, context=8192),
    Entry("prefill", QWEN3, tokens=128, context=256),
    Entry("prefill", QWEN3, tokens=2048, context=4096),
    Entry("prefill", QWEN3, tokens=32768, context=32768),
    Entry("decode", SMOLLM2, batch=1, context=8192),
    Entry("decode", SMOLLM2, batch=8, context=2048),
    Entry("decode", SMOLLM2, batch=64, context=1024),
    Entry("decode", SMOLLM2, batch=8, context=2048, mode="truncated"),
    Entry("decode", QWEN3, batch=1, context=8192),
    Entry("decode", QWEN3, batch=1, context=32768),
    Entry("decode", QWEN3, batch=8, context=2048),
    Entry("decode", QWEN3, batch=64, context=256),
    Entry("verify", SMOLLM2, tokens=16, context=8192),
    Entry("verify", QWEN3, tokens=16, context=8192),
    Entry("verify", QWEN3, tokens=16, context=32768),
    Entry("verify", QWEN3, batch=8, tokens=16, context=2048),
    Entry("flash_attention", SMOLLM2, tokens=512, context=8192),
    Entry("flash_attention", SMOLLM2, tokens=16, context=32768),
    Entry("flash_attention", SMOLLM2, tokens=32768, context=32768),
    Entry("flash_attention", QWEN3, tokens=512, context=8192),
    Entry("flash_attention", QWEN3, tokens=16, context=32768),
    Entry("flash_attention", QWEN3, tokens=32768, context=32768),
    Entry("flash_attention", QWEN3, batch=64, context=1024),
    Entry("tiled_attention", SMOLLM2, tokens=8192, context=8192),
    Entry("tiled_attention", QWEN3, tokens=512, context=32768),
]
