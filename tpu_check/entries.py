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
    copies: int = 0  # of the whole cache: known, allowed for now, see book/tpu.md
    chips: tuple[str, ...] = ("v5e", "v6e", "v5p")

    @property
    def label(self) -> str:
        """The entry as a name: what --only searches."""
        mode = "" if self.mode == "greedy" else f" {self.mode}"
        return (f"{self.function}{mode} {self.model} batch {self.batch} tokens {self.tokens} "
                f"context {self.context}")  # fmt: skip


V5E = ("v5e",)  # the smallest: sizes between those that all chips have

ENTRIES = [
    Entry("prefill", SMOLLM2, tokens=128, context=256, chips=V5E),
    Entry("prefill", SMOLLM2, tokens=8192, context=8192, copies=1),
    Entry("prefill", QWEN3, tokens=128, context=256, chips=V5E),
    Entry("prefill", QWEN3, tokens=2048, context=4096),
    Entry("decode", SMOLLM2, batch=1, context=8192, copies=1),
    Entry("decode", SMOLLM2, batch=64, context=1024, copies=2),
    Entry("decode", SMOLLM2, batch=8, context=2048, mode="truncated", copies=2, chips=V5E),
    Entry("decode", QWEN3, batch=1, context=8192, chips=V5E),
    Entry("decode", QWEN3, batch=1, context=32768),
    Entry("decode", QWEN3, batch=8, context=2048, chips=V5E),
    Entry("decode", QWEN3, batch=64, context=256),
    Entry("verify", SMOLLM2, tokens=16, context=8192, copies=2),
    Entry("verify", QWEN3, tokens=16, context=32768),
    Entry("verify", QWEN3, batch=8, tokens=16, context=2048, chips=V5E),
    Entry("decode over pages", SMOLLM2, batch=64, context=1024),
    Entry("decode over pages", QWEN3, batch=1, context=8192, chips=V5E),
    Entry("decode over pages", QWEN3, batch=1, context=32768),
    Entry("decode over pages", QWEN3, batch=64, context=256),
    Entry("read_pages", SMOLLM2, tokens=512, context=8192),
    Entry("read_pages", QWEN3, tokens=512, context=8192),
    Entry("copy_pages", SMOLLM2, batch=64, context=1024),
    Entry("copy_pages", QWEN3, batch=8, context=2048),
    Entry("paged_attention", SMOLLM2, batch=64, context=1024),
    Entry("paged_attention", SMOLLM2, tokens=16, context=32768),
    Entry("paged_attention", QWEN3, batch=64, context=1024),
    Entry("paged_attention", QWEN3, tokens=16, context=32768),
    Entry("flash_attention", SMOLLM2, tokens=512, context=8192),
    Entry("flash_attention", SMOLLM2, tokens=16, context=32768),
    Entry("flash_attention", SMOLLM2, tokens=32768, context=32768),
    Entry("flash_attention", QWEN3, tokens=512, context=8192),
    Entry("flash_attention", QWEN3, tokens=16, context=32768),
    Entry("flash_attention", QWEN3, tokens=32768, context=32768),
    Entry("flash_attention", QWEN3, batch=64, context=1024),
    Entry("tiled_attention", SMOLLM2, tokens=8192, context=8192),
    Entry("tiled_attention", QWEN3, tokens=512, context=32768),
    Entry("decode with lookup", SMOLLM2, tokens=8, context=2048, copies=2, chips=V5E),
    Entry("decode with lookup", QWEN3, tokens=16, context=8192, chips=V5E),
    Entry("decode with DFlash", SMOLLM2, tokens=8, context=2048, copies=2, chips=V5E),
    Entry("decode with DFlash", QWEN3, tokens=16, context=8192, chips=V5E),
    Entry("decode with DFlash", QWEN3, tokens=16, context=32768),
    Entry("decode with DFlash over pages", QWEN3, tokens=16, context=8192, chips=V5E),
    Entry("prefill for DFlash", QWEN3, tokens=2048, context=8192, chips=V5E),
    Entry("decode with EAGLE", SMOLLM2, tokens=4, context=2048, copies=2, chips=V5E),
    Entry("decode with EAGLE", QWEN3, tokens=8, context=8192),
    Entry("decode with EAGLE", QWEN3, tokens=8, context=8192, mode="plain", chips=V5E),
    Entry("prefill for EAGLE", QWEN3, tokens=2048, context=8192, chips=V5E),
    Entry("write_features", QWEN3, tokens=16, context=8192),
    Entry("write_features", QWEN3, tokens=512, context=8192, chips=V5E),
    Entry("draft_block", QWEN3, tokens=16, context=32768),
    Entry("verify_block", QWEN3, tokens=16, context=8192),
    Entry("replace_rows", SMOLLM2, batch=64, context=1024),
    Entry("replace_rows", QWEN3, batch=8, context=2048, chips=V5E),
    Entry("read_features", SMOLLM2, batch=8, tokens=1024, context=1024),
    Entry("train heads", SMOLLM2, batch=8, tokens=512, context=512),
    Entry("train heads", QWEN3, batch=2, tokens=512, context=512),
    Entry("score heads", SMOLLM2, batch=8, tokens=512, context=512, chips=V5E),
]
