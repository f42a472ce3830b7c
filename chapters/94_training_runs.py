# ---
# jupyter:
#   dflash_lite:
#     main: main
#     module: training_runs
#     public: []
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 94. Training runs
#
# The command `dflash-lite train`: `target` trains a language model from nothing,
# `data` lets a model write what its drafter learns from, `drafter` trains one.
# All tell before what they will take, and go on where they were stopped.
#
# **The question.** A run takes hours. How do you know that before, and what is
# left of it when the machine stops?
#
# **Afterwards you can** train a small model on your own texts, and a DFlash or
# an EAGLE-3 drafter for it from a file of prompts, without a line of Python.
#
# **Time.** 15 minutes to read and run, 5 minutes of exercises.

# %% tags=["export"]
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

# %%
import shlex
import subprocess
import tempfile

from dflash_lite.decoding import generate
from dflash_lite.exercises import check

# %% [markdown]
# As in the other commands, what needs JAX is imported where it is used.
#
# ## What a run will take
#
# Nobody starts a run of ten hours without knowing that it is one. `--dry-run`
# does everything but the run: it reads and checks the input, compiles, times a
# little of the work, and prints what the whole will take. It writes nothing.


# %% tags=["export"]
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


# %%
print(forecast_line({"prompts": "6,000", "time": duration(5000)}))
assert duration(5400) == "1.5 h" and duration(89) == "89 s"

# %% [markdown]
# ## Data
#
# `dflash-lite train data FOLDER` lets the model answer the prompts of a file,
# in shards (chapter 7). With `--own N` the model also writes the prompts, by
# N tries.


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% [markdown]
# ## A drafter
#
# `dflash-lite train drafter DATA FOLDER` trains a DFlash drafter (chapter 10)
# and writes it in the published layout, for `load_drafter`.
#
# Two choices need the data. A *mask token* stands where a draft shall be
# filled in. It must be one that no text contains: a row of the embedding behind
# the tokenizer's last token, or a special token that the data does not use.


# %% tags=["export"]
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


# %% [markdown]
# A *reduced head* makes the draft cheaper: it scores only the tokens that come
# most often in the answers.


# %% tags=["export"]
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


# %% [markdown]
# While it trains, a bar shows the loss and the acceptance length on the step's
# own batch; each evaluation prints a line, the acceptance length on texts that
# the training never sees.


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% [markdown]
# Every setting has a default, which `--help` shows. The rate, the warm-up and
# the clipping are those of the DFlash paper.


# %% tags=["export"]
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


# %% [markdown]
# ## A target
#
# A drafter needs a target. To study drafters one wants a target that is small,
# whose texts one knows, and that can be made again: a language model of one's
# own. `dflash-lite train target TEXTS FOLDER` trains one from nothing, on a file
# of prompts with their responses.
#
# The trainer is chapter 7's, and the learner chapter 8's draft model, which is a
# language model. There is no target in this run: nobody is asked for features.


# %% tags=["export"]
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


# %% [markdown]
# The tokenizer's chat template makes one text of an exchange, and the first of
# its stop tokens ends it. The whole text is learnt, the prompt too: so the model
# can write prompts later. Held-out texts count from the response on.


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% [markdown]
# The door to all commands moves here, since this module knows them all.


# %% tags=["export"]
def main() -> None:
    """The command `dflash-lite`; it ends the process."""
    app.add_typer(train_app, name="train")
    start()


# %% [markdown]
# ## A look
#
# Four prompts, answers of at most 24 tokens, a drafter of one layer: enough to
# see the two commands work, and far too little for a good drafter.

# %%
call = "import dflash_lite.training_runs as t; t.main()"
command = f"{shlex.quote(sys.executable)} -c '{call}' train"
place = Path(tempfile.mkdtemp())
lines = [{"prompt": f"Say the number {n}.", "set": "chat"} for n in range(4)]
text = "\n".join(map(json.dumps, lines))
(place / "prompts.jsonl").write_text(text)


def run(line):
    found = subprocess.run(
        f"{command} {line}", shell=True, capture_output=True, text=True,
        cwd=place,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


# %%
print(run("data answers --prompts prompts.jsonl --max-new-tokens 24 --rows 4"))

# %% [markdown]
# Before the run, what it will take on this machine:

# %% tags=["nbval-ignore-output"]
small = "--steps 3 --layers 1 --block 4 --vocabulary 512 --anchors 8 --rows 4"
print(run(f"drafter answers run {small} --dry-run"))

# %%
print(run(f"drafter answers run {small}"))
written = sorted(path.name for path in (place / "run/drafter").iterdir())
assert written == ["config.json", "model.safetensors"]

# %% [markdown]
# A target of one's own, from the same place: three texts, and the tokenizer of
# SmolLM2, which `save_model` writes beside the model.

# %%
from dflash_lite import load, save_model

model, tokenizer = load("smollm2-135m")
save_model(model, tokenizer, place / "smollm2")
pairs = {"1 + 1": "2", "Say hi!": "Hello.", "Who are you?": "A small model."}
texts = [{"prompt": p, "response": r} for p, r in pairs.items()]
(place / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))

# %%
small = "--layers 1 --hidden-size 32 --heads 2 --steps 80 --rate 0.02 --rows 4"
said = run(f"target texts.jsonl mine --tokenizer smollm2 {small}")
found, words = load(place / "mine/model")
for prompt, response in pairs.items():
    answer = generate(found, words, prompt, max_new_tokens=8)
    print(f"{prompt!r}: {answer.text!r}")
    assert answer.text == response

# %% [markdown]
# It knows three texts by heart and nothing else. The target `tiny` of this
# project learnt from the generator in the folder `lab`, which never ends.
#
# ## Exercises
#
# **94.1 Where it goes on** (5 minutes). A run of `steps` saves every
# `save_every` steps, and is killed without warning while it works on the step
# after `done`. How many finished steps are lost?

# %% tags=["exercise"]
def lost_steps(done: int, save_every: int) -> int:
    """Finished steps that must be made again after a kill."""
    ### BEGIN SOLUTION
    return done % save_every
    ### END SOLUTION


# %% tags=["check"]
@check(lost_steps)
def _(f):
    assert f(250, 100) != 250, "the checkpoint of step 200 is there"
    assert f(250, 100) == 50
    assert f(300, 100) == 0, "step 300 was just saved"


# %% [markdown]
# ## Key points
#
# - `--dry-run` says what a run will take, and writes nothing.
# - `train target`, `train data` and `train drafter` go on where they were
#   stopped, killed or not, and refuse data and settings that do not fit.
# - The drafter lies in the published layout; `load_drafter` and other people's
#   programs read it.
