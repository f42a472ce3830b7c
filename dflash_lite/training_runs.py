"""Training runs.

The command `dflash-lite train`: `target` trains a language model from nothing,
`data` lets a model write what its drafter learns from, `drafter` trains one.
All tell before what they will take, and go on where they were stopped.

Made from chapters/94_training_runs.py by tools/tangle.py:
edit the chapter, not this file.
"""

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import typer

from dflash_lite.benchmark import (
    EXAMPLE,
    DtypeOption,
    ModelOption,
    read_tasks,
    refuse,
)
from dflash_lite.command_line import (
    app,
    exit_codes,
    keep_programs,
    leave,
    main as start,
    say,
    silence,
)

__all__ = [
    "duration",
    "forecast_line",
    "load_quietly",
    "read_prompts",
    "seconds_a_token",
    "SAMPLE_TOKENS",
    "train_app",
    "data_command",
    "unused_token",
    "frequent_tokens",
    "parse_taps",
    "Progress",
    "make_learner",
    "LAYERS",
    "show_forecast",
    "drafter_command",
    "train_settings",
    "run_training",
    "TEXT_EXAMPLE",
    "Exchange",
    "read_exchanges",
    "encode_exchanges",
    "new_target",
    "target_command",
    "main",
]


# What a run will take
# --------------------

def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def forecast_line(parts: dict[str, str]) -> str:
    """What a dry run prints."""
    wide = max(map(len, parts))
    return "\n".join(f"{name:<{wide}}  {text}" for name, text in parts.items())


# Data
# ----

def load_quietly(name: str, dtype: str) -> tuple[Any, Any]:
    """The model and its tokenizer; compiled programs are kept."""
    from dflash_lite import transformer

    keep_programs()
    return transformer.load(name, dtype=dtype)


def read_prompts(path: Path | None, own: int) -> list[tuple[str, str]]:
    """The prompts of a file with their sets.

    Raises:
        UserError: there are neither a file nor own prompts.
    """
    if path is None and own == 0:
        refuse(
            "There are no prompts. Give a file with --prompts, with lines like "
            f"{EXAMPLE}, or let the model write some with --own 1000."
        )
    return [] if path is None else [
        (task.prompt, task.set) for task in read_tasks(path, None)
    ]  # fmt: skip


def seconds_a_token(
    model: Any, tokenizer: Any, prompts: Sequence[str], rows: int
) -> float:
    """Of an answer's token, when `rows` answers are written at a time."""
    from dflash_lite.decoding import bucket, encode_prompt
    from dflash_lite.training import Writer

    ids = [encode_prompt(tokenizer, text, True, None) for text in prompts]
    ids = (ids * rows)[:rows]
    capacity = bucket(max(map(len, ids)) + SAMPLE_TOKENS)
    sizes = (rows, capacity, SAMPLE_TOKENS)
    writer = Writer(model, (), *sizes, (0.0, None, None))
    for _ in range(2):  # the first compiles
        begin = time.perf_counter()
        made = list(writer.answers(ids, [0] * rows))
        took = time.perf_counter() - begin
    return took / sum(len(answer) for _, answer in made)


SAMPLE_TOKENS = 16  # of each answer, in a dry run


train_app = typer.Typer(
    no_args_is_help=True, help="Data for a drafter, and its training."
)


