"""The dual cache: both caches agree whatever comes, and each silent bug fails a test."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import write_hub
from hypothesis import given, settings, strategies as st

import dflash_lite
from bench import __main__ as driver, museum
from dflash_lite import dual_cache
from dflash_lite.checkpoints import ModelConfig, UserError
from dflash_lite.decoding import (
    COMPILE_CLOCK,
    DenseCache,
    decode,
    encode_prompt,
    generate,
    make_sampling,
    prefill,
)
from dflash_lite.dflash import DFlash, DraftNetwork, new_drafter
from dflash_lite.dual_cache import (
    MUSEUM,
    Bug,
    CheckedBatch,
    CheckedMemory,
    ContextBuffer,
    DualBatch,
    Meter,
    check_invariant,
    decode_from_host,
    frontier,
    visit,
    with_bug,
)
from dflash_lite.paged_attention import PagedMemory, PoolExhausted
from dflash_lite.speculative import Draft, as_drafter, distribution, draft_by_steps
from dflash_lite.training import (
    Batch,
    TrainSettings,
    read_features,
    train,
    write_responses,
)

CAPACITY = 64
NEW = 30


PROMPTS = ["the in the other theatre", "er er er, in the", "what is it then?", "a thing in there",
           "hello, other", "one two three four", "in the inn", "theatre! theatre!"]  # fmt: skip


class Lab:
    """A random target, and a drafter that knows its answers to PROMPTS by heart."""

    def __init__(self, folder):
        self.model, tokenizer = dflash_lite.load(write_hub(folder / "hub", num_hidden_layers=4))
        self.tokenizer = dataclasses.replace(tokenizer, stop_ids=())
        parts = (self.model, self.tokenizer)
        prompts = [(prompt, "lab") for prompt in PROMPTS]
        how = dict(max_new_tokens=NEW, progress=False)
        self.answers = write_responses(*parts, prompts, folder / "answers", **how)
        new = new_drafter(self.model, 3, 2, 6, taps=(0, 2))
        config = dataclasses.replace(
            new.network.config, windows=(8, None), causal=(True, False)
        )
        network = DraftNetwork(config, rngs=nnx.Rngs(1))
        new = dataclasses.replace(new, network=network, anchors=24)
        steps = TrainSettings(steps=200, rows=8, rate=3e-3, longest=128, keep_features=True,
                              evaluate_every=200, save_every=200)  # fmt: skip
        jax.config.update("jax_disable_most_optimizations", False)  # these steps are many
        learner = train(self.model, new, self.answers, folder / "run", steps).learner
        # as from a file: a run's arrays lie on a mesh, which would compile programs twice
        self.drafter = jax.tree.map(jnp.asarray, jax.device_get(learner))
        jax.config.update("jax_disable_most_optimizations", True)

    def ids(self, prompt):
        return encode_prompt(self.tokenizer, prompt, True, None)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("lab"))


def begun(lab, drafter, steps=0, temperature=0.0):
    """Three texts after prefill and some steps, and what `decode` and `draft` need."""
    prompts = [lab.ids(prompt) for prompt in PROMPTS[:3]]
    lengths = np.array([len(p) for p in prompts], np.int32)
    packed = np.zeros((3, 32), np.int32)
    for row, prompt in zip(packed, prompts, strict=True):
        row[: len(prompt)] = prompt
    sampling, mode = make_sampling(lab.model, 3, temperature, None, None, 0)
    stops, model = jnp.array([-1]), lab.model
    texts = (packed, lengths, np.minimum(lengths + NEW, CAPACITY))
    state = prefill(model, *texts, stops, sampling, CAPACITY, mode, drafter)
    if steps:
        state = decode(model, state, stops, sampling, np.int32(steps), mode, drafter)
    return state, sampling, mode


# Both caches, whatever comes
# ---------------------------


@jax.jit
def from_scratch(model, drafter, tokens):
    """Keys and values of target and drafter, from one pass over whole texts."""
    cache = DenseCache.empty(model.config, *tokens.shape, jnp.float32)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    output = model(tokens, positions, cache, drafter.network.config.target_layer_ids)
    fused = drafter.network.fuse(output.taps)
    return output.cache, drafter.network.keys_and_values(fused, positions)


def assert_same(found, expected, what):
    np.testing.assert_allclose(found, expected, atol=3e-5, rtol=1e-4, err_msg=what)


def assert_context(memory, expected, row, end):
    """A drafter's arrays hold the context of a row and nothing else."""
    for layer, (k, v) in enumerate(expected):
        for held, new in ((memory.keys, k), (memory.values, v)):
            here = held[layer][row].swapaxes(0, 1)
            assert_same(here[:end], new[row, :end], f"row {row}, layer {layer}")
            assert not here[end:].any(), "nothing of a block, of padding or of another text"


