"""What the roofline says of the published speed of DFlash on a TPU v5p.

    python -m bench.published

Nothing is measured here. From the published acceptance lengths, the sizes of both models and two
figures of the chip it predicts the milliseconds per token that were published, for each data set.
"""

import math
import sys
from statistics import median
from typing import NamedTuple

from bench.report import grid, write
from tpu_check.chips import CHIPS
from tpu_check.models import MODELS

CHIP, MODEL, BLOCK, BYTES = "v5p", "Qwen3-4B", 16, 2
DRAFTER_LAYERS = TAPS = 5


class Published(NamedTuple):
    """A row: greedy, block of 16, 8 prompts, at most 256 tokens each, one chip."""

    acceptance: float  # tokens a step, the bonus counted
    plain: float  # ms a token
    drafted: float  # ms a token


# github.com/aaronzhfeng/tpu-spec-decode, README.md: the table behind the 3.13 of the announcement
TABLE = {
    "math500": Published(8.80, 8.02, 1.40),
    "aime24": Published(6.48, 7.69, 1.93),
    "aime25": Published(6.14, 6.85, 2.05),
    "gsm8k": Published(5.40, 7.32, 2.31),
    "humaneval": Published(5.76, 7.70, 2.18),
    "mbpp": Published(6.16, 7.31, 2.64),
    "mt-bench": Published(3.87, 7.20, 3.05),
    "alpaca": Published(2.86, 6.72, 4.08),
    "swe-bench": Published(3.35, 6.85, 4.27),
}
AGAIN = (6.33, 2.44)  # the means of another run: capstone_report/final, v5p_standalone_all


def layer_parameters() -> int:
    """Of one layer, target or drafter: both have the same shape."""
    c = MODELS[MODEL]
    heads, kv_heads = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    attention = c.hidden_size * (2 * heads + 2 * kv_heads) + 2 * c.head_dim
    return attention + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size


def parameters() -> dict[str, int]:
    """Of the target without its embedding, of the head, and of the drafter."""
    c = MODELS[MODEL]
    fusion = TAPS * c.hidden_size**2 + c.hidden_size
    return {
        "target": c.num_hidden_layers * layer_parameters() + c.hidden_size,
        "head": c.vocab_size * c.hidden_size,
        "drafter": DRAFTER_LAYERS * layer_parameters() + fusion + c.hidden_size,
    }


def roofline(count: int, tokens: int) -> float:
    """Milliseconds of a pass of `tokens` over `count` parameters in bfloat16."""
    chip = CHIPS[CHIP]
    return 1e3 * max(count * BYTES / chip.bandwidth, 2 * count * tokens / chip.peak)


def costs() -> dict[str, float]:
    """Milliseconds of a plain step, a draft and a verification."""
    size = parameters()
    whole = size["target"] + size["head"]
    return {
        "plain": roofline(whole, 1),
        "draft": roofline(size["drafter"] + size["head"], BLOCK),
        "verify": roofline(whole, BLOCK),
    }


def rows() -> list[list[str]]:
    """A data set each: predicted beside published."""
    cost = costs()
    step = cost["draft"] + cost["verify"]
    found = []
    for name, row in TABLE.items():
        drafted = step / row.acceptance
        found.append([
            name, f"{row.acceptance:.2f}", f"{row.plain:.2f}",
            f"{drafted:.2f} / {row.drafted:.2f}",
            f"{cost['plain'] / drafted:.2f} / {row.plain / row.drafted:.2f}",
            f"{row.acceptance * row.drafted:.1f}",
        ])  # fmt: skip
    return found


def table() -> str:
    """The prediction in Markdown."""
    cost, size = costs(), parameters()
    step = cost["draft"] + cost["verify"]
    rates = [row.plain / row.drafted for row in TABLE.values()]
    law = [row.acceptance * cost["plain"] / step for row in TABLE.values()]
    of_step = {name: row.acceptance * row.drafted for name, row in TABLE.items()}
    steps = list(of_step.values())
    plain = [row.plain for row in TABLE.values()]
    over_plain = median(plain) - cost["plain"]
    over_step = median(steps) - step
    mean = lambda values: math.fsum(values) / len(values)
    header = ["data set", "acceptance length", "plain: published ms",
              "DFlash ms: roofline / published", "speedup: roofline / published",
              "a step: published ms"]  # fmt: skip
    chip = CHIPS[CHIP]
    return "\n\n".join([
        f"{MODEL} in bfloat16, block of {BLOCK}, greedy, one {CHIP} chip: "
        f"{chip.bandwidth / 1e9:,.0f} GB/s and {chip.peak / 1e12:.0f} TFLOP/s. Milliseconds are "
        f"those of a token; plain decoding's roofline is {cost['plain']:.2f}.",
        grid(header, rows()),
        f"The roofline of a plain step is {cost['plain']:.2f} ms: "
        f"{(size['target'] + size['head']) * BYTES / 1e9:.2f} GB of weights at that bandwidth. A "
        f"verification of {BLOCK} tokens reads the same weights and computes for "
        f"{1e3 * 2 * (size['target'] + size['head']) * BLOCK / chip.peak:.2f} ms meanwhile. A "
        f"draft reads the drafter and the head, "
        f"{(size['drafter'] + size['head']) * BYTES / 1e9:.2f} GB: {cost['draft']:.2f} ms. So a "
        f"step of DFlash costs {step / cost['plain']:.2f} plain steps, and the speedup is the "
        f"acceptance length over {step / cost['plain']:.2f}: on average {mean(law):.2f}, where "
        f"{mean(rates):.2f} was published.",
        f"**Where it misses.** A published plain step takes {median(plain):.2f} ms, which is "
        f"{over_plain:.2f} ms over the roofline. A published step of DFlash, acceptance length "
        f"times milliseconds a token, takes {median(steps):.1f} ms, which is {over_step:.1f} ms "
        f"over: {over_step / over_plain:.1f} times as much. A likely reason is that the host "
        "drives the published program. A plain step waits once for the device, at the token; a "
        "step of DFlash waits twice, at the drafts and at the accepted ones. Two data sets "
        f"lie higher: mbpp with {of_step['mbpp']:.1f} ms a step and swe-bench with "
        f"{of_step['swe-bench']:.1f} ms; no published figure says why.",
        f"Add the two constants, {over_plain:.2f} ms to a plain step and {over_step:.1f} ms to one "
        f"of DFlash, and the predicted speedups are {fitted_range(cost, over_plain, over_step)}.",
        "**What follows.** If the constants are the host's, a loop that stays on the device has "
        "neither. With the same acceptance lengths the speedup would be at most "
        f"{mean(law):.2f} instead of {mean(rates):.2f}, "
        f"and plain decoding alone at most "
        f"{median(plain) / cost['plain']:.1f} times as fast.",
        f"The means of the table are {mean(plain):.2f} and "
        f"{mean([row.drafted for row in TABLE.values()]):.2f} ms; another run of the same authors "
        f"has {AGAIN[0]:.2f} and {AGAIN[1]:.2f} ms with the same acceptance lengths.",
    ])  # fmt: skip


def fitted_range(cost: dict[str, float], over_plain: float, over_step: float) -> str:
    """How close two constants come to the published speedups."""
    step = cost["draft"] + cost["verify"] + over_step
    found = [
        row.acceptance * (cost["plain"] + over_plain) / step / (row.plain / row.drafted)
        for row in TABLE.values()
    ]
    return (f"{min(found):.2f} to {max(found):.2f} times the published ones, "
            f"{median(found):.2f} in the median")  # fmt: skip


def main() -> int:
    write()
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
