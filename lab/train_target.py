"""Trains the tiny target from nothing on generated text.

One cosine over a fixed number of steps, float32 masters, clipping at 1.0. A run
that is stopped by SIGTERM or Ctrl-C saves, and the same command goes on with
the same losses. Metrics are JSON lines in the run's folder.
"""

import argparse
import json
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import packing
import textgen
from flax import nnx
from packing import make_batch, read_tokenizer
from safetensors.numpy import load_file, save_file

from dflash_lite.checkpoints import ModelConfig, RopeConfig
from dflash_lite.transformer import Transformer, load

HERE = Path(__file__).parent
TINY = ModelConfig(
    model_type="qwen3",
    vocab_size=2048,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    rope=RopeConfig(theta=10_000.0),
)
PROMPT_WEIGHT = 0.1  # of a prompt token's loss; the model also writes prompts
SAVE_SECONDS = 300


class Packed(NamedTuple):
    """A plug for training: tokens see the earlier tokens of their own chat."""

    segments: jax.Array  # (batch, tokens)

    def attend(self, layer, q, k, v, positions):
        """Causal attention inside each segment; nothing is stored."""
        batch, tokens, heads, size = q.shape
        groups = (batch * k.shape[2], -1, size)
        q = q.reshape(batch, tokens, k.shape[2], -1, size)
        q = q.transpose(0, 2, 3, 1, 4).reshape(groups)
        k, v = (x.swapaxes(1, 2).reshape(groups) for x in (k, v))
        scores = jnp.einsum("nqd,nsd->nqs", q * size**-0.5, k)
        scores = scores.reshape(batch, -1, tokens, tokens).astype(jnp.float32)
        scores = jnp.where(self.seen()[:, None], scores, -1e9)
        weights = jax.nn.softmax(scores).astype(v.dtype)
        weights = weights.reshape(v.shape[0], -1, tokens)
        mixed = jnp.einsum("nqs,nsd->nqd", weights, v)
        mixed = mixed.reshape(batch, heads, tokens, size).swapaxes(1, 2)
        return mixed, self

    def seen(self):
        """Which key each query sees, (batch, tokens, tokens)."""
        same = self.segments[:, :, None] == self.segments[:, None]
        return jnp.tril(same)


def compute_dtype():
    """bfloat16 where the hardware multiplies it, float32 on other CPUs."""
    if jax.default_backend() != "cpu":
        return jnp.bfloat16
    flags = Path("/proc/cpuinfo")
    text = flags.read_text() if flags.exists() else ""
    fast = "avx512_bf16" in text or "amx_bf16" in text
    return jnp.bfloat16 if fast else jnp.float32


def forward(graph, params, tokens, segments, dtype):
    """Logits of (batch, tokens) packed tokens."""
    model = nnx.merge(graph, jax.tree.map(lambda a: a.astype(dtype), params))
    return model.logits(model(tokens, cache=Packed(segments)).hidden)


def loss_fn(params, graph, tokens, answers, segments, dtype):
    """Weighted mean loss, and the mean loss of response tokens."""
    logits = forward(graph, params, tokens[:, :-1], segments[:, :-1], dtype)
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    weights = jnp.where(answers[:, 1:], 1.0, PROMPT_WEIGHT)
    response = (nll * answers[:, 1:]).sum() / answers[:, 1:].sum()
    return (nll * weights).sum() / weights.sum(), response


