"""Strings to tokenise: hand-picked edges, then drawn from a seeded generator.

Characters come from fixed ranges that Unicode had assigned by version 12, so
that neither the drawing nor the tokenising follows a library's Unicode tables.
"""

import random
from itertools import product

SPECIALS = """<|endoftext|> <|im_start|> <|im_end|> <repo_name> <reponame>
<file_sep> <filename> <gh_stars> <issue_start> <issue_comment> <issue_closed>
<jupyter_start> <jupyter_text> <jupyter_code> <jupyter_output>
<jupyter_script> <empty_output>""".split()

# First and last character of what we draw from each script.
SCRIPTS = {
    "latin": "az", "latin capital": "AZ", "latin-1": "Àÿ", "latin extended": "Āſ",
    "ipa": "ɐʯ", "greek": "αω", "greek capital": "ΑΡ", "cyrillic": "ая",
    "cyrillic capital": "АЯ", "armenian": "աև", "hebrew": "את", "arabic": "بي",
    "syriac": "ܐܬ", "thaana": "ހޥ", "devanagari": "अह", "bengali": "কন",
    "gurmukhi": "ਕਨ", "gujarati": "કન", "oriya": "କନ", "tamil": "மஹ",
    "telugu": "కన", "kannada": "ಕನ", "malayalam": "കന", "sinhala": "කන",
    "thai": "กฮ", "lao": "ກຂ", "tibetan": "ཀཇ", "burmese": "ကအ",
    "georgian": "აჰ", "hangul jamo": "ᄀᄒ", "ethiopic": "ሀሆ", "cherokee": "ᎠᏴ",
    "canadian": "ᐁᐦ", "runic": "ᚠᛪ", "khmer": "កអ", "mongolian": "ᠠᡂ",
    "hiragana": "あん", "katakana": "アン", "bopomofo": "ㄅㄩ", "cjk": "一鿕",
    "hangul": "가힣", "yi": "ꀀꒌ", "gothic": "𐌰𐍀", "deseret": "𐐀𐑏",
    "cuneiform": "𒀀𒍮", "hieroglyphs": "𓀀𓐮", "mathematical": "𝐀𝛥",
    "cjk extension B": "𠀀𪛖", "fullwidth": "ａｚ",
}
DIGITS = ["09", "٠٩", "۰۹", "०९", "০৯", "௦௯", "๐๙", "０９", "𝟎𝟗", "⁴⁹", "₀₉",
          "①⑳", "Ⅰⅿ", "⅓⅞", "㉑㉟", "፩፼", "〇〇", "〡〩", "𐄇𐄳", "²³"]
MARKS = ["\u0300\u036f", "\u0591\u05af", "\u064b\u0652", "\u093e\u094d",
         "\u0e31\u0e3a", "\u1ab0\u1abe", "\u20d0\u20dc", "\u3099\u309a",
         "\ufe20\ufe2f", "\ufe00\ufe0f"]
SPACES = [" ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r",
          "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u2002", "\u2003",
          "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"]
INVISIBLE = ["\u200b", "\u200c", "\u200d", "\u200e", "\u200f", "\u2060", "\ufeff",
             "\xad", "\u061c", "\u180e", "\ufffd", "\ufffe", "\U000e0001", "\ue000"]
EMOJI = """😀 😂 🥲 👍 👍🏽 👩‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 🏴‍☠️ 🇩🇪 🇰🇷🇯🇵 ❤️ ❤ ☺️ 1️⃣ #️⃣ 🧑🏿‍🚀 👩🏻‍❤️‍💋‍👨🏾 ✈️ ⌚ 🀄 🃏 🅰️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🧝‍♀️ 🐻‍❄️
⏩ ♟️ ㊗️""".split()
SYMBOLS = """. , ; : ! ? … – — - _ ' " ` ´ ’ “ ” « » ( ) [ ] { } < > / \\ | @ # $ % ^ & *
+ = ~ § ¶ © ® ™ ° ± × ÷ ≠ ≤ ∑ ∫ √ ∞ ∂ → ⇒ ∀ ∃ € £ ¥ ₿ ¡ ¿ 。 、 「 」 ・ ！ ？ ： ، ؟ । ॥ ፡ ྾
█ ░ │ ┌ ♠ ☃ ✓ ✗ ⠿ 🜁 ﷺ ﬁ ﬄ Ǆ ß ẞ İ ı ſ K Å""".split()
WORDS = """the of and to in is that it was for on are as with his they at be this have from
or had by but some what there we can out other were all your when up use word how said an each
she which do their time if will way about many then them would write like so these her long
make thing see him two has look more day could go come did number sound no most people over
know water than call first who may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under
name very through just form great think say help low line differ turn cause much mean before
speculative decoding transformer attention quantisation tokenizer probability bandwidth
Paris London Einstein NASA iPhone JavaScript O'Brien naïve café Straße jalapeño""".split()
URLS = ["https://example.com/a/b?c=1&d=%20x#frag", "http://localhost:8080/",
        "ftp://user:pa$$@10.0.0.1:21/~x", "mailto:jane.doe+spam@mail.example.org",
        "C:\\Program Files\\App\\run.exe", "/usr/share/doc/README.md:12:3",
        "git@host.example:group/repo.git", "data:image/png;base64,iVBORw0KGgo=",
        "urn:isbn:0451450523", "https://xn--bcher-kva.example/ü/日本",
        "10.1000/182", "arXiv:1706.03762v7", "sha256:9f86d081884c7d659a2feaa0c55ad015"]