@train_app.command("data")
def data_command(
    folder: Path = typer.Argument(help="For the answers; goes on if it has."),
    model: ModelOption = "smollm2-135m",
    prompts: Path = typer.Option(
        None, help=f"A file with lines like {EXAMPLE}."
    ),
    own: int = typer.Option(
        0, min=0, help="How often the model tries to write a prompt itself."
    ),
    max_new_tokens: int = typer.Option(
        256, min=2, help="At most so many for each answer."
    ),
    sampled: float = typer.Option(
        0.0, min=0, max=1, help="So large a share is drawn, the rest greedy."
    ),
    temperature: float = typer.Option(0.8, help="Of the drawn answers."),
    rows: int = typer.Option(64, min=1, help="Answers at a time."),
    shard: int = typer.Option(512, min=1, help="Answers in a file."),
    seed: int = typer.Option(0, min=0, help="Of the model's own prompts."),
    dtype: DtypeOption = "float32",
    dry_run: bool = typer.Option(False, "--dry-run", help="Only predict."),
) -> None:
    """Let a model write what its drafter will learn from."""
    with exit_codes():
        silence()
        asked = read_prompts(prompts, own)
        target, tokenizer = load_quietly(model, dtype)
        from dflash_lite.training import write_prompts, write_responses

        if dry_run:
            texts = [text for text, _ in asked] or ["Say hi!"]
            each = seconds_a_token(target, tokenizer, texts, rows)
            most = (len(asked) + own) * max_new_tokens
            print(forecast_line({
                "prompts": f"{len(asked):,}, and up to {own:,} of its own",
                "speed": f"{1 / each:,.0f} tokens a second",
                "tokens": f"{most:,} at most",
                "time": f"{duration(most * each)} at most",
            }))  # fmt: skip
            return
        if own:
            say(f"dflash-lite: the model writes prompts, by {own} tries")
            turns = write_prompts(target, tokenizer, own, rows=rows, seed=seed)
            asked += [(turn, "own") for turn in turns]
        kept = write_responses(
            target, tokenizer, asked, folder, max_new_tokens, sampled,
            temperature, rows, shard, progress=sys.stderr.isatty(),
        )  # fmt: skip
        tokens = sum(len(text.tokens) - text.start for text in kept.texts)
        print(f"{len(kept):,} answers with {tokens:,} tokens in {folder}")


# A drafter
# ---------

def unused_token(model: Any, tokenizer: Any, data: Any) -> int:
    """A token for masks: one that no text contains.

    Raises:
        UserError: there is none.
    """
    count, known = model.config.vocab_size, tokenizer.backend.get_vocab_size()
    used = set(np.unique(np.concatenate([text.tokens for text in data.texts])))
    behind = [token for token in range(known, count) if token not in used]
    if behind:
        return behind[0]
    special = tokenizer.backend.get_added_tokens_decoder()
    free = sorted(set(special) - used - set(tokenizer.stop_ids))
    if not free:
        refuse(
            "The data use every special token of the tokenizer, so none is "
            "left for masks. Name one with --mask."
        )
    return free[-1]


def frequent_tokens(data: Any, count: int) -> tuple[Any, float]:
    """The tokens that come most often in the answers, and their share.

    Returns:
        Their ids, rising, and which part of all the answers' tokens they are.
    """
    parts = [text.tokens[text.start :] for text in data.texts]
    ids, often = np.unique(np.concatenate(parts), return_counts=True)
    best = np.argsort(-often, kind="stable")[:count]
    return np.sort(ids[best]), often[best].sum() / often.sum()