def schedule(steps, peak):
    """Linear warm-up over 2% of the steps, then one cosine to a twentieth."""
    warmup = max(1, steps // 50)
    return optax.warmup_cosine_decay_schedule(0, peak, warmup, steps, peak / 20)


def optimizer(steps, peak):
    """AdamW with clipping; only matrices decay."""
    matrices = partial(jax.tree.map, lambda p: p.ndim > 1)
    adamw = optax.adamw(
        schedule(steps, peak), b1=0.9, b2=0.98, weight_decay=0.05, mask=matrices
    )
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def make_step(graph, transform, dtype):
    """The compiled training step; params and state are donated."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens, answers, segments):
        (_, response), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            params, graph, tokens, answers, segments, dtype
        )
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state, response, norm

    return step


def grow(flat, layers, copies):
    """More layers: each old layer, then copies of it.

    Args:
        flat: parameters or moments by path, for fewer layers.
        layers: how many layers there will be, a multiple of the old number.
        copies: gives a copy's array from its path and the old array.
    """
    old = 1 + max(path[1] for path in flat if path[0] == "layers")
    times, grown = layers // old, {}
    for path, array in flat.items():
        if path[0] != "layers":
            grown[path] = array
            continue
        for i in range(times):
            place = ("layers", path[1] * times + i, *path[2:])
            grown[place] = copies(path, array) if i else array
    return grown


def silent(path, array):
    """A copied parameter; the copy adds nothing to the residual stream yet."""
    return array * (0 if {"o_proj", "down_proj"} & set(path) else 1)


def grow_run(params, state, layers):
    """Parameters and optimiser state of a model with more layers.

    The grown model computes what the old one did: a copied layer begins with
    zero output projections (as in LLaMA Pro, Wu et al. 2024) and no moments.
    """
    def grown(tree, copies):
        flat = {path: p[...] for path, p in nnx.to_flat_state(tree)}
        flat = grow(flat, layers, copies)
        return nnx.from_flat_state({k: nnx.Param(v) for k, v in flat.items()})

    def is_adam(part):
        return isinstance(part, optax.ScaleByAdamState)

    def moments(part):
        if not is_adam(part):
            return part
        mu, nu = (grown(m, lambda _, a: 0 * a) for m in (part.mu, part.nu))
        return part._replace(mu=mu, nu=nu)

    state = jax.tree.map(moments, state, is_leaf=is_adam)
    return grown(params, silent), state


def batch_plan(step, rows, length, long_at, first_row=0):
    """First row, rows and length of a step's batch.

    From step `long_at` on, half as many rows are twice as long. No row comes
    twice. `first_row` is that of step 0.
    """
    late = max(0, step - long_at)
    first = first_row + min(step, long_at) * rows + late * (rows // 2)
    if step < long_at:
        return first, rows, length
    return first, rows // 2, 2 * length


def batches(tokenizer_file, first, last, plan, workers):
    """The batches of steps first … last − 1, made ahead by other processes."""
    def make(step, call):
        return call(make_batch, tokenizer_file, *plan(step))

    if not workers:
        for step in range(first, last):
            yield make(step, lambda f, *args: f(*args))
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        steps = range(first, first + 4 * workers)
        ahead = [make(step, pool.submit) for step in steps]
        for step in range(first, last):
            yield ahead.pop(0).result()
            ahead.append(make(step + 4 * workers, pool.submit))


def save_state(folder, step, seconds, params, state, settings):
    """Writes everything that a run needs to go on, or nothing."""
    leaves = jax.tree.leaves((params, state))
    arrays = {str(i): np.asarray(x) for i, x in enumerate(leaves)}
    notes = {"step": step, "seconds": seconds, **settings}
    partial_file = folder / "state.safetensors.partial"
    save_file(arrays, partial_file, {"run": json.dumps(notes)})
    os.replace(partial_file, folder / "state.safetensors")


def load_state(folder, params, state, settings):
    """Seconds, params and state of a saved run; its settings must match.

    Raises ValueError where the run in this folder was begun with others.
    """
    file = folder / "state.safetensors"
    arrays, notes = load_file(file), read_notes(file)
    begun = {k: notes[k] for k in settings}
    if begun != settings:
        raise ValueError(
            f"{folder} was begun with {begun}, not with {settings};"
            " use the same settings or another folder"
        )
    leaves, shape = jax.tree.flatten((params, state))
    loaded = [jnp.asarray(arrays[str(i)]) for i in range(len(leaves))]
    return notes["seconds"], *jax.tree.unflatten(shape, loaded)


def read_notes(file):
    """The notes that `save_state` left in the header."""
    with open(file, "rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return json.loads(json.loads(stream.read(size))["__metadata__"]["run"])


def evaluation_rows(tokenizer, kind, split, count, length):
    """Whole examples of a split, packed; tokens, answers, segments."""
    rows, row = [], ([], [], [])
    for index in range(count):
        ids, answers = packing.tokenise(
            tokenizer, textgen.sample(kind, index, split)
        )
        if len(ids) > length:
            continue
        if len(row[0]) + len(ids) > length:
            rows.append(row)
            row = ([], [], [])
        number = row[2][-1] + 1 if row[2] else 1
        for part, new in zip(row, (ids, answers, [number] * len(ids))):
            part += new
    return [pad(np.stack([pad_to(r[i], length) for r in [*rows, row]]))
            for i in range(3)]  # fmt: skip


def pad_to(values, length):
    return np.pad(np.array(values, np.int32), (0, length - len(values)))


def pad(rows, multiple=4):
    """Rows padded with zeros so that one compiled shape serves all."""
    return np.pad(rows, ((0, -len(rows) % multiple), (0, 0)))


def exact_matches(predict, params, tokens, answers, segments):
    """Share of examples whose every response token is the argmax.

    Given the right tokens so far, the model predicts each next one: greedy
    decoding would then write exactly the expected response.
    """
    right = total = 0
    for i in range(0, len(tokens), 4):
        t, a, s = tokens[i : i + 4], answers[i : i + 4], segments[i : i + 4]
        guess = np.asarray(predict(params, t, s))[:, :-1]
        wrong = (guess != t[:, 1:]) & (a[:, 1:] > 0)
        for row, numbers in zip(wrong, s[:, 1:]):
            names = np.unique(numbers[numbers > 0])
            total += len(names)
            right += sum(not row[numbers == n].any() for n in names)
    return right / total


def load_run(folder):
    """The model of a run, as it is now."""
    file = folder / "state.safetensors"
    arrays, notes = load_file(file), read_notes(file)
    grown = notes["step"] > notes["grow_at"]
    layers = TINY.num_hidden_layers if grown else notes["few_layers"]
    config = replace(TINY, num_hidden_layers=layers)
    graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)))
    leaves, shape = jax.tree.flatten(params)
    loaded = [jnp.asarray(arrays[str(i)]) for i in range(len(leaves))]
    return nnx.merge(graph, jax.tree.unflatten(shape, loaded))


def evaluate(predict, params, sets):
    """Exact matches for each evaluation set."""
    return {
        f"exact_{name}": round(exact_matches(predict, params, *rows), 4)
        for name, rows in sets.items()
    }


def log(folder, **values):
    """Appends one line to metrics.jsonl and shows it."""
    line = json.dumps(values)
    with open(folder / "metrics.jsonl", "a") as stream:
        stream.write(line + "\n")
    print(line, flush=True)


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--folder", type=Path, default=HERE / "runs" / "tiny")
    add("--tokenizer", default=str(HERE / "tokenizer" / "tokenizer.json"))
    add("--steps", type=int, default=6000)
    add("--rows", type=int, default=6)
    add("--length", type=int, default=256)
    add("--long-at", type=int, default=5600, help="the step that doubles the length")
    add("--rate", type=float, default=1e-3)
    add("--few-layers", type=int, default=2, help="layers until --grow-at")
    add("--grow-at", type=int, default=2600, help="the step that adds layers")
    add("--begin", type=Path, help="a model to go on from, with fresh moments")
    add("--first-row", type=int, default=0, help="of the texts; a new run's 0")
    add("--workers", type=int, default=0)
    add("--evaluate-every", type=int, default=250)
    add("--log-every", type=int, default=10)
    add("--stop-after", type=int, help="steps to run in this sitting")
    return parser.parse_args(argv)


EVALUATION = {
    "math_fresh": 64,
    "code_fresh": 32,
    "chat_fresh": 24,
    "math_heldout": 32,
}


class Trainer:
    """One run: its model, its optimiser, its folder and its clock."""

    def __init__(self, args):
        args.folder.mkdir(parents=True, exist_ok=True)
        self.args, self.stop, self.losses = args, False, []
        if args.begin:
            args.grow_at = -1  # it has all layers
        self.settings = {k: getattr(args, k) for k in SETTINGS}
        self.dtype, self.rates = compute_dtype(), schedule(args.steps, args.rate)
        self.transform = optimizer(args.steps, args.rate)
        file = args.folder / "state.safetensors"
        self.step = read_notes(file)["step"] if file.exists() else 0
        few = self.step <= args.grow_at
        params = self.build(args.few_layers if few else TINY.num_hidden_layers)
        if args.begin and not self.step:
            params = nnx.state(load(args.begin)[0])
        self.params, self.state = params, self.transform.init(params)
        self.seconds = 0.0
        if file.exists():
            self.seconds, self.params, self.state = load_state(
                args.folder, self.params, self.state, self.settings
            )

    def build(self, layers):
        """Compiles for so many layers; returns fresh parameters."""
        config = replace(TINY, num_hidden_layers=layers)
        graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)))
        self.layers = layers
        self.step_fn = make_step(graph, self.transform, self.dtype)
        self.predict = jax.jit(
            lambda p, t, s: forward(graph, p, t, s, self.dtype).argmax(-1)
        )
        return params

    def grow(self):
        """Goes on with all layers."""
        self.build(TINY.num_hidden_layers)
        self.params, self.state = grow_run(
            self.params, self.state, self.layers
        )
        log(self.args.folder, event="grow", step=self.step, layers=self.layers)

    def log_step(self, norm):
        """One line for the steps since the last one; a bad loss ends the run."""
        values = [float(x) for x in self.losses]
        tokens = self.args.rows * self.args.length
        now = time.monotonic()
        took, self.mark, self.losses = now - self.mark, now, []
        self.seconds += took
        log(self.args.folder, step=self.step, loss=round(np.mean(values), 5),
            norm=round(float(norm), 3), lr=float(self.rates(self.step - 1)),
            tokens=self.step * tokens, seconds=round(self.seconds),
            tokens_per_second=round(len(values) * tokens / took, 1))  # fmt: skip
        if not np.isfinite(values).all():
            raise SystemExit(f"the loss is {values[-1]} at step {self.step}")

    def log_evaluation(self, sets):
        """One line of exact matches, outside the clock."""
        found = evaluate(self.predict, self.params, sets)
        log(self.args.folder, step=self.step, **found)
        self.mark = time.monotonic()

    def save(self):
        save_state(self.args.folder, self.step, self.seconds, self.params,
                   self.state, self.settings)  # fmt: skip
        self.saved = time.monotonic()

    def run(self, sets):
        """Trains to the end, or until told to stop."""
        a = self.args
        last = min(a.steps, self.step + (a.stop_after or a.steps))
        self.saved = self.mark = time.monotonic()
        plan = partial(
            batch_plan, rows=a.rows, length=a.length, long_at=a.long_at,
            first_row=a.first_row,
        )  # fmt: skip
        for data in batches(a.tokenizer, self.step, last, plan, a.workers):
            if self.step == a.grow_at:
                self.grow()
            self.params, self.state, loss, norm = self.step_fn(
                self.params, self.state, *data
            )
            self.step += 1
            self.losses.append(loss)
            done = self.stop or self.step == last
            if self.step % a.log_every == 0 or done:
                self.log_step(norm)
            if self.step % a.evaluate_every == 0 or self.step == a.steps:
                self.log_evaluation(sets)
            if done or time.monotonic() - self.saved > SAVE_SECONDS:
                self.save()
            if self.stop:
                break


# What a resumed run must share with its beginning.
SETTINGS = (
    "steps", "rows", "length", "long_at", "first_row", "rate", "few_layers", "grow_at"
)  # fmt: skip


def main(argv=None):
    args = parse(argv)
    trainer = Trainer(args)

    def stop(*_):
        trainer.stop = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    size = sum(x.size for x in jax.tree.leaves(trainer.params))
    log(args.folder, event="start", step=trainer.step, parameters=size,
        dtype=jnp.dtype(trainer.dtype).name, **trainer.settings)  # fmt: skip
    tokenizer = read_tokenizer(args.tokenizer)
    sets = {
        name: evaluation_rows(tokenizer, *name.split("_"), count, 2 * args.length)
        for name, count in EVALUATION.items()
    }
    trainer.run(sets)
    log(args.folder, event="stop", step=trainer.step)


if __name__ == "__main__":
    main()