def assert_from_scratch(batch, texts):
    """Every row of a batch: its tokens, its lengths, its pages, its arrays."""
    model, drafter, state = batch.memory.model, batch.drafter, batch.state
    lengths, tokens = np.asarray(state.lengths), np.asarray(state.tokens)
    target, context = jax.device_get(from_scratch(model, drafter, tokens))
    cache, memory = jax.device_get((batch.memory.cache, state.progress.memory))
    check_invariant(state, batch.texts)
    for row, whole in texts.items():
        text, end = batch.texts[row], int(frontier(state)[row])
        assert tokens[row, : lengths[row]].tolist() == whole[: lengths[row]]
        assert text.tokens == whole[:end] and end == lengths[row] - 1
        pages = np.array(text.pages)
        for layer in range(model.config.num_hidden_layers):
            for held, new in ((cache.keys, target.keys), (cache.values, target.values)):
                rows = held[layer][pages].swapaxes(1, 2)
                rows = rows.reshape(-1, *rows.shape[2:])[:end]
                assert_same(rows, new[layer][row].swapaxes(0, 1)[:end], f"row {row} in pages")
        assert_context(memory, context, row, end)


@as_drafter("block", "anchors", data=("network", "vocabulary", "head"))
class Fickle(DFlash):
    """Keeps the context as DFlash does; its drafts are the target's own, some of them spoilt."""

    def draft(self, model, state, sampling, mode):
        last = jnp.take_along_axis(state.tokens, frontier(state)[:, None], axis=1)
        how = (state.lengths, sampling, "greedy", self.drafts)
        draft, _ = draft_by_steps(model, state.cache, last, *how)
        at = state.lengths[:, None] + jnp.arange(self.drafts) + 7 * last
        luck = lambda n: jax.random.uniform(jax.random.fold_in(jax.random.key(0), n))
        wrong = jax.vmap(jax.vmap(luck))(at) < 0.25
        tokens = jnp.where(wrong, (draft.tokens + 1) % model.config.vocab_size, draft.tokens)
        return Draft(tokens, draft.counts), state


@pytest.fixture(scope="module")
def fickle(lab):
    parts = {f.name: getattr(lab.drafter, f.name) for f in dataclasses.fields(DFlash)}
    return Fickle(**parts)


