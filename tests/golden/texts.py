"""Texts that the model reads: one of about 700 tokens, and 24 prompts."""

SHORT = "The quick brown fox jumps over the lazy dog near the bank."

LONG = """\
The harbour at Lindvik

In the autumn of 1871 a surveyor named Johanna Brekke came to Lindvik with two
chronometers, a barometer and a letter from the ministry. The letter asked her to
measure the tides. Nobody in the village thought that they needed measuring: the
water came up, the water went down, and a sensible person tied the boat with a long
rope. But the ministry wanted a table of numbers, and so every hour, by day and by
night, she walked to the end of the pier and read a painted staff.

The first thing she learned was that the staff was wrong. It had been nailed to a
pile that was slowly sinking, about 4 mm each month, so that the sea seemed to rise
for ever. She set a second mark in the rock behind the church, levelled between the
two every Sunday, and wrote the difference in red ink. The second thing she learned
was that high water at Lindvik did not follow the moon by the 6 hours and 12 minutes
that her handbook promised. It came 47 minutes early, and after a strong wind from
the south-west it came earlier still.

"Perhaps your clock is fast," said the priest.

"I have two," she answered, "and they agree."

She drew the heights as a curve, and beneath it the pressure of the air. Where the
pressure fell by one millibar the water stood one centimetre higher, almost exactly,
as if the sea were a second barometer of the size of Europe. Wind was harder. It
pushed the water into the long inlet, and the inlet let it go again only slowly, in
swings of 83 minutes that died away like those of a plucked string. When she had
subtracted the moon, the sun, the pressure and the swing, what was left was smaller
than the width of her pencil.

By spring she had 5,184 readings. The table that the ministry printed has one line
for each day, and it is still correct to within a hand's breadth. A short program
does today what took her most of a winter:

def height(t, parts, mean=2.31):
    \"\"\"Height of the water in metres, t hours after midnight.\"\"\"
    total = mean
    for amplitude, period, phase in parts:
        total += amplitude * math.cos(2 * math.pi * t / period - phase)
    return total

parts = [(0.84, 12.4206, 1.92), (0.29, 12.0000, 2.47), (0.07, 25.8193, 0.33)]
for hour in range(24):
    print(f"{hour:02d}:00  {height(hour, parts):5.2f} m")

It prints two rises and two falls, one slightly higher than the other, for reasons
that Johanna Brekke explained in a footnote which nobody read until 1936. The moon
does not stand over the equator, she wrote, so that of the two bulges of water one
passes north of us and one passes south; we live a little nearer to the first.

The rock behind the church carries her mark, a cross inside a circle, and below it
the year. Children are told that a giant made it.
"""

# (kind, text): "chat" is one user message, "raw" goes in as it is.
PROMPTS = [
    ("raw", "The"),
    ("raw", "\n"),
    ("raw", "1"),
    ("raw", "Once upon a time"),
    ("raw", "The capital of France is"),
    ("raw", "def fibonacci(n):\n    "),
    ("raw", "1, 2, 3, 5, 8, 13,"),
    ("raw", "Q: What is 17 + 25?\nA:"),
    ("raw", "<html>\n<head>\n<title>"),
    ("raw", "Ingredients:\n- 2 eggs\n- 200 g flour\n- "),
    ("raw", "La vie est belle parce que"),
    ("raw", "東京は"),
    ("raw", LONG[:560]),
    ("raw", LONG[:1290]),
    ("chat", "Hi"),
    ("chat", "What is the capital of Norway?"),
    ("chat", "Explain in two sentences why the sky is blue."),
    ("chat", "Write a Python function that reverses a string."),
    ("chat", "List five fruits, one on each line."),
    ("chat", "Translate to German: Good morning, how are you?"),
    ("chat", "Tell me a short story about a robot who learns to paint. 🤖🎨"),
    ("chat", "Write a haiku about the sea."),
    ("chat", "What does this program print?\n\n```python\nfor i in range(3):\n"
             "    print(i * i, end=' ')\nprint('done')\n```"),
    ("chat", "Summarise this text in three sentences:\n\n" + LONG[25:1180]),
]
