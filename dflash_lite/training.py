"""Training a drafter.

Drafters learn from what their model writes: responses in shards, anchors and
blocks, a mask that leaks nothing, and a training run that survives a kill.

Made from chapters/07_training.py by tools/tangle.py:
edit the chapter, not this file.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dflash_lite.checkpoints import Tokenizer, UserError, no_space
from dflash_lite.decoding import (
    Prompt,
    Sampling,
    State,
    bucket,
    check_prompts,
    check_settings,
    decode,
    encode_prompt,
    make_sampling,
    pack,
    prefill,
)
from dflash_lite.speculative import Draft, Speculative, as_drafter, check_block
from dflash_lite.transformer import Transformer, matmul

__all__ = [
    "target_digest",
    "tokenizer_digest",
    "prompt_digest",
    "replace_rows",
    "Writer",
    "WRITE_STEPS",
    "SHARD_VERSION",
    "shard_paths",
    "Text",
    "write_shard",
    "Responses",
    "read_shards",
    "METADATA",
    "SHARD_ARRAYS",
    "write_responses",
    "prompt_seed",
    "write_prompts",
    "example_responses",
    "Batch",
    "row_keys",
    "draw_anchors",
    "block_labels",
    "slot_weights",
    "block_mask",
    "block_positions",
    "to_draft",
    "block_loss",
    "Learner",
    "unit",
    "Heads",
    "read_features",
    "Dealt",
    "Batches",
    "TrainSettings",
    "FREE_SETTINGS",
    "optimizer",
    "compute_dtype",
    "is_float",
    "cast",
    "Parts",
    "batch_loss",
    "Steps",
    "remember",
    "Checkpoints",
    "Stop",
    "read_metrics",
    "learner_notes",
    "Trainer",
    "HELD_OUT",
    "check_rows",
    "Trained",
    "train",
    "Forecast",
    "forecast",
]


# The model writes the data
# -------------------------

def target_digest(model: Transformer) -> str:
    """A digest of a model's shape and weights, the same in every precision.

    It reads up to 64 values of each parameter, rounded to bfloat16.
    """
    shape = json.dumps(dataclasses.asdict(model.config), sort_keys=True)
    whole = hashlib.sha256(shape.encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        flat = leaf.reshape(-1)
        some = flat[:: max(1, flat.size // 64)][:64].astype(jnp.bfloat16)
        whole.update(jax.tree_util.keystr(path).encode())
        whole.update(np.asarray(some).tobytes())
    return whole.hexdigest()


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """A digest of a tokenizer and its chat template."""
    parts = (tokenizer.backend.to_str(), tokenizer.template)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def prompt_digest(ids: Sequence[int]) -> int:
    """A number of 64 bits for a prompt's token ids."""
    flat = np.asarray(ids, "<u4").tobytes()
    return int.from_bytes(hashlib.sha256(flat).digest()[:8], "little")


@functools.partial(jax.jit, donate_argnames=("state", "sampling"))
def replace_rows(
    state: State,
    sampling: Sampling,
    rows: Int[Array, "new"],
    new: State,
    new_sampling: Sampling,
) -> tuple[State, Sampling]:
    """Put new texts into a running batch.

    Args:
        rows: where each goes; a row beyond the batch goes nowhere.
    """
    put = lambda old, add: old.at[rows].set(add, mode="drop")
    return jax.tree.map(put, (state, sampling), (new, new_sampling))


