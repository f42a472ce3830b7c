"""Makes tokens_llama_cpp.json: where llama.cpp gives a string of tokens.json.gz
other ids than `tokenizers` does.

    python make_tokens_llama_cpp.py [SmolLM2-135M-Instruct.Q4_1.gguf]
"""

import llama_cpp
from common import model_path, read_json, source, write_json


def main():
    model = llama_cpp.Llama(str(model_path()), vocab_only=True, verbose=False)
    tokens = read_json("tokens.json.gz")

    def differing(special, expected):
        """Number of the string -> the ids that llama.cpp gives it."""
        found = {}
        for n, text in enumerate(tokens["strings"]):
            ids = model.tokenize(text.encode(), add_bos=False, special=special)
            if ids != expected[n]:
                found[n] = ids
        return found

    plain = [tokens["ids_plain"].get(str(n), ids) for n, ids in enumerate(tokens["ids"])]
    data = {
        "source": source(__file__, "llama-cpp-python"),
        "strings": len(tokens["strings"]),
        "differs": differing(True, tokens["ids"]),
        "differs_plain": differing(False, plain),
    }
    write_json("tokens_llama_cpp.json", data)
    for n, ids in data["differs"].items():
        print(n, repr(tokens["strings"][n])[:60], ids[:8], tokens["ids"][n][:8])
    print(len(data["differs"]), "differ,", len(data["differs_plain"]), "of the plain ones")


if __name__ == "__main__":
    main()
