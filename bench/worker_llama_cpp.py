"""llama.cpp in a process of its own; see serve.py.

    python worker_llama_cpp.py FILE.gguf
"""

import itertools
import os
import sys

import llama_cpp
from serve import serve, timed

threads = int(os.environ["NPROC"])
model = llama_cpp.Llama(
    sys.argv[1], n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False,
    type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
)  # fmt: skip


def about() -> dict:
    """Versions."""
    return {"versions": {"llama-cpp-python": llama_cpp.__version__}}


def generate(ids: list[int], tokens: int) -> dict:
    """From token ids to token ids, greedily; the cache is float32, as elsewhere here."""

    def run() -> list[int]:
        model.reset()
        return list(itertools.islice(model.generate(ids, temp=0.0, repeat_penalty=1.0), tokens))

    seconds, made = timed(run)
    return {"seconds": seconds, "tokens": made}


if __name__ == "__main__":
    serve({"about": about, "generate": generate})