def parse_taps(text: str | None) -> tuple[int, ...] | None:
    """Layers from "1,14,27"; None for none.

    Raises:
        UserError: it has no numbers.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        refuse(f"--taps is '{text:.60}'; expected layers like 1,14,27.")


class Progress:
    """Shows a run: a bar on terminals, a line for each evaluation."""

    def __init__(self, steps: int):
        from tqdm import tqdm

        self.bar = tqdm(total=steps, unit="step", file=sys.stderr,
                        disable=not sys.stderr.isatty())  # fmt: skip

    def __call__(self, line: dict[str, Any]) -> None:
        """Take a line of the metrics."""
        if "held_out" in line:
            found = line["held_out"].items()
            parts = [f"{name} {length:.3f}" for name, length in found]
            self.bar.clear()
            print(f"step {line['step']}: held out {', '.join(parts)}",
                  flush=True)  # fmt: skip
            return
        self.bar.set_postfix_str(
            f"loss {line['loss']:.3f}, acceptance {line['acceptance']:.2f}",
            refresh=False,
        )
        self.bar.n = line["step"]
        self.bar.refresh()


def make_learner(
    model: Any, tokenizer: Any, data: Any, options: dict[str, Any]
) -> Any:
    """A new drafter, and a line that says what was chosen.

    Raises:
        UserError: an option is impossible.
    """
    count, taps = options["vocabulary"], parse_taps(options["taps"])
    words, share = (
        frequent_tokens(data, count) if count else (None, 1.0)
    )  # fmt: skip
    how = {name: options[name] for name in ("block", "seed")}
    how |= {"taps": taps, "vocabulary": words}
    if options["kind"] == "eagle":
        for name in ("layers", "mask"):
            if options[name] is not None:
                refuse(
                    f"--{name} is {options[name]}, but an EAGLE-3 drafter has "
                    "one layer and no mask. Leave it out."
                )
        from dflash_lite.eagle import new_eagle

        drafter, more = new_eagle(model, **how), ""
    else:
        from dflash_lite.dflash import new_drafter

        mask, layers = options["mask"], options["layers"]
        mask = unused_token(model, tokenizer, data) if mask is None else mask
        layers = LAYERS if layers is None else layers
        drafter = new_drafter(model, mask, layers=layers, **how)
        more = f"mask token {mask}, "
    drafter = dataclasses.replace(drafter, anchors=options["anchors"])
    drafter.check(model)
    size = model.config.vocab_size if words is None else len(words)
    say(
        f"dflash-lite: taps {','.join(map(str, drafter.taps))}, {more}{size:,} "
        f"tokens to draft, which are {share:.1%} of the data"
    )
    return drafter


LAYERS = 3  # of a DFlash drafter, unless one says otherwise


def show_forecast(found: Any, settings: Any) -> None:
    """Print what a run of training will take."""
    print(forecast_line({
        "parameters": f"{found.parameters:,}",
        "texts": f"{found.texts:,}",
        "steps": f"{settings.steps:,}, which are {found.epochs:.1f} epochs",
        "memory": f"{found.bytes / 1e9:.1f} GB on each device",
        "time": f"{duration(found.seconds)}, without compiling and evaluating",
    }))  # fmt: skip


@train_app.command("drafter")
def drafter_command(
    data: Path = typer.Argument(help="A folder that `train data` has filled."),
    folder: Path = typer.Argument(
        help="For checkpoints, metrics and the drafter; goes on if it has."
    ),
    model: ModelOption = "smollm2-135m",
    kind: Literal["dflash", "eagle"] = typer.Option(
        "dflash", help="What to train: DFlash, or EAGLE-3."
    ),
    held_out: Path = typer.Option(
        None, help="A folder of answers to measure on, never to learn from."
    ),
    layers: int = typer.Option(
        None, min=1, help=f"Of a DFlash drafter. Default: {LAYERS}."
    ),
    block: int = typer.Option(8, min=2, help="Tokens of a verification."),
    taps: str = typer.Option(
        None, help="Layers of the model to watch. Default: the kind's own."
    ),
    vocabulary: int = typer.Option(
        8192, min=0, help="Tokens to draft: the most frequent ones; 0 for all."
    ),
    mask: int = typer.Option(
        None, help="A DFlash drafter's mask token. Default: an unused one."
    ),
    anchors: int = typer.Option(32, min=1, help="Places of a text, in a step."),
    steps: int = typer.Option(1000, min=1, help="Of the whole run."),
    rows: int = typer.Option(8, min=1, help="Texts in a step."),
    rate: float = typer.Option(6e-4, help="The highest learning rate."),
    warmup: float = typer.Option(0.04, help="Share of the steps."),
    clip: float = typer.Option(1.0, help="Norm of the gradients."),
    decay: float = typer.Option(0.01, help="Weight decay of matrices."),
    longest: int = typer.Option(1024, min=2, help="Tokens of a text."),
    seed: int = typer.Option(0, min=0, help="Of weights, anchors and order."),
    keep_features: bool = typer.Option(
        False, help="Read the data once; for little data and many epochs."
    ),
    evaluate_every: int = typer.Option(100, min=1, help="Steps."),
    save_every: int = typer.Option(100, min=1, help="Steps."),
    dtype: DtypeOption = "float32",
    dry_run: bool = typer.Option(False, "--dry-run", help="Only predict."),
) -> None:
    """Train a drafter on what its model wrote."""
    given = dict(locals())
    with exit_codes():
        silence()
        parse_taps(taps)
        target, tokenizer = load_quietly(model, dtype)
        from dflash_lite import training

        settings = train_settings(given)
        texts = training.read_shards(data, target, tokenizer)
        tests = held_out and training.read_shards(held_out, target, tokenizer)
        learner = make_learner(target, tokenizer, texts, given)
        if dry_run:
            found = training.forecast(target, learner, texts, settings)
            show_forecast(found, settings)
            return
        trained = run_training(target, learner, texts, tests, folder, settings)
        from dflash_lite import dflash, eagle

        saves = {"dflash": dflash.save_drafter, "eagle": eagle.save_eagle}
        saves[kind](trained, folder / "drafter")
        print(f"The drafter is in {folder / 'drafter'}")


def train_settings(given: dict[str, Any]) -> Any:
    """The settings of a run among the options of a command."""
    from dflash_lite.training import TrainSettings

    names = [f.name for f in dataclasses.fields(TrainSettings)]
    return TrainSettings(**{n: given[n] for n in names if n in given})


def run_training(
    target: Any,
    learner: Any,
    data: Any,
    tests: Any,
    folder: Path,
    settings: Any,
) -> Any:
    """Train to the end and return the learner, or say how to go on."""
    from dflash_lite.training import train

    progress = Progress(settings.steps)
    how = (settings, tests, progress)
    try:
        trained = train(target, learner, data, folder, *how)
    finally:
        progress.bar.close()
    if trained.step < settings.steps:
        say(
            f"dflash-lite: stopped and saved at step {trained.step} of "
            f"{settings.steps}; the same command goes on"
        )
        leave(128 + signal.SIGINT)
    return trained.learner


# A target
# --------

TEXT_EXAMPLE = '{"prompt": "1 + 1", "response": "2", "set": "math"}'


class Exchange(NamedTuple):
    """A prompt and the response that shall be learnt."""

    prompt: str
    response: str
    set: str


def read_exchanges(path: Path) -> list[Exchange]:
    """The exchanges of a file of JSON lines.

    Raises:
        UserError: the file cannot be read, or a line is wrong.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        refuse(f"The texts cannot be read from {path}: {error.strerror}.")
    except UnicodeDecodeError as error:
        refuse(f"{path} is not UTF-8: byte {error.start} is wrong.")
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_exchange(line, f"{path.name}, line {number}"))
    if not found:
        refuse(f"{path} has no texts; expected lines like {TEXT_EXAMPLE}.")
    return found


