"""The tokenizer of the tiny model: byte-level BPE over generated text."""

import json
from pathlib import Path

import textgen
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<|mask|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n'"
    " + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat(prompt, response):
    """One exchange in ChatML, as the chat template renders it."""
    return (
        f"<|im_start|>user\n{prompt}<|im_end|>\n"
        f"<|im_start|>assistant\n{response}<|im_end|>\n"
    )


def corpus(count):
    """Training text: `count` exchanges of each kind."""
    for index in range(count):
        for kind in textgen.KINDS:
            example = textgen.sample(kind, index)
            yield example.prompt + "\n" + example.response
    yield "user\nassistant\nsystem\n" * count


def train_tokenizer(vocab_size=2048, count=20_000):
    """BPE with single digits; any text encodes, byte by byte if need be."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(count), trainer)
    return tokenizer


def save_tokenizer(tokenizer, folder):
    """Writes tokenizer.json and tokenizer_config.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": "<|im_start|>",
        "pad_token": "<|pad|>",
        "unk_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text)
