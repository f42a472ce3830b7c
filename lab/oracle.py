"""The answer of every math template, computed from its question alone.

A formula sees the numbers of the question in order of appearance as a, b, c,
d and n, and the first weekday as `day`. `family` serves all entries of a
family, `family/3` the fourth one only.
"""

import re

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

FORMULAS = {
    "add": "a + b", "add/7": "b + c",
    "subtract": "a - b", "subtract/1": "b - a",
    "compare": "a - b", "compare/1": "b - a",
    "missing": "b - a", "multiply": "a * b",
    "divide": "a / b", "divide/2": "b / a", "divide/4": "b / a",
    "remainder": "a % b", "three": "a + b + c", "gain_loss": "a + b - c",
    "times_plus": "a * b + c", "times_plus/2": "a + b * c",
    "times_plus/3": "a * c + b", "times_minus": "a - b * c",
    "two_products": "a * b + c * d",
    "percent": "a * b / 100", "percent/3": "a * (100 - b) / 100",
    "percent/4": "b * (100 - a) / 100",
    "fraction": "c * a / b", "fraction/2": "a * b / c",
    "units/0": "a * 60 + b", "units/1": "a * 60 + b",
    "units/2": "a * 100 + b", "units/3": "a * 100 + b",
    "units/4": "a * 7 + b", "units/5": "a * 7 + b",
    "units/6": "a * 12 + b", "units/7": "a * 12 + b",
    "units/8": "a * 1000 + b",
    "arrival": "'%d:%02d' % divmod(a * 60 + b + c, 60)",
    "duration": "d - b", "weekday": "DAYS[(DAYS.index(day) + a) % 7]",
    "sequence": "d + (b - a)", "falling": "d - (a - b)",
    "doubling": "c * c / b", "doubling/2": "a * 2 ** 3",
    "average": "(a + b + c) / 3",
    "rectangle": "2 * (a + b)", "rectangle/0": "a * b",
    "rectangle/1": "a * b", "rectangle/4": "4 * a",
    "larger": "max(n)", "rounding": "(a + 5) // 10 * 10",
    "sort": "', '.join(map(str, sorted(n)))",
    "digit_sum": "sum(map(int, str(a)))", "digits": "str(a)[::-1]",
    "parity": "'odd' if a % 2 else 'even'",
    "age": "a + b + c", "age/3": "a * b + c", "long_product": "a * b",
    "speed": "a * b", "speed/1": "b / a", "speed/2": "b / a",
    "speed/3": "a * b + c", "share": "(a + b) / c",
    "twice/0": "a + 2 * a", "twice/1": "a + a * b", "twice/2": "a * b - a",
    "twice/3": "2 * a * b", "half/0": "a / 2", "half/1": "a / 2 + b",
    "half/2": "a + a / 2",
    "largest_gap": "max(n) - min(n)", "largest_gap/2": "max(n) + min(n)",
    "seats": "-(-a // b)", "seats/1": "-(-b // a)",
}  # fmt: skip


def answer(example):
    """The right answer to a math question, as text."""
    name = example.template.removeprefix("math/")
    formula = FORMULAS.get(name) or FORMULAS[name.split("/")[0]]
    numbers = [int(x) for x in re.findall(r"\d+", example.prompt)]
    days = re.findall("|".join(DAYS), example.prompt)
    values = dict(zip("abcd", numbers), n=numbers, DAYS=DAYS)
    result = eval(formula, values | {"day": days[0] if days else None})
    return str(int(result)) if isinstance(result, float) else str(result)


def false_sums(text):
    """The equations in a text that do not hold."""
    found = re.finditer(
        r"(?<![\d*/+-] )\b(\d+(?: (?:\+|-|\*|//|%) \d+)+) = (\d+)", text
    )
    return [m[0] for m in found if eval(m[1]) != int(m[2])]


def false_divisions(text):
    """The divisions with remainder in a text that do not hold."""
    found = re.finditer(r"(\d+) / (\d+) = (\d+)(?: remainder (\d+))?", text)
    return [m[0] for m in found
            if divmod(int(m[1]), int(m[2])) != (int(m[3]), int(m[4] or 0))]  # fmt: skip
