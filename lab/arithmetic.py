"""Sums worked out in words, in steps small enough for a small model."""

import operator
from itertools import zip_longest

COLUMNS = "Ones Tens Hundreds Thousands".split()


def digits(number):
    """The digits of a number, ones first."""
    return [int(d) for d in reversed(str(number))]


def work(a, op, b):
    """Result and worked steps of `a op b`; op is + - * / // or %.

    Raises ValueError where the steps are not spelled out: a negative
    difference, or a division by anything but a single digit.
    """
    result, steps = OPERATIONS[op]
    return result(a, b), steps(a, b)


def add(a, b):
    """Column addition: `Ones: 7 + 8 = 15, write 5, carry 1. Tens: ...`."""
    if a < 10 and b < 10 or a < 50 and b < 10 and a % 10 + b < 10:
        return f"{a} + {b} = {a + b}."
    steps, carry = [], 0
    columns = list(zip_longest(digits(a), digits(b)))
    for i, column in enumerate(columns):
        terms = [d for d in column if d is not None] + [carry] * bool(carry)
        total = sum(terms)
        step = " + ".join(map(str, terms))
        step += f" = {total}" if len(terms) > 1 else ""
        carry = total // 10 if i + 1 < len(columns) else 0
        step += f", write {total % 10}, carry {carry}" if carry else ""
        steps.append(f"{COLUMNS[i]}: {step}.")
    return " ".join([*steps, f"So {a} + {b} = {a + b}."])


def subtract(a, b):
    """Column subtraction: `Ones: 13 - 7 = 6, borrow 1. Tens: ...`."""
    if a < b:
        raise ValueError(f"{a} - {b} is negative, expected a >= b")
    if a < 20 and a - b < 10 and b < 10:
        return f"{a} - {b} = {a - b}."
    steps, borrow = [], 0
    for i, (x, y) in enumerate(zip_longest(digits(a), digits(b))):
        terms = [borrow] * bool(borrow) + [y] * (y is not None)
        need = x < sum(terms)
        top = x + 10 * need
        step = " - ".join(map(str, [top, *terms]))
        step += f" = {top - sum(terms)}" if terms else ""
        borrow = int(need)
        steps.append(f"{COLUMNS[i]}: {step}{', borrow 1' * need}.")
    return " ".join([*steps, f"So {a} - {b} = {a - b}."])


def multiply(a, b):
    """Products: table facts, columns, round numbers, long multiplication."""
    if b > 9 and (b % 10 or str(b).rstrip("0") not in "1 2 3 4 5 6 7 8 9"):
        return multiply(b, a) if a < 10 else long_product(a, b)
    if b > 9:
        return round_product(a, b)
    if a < 10 or b < 2:
        return f"{a} * {b} = {a * b}."
    steps, carry = [], 0
    for i, d in enumerate(digits(a)):
        step = f"{d} * {b} = {d * b}"
        step += f", {d * b} + {carry} = {d * b + carry}" if carry else ""
        total, last = d * b + carry, i + 1 == len(digits(a))
        carry = 0 if last else total // 10
        step += f", write {total % 10}, carry {carry}" if carry else ""
        steps.append(f"{COLUMNS[i]}: {step}.")
    return " ".join([*steps, f"So {a} * {b} = {a * b}."])


def round_product(a, b):
    """Times 10, 40, 300: times the first digit, then the zeros."""
    first, zeros = int(str(b)[0]), len(str(b)) - 1
    if first == 1:
        return f"{a} * {b} = {a * b}."
    return f"{multiply(a, first)} Add {'0' * zeros}. So {a} * {b} = {a * b}."


def long_product(a, b):
    """Times a two-digit number: times its tens, times its ones, added."""
    tens, ones = b // 10 * 10, b % 10
    parts = round_product(a, tens), multiply(a, ones), add(a * tens, a * ones)
    return " ".join([*parts, f"So {a} * {b} = {a * b}."])


def divide(a, b):
    """Long division by one digit: `15 / 8 = 1 remainder 7, bring down 6.`."""
    if not 1 < b < 10:
        raise ValueError(f"{a} / {b}: expected a divisor from 2 to 9")
    left, steps = 0, []
    for digit in str(a):
        left = left * 10 + int(digit)
        if left < b and not steps and left < a:
            continue
        steps.append(f"{left} / {b} = {left // b} remainder {left % b}")
        left %= b
    if len(steps) == 1:
        return steps[0].removesuffix(" remainder 0") + "."
    rest = str(a)[-len(steps) + 1 :]
    lines = [f"{s}, bring down {d}." for s, d in zip(steps, rest)]
    end = f"{a} / {b} = {a // b}" + f" remainder {a % b}" * bool(a % b)
    return " ".join([*lines, f"{steps[-1]}.", f"So {end}."])


def quotient(a, b):
    """Python's `//` of small numbers."""
    return f"{a} // {b} = {a // b}."


def remainder(a, b):
    """Python's `%` of small numbers."""
    return f"{a} % {b} = {a % b}."


OPERATIONS = {
    "+": (operator.add, add),
    "-": (operator.sub, subtract),
    "*": (operator.mul, multiply),
    "/": (operator.floordiv, divide),
    "//": (operator.floordiv, quotient),
    "%": (operator.mod, remainder),
}