def _exchange(line: str, place: str) -> Exchange:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    data = data if isinstance(data, dict) else {}
    parts = [data.get("prompt"), data.get("response"), data.get("set", "text")]
    if not all(isinstance(part, str) and part for part in parts):
        refuse(f"{place} is {line!r:.60}; expected one like {TEXT_EXAMPLE}.")
    return Exchange(*parts)


def encode_exchanges(
    tokenizer: Any, exchanges: Sequence[Exchange], whole: bool
) -> Any:
    """Texts to learn from, as `Responses`.

    Args:
        whole: whether the prompt counts, too.

    Raises:
        UserError: the tokenizer has no stop token.
    """
    from dflash_lite.decoding import encode_prompt
    from dflash_lite.training import (
        SHARD_VERSION,
        Responses,
        Text,
        prompt_digest,
        tokenizer_digest,
    )

    if not tokenizer.stop_ids:
        refuse(
            "The tokenizer has no token that ends an answer; expected an "
            "eos_token in its tokenizer_config.json."
        )
    texts = []
    for prompt, response, name in exchanges:
        ids = encode_prompt(tokenizer, prompt, True, None)
        answer = tokenizer.encode(response, add_special_tokens=False)
        tokens = np.array([*ids, *answer, tokenizer.stop_ids[0]], np.int32)
        start = 1 if whole else len(ids)
        texts.append(Text(tokens, start, name, prompt_digest(ids)))
    return Responses(tuple(texts), {
        "version": SHARD_VERSION,
        "target": "",
        "tokenizer": tokenizer_digest(tokenizer),
        "sampling": "none",
    })  # fmt: skip