@dataclass
class Writer:
    """A batch of answers in the making, whose finished rows are replaced.

    Args:
        rows: texts at once.
        capacity: tokens that a text can reach.
        how: temperature, top_k and top_p.
    """

    model: Transformer
    stop_ids: tuple[int, ...]
    rows: int
    capacity: int
    max_new_tokens: int
    how: tuple[float, int | None, float | None]

    def answers(
        self, prompts: list[list[int]], seeds: list[int]
    ) -> Iterator[tuple[int, list[int]]]:
        """The number of a prompt and its answer, in the order they finish."""
        group = max(1, self.rows // 8)
        stops = jnp.array(self.stop_ids or (-1,), jnp.int32)
        # by length, so that prompts read together need the same padding
        queue = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        places, state = [None] * self.rows, self._empty()
        sampling, mode = make_sampling(self.model, self.rows, *self.how, 0)
        while queue or any(place is not None for place in places):
            free = [i for i, place in enumerate(places) if place is None]
            while queue and len(free) >= min(group, len(queue)):
                count = min(group, len(queue))
                chosen = [queue.pop() for _ in range(count)]
                into, free = free[:count], free[count:]
                for row, number in zip(into, chosen):
                    places[row] = number
                texts = [prompts[i] for i in chosen]
                keys = [seeds[i] for i in chosen]
                new = self._read(texts, keys, group, stops, mode)
                at = jnp.array(into + [self.rows] * (group - count))
                state, sampling = replace_rows(state, sampling, at, *new)
            steps = jnp.int32(WRITE_STEPS)
            state = decode(self.model, state, stops, sampling, steps, mode)
            seen = jax.device_get((state.tokens, state.lengths, state.done))
            for row, number in enumerate(places):
                if number is not None and seen[2][row]:
                    start = len(prompts[number])
                    yield number, seen[0][row, start : seen[1][row]].tolist()
                    places[row] = None

    def _empty(self) -> State:
        ids, lengths = pack([[0]] * self.rows)
        sampling, _ = make_sampling(self.model, self.rows, *self.how, 0)
        make = lambda: prefill(
            self.model, ids, lengths, lengths, jnp.array([-1]), sampling,
            self.capacity, "greedy"
        )  # fmt: skip
        shapes = jax.eval_shape(make)
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return state._replace(stopped=jnp.ones(self.rows, bool))

    def _read(
        self,
        texts: list[list[int]],
        seeds: list[int],
        group: int,
        stops: Int[Array, "stops"],
        mode: str,
    ) -> tuple[State, Sampling]:
        filled = texts + [texts[0]] * (group - len(texts))
        seeds = np.array(seeds + [0] * (group - len(seeds)), np.uint32)
        packed, lengths = pack(filled)
        context = self.model.config.max_position_embeddings
        limits = np.minimum(lengths + self.max_new_tokens, context)
        sampling, _ = make_sampling(self.model, group, *self.how, 0)
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
        sampling = sampling._replace(keys=keys)
        texts = (packed, lengths, limits.astype(np.int32))
        how = (stops, sampling, self.capacity, mode)
        return prefill(self.model, *texts, *how), sampling


WRITE_STEPS = 16  # between two looks at which rows have finished


SHARD_VERSION = "1"


def shard_paths(folder: str | os.PathLike) -> list[Path]:
    """The shards in a folder, in order."""
    return sorted(Path(folder).glob("responses-*.safetensors"))


class Text(NamedTuple):
    """One prompt with its response."""

    tokens: Int[np.ndarray, "length"]
    start: int  # where the response begins
    set: str
    prompt: int  # the digest of the prompt


def write_shard(
    path: Path, texts: Sequence[Text], metadata: dict[str, str], vocab: int
) -> None:
    """Write texts to one file, whole or not at all.

    Args:
        metadata: who wrote them and how; see `write_responses`.
        vocab: the vocabulary's size, which decides the type of the tokens.

    Raises:
        UserError: the disk is full.
    """
    names = sorted({text.set for text in texts})
    sizes = [len(text.tokens) for text in texts]
    kind = np.uint16 if vocab <= 2**16 else np.uint32
    arrays = {
        "tokens": np.concatenate([t.tokens for t in texts]).astype(kind),
        "offsets": np.cumsum([0, *sizes]).astype(np.int64),
        "starts": np.array([t.start for t in texts], np.int32),
        "sets": np.array([names.index(t.set) for t in texts], np.uint8),
        "prompts": np.array([t.prompt for t in texts], np.uint64),
    }
    metadata = metadata | {"sets": json.dumps(names)}
    part = path.with_name(path.name + ".partial")
    try:
        save_file(arrays, part, metadata)
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        if no_space(error) or "No space" in str(error):
            raise UserError(
                f"The disk is full: {path.name} was not written. Free some "
                "space and start again; what is written stays."
            ) from None
        raise


@dataclass(frozen=True)
class Responses:
    """Texts to learn from: a model's, from `read_shards`, or people's."""

    texts: tuple[Text, ...]
    metadata: dict[str, str]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the sets, sorted."""
        return tuple(sorted({text.set for text in self.texts}))

    def of(self, *names: str) -> "Responses":
        """The texts of some sets.

        Raises:
            UserError: there is no such set.
        """
        for name in names:
            if name not in self.sets:
                raise UserError(
                    f"There is no set {name!r}; expected some of "
                    f"{', '.join(self.sets)}."
                )
        some = tuple(text for text in self.texts if text.set in names)
        return dataclasses.replace(self, texts=some)

    @property
    def digest(self) -> str:
        """A digest of all tokens, in order."""
        whole = hashlib.sha256()
        for text in self.texts:
            head = np.array([len(text.tokens), text.start], "<i8")
            whole.update(head.tobytes() + text.tokens.astype("<i4").tobytes())
        return whole.hexdigest()


def read_shards(
    folder: str | os.PathLike,
    model: Transformer | None = None,
    tokenizer: Tokenizer | None = None,
) -> Responses:
    """Read and check all shards of a folder.

    Args:
        model: the target that must have written them; None does not ask.
        tokenizer: the one that they must have been made with.

    Raises:
        UserError: there is no shard, one is damaged, or they were made with
            another target or tokenizer.
    """
    paths = shard_paths(folder)
    if not paths:
        raise UserError(
            f"{folder} has no file responses-*.safetensors; expected a folder "
            "that write_responses has filled."
        )
    texts, first = [], None
    for path in paths:
        found, metadata = _read_shard(path)
        first = first or metadata
        if metadata != first:
            key = next(k for k in first if metadata.get(k) != first[k])
            raise UserError(
                f"{path.name} and {paths[0].name} differ in their {key}; "
                "expected shards of one run. Keep them in two folders."
            )
        texts += found
    wanted = {}
    if model is not None:
        wanted["target"] = target_digest(model)
    if tokenizer is not None:
        wanted["tokenizer"] = tokenizer_digest(tokenizer)
    for name, digest in wanted.items():
        if first[name] != digest:
            raise UserError(
                f"The shards in {folder} were made with another {name} "
                f"({first[name][:12]}); expected {digest[:12]}. Write them "
                "anew with this one, or load that one."
            )
    return Responses(tuple(texts), first)


METADATA = ("version", "target", "tokenizer", "sampling")
SHARD_ARRAYS = ("tokens", "offsets", "starts", "sets", "prompts")


def _read_shard(path: Path) -> tuple[list[Text], dict[str, str]]:
    try:
        with safe_open(path, "np") as file:
            metadata = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in SHARD_ARRAYS}
        names = json.loads(metadata.pop("sets"))
        metadata = {name: metadata[name] for name in METADATA}
        tokens, offsets, starts, sets, prompts = arrays.values()
        sizes = np.diff(offsets)
        counts = {len(starts), len(sets), len(prompts), len(sizes)}
        ends = (int(offsets[0]), int(offsets[-1])) == (0, len(tokens))
        if not ends or len(counts) > 1 or (sets >= len(names)).any():
            raise ValueError("its parts do not fit together")
        if (starts < 1).any() or (starts > sizes).any():
            raise ValueError("a response begins outside of its text")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (SafetensorError, KeyError, ValueError, IndexError) as error:
        raise UserError(
            f"{path} is damaged ({error}). Remove it; write_responses writes "
            "its prompts anew."
        ) from None
    if metadata["version"] != SHARD_VERSION:
        raise UserError(
            f"{path.name} has the version {metadata['version']}; expected "
            f"{SHARD_VERSION}. Write it anew."
        )
    parts = np.split(tokens.astype(np.int32), offsets[1:-1])
    rest = zip(parts, starts.tolist(), sets, prompts.tolist(), strict=True)
    texts = [Text(t, start, names[s], p) for t, start, s, p in rest]
    return texts, metadata


def write_responses(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[tuple[Prompt, str]],
    folder: str | os.PathLike,
    max_new_tokens: int = 256,
    sampled: float = 0.0,
    temperature: float = 0.8,
    rows: int = 64,
    shard: int = 512,
    progress: bool = True,
) -> Responses:
    """Let the model answer prompts, into shards; goes on where it stopped.

    Args:
        prompts: prompts and the names of their sets; duplicates are dropped.
        folder: for the shards, made if it is not there.
        max_new_tokens: an answer ends here at the latest. A stop token that
            ended one is not kept.
        sampled: so large a share is drawn with `temperature`, the rest is
            greedy.
        rows: texts at once.
        shard: texts in a file.
        progress: show a bar.

    Raises:
        UserError: a prompt or a setting is impossible, the folder holds data
            of another target, tokenizer or sampling, or the disk is full.
    """
    check_settings(max_new_tokens, temperature, None, None, 0)
    if not 0 <= sampled <= 1 or temperature == 0 < sampled:
        raise UserError(
            f"sampled is {sampled!r:.60} and temperature {temperature!r:.60}; "
            "expected a share from 0 to 1, and a temperature above 0 for it."
        )
    how = dict(
        max_new_tokens=max_new_tokens, sampled=sampled, temperature=temperature
    )
    metadata = {
        "version": SHARD_VERSION,
        "target": target_digest(model),
        "tokenizer": tokenizer_digest(tokenizer),
        "sampling": json.dumps(how),
    }
    asked = {}
    for prompt, name in prompts:
        ids = encode_prompt(tokenizer, prompt, True, None)
        asked.setdefault(prompt_digest(ids), (ids, name))
    if not asked:
        raise UserError("There are no prompts; expected at least one.")
    check_prompts([ids for ids, _ in asked.values()], model.config)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ready = _written(folder, metadata)
    todo = {d: one for d, one in asked.items() if d not in ready}
    write = functools.partial(
        write_shard, metadata=metadata, vocab=model.config.vocab_size
    )
    answers = _answers(model, tokenizer, todo, how, rows)
    _collect(answers, len(todo), folder, shard, write, progress)
    return read_shards(folder, model, tokenizer)


def _written(folder: Path, metadata: dict[str, str]) -> set[int]:
    """The digests of the prompts that the shards in a folder hold."""
    if not shard_paths(folder):
        return set()
    before = read_shards(folder)
    for name, now in metadata.items():
        if before.metadata[name] != now:
            raise UserError(
                f"{folder} was begun with the {name} "
                f"{before.metadata[name]:.80}, not {now:.80}. Use that one, or "
                "another folder."
            )
    return {text.prompt for text in before.texts}


def _answers(
    model: Transformer,
    tokenizer: Tokenizer,
    todo: dict[int, tuple[list[int], str]],
    how: dict[str, Any],
    rows: int,
) -> Iterator[Text]:
    """Answers in the order they finish, greedy ones first."""
    if not todo:
        return
    new, context = how["max_new_tokens"], model.config.max_position_embeddings
    longest = max(len(ids) for ids, _ in todo.values()) + new
    capacity = min(bucket(longest), bucket(context))
    for drawn in (False, True):
        draws = lambda digest: digest % 2**20 < how["sampled"] * 2**20
        some = [digest for digest in todo if draws(digest) == drawn]
        heat = (how["temperature"] if drawn else 0.0, None, None)
        sizes = (max(1, min(rows, len(some))), capacity, new)
        writer = Writer(model, tokenizer.stop_ids, *sizes, heat)
        prompts = [todo[digest][0] for digest in some]
        seeds = [prompt_seed(digest) for digest in some]
        for i, answer in writer.answers(prompts, seeds):
            ids, name = todo[some[i]]
            tokens = np.array(ids + answer, np.int32)
            yield Text(tokens, len(ids), name, some[i])


def prompt_seed(digest: int) -> int:
    """The seed that a prompt's answer is drawn with."""
    return digest >> 32


def _collect(
    answers: Iterator[Text],
    count: int,
    folder: Path,
    shard: int,
    write: Callable[[Path, list[Text]], None],
    progress: bool,
) -> None:
    """Write shards as the answers come."""
    from tqdm.auto import tqdm

    last = [int(path.stem.split("-")[1]) for path in shard_paths(folder)[-1:]]
    number, done = 1 + last[0] if last else 0, []
    bar = tqdm(answers, total=count, unit="text", disable=not progress)
    for text in bar:
        done.append(text)
        if len(done) == shard:
            write(folder / f"responses-{number:05d}.safetensors", done)
            number, done = number + 1, []
    if done:
        write(folder / f"responses-{number:05d}.safetensors", done)


def write_prompts(
    model: Transformer,
    tokenizer: Tokenizer,
    count: int,
    temperature: float = 1.0,
    max_new_tokens: int = 64,
    rows: int = 64,
    seed: int = 0,
) -> list[str]:
    """Let the model write users' turns; duplicates are dropped.

    Args:
        count: how often it tries; fewer come back, as turns that are empty,
            cut off or written before do not count.

    Raises:
        UserError: the template does not show where a user's turn begins.

    Source: Magpie (arXiv 2406.08464), section 2.
    """
    check_settings(max_new_tokens, temperature, None, None, seed)
    mark = "MARK"
    text = tokenizer.chat([{"role": "user", "content": mark}])
    head, found, _ = text.partition(mark)
    if not found or not head:
        raise UserError(
            "The chat template does not begin a user's turn; expected one that "
            "writes the role before the text."
        )
    ids = tokenizer.encode(head, add_special_tokens=False)
    context = bucket(model.config.max_position_embeddings)
    capacity = min(bucket(len(ids) + max_new_tokens), context)
    how = (temperature, None, None)
    sizes = (min(rows, count), capacity, max_new_tokens)
    writer = Writer(model, tokenizer.stop_ids, *sizes, how)
    seeds = list(range(seed, seed + count))
    answers = dict(writer.answers([ids] * count, seeds))
    turns = [answers[i] for i in range(count)]
    whole = [turn for turn in turns if len(turn) < max_new_tokens]
    texts = [tokenizer.decode(turn).strip() for turn in whole]
    return list(dict.fromkeys(filter(None, texts)))


def example_responses(model: Transformer, tokenizer: Tokenizer) -> Responses:
    """What SmolLM2-135M answered to 300 prompts and to 48 held-out ones.

    Raises:
        UserError: the model or the tokenizer is another one.
    """
    return read_shards(Path(__file__).parent, model, tokenizer)


# Anchors and blocks
# ------------------

class Batch(NamedTuple):
    """What a training step learns from."""

    tokens: Int[Array, "batch length"]  # prompt and response, 0 behind
    lengths: Int[Array, "batch"]  # tokens that count
    starts: Int[Array, "batch"]  # where the response begins
    features: tuple[Float[Array, "batch length hidden"], ...] = ()


def row_keys(key: Key[Array, "*rows"], batch: int) -> Key[Array, "batch"]:
    """A key for each row: those given, or made from one by the row's number."""
    if key.ndim:
        return key
    fold = lambda row: jax.random.fold_in(key, row)
    return jax.vmap(fold)(jnp.arange(batch))


def draw_anchors(
    key: Key[Array, "*rows"], batch: Batch, anchors: int
) -> tuple[Int[Array, "batch anchors"], Bool[Array, "batch anchors"]]:
    """Positions of anchors, ascending, and which of them are valid.

    Without replacement. A row's anchors depend on its own key, length and
    start, on nothing else. Where a row has too few places, the rest is 0 and
    not valid.

    Args:
        key: one for each row, or one that is folded with the row's number.
        anchors: for each row.
    """
    rows, length = batch.tokens.shape
    places = jnp.arange(length)
    number = lambda k, at: jax.random.uniform(jax.random.fold_in(k, at))
    each = jax.vmap(jax.vmap(number, (None, 0)), (0, None))
    luck = each(row_keys(key, rows), places)
    last = batch.lengths[:, None] - 2  # the next token must be there
    fine = (places >= batch.starts[:, None]) & (places <= last)
    order = jnp.argsort(jnp.where(fine, luck, 2.0), axis=1)[:, :anchors]
    counts = jnp.minimum(fine.sum(1), anchors)[:, None]
    inside = jnp.arange(order.shape[1]) < counts
    chosen = jnp.sort(jnp.where(inside, order, length), axis=1)
    chosen = jnp.pad(
        chosen, ((0, 0), (0, anchors - chosen.shape[1])), constant_values=length
    )
    valid = chosen < length
    return jnp.where(valid, chosen, 0), valid


def block_labels(
    tokens: Int[Array, "batch length"],
    anchors: Int[Array, "batch anchors"],
    valid: Bool[Array, "batch anchors"],
    block: int,
    lengths: Int[Array, "batch"],
) -> tuple[
    Int[Array, "batch anchors drafts"], Bool[Array, "batch anchors drafts"]
]:
    """The token at anchor + k for k = 1 … block − 1, and where there is one."""
    at = anchors[..., None] + jnp.arange(1, block)
    there = valid[..., None] & (at < lengths[:, None, None])
    at = jnp.minimum(at, tokens.shape[1] - 1)
    labels = jnp.take_along_axis(tokens, at.reshape(len(at), -1), axis=1)
    return labels.reshape(at.shape), there


def slot_weights(
    block: int, gamma: float | None = None
) -> Float[Array, "drafts"]:
    """How much each slot counts in the loss: exp(−(k − 1) / gamma).

    Args:
        gamma: in slots. None takes the paper's 4, 5 and 7 for blocks of 8, 10
            and 16, what lies between for others, half of the block below 8,
            and 7 above 16.

    Raises:
        UserError: gamma is not above 0.

    Source: DFlash (arXiv 2602.06036), training section.
    """
    if gamma is None:
        gamma = float(np.interp(block, [0, 8, 10, 16], [0, 4, 5, 7]))
    if not gamma > 0:
        raise UserError(f"gamma is {gamma!r:.60}; expected a number above 0.")
    return jnp.exp(-jnp.arange(block - 1) / gamma)


# A mask that leaks nothing
# -------------------------

def block_mask(
    anchors: Int[Array, "batch anchors"],
    valid: Bool[Array, "batch anchors"],
    length: int,
    block: int,
) -> Bool[Array, "batch queries keys"]:
    """Which key each row of each block sees.

    Queries are the rows of all blocks, one block behind the other. Keys are
    `length` features of the text and then the same rows. A block that is not
    valid sees its own rows only.

    Source: DFlash (arXiv 2602.06036), training section.
    """
    rows, count = anchors.shape
    before = jnp.arange(length) < anchors[..., None]
    before &= valid[..., None]
    context = jnp.repeat(before, block, axis=1)
    own = jnp.repeat(jnp.arange(count), block)
    same = jnp.broadcast_to(own[:, None] == own, (rows, *(len(own),) * 2))
    return jnp.concatenate([context, same], axis=2)


def block_positions(
    anchors: Int[Array, "batch anchors"], block: int
) -> Int[Array, "batch queries"]:
    """The position of each row of each block: anchor + 0 … block − 1."""
    at = anchors[..., None] + jnp.arange(block)
    return at.reshape(len(anchors), -1)


# What is learnt: a loss and a count
# ----------------------------------

def to_draft(
    labels: Int[Array, "*rest"], vocabulary: Int[Array, "draft_vocab"] | None
) -> Int[Array, "*rest"]:
    """Numbers of the target's tokens in a drafter's vocabulary.

    Args:
        labels: the target's numbers.
        vocabulary: those that the drafter has, rising; None for all.

    Returns:
        Their places in the vocabulary, −1 where it lacks a token.
    """
    if vocabulary is None:
        return labels
    place = jnp.searchsorted(vocabulary, labels)
    place = jnp.minimum(place, len(vocabulary) - 1)
    return jnp.where(vocabulary[place] == labels, place, -1)


def block_loss(
    logits: Float[Array, "batch anchors drafts vocab"],
    labels: Int[Array, "batch anchors drafts"],
    there: Bool[Array, "batch anchors drafts"],
    weights: Float[Array, "drafts"],
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """The weighted mean cross-entropy of blocks, and sums to report.

    Args:
        labels: the right tokens; −1 where the logits do not have the token.
        there: which labels exist; from `block_labels`.
        weights: of the slots; from `slot_weights`.

    Returns:
        The loss; and the sums `loss`, `weight`, `accepted` (1 and the prefix of
        right drafts, over the valid anchors) and `anchors`.
    """
    logits = logits.astype(jnp.float32)
    known = jnp.maximum(labels, 0)[..., None]
    right = jnp.take_along_axis(logits, known, axis=-1)[..., 0]
    miss = jax.nn.logsumexp(logits, axis=-1) - right
    share = jnp.where(there & (labels >= 0), weights, 0)
    best = jnp.argmax(logits, axis=-1)
    found = (best == labels) & there
    run = jnp.cumprod(found, axis=-1).sum(-1)
    valid = there[..., 0]
    sums = {
        "loss": (share * miss).sum(),
        "weight": share.sum(),
        "accepted": jnp.where(valid, 1 + run, 0).sum(),
        "anchors": valid.sum(),
    }
    return sums["loss"] / jnp.maximum(sums["weight"], 1e-9), sums


class Learner(Protocol):
    """A drafter that can be trained: a pytree whose floats are learnt."""

    taps: tuple[int, ...]
    block: int

    def loss(
        self, model: Any, batch: Batch, key: Key[Array, "batch"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The loss of a batch, and the sums that `block_loss` names.

        Args:
            model: the target, frozen; embedding and head are its own. None in a
                run without one.
            key: one for each row.
        """
        ...


# A small drafter: heads
# ----------------------

def unit(x: Float[Array, "*rest size"]) -> Float[Array, "*rest size"]:
    """x scaled to a mean square of 1."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype)


@as_drafter("taps", "block", "anchors", data=("mix", "heads", "vocabulary"))
class Heads(Speculative):
    """One small head for each draft, on features of the place before.

    Args:
        mix: from features and embedding to a common state.
        heads: from there to the hidden state of each draft.
        vocabulary: ids of the tokens that it can draft, ascending.
        taps: layers whose output it reads.
        block: tokens of a verification, one more than there are drafts.
        anchors: of each text, in a training step.

    Source: Medusa (Cai et al. 2024), section 2.1, which sees the last hidden
    state only and trains a head for each place; here they share the target's.
    """

    mix: Float[Array, "wide inputs"]
    heads: Float[Array, "drafts hidden wide"]
    vocabulary: Int[Array, "words"]
    taps: tuple[int, ...]
    block: int = 4
    anchors: int = 32
    reads: ClassVar[bool] = True

    @classmethod
    def new(
        cls,
        model: Transformer,
        taps: tuple[int, ...],
        block: int = 4,
        vocabulary: Sequence[int] | None = None,
        anchors: int = 32,
        seed: int = 0,
    ) -> "Heads":
        """Heads with random weights.

        Args:
            vocabulary: the tokens that it can draft; None for all.

        Raises:
            UserError: block, taps or vocabulary do not fit the model.
        """
        check_block(block)
        size, count = model.config.hidden_size, model.config.vocab_size
        words = range(count) if vocabulary is None else sorted(set(vocabulary))
        if not words or not 0 <= words[0] <= words[-1] < count:
            raise UserError(
                f"vocabulary goes from {min(words, default=None)} to "
                f"{max(words, default=None)}; expected tokens from 0 to "
                f"{count - 1}."
            )
        keys = jax.random.split(jax.random.key(seed))
        inputs, wide = (len(taps) + 1) * size, 2 * size
        shapes = (wide, inputs), (block - 1, size, wide)
        draw = lambda k, s: jax.random.normal(k, s) * s[-1] ** -0.5
        weights = map(draw, keys, shapes)
        drafter = cls(*weights, jnp.array(words), tuple(taps), block, anchors)
        drafter.check(model)
        return drafter

    def check(self, model: Transformer) -> None:
        """Refuse a model of another size or with fewer layers."""
        super().check(model)
        size, layers = model.config.hidden_size, model.config.num_hidden_layers
        if self.heads.shape[1] != size:
            raise UserError(
                f"The heads have the hidden size {self.heads.shape[1]}, the "
                f"model has {size}; expected heads trained for this model."
            )
        if not self.taps or not all(0 <= tap < layers for tap in self.taps):
            raise UserError(
                f"taps is {self.taps}; expected layers from 0 to {layers - 1}."
            )

    def logits(
        self,
        model: Transformer,
        features: tuple[Float[Array, "rows hidden"], ...],
        anchors: Int[Array, "rows"],
    ) -> Float[Array, "rows drafts words"]:
        """Scores of the drafts behind anchors, in the reduced vocabulary.

        Args:
            features: of the position before each anchor.
            anchors: tokens.
        """
        table = model.embed_tokens[...]
        parts = [unit(x.astype(table.dtype)) for x in features]
        x = jnp.concatenate([*parts, unit(table[anchors])], axis=-1)
        mixed = jax.nn.silu(matmul(x, self.mix.astype(x.dtype)))
        # one product in two dimensions for all heads
        heads = self.heads.reshape(-1, self.heads.shape[-1])
        hidden = matmul(mixed, heads.astype(x.dtype))
        hidden = model.norm(hidden.reshape(-1, table.shape[1]))
        head = table if model.lm_head is None else model.lm_head[...]
        scores = matmul(hidden, head[self.vocabulary])
        return scores.reshape(len(anchors), self.drafts, -1)

    def loss(
        self, model: Transformer, batch: Batch, key: Key[Array, "*rows"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """See `Learner`."""
        anchors, valid = draw_anchors(key, batch, self.anchors)
        labels, there = block_labels(
            batch.tokens, anchors, valid, self.block, batch.lengths
        )
        before = jnp.maximum(anchors - 1, 0)[..., None]
        pick = lambda x: jnp.take_along_axis(x, before, axis=1)
        flat = lambda x: x.reshape(-1, x.shape[-1])
        features = tuple(flat(pick(x)) for x in batch.features)
        last = jnp.take_along_axis(batch.tokens, anchors, axis=1)
        scores = self.logits(model, features, last.reshape(-1))
        scores = scores.reshape(*labels.shape, -1)
        labels = to_draft(labels, self.vocabulary)
        return block_loss(scores, labels, there, slot_weights(self.block))

    def begin(
        self, model: Transformer, batch: int, capacity: int
    ) -> tuple[Float[Array, "batch hidden"], ...]:
        """Features of the last position read; none yet."""
        shape = (batch, model.config.hidden_size)
        make = lambda: jnp.zeros(shape, model.embed_tokens.dtype)
        return tuple(make() for _ in self.taps)

    def observe(
        self,
        model: Transformer,
        memory: Any,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"],
        counted: Bool[Array, "batch tokens"],
        tapped: tuple[Float[Array, "batch tokens hidden"], ...],
    ) -> tuple[Float[Array, "batch hidden"], ...]:
        """Keep the features of the last token that counts."""
        count = counted.sum(1)
        at = jnp.maximum(count - 1, 0)
        new = lambda old, x: jnp.where(
            (count > 0)[:, None], x[jnp.arange(len(x)), at], old
        )
        return tuple(map(new, memory, tapped))

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """All drafts in one small pass."""
        at = state.lengths[:, None] - 1
        anchors = jnp.take_along_axis(state.tokens, at, axis=1)[:, 0]
        scores = self.logits(model, state.progress.memory, anchors)
        tokens = self.vocabulary[jnp.argmax(scores, axis=-1)]
        return Draft(tokens, jnp.full(len(anchors), self.drafts)), state


# Features
# --------

@functools.partial(jax.jit, static_argnames="taps")
def read_features(
    model: Transformer | None,
    tokens: Int[Array, "batch length"],
    taps: tuple[int, ...],
) -> tuple[Float[Array, "batch length hidden"], ...]:
    """The output of the layers `taps`; layers behind the last are not run."""
    if not taps:
        return ()
    return model(tokens, taps=taps, depth=max(taps) + 1).taps


# Batches
# -------

class Dealt(NamedTuple):
    """A batch on the host."""

    tokens: Int[np.ndarray, "rows width"]
    lengths: Int[np.ndarray, "rows"]  # 0: the row is empty
    starts: Int[np.ndarray, "rows"]
    numbers: Int[np.ndarray, "rows"]  # of the texts, for their keys
    features: tuple[Float[np.ndarray, "rows width hidden"], ...] | None


class Batches:
    """The batch of each step, a function of the step's number.

    Args:
        longest: tokens; longer texts are cut.
        features: of each text, from `remember`; None leaves them out.

    Raises:
        UserError: no text has a response of two tokens.
    """

    def __init__(
        self,
        responses: Responses,
        rows: int,
        longest: int,
        seed: int,
        features: list[tuple[np.ndarray, ...]] | None = None,
    ):
        self.rows, self.seed, self.features = rows, seed, features
        self.texts, self.longest = responses.texts, longest
        self.groups: dict[int, list[int]] = {}
        for i, text in enumerate(self.texts):
            length = min(len(text.tokens), longest)
            if length - text.start >= 2:
                self.groups.setdefault(bucket(length), []).append(i)
        if not self.groups:
            raise UserError(
                f"None of {len(self.texts)} texts has a response of two tokens "
                f"within the first {longest}; expected data to learn from."
            )
        self.cached = (-1, [])

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch; the last batch of a length may have empty rows."""
        groups = self.groups.values()
        return sum(-(-len(group) // self.rows) for group in groups)

    def epoch(self, number: int) -> list[tuple[int, list[int]]]:
        """Width and texts of each batch of an epoch."""
        if self.cached[0] != number:
            rng = np.random.default_rng((self.seed, number))
            dealt = []
            for width, group in sorted(self.groups.items()):
                order = rng.permutation(group).tolist()
                parts = range(0, len(order), self.rows)
                dealt += [(width, order[i : i + self.rows]) for i in parts]
            order = rng.permutation(len(dealt))
            self.cached = (number, [dealt[i] for i in order])
        return self.cached[1]

    def __getitem__(self, step: int) -> Dealt:
        epoch, place = divmod(step, self.per_epoch)
        return self.deal(*self.epoch(epoch)[place])

    def deal(self, width: int, chosen: list[int]) -> Dealt:
        """The texts with these indices, padded."""
        tokens = np.zeros((self.rows, width), np.int32)
        lengths, starts = np.zeros((2, self.rows), np.int32)
        numbers = np.zeros(self.rows, np.uint32)
        for row, i in enumerate(chosen):
            text = self.texts[i]
            part = text.tokens[: self.longest]
            tokens[row, : len(part)] = part
            lengths[row], starts[row] = len(part), text.start
            numbers[row] = text.prompt % 2**32
        features = None
        if self.features is not None:
            features = self._padded(width, chosen)
        return Dealt(tokens, lengths, starts, numbers, features)

    def _padded(self, width: int, chosen: list[int]) -> tuple:
        first = self.features[chosen[0]]
        shape = (self.rows, width, first[0].shape[1]) if first else ()
        arrays = tuple(np.zeros(shape, x.dtype) for x in first)
        for row, i in enumerate(chosen):
            for array, x in zip(arrays, self.features[i], strict=True):
                array[row, : len(x)] = x
        return arrays


# Settings
# --------

@dataclass(frozen=True)
class TrainSettings:
    """Settings of a run; those of the last group can change on the way.

    Source: DFlash (arXiv 2602.06036), training section; the decay is ours.
    """

    steps: int = 1000
    rows: int = 8  # texts in a step, on all devices together
    rate: float = 6e-4  # the highest
    warmup: float = 0.04  # share of the steps
    clip: float = 1.0  # norm of the gradients
    decay: float = 0.01  # of matrices
    longest: int = 1024  # tokens of a text
    seed: int = 0
    keep_features: bool = False  # in memory, for little data and many epochs

    log_every: int = 10  # steps between two looks at the losses
    evaluate_every: int = 100
    save_every: int = 100

    def __post_init__(self) -> None:
        whole = ("steps", "rows", "longest", *FREE_SETTINGS)
        for name in whole:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UserError(
                    f"{name} is {value!r:.60}; expected a whole number of 1 or "
                    "more."
                )
        above = {"rate": 1.0, "warmup": 1.0, "clip": 1e9, "decay": 1.0}
        for name, most in above.items():
            value = getattr(self, name)
            number = isinstance(value, int | float)
            if not number or not 0 <= value <= most:
                raise UserError(
                    f"{name} is {value!r:.60}; expected a number from 0 to "
                    f"{most:g}."
                )


FREE_SETTINGS = ("log_every", "evaluate_every", "save_every")


def optimizer(settings: TrainSettings) -> tuple[Any, Callable[[int], Any]]:
    """AdamW with clipping, and the rate of each step.

    Raises:
        UserError: optax is not installed.
    """
    optax = _extra("optax")
    warmup = max(1, round(settings.warmup * settings.steps))
    rates = optax.warmup_cosine_decay_schedule(
        0, settings.rate, warmup, max(settings.steps, warmup + 1)
    )
    matrices = functools.partial(jax.tree.map, lambda p: p.ndim > 1)
    adamw = optax.adamw(rates, weight_decay=settings.decay, mask=matrices)
    clip = optax.clip_by_global_norm(settings.clip)
    return optax.chain(clip, adamw), rates


def _extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"Training needs {name}, which is not installed: pip install "
            '"dflash_lite[train]"'
        ) from None


# A step
# ------

def compute_dtype() -> Any:
    """bfloat16 where the hardware multiplies it, float32 on other CPUs."""
    if jax.default_backend() != "cpu":
        return jnp.bfloat16
    flags = Path("/proc/cpuinfo")
    text = flags.read_text() if flags.exists() else ""
    fast = "avx512_bf16" in text or "amx_bf16" in text
    return jnp.bfloat16 if fast else jnp.float32


def is_float(x: Any) -> bool:
    """Whether a leaf is learnt: an array of floats."""
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)


def cast(tree: Any, dtype: Any) -> Any:
    """A pytree with its floats in another type."""
    change = lambda x: jnp.asarray(x, dtype) if is_float(x) else x
    return jax.tree.map(change, tree)


class Parts(NamedTuple):
    """A learner in two: what is learnt, and how to put it together."""

    params: list[Array]
    rest: list[Any]  # None where a parameter goes
    tree: Any

    @classmethod
    def of(cls, learner: Learner) -> "Parts":
        """Take a learner apart; its floats become float32."""
        leaves, tree = jax.tree.flatten(learner)
        # copies: a step donates them
        params = [jnp.array(x, jnp.float32) for x in leaves if is_float(x)]
        rest = [None if is_float(x) else x for x in leaves]
        return cls(params, rest, tree)

    def join(self, params: list[Array]) -> Learner:
        """The learner with these parameters."""
        queue = iter(params)
        leaves = [next(queue) if x is None else x for x in self.rest]
        return jax.tree.unflatten(self.tree, leaves)


def batch_loss(
    learner: Learner,
    model: Transformer | None,
    dealt: Dealt,
    epoch: Int[Array, ""],
    seed: int,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """The loss of a dealt batch; see `Learner.loss`.

    Each row's key comes from the seed, the epoch and the text's own number.
    """
    key = jax.random.fold_in(jax.random.key(seed), epoch)
    keys = jax.vmap(lambda n: jax.random.fold_in(key, n))(dealt.numbers)
    features = dealt.features
    if features is None:
        features = read_features(model, dealt.tokens, learner.taps)
    texts = (dealt.tokens, dealt.lengths, dealt.starts)
    return learner.loss(model, Batch(*texts, features), keys)


@dataclass(frozen=True)
class Steps:
    """The compiled steps of a run, on all devices.

    Args:
        parts: of the learner.
        transform: from `optimizer`.
        dtype: of the products.
    """

    parts: Parts
    transform: Any
    seed: int
    dtype: Any

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """All devices in a row."""
        return jax.sharding.Mesh(np.array(jax.devices()), ("data",))

    def put(self, tree: Any, *axes: str) -> Any:
        """Arrays on the devices: split along axes, or one copy on each."""
        spec = jax.sharding.PartitionSpec(*axes)
        return jax.device_put(tree, jax.sharding.NamedSharding(self.mesh, spec))

    def learner(self, params: list[Array]) -> Learner:
        """The learner that computes, in the type of the products."""
        return self.parts.join(cast(params, self.dtype))

    @functools.cached_property
    def train(self) -> Callable[..., Any]:
        """New parameters and state, and the metrics of the step."""

        def step(params: Any, state: Any, model: Any, dealt: Any, epoch: Any):
            loss = lambda p: batch_loss(
                self.learner(p), model, dealt, epoch, self.seed
            )
            ask = jax.value_and_grad(loss, has_aux=True)
            (value, sums), grads = ask(params)
            norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in grads))
            updates, state = self.transform.update(grads, state, params)
            params = [p + u for p, u in zip(params, updates)]
            return params, state, sums | {"mean": value, "norm": norm}

        return jax.jit(step, donate_argnums=(0, 1))

    @functools.cached_property
    def score(self) -> Callable[..., Any]:
        """The sums of a batch, without learning."""

        def score(params: Any, model: Any, dealt: Any, epoch: Any):
            learner = self.learner(params)
            return batch_loss(learner, model, dealt, epoch, self.seed)[1]

        return jax.jit(score)


def remember(
    model: Transformer,
    responses: Responses,
    taps: tuple[int, ...],
    longest: int,
) -> list[tuple[np.ndarray, ...]]:
    """The features of each text, read once, in the model's own type."""
    found: list = [None] * len(responses)
    rows = 8
    by_width: dict[int, list[int]] = {}
    for i, text in enumerate(responses.texts):
        width = bucket(min(len(text.tokens), longest))
        by_width.setdefault(width, []).append(i)
    for width, group in sorted(by_width.items()):
        for at in range(0, len(group), rows):
            tokens = np.zeros((rows, width), np.int32)
            chosen = group[at : at + rows]
            for row, i in enumerate(chosen):
                part = responses.texts[i].tokens[:longest]
                tokens[row, : len(part)] = part
            features = jax.device_get(read_features(model, tokens, taps))
            for row, i in enumerate(chosen):
                length = min(len(responses.texts[i].tokens), longest)
                found[i] = tuple(x[row, :length] for x in features)
    return found


# Checkpoints and the loop
# ------------------------

@dataclass
class Checkpoints:
    """Checkpoints of a run, the last two of them, in a folder.

    Raises:
        UserError: orbax is not installed.
    """

    folder: Path
    notes: dict[str, Any]  # what a resumed run must share

    def __post_init__(self) -> None:
        self.orbax = _extra("orbax.checkpoint")
        options = self.orbax.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=False
        )
        place = (self.folder / "checkpoints").absolute()
        self.manager = self.orbax.CheckpointManager(place, options=options)

    def save(self, step: int, tree: Any, seconds: float) -> None:
        """Write a checkpoint, if this step has none.

        Raises:
            UserError: the disk is full.
        """
        if step in self.manager.all_steps():
            return
        size = sum(x.nbytes for x in jax.tree.leaves(tree))
        free = shutil.disk_usage(self.folder).free
        if free < size:
            raise self._full(step, f"{size / 1e6:.0f} MB, {free / 1e6:.0f} are")
        args = self.orbax.args
        parts = args.Composite(
            state=args.StandardSave(tree),
            notes=args.JsonSave(self.notes | {"seconds": seconds}),
        )
        try:
            self.manager.save(step, args=parts)
        except Exception as error:
            if no_space(error) or "No space" in str(error):
                raise self._full(step, "more than is") from None
            raise

    def _full(self, step: int, need: str) -> UserError:
        return UserError(
            f"The disk is full: the checkpoint of step {step} needs {need} "
            "free. Free some space and start again; the run goes on from the "
            "last one."
        )

    def restore(self, tree: Any) -> tuple[int, Any, float]:
        """The last step, its arrays and the seconds so far; 0 if none is there.

        Raises:
            UserError: the run was begun with other settings.
        """
        step = self.manager.latest_step()
        if step is None:
            return 0, tree, 0.0
        args = self.orbax.args
        notes = self.manager.restore(
            step, args=args.Composite(notes=args.JsonRestore())
        )["notes"]
        for name, now in self.notes.items():
            if notes.get(name) != now:
                raise UserError(
                    f"The run in {self.folder} was begun with {name} "
                    f"{notes.get(name)!r:.60}, not {now!r:.60}. Use the same, "
                    "or another folder."
                )
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=x.sharding
            ),
            tree,
        )
        found = self.manager.restore(
            step, args=args.Composite(state=args.StandardRestore(shapes))
        )
        return step, found["state"], notes["seconds"]


class Stop:
    """True after SIGTERM or Ctrl-C inside its block; a second one is not held.

    Only the main thread can catch signals; in another it stays false.
    """

    def __enter__(self) -> "Stop":
        self.asked = False
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
        self.old = {n: signal.getsignal(n) for n in numbers}
        for number in numbers:
            signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(number, self.old[number])


def read_metrics(folder: str | os.PathLike) -> list[dict[str, Any]]:
    """The lines of a run's metrics, in order; none if there is no run.

    Lines of steps have `step`, `loss`, `acceptance`, `norm`, `rate` and
    `seconds`; lines of evaluations `step` and `held_out`, the acceptance length
    of each set.
    """
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def learner_notes(learner: Learner) -> str:
    """Taps, block and the shapes of all arrays, in one line."""
    shapes = [list(jnp.shape(x)) for x in jax.tree.leaves(learner)]
    return f"taps {list(learner.taps)}, block {learner.block}, {shapes}"


class Trainer:
    """One run: learner, data, folder and clock; see `train`."""

    def __init__(
        self,
        model: Transformer | None,
        learner: Learner,
        data: Responses,
        folder: Path,
        settings: TrainSettings,
        held_out: Responses | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ):
        self.settings, self.folder, self.watch = settings, folder, watch
        check_rows(settings.rows)
        transform, self.rates = optimizer(settings)
        dtype = compute_dtype()
        parts = Parts.of(learner)
        self.steps = Steps(parts, transform, settings.seed, dtype)
        self.model = self.steps.put(cast(model, dtype))
        self.data, self.held_out, self.taps = data, held_out, learner.taps
        params = self.steps.put(parts.params)
        self.state = (params, self.steps.put(transform.init(params)))
        self.step, self.seconds, self.waiting = 0, 0.0, []
        self.notes = {
            name: value
            for name, value in dataclasses.asdict(settings).items()
            if name not in FREE_SETTINGS
        } | {
            "data": data.digest,
            "target": "" if model is None else target_digest(model),
            "learner": learner_notes(learner),
        }

    def deal(self, data: Responses) -> Batches:
        """Batches of data, with features if they are to be kept."""
        s, features = self.settings, None
        if s.keep_features:
            features = remember(self.model, data, self.taps, s.longest)
        return Batches(data, s.rows, s.longest, s.seed, features)

    @functools.cached_property
    def batches(self) -> Batches:
        """What it learns from; not made for a run that has ended."""
        return self.deal(self.data)

    @functools.cached_property
    def tests(self) -> dict[str, Batches]:
        """The held-out sets."""
        names = self.held_out.sets if self.held_out else ()
        return {name: self.deal(self.held_out.of(name)) for name in names}

    @property
    def learner(self) -> Learner:
        """The learner as it is now, in float32."""
        return self.steps.parts.join(self.state[0])

    def resume(self) -> None:
        """Go to the last checkpoint, if there is one.

        Raises:
            UserError: the run was begun with other settings.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.saved = Checkpoints(self.folder, self.notes)
        found = self.saved.restore(self.state)
        self.step, self.state, self.seconds = found
        lines = read_metrics(self.folder)
        kept = [json.dumps(x) for x in lines if x["step"] <= self.step]
        path = self.folder / "metrics.jsonl"
        part = path.with_name(path.name + ".partial")
        kept = kept if self.step else []
        part.write_text("".join(x + "\n" for x in kept), encoding="utf-8")
        os.replace(part, path)

    def write(self, line: dict[str, Any]) -> None:
        """Add a line to the metrics."""
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self.watch is not None:
            self.watch(line)

    def train_once(self) -> None:
        """One step; its metrics wait on the device."""
        epoch = jnp.uint32(self.step // self.batches.per_epoch)
        dealt = self.steps.put(self.batches[self.step], "data")
        *state, sums = self.steps.train(*self.state, self.model, dealt, epoch)
        self.state = tuple(state)
        self.step += 1
        self.waiting.append((self.step, sums))

    def flush(self) -> None:
        """Write the metrics that wait.

        Raises:
            UserError: a loss or a gradient is not finite.
        """
        waiting, self.waiting = jax.device_get(self.waiting), []
        now = time.monotonic()
        self.seconds, self.mark = self.seconds + now - self.mark, now
        for step, sums in waiting:
            loss, norm = float(sums["mean"]), float(sums["norm"])
            if not np.isfinite([loss, norm]).all():
                last = self.saved.manager.latest_step()
                kept = f"the checkpoint of step {last} is kept" if last else (
                    "there is no checkpoint yet"
                )
                raise UserError(
                    f"At step {step} the loss is {loss} and its gradient's "
                    f"norm {norm}; {kept}. Use a rate below "
                    f"{self.settings.rate:g}, in another folder."
                )
            anchors = max(int(sums["anchors"]), 1)
            self.write({
                "step": int(step),
                "loss": loss,
                "acceptance": float(sums["accepted"]) / anchors,
                "norm": norm,
                "rate": float(self.rates(step - 1)),
                "seconds": round(self.seconds, 2),
            })  # fmt: skip

    def evaluate(self) -> None:
        """Write the acceptance length on each held-out set."""
        found = {}
        for name, batches in self.tests.items():
            accepted = anchors = 0
            for dealt in batches.epoch(0):
                dealt = self.steps.put(batches.deal(*dealt), "data")
                epoch = jnp.uint32(HELD_OUT)
                sums = self.steps.score(
                    self.state[0], self.model, dealt, epoch
                )
                accepted += int(sums["accepted"])
                anchors += int(sums["anchors"])
            found[name] = accepted / max(anchors, 1)
        if found:
            self.write({"step": self.step, "held_out": found})

    def run(self) -> None:
        """Train to the end, or until told to stop."""
        s, self.mark = self.settings, time.monotonic()
        with Stop() as stop:
            if self.step == 0:
                self.evaluate()
            last = self.step >= s.steps
            while not last:
                self.train_once()
                last = self.step == s.steps or stop.asked
                save = last or self.step % s.save_every == 0
                if save or self.step % s.log_every == 0:
                    self.flush()
                if self.step == s.steps or self.step % s.evaluate_every == 0:
                    self.flush()
                    self.evaluate()
                    self.mark = time.monotonic()
                if save:
                    self.saved.save(self.step, self.state, self.seconds)


HELD_OUT = 2**31  # an epoch that no training reaches: anchors of evaluations


def check_rows(rows: int) -> None:
    """Refuse rows that the devices cannot share evenly."""
    devices = len(jax.devices())
    if rows % devices:
        raise UserError(
            f"rows is {rows}; expected a multiple of {devices}, the number of "
            "devices."
        )


class Trained(NamedTuple):
    """What a run gives."""

    learner: Learner
    step: int  # below the settings' steps after SIGTERM or Ctrl-C
    metrics: list[dict[str, Any]]  # see `read_metrics`


def train(
    model: Transformer | None,
    learner: Learner,
    data: Responses,
    folder: str | os.PathLike,
    settings: TrainSettings = TrainSettings(),
    held_out: Responses | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Trained:
    """Train a drafter; a run that was stopped goes on.

    Args:
        model: the target, which stays as it is; None if there is none, and the
            learner asks for no features.
        learner: the drafter at the beginning; ignored if the folder has a run.
        data: what the target wrote.
        folder: for checkpoints and metrics.
        held_out: texts whose acceptance length is measured on the way.
        watch: is called with each line of the metrics.

    Returns:
        The drafter. After SIGTERM or Ctrl-C everything is saved, and `step` is
        below `settings.steps`; the same call goes on.

    Raises:
        UserError: data of another target, settings that differ from those of
            the run in the folder, a loss that is not finite, a full disk, or
            the extra `train` is not installed.
    """
    if model is not None:
        for part in filter(None, (data, held_out)):
            _check_author(part, target_digest(model))
    parts = (model, learner, data, Path(folder), settings, held_out, watch)
    trainer = Trainer(*parts)
    trainer.resume()
    try:
        trainer.run()
    finally:
        trainer.saved.manager.close()
    metrics = read_metrics(folder)
    return Trained(trainer.learner, trainer.step, metrics)


def _check_author(data: Responses, digest: str) -> None:
    written = data.metadata["target"]
    if written != digest:
        raise UserError(
            f"The data were written by another target ({written[:12]}); "
            f"expected {digest[:12]}. Let this model write its own with "
            "write_responses."
        )


class Forecast(NamedTuple):
    """What a run will take on this machine."""

    parameters: int  # that are learnt
    texts: int
    epochs: float
    bytes: int  # of each device, at most
    seconds: float  # without compiling and evaluating


def forecast(
    model: Transformer | None,
    learner: Learner,
    data: Responses,
    settings: TrainSettings = TrainSettings(),
) -> Forecast:
    """Predict time and memory of `train`, from one timed step of each width.

    Raises:
        UserError: as `train`.
    """
    trainer = Trainer(model, learner, data, Path(), settings)
    batches, size, seconds = trainer.batches, 0, 0.0
    state, epoch = trainer.state, jnp.uint32(0)
    count = sum(x.size for x in state[0])
    for width, group in batches.groups.items():
        dealt = batches.deal(width, group[: settings.rows])
        rest = (trainer.model, trainer.steps.put(dealt, "data"), epoch)
        step = trainer.steps.train.lower(*state, *rest).compile()
        need = step.memory_analysis()
        kept = need.argument_size_in_bytes + need.output_size_in_bytes
        kept -= need.alias_size_in_bytes
        size = max(size, kept + need.temp_size_in_bytes)
        for _ in range(2):
            start = time.perf_counter()
            *state, _ = jax.block_until_ready(step(*state, *rest))
            took = time.perf_counter() - start
        seconds += took * -(-len(group) // settings.rows)
    epochs = settings.steps / batches.per_epoch
    texts = sum(map(len, batches.groups.values()))
    return Forecast(count, texts, epochs, size, seconds * epochs)
