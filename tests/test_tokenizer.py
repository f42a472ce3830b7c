"""Text survives the tokenizer, streams come whole, and chat templates are tame."""

import pytest
import tokenizers
from helpers import END, MERGES, SPECIALS, TEMPLATE, tiny_backend
from hypothesis import example, given, settings, strategies as st

from dflash_lite.checkpoints import (
    Tokenizer,
    UserError,
    open_checkpoint,
    render_chat,
    word_rule,
)

TEXT = st.text(max_size=60)
TRICKY = st.lists(
    st.sampled_from(
        [" ", "  ", "\n", "\t", "\u00a0", "é", "e\u0301", "🙂", "👩‍👩‍👧", "\ufffd", "1"]
    )
    | st.sampled_from(
        ["<|im_end|>", "<|end|>", "<|", "it's", "CAN'T", "\r\n", "\x00", "ह", "中文"]
    ),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def tiny():
    return Tokenizer(tiny_backend(), (END,), TEMPLATE)


@pytest.fixture(scope="module")
def real():
    return open_checkpoint("smollm2-135m").tokenizer


@pytest.fixture(scope="module", params=["tiny", "real"])
def tokenizer(request):
    """A tokenizer of 267 tokens, and SmolLM2's."""
    return request.getfixturevalue(request.param)


def stream(tokenizer, ids):
    """The pieces of a stream, what `finish` gives last."""
    stream = tokenizer.stream()
    return [stream.push(i) for i in ids] + [stream.finish()]


def without_tokens(tokenizer):
    """The bytes that the vocabulary cannot write (some in SmolLM2's)."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel
    return {
        byte
        for byte in range(0x80)
        if tokenizer.backend.token_to_id(
            alphabet(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))[0][0]
        )
        is None
    }


@given(TEXT | TRICKY)
@settings(max_examples=300, deadline=None)
def test_round_trip_of_any_text(tiny, text):
    ids = tiny.encode(text)
    assert all(0 <= i < tiny.vocab_size for i in ids)
    assert tiny.decode(ids, skip_special_tokens=False) == text


@given(TEXT | TRICKY)
@settings(max_examples=300, deadline=None)
def test_round_trip_of_the_real_tokenizer(real, text):
    """Up to the characters whose bytes have no token."""
    missing = without_tokens(real)
    assert 0 < len(missing) < 10
    kept = "".join(c for c in text if ord(c) not in missing and not 0x40000 <= ord(c) < 0xC0000)
    assert real.decode(real.encode(kept), skip_special_tokens=False) == kept


def test_special_tokens_are_single_and_can_be_left_out(tokenizer):
    text = SPECIALS[0] if tokenizer.vocab_size < 300 else "<|im_end|>"
    ids = tokenizer.encode(f"a{text}b")
    assert len(ids) == 3 and ids[1] in tokenizer.stop_ids
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"a{text}b"
    assert tokenizer.encode(text) == [ids[1]]


def test_encodings_have_no_limit(tokenizer):
    assert tokenizer.decode(tokenizer.encode("word " * 20_000)) == "word " * 20_000


# Streams


@given(TEXT | TRICKY)
@settings(max_examples=200, deadline=None)
def test_a_stream_of_text_never_shows_half_a_character(tiny, text):
    """Every token of this text is cut into its bytes: one token each."""
    ids = [tiny.backend.token_to_id(letter) for letter in letters_of(text)]
    pieces = stream(tiny, ids)
    assert "".join(pieces) == text
    shown, at = "", 0
    for byte, piece in zip(text.encode(), pieces, strict=False):
        at += 1
        shown += piece
        whole = text.encode()[:at].decode(errors="ignore")
        assert whole.startswith(shown)
        if not whole.endswith("\ufffd") and text.encode()[:at] == whole.encode():
            assert shown == whole, f"held back after byte {byte:#x}"


def letters_of(text):
    """The letters that stand for the bytes of a text."""
    rule = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in rule.pre_tokenize_str(text))


def any_ids(vocab_size):
    return st.lists(st.integers(0, vocab_size - 1), max_size=40)


@given(ids=any_ids(256 + len(MERGES) + len(SPECIALS)))
@example(ids=[])
@example(ids=[END])
@settings(max_examples=500, deadline=None)
def test_a_stream_of_any_tokens_is_their_text(tiny, ids):
    """Broken bytes and special tokens included."""
    pieces = stream(tiny, ids)
    assert "".join(pieces) == tiny.decode(ids)


@pytest.fixture(scope="module")
def odd(real):
    """Tokens of half a character, and special ones."""
    found = [i for i in range(2000) if "\ufffd" in real.decode([i])]
    assert len(found) > 60
    return found + list(range(20))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_stream_of_any_real_tokens_is_their_text(real, odd, data):
    """Half of them tokens with broken bytes, and special ones."""
    some = st.integers(0, real.vocab_size - 1) | st.sampled_from(odd)
    ids = data.draw(st.lists(some, max_size=40))
    assert "".join(stream(real, ids)) == real.decode(ids)


def test_a_stream_shows_each_token_at_once_where_it_can(tiny):
    ids = tiny.encode("the é in a 🙂 s<|end|>t")
    pieces = stream(tiny, ids)
    held = [i for i, piece in zip(ids, pieces, strict=False) if not piece]
    smile = tiny.encode("🙂")
    assert held == smile[:-1] + [END]
    assert pieces[-1] == ""


def test_a_broken_character_is_shown_when_it_cannot_be_mended(tiny):
    half, letter = tiny.encode("ह")[0], tiny.encode("a")[0]
    assert stream(tiny, [half, letter, half]) == ["", "\ufffda", "", "\ufffd"]


def test_streams_are_apart(tiny):
    one, other = tiny.stream(), tiny.stream()
    first, last = tiny.encode("ह")[0], tiny.encode("a")[0]
    assert one.push(first) == "" and other.push(last) == "a"


def test_a_stream_of_a_sentencepiece_tokenizer():
    """Llama 2's kind: spaces as a letter, bytes as tokens; the first space goes."""
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁the", "▁a", "b"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True)
    )
    d = tokenizers.decoders
    backend.decoder = d.Sequence(
        [d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(backend, ())
    ids = [257, 258, *(1 + byte for byte in "é🙂".encode()), 259, 260, 258]
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == " theé🙂 ab the"
    assert pieces[2:8] == ["", "é", "", "", "", "🙂"]


# The rules that cut text into words, against pieces written down by hand


@pytest.mark.parametrize(
    "rule, text, words",
    [
        ("gpt-2", "I'll pay  12345 naïve\n\n x", "I|'ll| pay| | 12345| naïve|\n\n| x"),
        ("smollm", "I'll pay  12345 naïve", "I|'ll| pay|  |1|2|3|4|5| naïve"),
        (
            "qwen2",
            "I'LL pay  12345 naïve\n\n x?!\n",
            "I|'LL| pay| | |1|2|3|4|5| naïve|\n\n| x|?!\n",
        ),
        ("llama-bpe", "I'LL pay 1234567 (naïve)\n\n x", "I|'LL| pay| |123|456|7| (|naïve|)\n\n| x"),
    ],
)
def test_word_rules(rule, text, words):
    found = [text[a:b] for _, (a, b) in word_rule(rule).pre_tokenize_str(text)]
    assert found == words.split("|")


def test_an_unknown_word_rule_is_refused():
    with pytest.raises(UserError, match="deepseek-llm"):
        word_rule("deepseek-llm")


# Chat templates


ASK = [{"role": "user", "content": "naïve 🙂 <b>&"}]


def test_a_chat(tiny):
    assert tiny.chat(ASK) == "<|user|>naïve 🙂 <b>&<|end|><|assistant|>"
    assert tiny.chat(ASK, add_generation_prompt=False) == "<|user|>naïve 🙂 <b>&<|end|>"
    assert tiny.encode(tiny.chat(ASK))[0] == END + 1


def test_no_template():
    with pytest.raises(UserError, match="no chat template.*chat=False"):
        Tokenizer(tiny_backend(), ()).chat(ASK)


@pytest.mark.parametrize(
    "template, expected",
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "naïve 🙂 <b>&"}]'),
        ("{{ {'b': 1, 'a': [true, none]} | tojson }}", '{"b": 1, "a": [true, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{% for m in messages %}\n{{ m.role }}\n{% endfor %}\n", "user\n"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ messages[0].tools is defined }} {{ tools }}", "False None"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ add_generation_prompt }}", "True"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}", "3"),
    ],
)
def test_what_templates_may_use(template, expected):
    assert render_chat(template, ASK, {}) == expected


@pytest.mark.parametrize(
    "template, word",
    [
        ("{{ raise_exception('Only users, please') }}", "Only users, please"),
        ("{{ messages[0].missing + 'x' }}", "missing"),
        ("{{ 'a' + none }}", "refuses"),
        ("{{ 1 / 0 }}", "refuses"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "refuses"),
        ("{% if %}", "refuses"),
        ("{{ nothing.at.all }}", "nothing"),
        ("{% include 'other' %}", "refuses"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ messages.__class__.__base__.__subclasses__() }}", "refuses"),
        ("{{ raise_exception.__globals__.x }}", "refuses"),
        ("{{ cycler.__init__.__globals__.os }}", "refuses"),
    ],
)
def test_what_templates_may_not_do(template, word):
    messages = list(ASK)
    with pytest.raises(UserError, match=word):
        text = render_chat(template, messages, {})
        raise AssertionError(f"it wrote {text!r}")
    assert messages == ASK