CODE = [
    "def f(x):\n    return x ** 2\n", "for i in range(10):\n\tprint(i)\n",
    "if (a<b && c!=d) { return -1; } // done", "#include <stdio.h>\r\nint main(){}\r\n",
    "SELECT * FROM t WHERE id = 42 AND name LIKE '%x%';", "<div class=\"a b\">x &amp; y</div>",
    "{\"key\": [1, 2.5e-3, null, true]}", "let mut v: Vec<u8> = vec![0x1F; 16];",
    "$ ls -la | grep '^d' > out.txt 2>&1", "\\frac{\\partial f}{\\partial x_1} = 0",
    "x = np.zeros((3, 4), dtype=np.float32)[:, None]", "lambda *args, **kw: (yield)",
    "    assert a == b, f\"{a!r} != {b!r}\"", "0xDEADBEEF 0b1010 1_000_000 3.14159 1e10",
    "```python\nimport os\n```", "- [ ] todo\n- [x] done\n\n| a | b |\n|---|---|\n",
    "/* multi\n * line\n */", "try:\n    pass\nexcept (A, B) as e:\n    raise", "a\\nb\\tc\\\\",
    "@decorator\nasync def g() -> None: ...\n", "%s %d %5.2f %%", "::::note\n:::", "a=b;c=d;e=f",
]
HAND = [
    "", " ", "  ", "a", " a", "a ", "  a  ", "\n", "\n\n\n", "\t", "\r\n", "\r\n\r\n", "\r\r",
    "Hello world", "Hello, world!", "hello  world", "hello   world", "hello\nworld", "1", "12",
    "123", " 1", "  1", "   12", "a1", "1a", "a 1", "a  1", "a   12  b", "\n1", "\n\n1", "\t\t1",
    "1 ", "1  ", "1\n\n2", "3.14", "1,000,000", "2026-11-29T12:00:00Z", "٣ ٤", "  ٣", " ½", "  ½",
    " Ⅳ", "  Ⅳ", " ²", "x²  ³", "①  ②", " 〇", "it's", "IT'S", "I'm you're they've he'd we'll",
    "can't won't", "'s", " 's", "'S", "'ll'", "''''", "’s", "o'clock 5 o'clock", "a\u0301", "á",
    "e\u0301\u0323", "\u0301", " \u0301", "\u200d", "\ufeffabc", "ﷺ", "ǆ", "\x00", "a\x00b", "\x1b[0m",
    "\x7f", "\x80\x9f", "...", "!!!???", " ... ", "--", "-1", " -1", "$5", " $5", "_a_", "a_b", "a-b",
    "CamelCase", "snake_case_1", "ALLCAPS", "\\", "\\\\n", "<", "<|", "<|im", "<|im_start", "im_start|>",
    "<|im_start|", "< |im_start|>", "<|IM_START|>", "<|im_start|> ", " <|im_start|>", "<|im_start|>\n",
    "<|im_start|><|im_start|>", "<|im_start|><|im_end|>", "<|endoftext|>text", "text<|endoftext|>",
    "a<|im_end|>1", "1<|im_end|>  2", "  <|im_end|>  ", "<<|im_start|>>", "<repo_name>x<file_sep>y",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<repo_name", "repo_name>", "<repo_name >",
    "\U0010ffff", "\U00046131 x", "\U00100000", "\ud7ff", "\ue000", "\uffff", "\ufdd0", "\U0001f9ff", "🏳️‍🌈",
    "ಠ_ಠ", "(╯°□°)╯︵ ┻━┻", "Zalgo: H̸̡̪̯ͨ͊̽̅̾̎Ȩ̬̩̾͛ͪ̈́̀́͘", "عربى English עברית 123", "中文和English混排123", "한국어 텍스트 42",
    "ไทยไม่มีช่องว่าง", "हिन्दी क्षत्रिय", "नमस्ते १२३", "𝕬𝖇𝖈", "ⓐⓑⓒ", "ﬁne", "Ǆ", "ß", "İstanbul", "ÅÅ",
]