@pytest.mark.parametrize("seed, temperature", [(0, 0.0), (2, 0.9)])
def test_both_caches_equal_a_run_from_scratch(lab, fickle, seed, temperature):
    """Eight rows; texts end, are replaced, cut at their limit, put off and read again."""
    rng, model = np.random.default_rng(seed), lab.model
    prompts = [rng.integers(4, 250, rng.integers(1, 24)).tolist() for _ in range(12)]
    limits = [min(len(p) + int(n), CAPACITY) for p, n in zip(prompts, rng.integers(2, 40, 12))]
    how = dict(temperature=temperature, chat=False)
    wholes = [
        p + generate(model, lab.tokenizer, p, max_new_tokens=n - len(p), seed=i, **how).tokens
        for i, (p, n) in enumerate(zip(prompts, limits))
    ]
    memory = PagedMemory(model, 34, 8)
    batch = DualBatch(memory, fickle, 8, CAPACITY, how=(temperature, None, None))
    queue, places, counts = list(range(12)), {}, {"put off": 0, "accepted": set()}

    def put_off(row):
        number = places.pop(row)
        prompts[number] = batch.remove(row)
        assert prompts[number] == wholes[number][: len(prompts[number])]
        queue.insert(0, number)
        counts["put off"] += 1

    for _ in range(200):
        before = dict(places)
        for row in batch.free:
            fits = queue and memory.pool.pages.available >= len(prompts[queue[0]]) // 8 + 2
            if fits and rng.random() < 0.8:
                number = queue.pop(0)
                batch.put(row, prompts[number], limits[number], seed=number)
                places[row] = number
        if places != before:
            assert_from_scratch(batch, {row: wholes[n] for row, n in places.items()})
        for row in [r for r, n in places.items() if batch.lengths[r] >= limits[n]]:
            assert batch.remove(row) == wholes[places.pop(row)]
        if not places and not queue:
            break
        if places and rng.random() < 0.15:
            put_off(int(rng.choice(list(places))))
        if not places:
            continue
        try:
            seen = batch.step()
        except PoolExhausted:
            put_off(max(places))
            continue
        last = np.asarray(seen.report.last.accepted)
        counts["accepted"] |= {int(last[row]) for row in places}
        assert_from_scratch(batch, {row: wholes[n] for row, n in places.items()})
    assert not places and not queue, "every text ends"
    assert memory.pool.pages.available == 34
    assert counts["put off"] >= 2 and counts["accepted"] >= {0, 1, 2}, counts
    assert temperature or len(counts["accepted"]) >= 4, counts


def test_a_row_that_is_taken_and_a_text_that_is_too_long_are_refused(lab, fickle):
    batch = DualBatch(PagedMemory(lab.model, 8, 8), fickle, 2, CAPACITY)
    batch.put(0, [1, 2, 3], 20)
    before = batch.memory.pool.pages.available
    for row, prompt, limit in ((0, [1], 9), (1, [], 9), (1, [1, 2], 2), (1, [1], CAPACITY + 1),
                               (2, [1], 9)):  # fmt: skip
        with pytest.raises(UserError, match=r"free rows \[1\]"):
            batch.put(row, prompt, limit)
    assert batch.free == [1] and batch.memory.pool.pages.available == before


def test_pages_that_are_missing_change_nothing(lab, fickle):
    """Neither when a text comes nor when it goes on; then it does go on."""
    memory = PagedMemory(lab.model, 4, 8)
    batch = DualBatch(memory, fickle, 2, CAPACITY)
    batch.put(0, list(range(4, 20)), 40)
    with pytest.raises(PoolExhausted):
        batch.put(1, list(range(4, 30)), 40)
    assert batch.free == [1] and memory.pool.pages.available == 2
    batch.put(1, [9, 8, 7], 40)
    with pytest.raises(PoolExhausted):
        for _ in range(20):
            batch.step()
    tokens = batch.remove(1)
    seen = batch.step()
    check_invariant(batch.state, batch.texts)
    assert tokens[:3] == [9, 8, 7] and seen.lengths[0] > 17


def test_pages_of_other_calls_are_never_taken_for_context(lab, fickle):
    """A beginning that the pool knows is read again, since the drafter needs it."""
    memory = PagedMemory(lab.model, 32, 8)
    prompt = lab.ids(PROMPTS[0])
    generate(lab.model, lab.tokenizer, prompt, max_new_tokens=4, memory=memory)
    assert len(memory.pool.find(prompt)) > 0
    batch = DualBatch(memory, fickle, 1, CAPACITY)
    batch.put(0, prompt, len(prompt) + 8)
    check_invariant(batch.state, batch.texts)


# The invariant in debug mode
# ---------------------------


