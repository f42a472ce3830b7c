"""Makes tokens.json.gz: strings and their ids by `tokenizers`, for SmolLM2.

transformers reads vocabulary, merges and special tokens out of the GGUF file,
but not `tokenizer.ggml.pre`: it gives every GPT-2 vocabulary the GPT-2
pre-tokenizer. `smollm` means that each digit is cut out first, as SmolLM2's
tokenizer.json on the Hub has it, so we put that step in (see README.md).

    python make_tokens.py [SmolLM2-135M-Instruct.Q4_1.gguf]
"""

from common import model_path, source, write_json
from token_strings import strings
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoTokenizer


def smollm2_tokenizer(path):
    """transformers' tokenizer of the GGUF, with the Hub's pre-tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def main():
    path = model_path()
    texts = strings()
    as_transformers = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name
    ).backend_tokenizer
    backend = smollm2_tokenizer(path).backend_tokenizer

    def encode(tokenizer, text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    ids = [encode(backend, text) for text in texts]
    without_digits = [encode(as_transformers, text) for text in texts]
    decoded = [backend.decode(i, skip_special_tokens=False) for i in ids]
    backend.encode_special_tokens = True
    plain = [encode(backend, text) for text in texts]

    differ = [n for n, i in enumerate(without_digits) if i != ids[n]]
    lossy = {n: d for n, d in enumerate(decoded) if d != texts[n]}
    write_json("tokens.json.gz", {
        "source": source(__file__, "tokenizers", "transformers"),
        "strings": texts,
        "ids": ids,
        # Special tokens read as text, where that gives other ids.
        "ids_plain": {n: i for n, i in enumerate(plain) if i != ids[n]},
        # What comes back, where it is not the string: bytes without a token.
        "decoded": lossy,
        # Strings that transformers' own reading of the file gets wrong.
        "transformers_differs": differ,
    })
    print(len(texts), "strings,", len(differ), "differ without Digits,", len(lossy), "lossy")


if __name__ == "__main__":
    main()
