"""Pages: none is lost or used twice, and what is read through them is what was written."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import attention_by_definition, write_hub
from hypothesis import example, given, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from jax.experimental.pallas import tpu as pltpu

import dflash_lite
from dflash_lite import UserError, paged_attention as pages_module
from dflash_lite.decoding import (
    COMPILE_CLOCK,
    DenseBatch,
    State,
    Statistics,
    decode,
    make_sampling,
    run,
)
from dflash_lite.paged_attention import (
    Layout,
    PagedBatch,
    PagedCache,
    PagedMemory,
    PagePool,
    PoolExhausted,
    Text,
    copy_pages,
    gather_pages,
    layout,
    pad_pairs,
    page_name,
    page_reader,
    paged_attention,
    read_pages,
    visit_pages,
)
from dflash_lite.transformer import Cache

SIMULATED = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise"
)


WAYS = jax.jit(gather_pages), jax.jit(visit_pages)


class Pool(RuleBasedStateMachine):
    """Any sequence of operations, beside a memory that is written as the pool says.

    A row of the memory holds the whole past of its token, as keys and values do. So a page
    that is shared, found, or taken away wrongly shows as a wrong past.
    """

    @initialize(count=st.integers(1, 12), size=st.integers(1, 5))
    def start(self, count, size):
        self.pool, self.texts, self.memory = PagePool(count, size), [], {}
        self.count, self.size, self.prompts = count, size, [[]]

    def write(self, text, tokens):
        """What the model does: keys and values for the tokens behind those that are there."""
        past = tuple(text.tokens)
        for token in tokens:
            past += (token,)
            page, row = divmod(len(past) - 1, self.size)
            self.memory[text.pages[page], row] = past
        self.pool.commit(text, list(tokens))

    def copy(self, pairs):
        assert len(pairs) <= 1
        for source, target in pairs:
            for row in range(self.size):
                self.memory[target, row] = self.memory.get((source, row))

    def picture(self):
        """All that must not change when a request is refused."""
        pages = self.pool.pages
        return (
            list(pages.users), set(pages.free), set(pages.waiting), dict(pages.by_name),
            [(list(t.tokens), list(t.pages)) for t in self.texts],
        )  # fmt: skip

    def refused(self, before, error):
        assert "pages are needed" in str(error)
        assert self.picture() == before

    @rule(
        start=st.integers(0, 99),
        keep=st.integers(0, 30),
        end=st.lists(st.integers(0, 2), min_size=1, max_size=12),
        room=st.integers(0, 6),
    )
    def admit(self, start, keep, end, room):
        prompt = self.prompts[start % len(self.prompts)][:keep] + end
        before = self.picture()
        try:
            text = self.pool.admit(prompt, room)
        except PoolExhausted as error:
            return self.refused(before, error)
        self.prompts.append(prompt)
        found = len(text.tokens)
        assert found < len(prompt) and found % self.size == 0
        assert len(text.pages) == max(-(-(len(prompt) + room) // self.size), 0)
        for at in range(found):
            page, row = divmod(at, self.size)
            assert self.memory[text.pages[page], row] == tuple(prompt[: at + 1])
        self.texts.append(text)
        self.write(text, prompt[found:])

    @precondition(lambda self: self.texts)
    @rule(which=st.integers(0, 99), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=9))
    def grow(self, which, tokens):
        text, before = self.texts[which % len(self.texts)], self.picture()
        try:
            pairs = self.pool.reserve(text, len(text.tokens) + len(tokens))
        except PoolExhausted as error:
            return self.refused(before, error)
        self.copy(pairs)
        self.write(text, tokens)

    @precondition(lambda self: self.texts)
    @rule(which=st.integers(0, 99), keep=st.integers(0, 99))
    def truncate(self, which, keep):
        text = self.texts[which % len(self.texts)]
        keep = keep % (len(text.tokens) + 1)
        kept = text.tokens[:keep]
        self.pool.truncate(text, keep)
        assert text.tokens == kept and len(text.pages) == -(-keep // self.size)

    @precondition(lambda self: self.texts)
    @rule(which=st.integers(0, 99))
    def fork(self, which):
        self.texts.append(self.pool.fork(self.texts[which % len(self.texts)]))

    @precondition(lambda self: self.texts)
    @rule(which=st.integers(0, 99))
    def release(self, which):
        text = self.texts.pop(which % len(self.texts))
        self.pool.release(text)
        assert text.pages == [] and text.tokens == []
        self.pool.release(text)  # a second time does nothing

    @invariant()
    def every_text_reads_what_it_wrote(self):
        for text in self.texts:
            for at in range(len(text.tokens)):
                page, row = divmod(at, self.size)
                past = tuple(text.tokens[: at + 1])
                assert self.memory[text.pages[page], row] == past

    @invariant()
    def every_page_is_somewhere_once(self):
        pages = self.pool.pages
        held = Counter(page for text in self.texts for page in text.pages)
        assert all(len(set(text.pages)) == len(text.pages) for text in self.texts)
        assert {p: n for p, n in enumerate(pages.users) if n} == dict(held)
        assert sorted([*pages.free, *pages.waiting, *held]) == list(range(self.count))
        assert pages.available == self.count - len(held)

    @invariant()
    def names_tell_the_truth(self):
        pages = self.pool.pages
        assert pages.names == {page: name for name, page in pages.by_name.items()}
        assert set(pages.waiting) <= set(pages.names)
        assert not set(pages.free) & set(pages.names)
        for page in pages.names:
            past, name = self.memory[page, self.size - 1], b""
            assert len(past) % self.size == 0
            for end in range(self.size, len(past) + 1, self.size):
                name = page_name(name, list(past[end - self.size : end]))
            assert pages.names[page] == name
            assert all(
                self.memory[page, row] == past[: len(past) - self.size + 1 + row]
                for row in range(self.size)
            )


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def filled(pool, prompt, room=0):
    text = pool.admit(prompt, room)
    pool.commit(text, prompt[len(text.tokens) :])
    return text


def test_a_prompt_that_is_all_there_still_computes_its_last_token():
    pool = PagePool(8, 4)
    filled(pool, list(range(8)))
    assert len(pool.admit(list(range(8))).tokens) == 4
    assert len(pool.admit(list(range(9))).tokens) == 8


def test_the_page_that_waited_longest_is_taken_and_its_end_before_its_beginning():
    pool = PagePool(4, 2)
    old, new = filled(pool, [1, 2, 3, 4]), filled(pool, [5, 6, 7, 8])
    old_pages, new_pages = list(old.pages), list(new.pages)
    pool.release(old)
    pool.release(new)
    taken = filled(pool, [9, 9, 9, 9, 9, 9])
    assert taken.pages == [*old_pages[::-1], new_pages[1]]
    assert len(pool.find([5, 6, 0])) == 1


def test_a_found_page_waits_anew():
    pool = PagePool(3, 1)
    for token in (1, 2, 3):
        pool.release(filled(pool, [token]))
    first = pool.pages.by_name[page_name(b"", [1])]
    pool.pages.share(first)
    pool.pages.give_back(first)
    assert list(pool.pages.waiting)[-1] == first


def test_a_page_that_is_written_anew_cannot_be_found_by_its_old_content():
    """A fork was cut back while its page had two users, and is now the only one."""
    pool = PagePool(8, 4)
    old = filled(pool, [1, 2, 3, 4, 5])
    fork = pool.fork(old)
    pool.truncate(fork, 2)
    pool.release(old)
    assert len(pool.find([1, 2, 3, 4, 5])) == 1, "until somebody writes, it is still there"
    pool.reserve(fork, 4)
    assert pool.find([1, 2, 3, 4, 5]) == []
    pool.commit(fork, [8, 9])
    assert len(pool.find([1, 2, 8, 9, 5])) == 1
    pool.release(fork)
    assert pool.pages.available == 8 and len(pool.pages.waiting) == 1


@pytest.mark.parametrize("count, size", [(0, 4), (4, 0), (-1, 1), (2.5, 4), (True, 4), ("8", 4)])
def test_a_pool_of_nothing_is_refused(count, size):
    with pytest.raises(UserError, match=r"pages of .* tokens"):
        PagePool(count, size)


def test_tokens_without_room_are_refused():
    pool = PagePool(4, 2)
    text = pool.admit([1, 2, 3])
    with pytest.raises(UserError, match="5 tokens.*room for 4.*reserve"):
        pool.commit(text, [1, 2, 3, 4, 5])
    assert text.tokens == []


def lay_out(rng, tokens, size, common, spare=3):
    """Texts with so many tokens each, of which some share pages, in a shuffled pool."""
    pool = PagePool(sum(-(-n // size) for n in tokens) + spare, size)
    rng.shuffle(pool.pages.free)
    texts = []
    for number, n in enumerate(tokens):
        shared = min(common, n)
        texts.append(filled(pool, [7] * shared + [number] * (n - shared)) if n else Text([], []))
    return pool, texts


def problem(seed, size, tokens, common, queries, kv_heads, group, width, dtype):
    rng = np.random.default_rng(seed)
    pool, texts = lay_out(rng, tokens, size, common)
    pages, blocks = len(pool.pages.users), -(-max(*tokens, 1) // size) + 1
    at = Layout(*map(jnp.asarray, layout(texts, blocks, pages)))
    one = lambda *shape: jnp.asarray(rng.standard_normal(shape), dtype)
    q = one(len(tokens), queries, kv_heads * group, width)
    keys, values = one(pages, kv_heads, size, width), one(pages, kv_heads, size, width)
    rows = np.zeros((2, len(tokens), kv_heads, max(*tokens, 1), width))
    for text, n in enumerate(tokens):
        for position in range(n):
            page, row = texts[text].pages[position // size], position % size
            for number, source in enumerate((keys, values)):
                rows[number, text, :, position] = np.asarray(source[page, :, row], np.float64)
    return q, keys, values, at, rows


SHAPES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 99),
        "size": st.sampled_from([8, 16, 64]),
        "tokens": st.lists(st.integers(1, 150), min_size=2, max_size=4),
        "common": st.sampled_from([0, 0, 70]),
        "queries": st.sampled_from([1, 4, 7]),
        "kv_heads": st.sampled_from([1, 3]),
        "group": st.sampled_from([1, 3, 4]),
        "width": st.sampled_from([16, 64]),
    }
)
SHARED = {
    "seed": 1, "size": 16, "tokens": [86, 70, 150, 3], "common": 70, "queries": 4,
    "kv_heads": 3, "group": 3, "width": 64,
}  # fmt: skip


@given(SHAPES)
@example(SHARED)
@settings(max_examples=12, deadline=None)
def test_both_ways_through_pages_equal_the_definition(shape):
    q, keys, values, at, rows = problem(**shape, dtype=jnp.float32)
    ends = np.array(shape["tokens"])
    starts = np.maximum(ends - shape["queries"], 0)
    positions = jnp.asarray(starts[:, None] + np.arange(shape["queries"]))
    expected = attention_by_definition(q, *rows, starts, ends, True)
    valid = np.asarray(positions) < ends[:, None]
    for way in WAYS:
        found = np.asarray(way(q, keys, values, at, positions))
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[valid], expected[valid], atol=3e-6)


@given(SHAPES, st.booleans())
@example(SHARED, True)
@example(SHARED, False)
@settings(max_examples=3, deadline=None)
def test_the_kernel_equals_the_definition(shape, causal):
    """Decode, verify and draft, in the simulator: NaN where nothing was written, no races."""
    q, keys, values, at, rows = problem(**shape, dtype=jnp.float32)
    ends = np.array(shape["tokens"])
    starts = np.maximum(ends - shape["queries"], 0)
    expected = attention_by_definition(q, *rows, starts, ends, causal)
    found = paged_attention(
        q, keys, values, at.tables, jnp.asarray(starts), jnp.asarray(ends), causal,
        interpret=SIMULATED,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=3e-6)


def test_the_kernel_in_bfloat16_and_with_an_empty_row():
    shape = SHARED | {"tokens": [40, 0, 17, 1], "common": 0, "queries": 1}
    q, keys, values, at, rows = problem(**shape, dtype=jnp.bfloat16)
    ends = np.array(shape["tokens"])
    found = paged_attention(
        q, keys, values, at.tables, jnp.maximum(ends - 1, 0), jnp.asarray(ends),
        interpret=SIMULATED,
    )  # fmt: skip
    expected = attention_by_definition(q, *rows, np.maximum(ends - 1, 0), ends, True)
    assert found.dtype == jnp.bfloat16 and (np.asarray(found[1], np.float32) == 0).all()
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, atol=0.02)


def test_the_layout_points_both_ways():
    rng = np.random.default_rng(0)
    pool, texts = lay_out(rng, [30, 22, 9, 16], 8, 16)
    at = layout(texts, 6, len(pool.pages.users))
    assert at.users.shape[1] == 4, "four texts begin alike"
    for row, text in enumerate(texts):
        n = len(text.pages)
        assert at.tables[row].tolist() == text.pages + [-1] * (6 - n)
        for block, page in enumerate(text.pages):
            slot = at.slots[row, block]
            assert (at.users[page, slot], at.order[page, slot]) == (row, block)
    assert (at.users < 4).sum() == sum(len(t.pages) for t in texts)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random model; no other test has its shapes."""
    folder = write_hub(tmp_path_factory.mktemp("model"), seed=3, intermediate_size=40)
    return dflash_lite.load(folder)[0]