def test_the_debug_memory_is_content_with_what_is_right(lab):
    found = []
    how = dict(max_new_tokens=NEW, watch=found.append)
    memory = CheckedMemory(lab.model, 64, 8)
    checked = generate(
        lab.model, lab.tokenizer, PROMPTS[:3], drafter=lab.drafter, memory=memory, **how
    )
    plain = generate(lab.model, lab.tokenizer, PROMPTS[:3], memory=memory, **how)
    assert [a.tokens for a in plain] == [b.tokens for b in checked] and len(found) > 6


def test_the_invariant_names_what_differs(lab):
    """A row too many, a row too few, in one layer only, and a text that is behind."""
    state, *_ = begun(lab, lab.drafter, 2)
    length = int(state.lengths[1])
    text = lambda n: dual_cache.Text([0] * n, [0])
    texts = [text(int(n) - 1) for n in state.lengths]
    check_invariant(state, texts)
    memory = state.progress.memory
    for at, value in ((length - 1, 1.0), (length - 2, 0.0)):
        keys = (memory.keys[0], memory.keys[1].at[1, :, at].set(value))
        other = memory._replace(keys=keys)
        spoilt = state._replace(progress=state.progress._replace(memory=other))
        with pytest.raises(AssertionError, match=f"Row 1:.*{length - 1}.*1 rows"):
            check_invariant(spoilt, texts)
    texts[1] = text(length)
    with pytest.raises(AssertionError, match=f"Row 1:.*read {length} tokens"):
        check_invariant(state, texts)
    texts[1] = dual_cache.Text([], [])
    check_invariant(state, texts)


# The context buffer
# ------------------


@settings(max_examples=60)
@given(st.data())
def test_no_row_is_lost_and_none_comes_twice(data):
    """Random prompts, blocks and accept counts, several texts, features that overlap."""
    buffer = ContextBuffer(data.draw(st.sampled_from([1, 4, 16])))
    for text in range(data.draw(st.integers(1, 3))):
        length = data.draw(st.integers(1, 40))
        rows = np.random.default_rng(text).normal(size=(400, 3)).astype(np.float32)
        got, seq_len, first, count = [], length, 0, length + data.draw(st.integers(0, 20))
        for _ in range(data.draw(st.integers(1, 8))):
            handed = buffer.take(text, seq_len, first, [rows[first : first + count], -rows[
                first : first + count]])  # fmt: skip
            n, width = int(handed.count[0]), handed.features[0].shape[1]
            assert int(handed.first[0]) == len(got) and handed.features[0].shape[0] == 1
            assert width & (width - 1) == 0 and max(n, buffer.smallest) <= width
            assert width <= max(buffer.smallest, 2 * max(n, 1) - 1)
            assert not handed.features[0][0, n:].any() and not handed.features[1][0, n:].any()
            np.testing.assert_array_equal(handed.features[0], -handed.features[1])
            got += list(handed.features[0][0, :n])
            first = seq_len - data.draw(st.integers(0, min(3, seq_len)))
            block = data.draw(st.integers(1, 8))
            count = seq_len - first + block
            seq_len += data.draw(st.integers(0, block))
        np.testing.assert_array_equal(got, rows[: len(got)])


def test_a_lost_row_is_refused():
    buffer, rows = ContextBuffer(), [np.ones((6, 2), np.float32)]
    buffer.take("a", 4, 0, rows)
    for seq_len, first in ((3, 0), (8, 5), (11, 4)):
        with pytest.raises(UserError, match="consumed 4 rows"):
            buffer.take("a", seq_len, first, rows)
    assert int(buffer.take("b", 2, 0, rows).first[0]) == 0, "another text begins anew"
    with pytest.raises(UserError, match="consumed 0 rows"):
        buffer.take("a", 4, 2, rows)


