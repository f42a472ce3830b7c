"""The tokenizer gives what Hugging Face's libraries give (golden/README.md)."""

import pytest
from goldens import GOLDEN, read_golden
from hypothesis import given, settings, strategies as st

import dflash_lite
from dflash_lite.checkpoints import UserError, render_chat


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return smollm2[1]


@pytest.fixture(scope="module")
def tokens():
    return read_golden("tokens.json.gz")


def differences(texts, found, expected):
    """The first few texts where two lists differ, for a readable failure."""
    wrong = [n for n in range(len(texts)) if found[n] != expected[n]]
    return [(texts[n], found[n], expected[n]) for n in wrong[:5]]


def test_encodes_every_string_as_tokenizers_does(tokenizer, tokens):
    texts = tokens["strings"]
    assert len(texts) >= 2400
    found = [tokenizer.encode(text) for text in texts]
    assert not differences(texts, found, tokens["ids"])


def test_special_tokens_can_be_read_as_text(tokenizer, tokens):
    texts = tokens["strings"]
    expected = [tokens["ids_plain"].get(str(n), ids) for n, ids in enumerate(tokens["ids"])]
    tokenizer.backend.encode_special_tokens = True
    try:
        found = [tokenizer.encode(text) for text in texts]
    finally:
        tokenizer.backend.encode_special_tokens = False
    assert not differences(texts, found, expected)


def test_decodes_to_the_string_unless_it_has_bytes_without_a_token(tokenizer, tokens):
    texts = tokens["strings"]
    expected = [tokens["decoded"].get(str(n), text) for n, text in enumerate(texts)]
    found = [tokenizer.decode(ids, skip_special_tokens=False) for ids in tokens["ids"]]
    assert not differences(texts, found, expected)


def streamed(tokenizer, ids):
    stream = tokenizer.stream()
    return "".join([stream.push(i) for i in ids] + [stream.finish()])


def test_streaming_gives_the_text_of_decoding_at_once(tokenizer, tokens):
    """Half a character would leave a U+FFFD that the text does not have."""
    found = [streamed(tokenizer, ids) for ids in tokens["ids"]]
    expected = [tokenizer.decode(ids) for ids in tokens["ids"]]
    assert not differences(tokens["strings"], found, expected)


@given(ids=st.lists(st.integers(0, 49_151) | st.integers(17, 251), max_size=20))
@settings(deadline=None)
def test_streaming_any_tokens_gives_the_text_of_decoding_at_once(tokenizer, ids):
    """Ids up to 251 are single bytes, so that most of these texts are broken."""
    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


def test_streaming_does_not_wait_longer_than_a_character(tokenizer):
    stream = tokenizer.stream()
    shown = [stream.push(i) for i in tokenizer.encode("Hello world 🙂 a")]
    assert shown[:2] == ["Hello", " world"]
    assert shown[-1] == " a"


def test_renders_chats_as_transformers_does(tokenizer):
    data = read_golden("chat.json")
    templates = {"smollm2": tokenizer.template, "test": data["test_template"]}
    for case in data["cases"]:
        text = render_chat(
            templates[case["template"]],
            case["messages"],
            tokenizer.specials | {"add_generation_prompt": case["add_generation_prompt"]},
        )
        assert text == case["text"], (case["template"], case["name"])
        assert tokenizer.encode(text) == case["ids"], case["name"]


def test_a_chat_ends_where_the_answer_begins(tokenizer):
    for case in read_golden("chat.json")["cases"]:
        if case["template"] == "smollm2" and case["add_generation_prompt"]:
            assert tokenizer.chat(case["messages"]) == case["text"], case["name"]


def test_a_template_that_refuses_a_chat_is_a_user_error():
    template = read_golden("chat.json")["test_template"]
    with pytest.raises(UserError, match="Unknown role: wizard"):
        render_chat(template, [{"role": "wizard", "content": "x"}], {})


@pytest.mark.parametrize("name", ["llama-tied", "qwen3-tied"])
def test_tokenizer_of_a_folder(name):
    """The chat template lies in tokenizer_config.json, or in a file of its own."""
    tokenizer = dflash_lite.load(GOLDEN / "checkpoints" / name)[1]
    data = read_golden(f"checkpoints/{name}.npz")
    text = str(data["text"])
    assert tokenizer.encode(text) == data["text_ids"].tolist()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.chat([{"role": "user", "content": text}]) == str(data["text_chat"])
    assert tokenizer.stop_ids == (2,)