def new_target(tokenizer: Any, options: dict[str, Any]) -> Any:
    """A language model of the Qwen3 family with random weights.

    Raises:
        UserError: a size is impossible.
    """
    from flax import nnx

    from dflash_lite.checkpoints import ModelConfig, RopeConfig
    from dflash_lite.transformer import Transformer

    hidden, heads = options["hidden_size"], options["heads"]
    size = options["head_size"]
    config = ModelConfig(
        model_type="qwen3",
        vocab_size=tokenizer.vocab_size,
        hidden_size=hidden,
        intermediate_size=options["intermediate_size"] or 11 * hidden // 4,
        num_hidden_layers=options["layers"],
        num_attention_heads=heads,
        num_key_value_heads=options["kv_heads"] or heads,
        head_dim=hidden // heads if size is None else size,
        max_position_embeddings=options["longest"],
        tie_word_embeddings=True,
        rope=RopeConfig(),
    )
    return Transformer(config, rngs=nnx.Rngs(options["seed"]))


@train_app.command("target")
def target_command(
    texts: Path = typer.Argument(
        help=f"A file with lines like {TEXT_EXAMPLE}."
    ),
    folder: Path = typer.Argument(
        help="For checkpoints, metrics and the model; goes on if it has."
    ),
    tokenizer: Path = typer.Option(
        help="A folder with tokenizer.json and tokenizer_config.json."
    ),
    held_out: Path = typer.Option(
        None, help="A file of texts to measure on, never to learn from."
    ),
    layers: int = typer.Option(6, min=1, help="Of the model."),
    hidden_size: int = typer.Option(512, min=2, help="Of the residual stream."),
    heads: int = typer.Option(8, min=1, help="Of attention, in a layer."),
    kv_heads: int = typer.Option(
        None, min=1, help="Of keys and values. Default: as many as heads."
    ),
    head_size: int = typer.Option(
        None, min=2, help="Default: the hidden size over the heads."
    ),
    intermediate_size: int = typer.Option(
        None, min=1, help="Of the MLP. Default: 2.75 of the hidden size."
    ),
    steps: int = typer.Option(1000, min=1, help="Of the whole run."),
    rows: int = typer.Option(16, min=1, help="Texts in a step."),
    rate: float = typer.Option(1e-3, help="The highest learning rate."),
    warmup: float = typer.Option(0.04, help="Share of the steps."),
    clip: float = typer.Option(1.0, help="Norm of the gradients."),
    decay: float = typer.Option(0.05, help="Weight decay of matrices."),
    longest: int = typer.Option(1024, min=2, help="Tokens of a text."),
    seed: int = typer.Option(0, min=0, help="Of the weights and the order."),
    evaluate_every: int = typer.Option(100, min=1, help="Steps."),
    save_every: int = typer.Option(100, min=1, help="Steps."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only predict."),
) -> None:
    """Train a small language model from nothing."""
    given = dict(locals())
    with exit_codes():
        silence()
        keep_programs()
        from dflash_lite import checkpoints, eagle, training
        from dflash_lite.transformer import save_model

        settings = train_settings(given)
        words = checkpoints.hub_tokenizer(tokenizer)
        data = encode_exchanges(words, read_exchanges(texts), True)
        tests = held_out and encode_exchanges(
            words, read_exchanges(held_out), False
        )
        learner = eagle.DraftLearner(new_target(words, given), block=2)
        if dry_run:
            found = training.forecast(None, learner, data, settings)
            show_forecast(found, settings)
            return
        trained = run_training(None, learner, data, tests, folder, settings)
        save_model(trained.model, words, folder / "model")
        print(f"The model is in {folder / 'model'}")


def main() -> None:
    """The command `dflash-lite`; it ends the process."""
    app.add_typer(train_app, name="train")
    start()