def on_device(lab, prompt, new):
    """A text and, for each step, its drafts and how many were accepted."""
    seen = []
    watch = lambda look: seen.append(look.report)
    found = generate(
        lab.model, lab.tokenizer, prompt, max_new_tokens=new, drafter=lab.drafter, watch=watch
    )
    last = [report.last for report in seen[1:]]
    return found.tokens, [(v.drafts[0].tolist(), int(v.accepted[0])) for v in last]


@pytest.mark.parametrize("prompt", [PROMPTS[0], "x"])
@pytest.mark.parametrize("new", [1, 2, NEW])
def test_host_and_device_draft_the_same(lab, prompt, new):
    ids = lab.ids(prompt)
    meter = Meter()
    text, steps = decode_from_host(lab.model, lab.drafter, ids, len(ids) + new, 128, meter)
    tokens, expected = on_device(lab, ids, new)
    assert text == ids + tokens
    assert [(s.drafts, s.accepted) for s in steps] == expected
    ends = [s.first + s.count for s in steps]
    assert [s.first for s in steps] == [0, *ends[:-1]][: len(steps)]
    handed = 2 + len(lab.drafter.taps)
    assert meter.up == 2 + len(steps) * (handed + 2 + 2)
    assert meter.down == (1 + len(lab.drafter.taps)) * (1 + len(steps)) + len(steps)


def test_the_host_compiles_a_program_for_each_width(lab):
    """And none when prompts of the same widths come again."""
    write, draft = dual_cache.write_features, dual_cache.draft_block
    verify = dual_cache.verify_block
    sizes = lambda: [f._cache_size() for f in (write, draft, verify)]
    capacity = 256  # no other test has it
    before, widths, buckets = sizes(), set(), set()
    for count in (5, 16, 17, 40):
        prompt = list(range(4, 4 + count))
        _, steps = decode_from_host(lab.model, lab.drafter, prompt, count + 9, capacity, Meter())
        widths |= {step.width for step in steps}
        buckets.add(max(16, 1 << (count - 1).bit_length()))
    after = sizes()
    # 16 rows of a prompt are another program than a block of 6
    grown = [b - a for a, b in zip(before, after)]
    assert grown == [len(widths), 1, len(buckets) + 1]
    count = COMPILE_CLOCK.count
    decode_from_host(lab.model, lab.drafter, list(range(9, 30)), 40, capacity, Meter())
    assert sizes() == after and COMPILE_CLOCK.count == count


def test_the_arrays_are_given_away(lab):
    """Written in place: the old arrays are gone, and the new ones lie where they did."""
    memory = lab.drafter.begin(lab.model, 1, CAPACITY)
    hidden = lab.model.config.hidden_size
    rows = [np.ones((5, hidden), np.float32)] * 2
    handed = ContextBuffer().take(0, 5, 0, rows)
    where = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(memory)]
    new = dual_cache.write_features(lab.model, lab.drafter, memory, handed)
    assert all(x.is_deleted() for x in jax.tree.leaves(memory))
    assert [x.unsafe_buffer_pointer() for x in jax.tree.leaves(new)] == where


# Bytes
# -----


def test_bytes_of_caches_are_those_of_the_arrays():
    config = ModelConfig("qwen3", 96, 32, 48, 3, 4, 2, 8, 64)
    for dtype, number in (("float32", 4), ("bfloat16", 2)):
        cache = DenseCache.empty(config, 5, 16, dtype)
        size = sum(x.nbytes for x in jax.tree.leaves(cache))
        assert dual_cache.cache_bytes(config, 5 * 16, number) == size


# The museum: each check passes without a bug, and fails with those that name it
# --------------------------------------------------------------------------------


def chances(lab, drafter, state, sampling):
    """What a drafter draws its drafts from."""
    draft, _ = drafter.draft(lab.model, state, sampling, "plain")
    return np.asarray(draft.chances)


def with_memory(state, change):
    memory = state.progress.memory
    return state._replace(progress=state.progress._replace(memory=change(memory)))