def strings(seed: int = 0) -> list[str]:
    """All strings, each once, in a fixed order."""
    rng = random.Random(seed)

    def char(span: str) -> str:
        return chr(rng.randint(ord(span[0]), ord(span[-1])))

    def word(script: str, longest: int = 8) -> str:
        return "".join(char(SCRIPTS[script]) for _ in range(rng.randint(1, longest)))

    def number() -> str:
        digits = rng.choice(DIGITS) if rng.random() < 0.3 else "09"
        return "".join(char(digits) for _ in range(rng.randint(1, 7)))

    def sentence() -> str:
        words = [rng.choice(WORDS) for _ in range(rng.randint(2, 14))]
        text = words[0].capitalize()
        for w in words[1:]:
            text += rng.choice([" "] * 12 + [", ", "; ", " – ", "'s ", ": "]) + w
        return text + rng.choice([".", "!", "?", "...", "", "\n"])

    def marked() -> str:
        script = rng.choice(["latin", "hebrew", "arabic", "devanagari", "thai", "hiragana"])
        return "".join(char(SCRIPTS[script]) + "".join(
            char(rng.choice(MARKS)) for _ in range(rng.randint(0, 3)))
            for _ in range(rng.randint(1, 8)))

    def spaced() -> str:
        parts = []
        for _ in range(rng.randint(1, 6)):
            parts += [rng.choice(SPACES) for _ in range(rng.randint(1, 3))]
            parts.append(rng.choice(["x", "word", "7", "42", ".", "'s", "é", "字", ""]))
        return "".join(parts[rng.randint(0, 1):])

    def special() -> str:
        pieces = [rng.choice(SPECIALS), rng.choice(WORDS), rng.choice(SPACES), number()]
        rng.shuffle(pieces)
        return "".join(pieces) + (rng.choice(SPECIALS) if rng.random() < 0.3 else "")

    def broken_special() -> str:
        text = rng.choice(SPECIALS)
        cut = rng.randint(1, len(text) - 1)
        return text[:cut] + rng.choice(["", " ", "x", "<", "|"]) * rng.randint(0, 2) + text[cut:]

    def code() -> str:
        return "".join(rng.choice(CODE) + rng.choice(["", "\n", "\n\n", "  ", "\t"])
                       for _ in range(rng.randint(1, 3)))

    def control() -> str:
        return "".join(rng.choice([chr(rng.randint(0, 31)), chr(rng.randint(127, 160)),
                                   rng.choice(INVISIBLE), rng.choice(WORDS)])
                       for _ in range(rng.randint(1, 6)))

    def symbols() -> str:
        return "".join(rng.choice(SYMBOLS) + rng.choice(["", "", " "])
                       for _ in range(rng.randint(1, 10)))

    def mixed() -> str:
        makers = [number, marked, spaced, special, symbols, control,
                  lambda: rng.choice(WORDS), lambda: rng.choice(EMOJI),
                  lambda: word(rng.choice(list(SCRIPTS)))]
        return "".join(rng.choice(makers)() for _ in range(rng.randint(2, 5)))

    made = list(HAND) + SPECIALS + SPACES + INVISIBLE + EMOJI + SYMBOLS + URLS + CODE
    made += [chr(i) for i in range(256)]
    made += [a + s + b for s, a, b in product(SPACES, ["", "a"], ["a", "1", "."])]
    for script in SCRIPTS:
        made += [word(script), " ".join(word(script) for _ in range(rng.randint(2, 5))),
                 word(script) + number() + " " + word(script)]
    for digits in DIGITS:
        for gap in ["", " ", "  ", "\n", "\t\t"]:
            made.append("n" + gap + "".join(char(digits) for _ in range(rng.randint(1, 4))))
    draws = [(sentence, 330), (number, 40), (marked, 100), (spaced, 180), (special, 120),
             (broken_special, 80), (code, 90), (control, 90), (symbols, 80), (mixed, 400)]
    for maker, count in draws:
        made += [maker() for _ in range(count)]
    made += [rng.choice(URLS) + rng.choice([" ", "", "\n"]) + sentence() for _ in range(40)]
    made += ["".join(rng.choice(EMOJI) for _ in range(rng.randint(2, 5))) for _ in range(40)]
    made += [c * n for c in ["a", "A", " ", "\n", "0", "=", "é", "字", "ab", "🙂", "\t", "-"]
             for n in (3, 9, 33, 130)]
    made += ["".join(char(SCRIPTS["latin"]) for _ in range(n)) for n in (50, 200, 600)]
    made += ["Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
             "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch",
             "antidisestablishmentarianism" * 5, "kissa" + "istuu" * 30]
    return list(dict.fromkeys(made))


if __name__ == "__main__":
    print(len(strings()), "strings,", sum(map(len, strings())), "characters")