def prompts_of(seed, *lengths, common=0):
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 200, common).tolist()
    return [(start + rng.integers(0, 200, n).tolist())[:n] for n in lengths]


STOPS = np.array([11, 12, 13], np.int32)


def over_pages(memory, prompts, new=20, steps=7, stops=STOPS):
    return over(memory.model, prompts, new, steps, stops, memory.batch)


def over_dense(model, prompts, new=20, stops=STOPS):
    return over(model, prompts, new, 64, stops, DenseBatch)


def over(model, prompts, new, steps, stops, batch_of):
    how, ends = (0.0, None, None, 0), tuple(stops.tolist())
    parts = (how, steps, Statistics(), None, batch_of)
    *_, (seen, _) = run(model, prompts, new, ends, *parts)
    return [row[len(p) : n].tolist() for row, n, p in zip(seen.tokens, seen.lengths, prompts)]


@pytest.mark.parametrize("size", [8, 16, 64, 256])
def test_pages_write_what_the_dense_cache_writes(model, size):
    """Mixed lengths, borders crossed while growing, and beginnings that are found."""
    memory = PagedMemory(model, pages=2048 // size, size=size)
    for seed, lengths in enumerate([(5, 70, 33, 16), (70, 71, 120, 1), (300, 7, 64, 65)]):
        prompts = prompts_of(9, *lengths, common=64)
        assert over_pages(memory, prompts) == over_dense(model, prompts), (size, seed)
    assert memory.pool.pages.available == 2048 // size, "all texts have ended"
    if size <= 64:
        assert memory.pool.find(prompts_of(9, 70, common=64)[0]), "pages can be found again"


def test_a_found_beginning_is_not_computed_again(model):
    """What lies in the shared pages is used: with other values there, the text differs."""
    memory = PagedMemory(model, pages=64, size=8)
    prompt = prompts_of(4, 60, common=48)
    first = over_pages(memory, prompt)
    assert over_pages(memory, prompt) == first
    cache = memory.cache
    memory.cache = PagedCache(
        tuple(k * -3.0 for k in cache.keys), cache.values, cache.at, cache.reader
    )
    assert over_pages(memory, prompt) != first


def test_the_simulated_kernel_writes_the_same(model):
    memory = PagedMemory(model, pages=16, size=16, reader="simulated")
    assert memory.cache.keys[0].shape == (16, 2, 16, 128), "heads of 8 in rows of 128"
    prompts = prompts_of(5, 20, 37)
    assert over_pages(memory, prompts, new=6) == over_dense(model, prompts, new=6)


def test_forks_write_apart(model):
    """Copy on write, with its arrays: both forks go on from the same half-filled page."""
    memory = PagedMemory(model, pages=32, size=8)
    how, mode = make_sampling(model, 2, 0.0, None, None, 0)
    (prompt,) = prompts_of(6, 21)
    batch = PagedBatch(memory, [prompt], [64])
    state = state_of(batch, [prompt], 64)
    one = jax.tree.map(lambda x: x[:1], how)
    state = read_pages(model, state, np.zeros(1, np.int32), STOPS, one, 32, mode)
    batch.commit(state)
    batch.texts.append(memory.pool.fork(batch.texts[0]))
    batch.limits = [64, 64]
    assert batch.texts[0].pages[2] == batch.texts[1].pages[2]
    both = [prompt + [50], prompt + [60]]
    state = state_of(batch, both, 64, room=7)
    assert batch.texts[0].pages[2] != batch.texts[1].pages[2]
    state = decode(model, state, STOPS, how, np.int32(6), mode)
    tokens, lengths = jax.device_get((state.tokens, state.lengths))
    found = [row[22:n].tolist() for row, n in zip(tokens, lengths)]
    assert found == over_dense(model, both, new=6)


def state_of(batch, prompts, capacity, room=0):
    lengths = np.array([len(p) for p in prompts], np.int32)
    packed = np.zeros((len(prompts), capacity), np.int32)
    for row, prompt in zip(packed, prompts):
        row[: len(prompt)] = prompt
    cache = batch.make_room(lengths, room)
    limits = np.full(len(prompts), capacity, np.int32)
    return State(packed, lengths, limits, np.zeros(len(prompts), bool), cache)


def test_an_exhausted_pool_gives_everything_back(model):
    memory = PagedMemory(model, pages=6, size=8)
    prompts = prompts_of(7, 20, 20)
    with pytest.raises(PoolExhausted, match="pages are needed"):
        over_pages(memory, prompts, new=30)
    assert memory.pool.pages.available == 6
    with pytest.raises(PoolExhausted, match="pages are needed"):
        over_pages(memory, prompts_of(7, 20, 20, 20))
    assert memory.pool.pages.available == 6
    assert over_pages(memory, prompts, new=2) == over_dense(model, prompts, new=2)


def test_an_abandoned_run_gives_its_pages_back(model):
    memory = PagedMemory(model, pages=16, size=8)
    parts = ((0.0, None, None, 0), 4, Statistics(), None, memory.batch)
    work = run(model, prompts_of(8, 20), 60, (-1,), *parts)
    next(work), next(work)
    assert memory.pool.pages.available < 16
    work.close()
    assert memory.pool.pages.available == 16
    prompts = prompts_of(8, 30)
    assert over_pages(memory, prompts) == over_dense(model, prompts)


@pytest.mark.parametrize("where", ["read_pages", "look"])
def test_a_call_that_is_interrupted_leaves_a_memory_that_works(model, monkeypatch, where):
    """Its arrays were given to a program, or the wait for it was cut short."""
    memory, prompts = PagedMemory(model, pages=16, size=8), prompts_of(8, 30)
    over_pages(memory, prompts)
    plain = getattr(pages_module, where)

    def interrupted(*arguments, **options):
        plain(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(pages_module, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        over_pages(memory, prompts_of(9, 25))
    monkeypatch.undo()
    assert memory.pool.pages.available == 16
    lost = where == "read_pages"
    assert bool(memory.pool.find(prompts[0])) != lost, "what is gone is not found"
    assert over_pages(memory, prompts) == over_dense(model, prompts)


def test_a_stream_whose_pages_were_lost_says_so(model, monkeypatch):
    memory = PagedMemory(model, pages=32, size=8)
    parts = ((0.0, None, None, 0), 4, Statistics(), None, memory.batch)
    slow = run(model, prompts_of(8, 20), 60, (-1,), *parts)
    next(slow)
    plain = pages_module.read_pages
    monkeypatch.setattr(pages_module, "read_pages", lambda *a: plain(*a) and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        over_pages(memory, prompts_of(9, 25))
    monkeypatch.undo()
    with pytest.raises(UserError, match="is gone.*interrupted.*Start again"):
        next(slow)
    assert memory.pool.pages.available == 32
    assert over_pages(memory, prompts_of(8, 20)) == over_dense(model, prompts_of(8, 20))


def test_two_streams_take_turns_in_one_memory(model):
    memory = PagedMemory(model, pages=32, size=8)
    prompts = prompts_of(8, 20, 33)
    parts = ((0.0, None, None, 0), 4, Statistics(), None, memory.batch)
    streams = [run(model, [prompt], 20, tuple(STOPS.tolist()), *parts) for prompt in prompts]
    last = list(itertools.zip_longest(*streams))
    for row, (prompt, expected) in enumerate(zip(prompts, over_dense(model, prompts))):
        seen = [turn[row][0] for turn in last if turn[row] is not None][-1]
        assert seen.tokens[0, len(prompt) : seen.lengths[0]].tolist() == expected
    assert memory.pool.pages.available == 32


def test_a_call_in_the_middle_of_another_is_refused(model):
    """As a second thread would make it."""
    memory = PagedMemory(model, pages=32, size=8)
    first = memory.batch(model, prompts_of(8, 20), [40])
    first.make_room([20], 0)
    with pytest.raises(UserError, match="Another call computes.*one at a time"):
        over_pages(memory, prompts_of(9, 25))
    first.release()
    assert memory.pool.pages.available == 32
    assert over_pages(memory, prompts_of(8, 20)) == over_dense(model, prompts_of(8, 20))


@pytest.mark.parametrize(
    "pages, size, reader, message",
    [
        (8, 8, "array", "reader is 'array'.*'kernel', 'simulated', 'arrays'"),
        (8, 10**12, None, "8 pages of 1000000000000 tokens.*ask for fewer"),
        (0, 8, None, "pool of 0 pages"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(model, pages, size, reader, message):
    with pytest.raises(UserError, match=message):
        PagedMemory(model, pages, size, reader)


def test_positions_without_a_page_are_dropped(model):
    """Padding behind a prompt reaches beyond its pages, and must not land in another's."""
    config = model.config
    cache = PagedCache.empty(config, 4, 8, jnp.float32, "arrays")
    at = layout([Text([], [2]), Text([], [0, 3])], 2, 4)
    cache = PagedCache(cache.keys, cache.values, at, "arrays")
    assert isinstance(cache, Cache)
    ones = jnp.ones((2, 20, config.num_key_value_heads, config.head_dim))
    q = jnp.ones((2, 20, config.num_attention_heads, config.head_dim))
    positions = jnp.stack([jnp.arange(20), jnp.arange(20)])
    _, new = cache.attend(0, q, ones, ones, positions)
    filled_rows = np.asarray(new.keys[0]).any((1, 3))
    assert filled_rows.tolist() == [[True] * 8, [False] * 8, [True] * 8, [True] * 8]


def test_copies_of_pages_are_in_place_and_padding_copies_nothing(model):
    cache = PagedCache.empty(model.config, 5, 8, jnp.float32, "arrays")
    keys = tuple(k + jnp.arange(5.0)[:, None, None, None] for k in cache.keys)
    cache = PagedCache(keys, cache.values, cache.at, "arrays")
    where = keys[0].unsafe_buffer_pointer()
    new = copy_pages(cache, pad_pairs([(1, 0), (4, 3), (2, 1)]))
    assert np.asarray(new.keys[1])[:, 0, 0, 0].tolist() == [1, 2, 2, 4, 4]
    assert new.keys[0].unsafe_buffer_pointer() == where


def test_no_program_after_warm_up_and_no_copy_of_the_pages(model):
    memory = PagedMemory(model, pages=64, size=16)
    for seed in (1, 2):
        count = COMPILE_CLOCK.count
        over_pages(memory, prompts_of(seed, 20, 30), new=8)
    assert COMPILE_CLOCK.count == count
    memory = PagedMemory(model, pages=4096, size=16)
    prompts = prompts_of(1, 20, 30)
    batch = PagedBatch(memory, prompts, [64, 64])
    how, mode = make_sampling(model, 2, 0.0, None, None, 0)
    state = state_of(batch, prompts, 64)
    size = sum(x.nbytes for x in memory.cache.keys + memory.cache.values)
    program = decode.lower(model, state, STOPS, how, np.int32(4), mode).compile()
    assert program.memory_analysis().alias_size_in_bytes >= size
    # the CPU compilers of older versions copy it, whatever the program says
    allowed = size / 2 if jax.__version_info__ >= (0, 12) else 4 * size
    assert program.memory_analysis().temp_size_in_bytes < allowed


def test_who_reads_pages_is_said_with_its_reason():
    assert page_reader("tpu")[0] == "kernel"
    for platform in ("cpu", "gpu"):
        reader, why = page_reader(platform)
        assert reader == "arrays" and platform in why