def check_context_ends_here(lab, bug):
    """Rows at the anchor and behind it do not matter."""
    drafter = with_bug(lab.drafter, bug)
    state, sampling, _ = begun(lab, lab.drafter, 2, temperature=1.0)
    behind = (jnp.arange(CAPACITY) >= frontier(state)[:, None])[:, None, :, None]
    spoil = lambda memory: jax.tree.map(lambda x: jnp.where(behind, 5.0, x), memory)
    before = chances(lab, drafter, state, sampling)
    after = chances(lab, drafter, with_memory(state, spoil), sampling)
    np.testing.assert_allclose(before, after, atol=1e-6)


def check_context_is_the_targets(lab, bug):
    """After some steps the rows before the anchor are those of one pass over the text."""
    drafter = with_bug(lab.drafter, bug)
    state, *_ = begun(lab, drafter, 3)
    _, expected = jax.device_get(from_scratch(lab.model, lab.drafter, state.tokens))
    memory = jax.device_get(state.progress.memory)
    for row, end in enumerate(np.asarray(frontier(state))):
        for layer, (k, v) in enumerate(expected):
            for held, new in ((memory.keys, k), (memory.values, v)):
                here = held[layer][row].swapaxes(0, 1)[:end]
                assert_same(here, new[row, :end], f"row {row}, layer {layer}")


def check_blocks_are_those_of_training(lab, bug):
    """A block's drafts are drawn from what training computes for its anchor."""
    drafter = with_bug(lab.drafter, bug)
    state, sampling, _ = begun(lab, lab.drafter, 2, temperature=1.0)
    features = read_features(lab.model, state.tokens, lab.drafter.taps)
    batch = Batch(state.tokens, state.lengths, jnp.zeros(3, int), features)
    anchors, valid = frontier(state)[:, None], jnp.ones((3, 1), bool)
    hidden = lab.drafter.blocks(lab.model, batch, anchors, valid)[:, 0, 1:]
    logits = lab.drafter.logits(lab.model, hidden)
    rows = jax.tree.map(lambda x: jnp.repeat(x, lab.drafter.drafts, axis=0), sampling)
    expected = distribution(logits.reshape(-1, logits.shape[-1]), rows, "plain")
    found = chances(lab, drafter, state, sampling)
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-4)


def check_windows_hide_the_rest(lab, bug):
    """In a layer with a window of 8, rows 8 and more before the anchor do not matter."""
    drafter = with_bug(lab.drafter, bug)
    state, sampling, _ = begun(lab, lab.drafter, 2, temperature=1.0)
    far = (jnp.arange(CAPACITY) <= frontier(state)[:, None] - 8)[:, None, :, None]
    assert far.any((1, 2, 3)).all()
    first = lambda arrays: (jnp.where(far, 5.0, arrays[0]), arrays[1])
    spoil = lambda memory: DenseCache(first(memory.keys), first(memory.values))
    before = chances(lab, drafter, state, sampling)
    after = chances(lab, drafter, with_memory(state, spoil), sampling)
    np.testing.assert_allclose(before, after, atol=1e-6)


def check_invariant_holds_in_pages(lab, bug):
    """Also when the pool knows the prompt's beginning."""
    memory, prompt = bug.memory(lab.model, 64, 8), lab.ids(PROMPTS[0])
    generate(lab.model, lab.tokenizer, prompt, max_new_tokens=4, memory=memory)
    assert memory.pool.find(prompt)
    batch = memory.batch(lab.model, [prompt], [len(prompt) + 8], lab.drafter)
    sampling, mode = make_sampling(lab.model, 1, 0.0, None, None, 0)
    state = batch.prefill(jnp.array([-1]), sampling, mode)
    batch.commit(state)
    check_invariant(state, batch.texts)


def check_prompts_are_those_of_training(lab, bug):
    """What is asked begins as the text that the drafter learnt from."""
    known = [text.tokens[: text.start].tolist() for text in lab.answers.texts]
    for prompt in PROMPTS:
        assert encode_prompt(lab.tokenizer, prompt, bug.chat, None) in known


RIGHT = [Bug("", DFlash), Bug("", dual_cache.Exhibit)]
right = pytest.mark.parametrize("bug", RIGHT, ids=["DFlash", "Exhibit"])


@right
def test_context_ends_here(lab, bug):
    check_context_ends_here(lab, bug)


@right
def test_context_is_the_targets(lab, bug):
    check_context_is_the_targets(lab, bug)


@right
def test_blocks_are_those_of_training(lab, bug):
    check_blocks_are_those_of_training(lab, bug)


@right
def test_windows_hide_the_rest(lab, bug):
    check_windows_hide_the_rest(lab, bug)


def test_invariant_holds_in_pages(lab):
    check_invariant_holds_in_pages(lab, Bug(""))


def test_prompts_are_those_of_training(lab):
    check_prompts_are_those_of_training(lab, Bug(""))


@pytest.mark.parametrize("name", MUSEUM)
def test_each_bug_fails_the_test_that_its_label_names(lab, name):
    bug = MUSEUM[name]
    assert f"test_{bug.test}" in globals()
    with pytest.raises(AssertionError):
        globals()[f"check_{bug.test}"](lab, bug)


# That each leaves the text and costs acceptance is asserted in the chapter.


def test_the_debug_memory_stops_at_a_prefix_without_draft_keys(lab):
    class Both(dual_cache.PrefixOnly):
        def batch(self, *parts):
            found = super().batch(*parts)
            found.__class__ = CheckedBatch
            return found

    with pytest.raises(AssertionError, match="missing or too many"):
        visit(lab.model, lab.tokenizer, lab.drafter, Bug("", memory=Both), PROMPTS[0], 4, page=8)


# The command
# -----------


@pytest.fixture
def folder(lab, tmp_path):
    """A drafter of the lab's target in a folder, without a window."""
    dflash_lite.save_drafter(new_drafter(lab.model, 3, 1, 4), tmp_path / "drafter")
    write_hub(tmp_path / "hub", num_hidden_layers=4)
    lines = [{"prompt": prompt, "set": "lab"} for prompt in PROMPTS[:2]]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


@pytest.mark.slow
def test_the_command_shows_every_exhibit(folder, capsys, monkeypatch):
    monkeypatch.setattr(driver, "use_cores", lambda count: count)
    words = [str(folder / "drafter"), "--model", str(folder / "hub"), "--rounds", "2",
             "--tokens", "6", "--prompts", "1", "--tasks", str(folder / "tasks.jsonl"),
             "--output", str(folder / "out.json")]  # fmt: skip
    assert museum.main(words) == 0
    said = capsys.readouterr().out
    lines = [line.split(" | ") for line in said.splitlines() if line.startswith("| ")]
    cells = {line[0].removeprefix("| "): line for line in lines[2:]}
    assert cells.keys() == MUSEUM.keys()
    assert cells.pop("sliding window ignored")[1] == "no layer has a window"
    results = json.loads((folder / "out.json").read_text())
    for name, line in cells.items():
        assert line[1] == "yes, 2 of 2" and MUSEUM[name].test in line[-1]
        runs = museum.of(results, name)
        assert float(line[3]) == pytest.approx(
            sum(r["made"] for r in runs) / sum(r["steps"] for r in runs), abs=0.005
        )
        assert len(runs) == 2 and all(run["seconds"] > 0 for run in runs)
    assert list(folder.glob("*.partial")) == []


def test_the_command_says_what_is_wrong(folder, capsys):
    hub = ["--model", str(folder / "hub")]
    for words, message in (
        (["nothing", *hub], "no drafter 'nothing'"),
        ([str(folder / "drafter"), "--model", "none/such.gguf"], "none/such.gguf"),
        ([str(folder / "drafter"), *hub, "--output", "no/such/file"], "no folder no/such"),
    ):
        assert museum.main(words) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line
