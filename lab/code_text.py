"""Small Python programs with their computed output."""

import contextlib
import io
import textwrap

from grammar import TEMPLATES, Template, blocks, fill
from words import POOLS, choose

FRAMES = {
    "function": """
Write a Python function {signature} that {want}. What is {call}?

Write {signature} in Python. It {want}. Show the result of {call}.

I need a Python function {signature}. It {want}. Please run {call} too.

Define a function {signature} that {want}, then evaluate {call}.

Please code {signature} so that it {want}. Trace {call}.

In Python, {signature} {want}. Give the code and the value of {call}.
""",
    "program": """
What does this program print?
{source}

Predict the output of this code:
{source}

Read the code and say what it prints.
{source}

Run this Python program in your head:
{source}

{source}
What is the output?
""",
}


def fence(code):
    """The code in a Markdown fence."""
    return f"```python\n{code}\n```"


def run_call(source, call):
    """The repr of `call` after `source` has run."""
    scope = {}
    exec(source, scope)
    return repr(eval(call, scope))


def run_program(source):
    """What a program prints, without the last line end."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source, {})
    return out.getvalue().rstrip("\n")


def split_entry(block):
    """Description, code and trace of a table entry."""
    lines = block.split("\n")
    code = [x for x in lines if x.startswith("    ")]
    trace = [x[1:].strip() for x in lines if x.startswith(">")]
    text = [x for x in lines if not x.startswith((">", "    "))]
    return "\n".join(text), "\n".join(code), "\n".join(trace)


def functions(name, params, args, table):
    """Registers `def {f}(params)` tasks that end in `{f}(args) -> value`."""

    def register(draw):
        for i, block in enumerate(blocks(table)):
            want, body, trace = split_entry(block)
            source = f"def {{f}}({params}):\n{body}\n\n{{f}}({args})"
            TEMPLATES.append(Template(
                "code", f"code/function/{name}/{i}", want, trace, draw, source
            ))  # fmt: skip
        return draw

    return register


def programs(name, table):
    """Registers "what does this print" tasks that end in `Output: ...`."""

    def register(draw):
        for i, block in enumerate(blocks(table)):
            _, code, trace = split_entry(block)
            TEMPLATES.append(Template(
                "code", f"code/program/{name}/{i}", "", trace, draw,
                textwrap.dedent(code),
            ))  # fmt: skip
        return draw

    return register


def edits(name, args, table):
    """Registers "change this function" tasks: old code, `=>`, new code."""

    def register(draw):
        for i, block in enumerate(blocks(table)):
            want, code, trace = split_entry(block)
            source = textwrap.dedent(code) + f"\n\n{{f}}({args})"
            TEMPLATES.append(Template(
                "code", f"code/edit/{name}/{i}", want, trace, draw, source
            ))  # fmt: skip
        return draw

    return register


def build_code(template, slots):
    """Prompt, response and answer of a code template."""
    task = template.name.split("/")[1]
    slots["f"] = choose(slots.rng, "function", list(slots.values()))
    source = fill(template.source, slots)
    return {"function": build_function, "program": build_program,
            "edit": build_edit}[task](template, slots, source)  # fmt: skip


def build_function(template, slots, source):
    """A task in words; the response has the code, its run and its value."""
    source, call = source.rsplit("\n\n", 1)
    slots["signature"] = source.split("\n")[0].removeprefix("def ")[:-1]
    slots["call"], slots["want"] = call, fill(template.ask, slots)
    frame = slots.rng.choice(blocks(FRAMES["function"]))
    answer = run_call(source, call)
    end = f"{call} -> {answer}"
    reply = f"{fence(source)}\n{fill(template.reply, slots)}\n{end}"
    return fill(frame, slots), reply, answer


def build_program(template, slots, source):
    """A program; the response follows it and gives its output."""
    slots["source"] = fence(source)
    frame = slots.rng.choice(blocks(FRAMES["program"]))
    answer = run_program(source)
    reply = f"{fill(template.reply, slots)}\nOutput: {answer}"
    return fill(frame, slots), reply, answer


def build_edit(template, slots, source):
    """A function to change; the response has the new one and its value."""
    source, call = source.rsplit("\n\n", 1)
    old, new = source.split("\n=>\n")
    answer = run_call(new, call)
    ask = f"{fill(template.ask, slots)} Then give {call}.\n{fence(old)}"
    end = f"{call} -> {answer}"
    reply = f"{fence(new)}\n{fill(template.reply, slots)}\n{end}"
    return ask, reply, answer


def verdicts(values, test):
    """`3 no, 8 yes`: which values pass a test."""
    marks = [f"{v} {'yes' if test(v) else 'no'}" for v in values]
    return ", ".join(marks) + "."


def running(values, op="+"):
    """`3 + 8 = 11. 11 + 5 = 16.`: a fold written out."""
    steps, total = [], values[0]
    for v in values[1:]:
        result = total + v if op == "+" else total * v
        steps.append(f"{total} {op} {v} = {result}.")
        total = result
    return " ".join(steps)


@functions("number", "{var}", "{n}", """
returns {var} times {k} plus {m}
    return {var} * {k} + {m}
> <n * k = p> <p + m = q>

adds {m} to {var} and then multiplies by {k}
    return ({var} + {m}) * {k}
> <n + m = p> <p * k = q>

returns the square of {var}
    return {var} ** 2
> The square is {n} * {n}. <n * n = p>

returns {var} times {var} minus {var}
    return {var} * {var} - {var}
> <n * n = p> <p - n = q>

halves {var} and drops the rest
    return {var} // 2
> <n // 2 = p>

returns what is left when {var} is divided by {k}
    return {var} % {k}
> <n // k = p> <n % k = r>

returns True if {var} is even
    return {var} % 2 == 0
> <n % 2 = r> We compare {r} with 0.

returns True if {var} is odd
    return {var} % 2 == 1
> <n % 2 = r> We compare {r} with 1.

tells whether {k} divides {var}
    return {var} % {k} == 0
> <n % k = r> The test is {r} == 0.

returns the larger of {var} and {m}
    if {var} > {m}:
        return {var}
    return {m}
> We compare {n} with {m}.

returns {var} but never more than {m}
    return min({var}, {m})
> The smaller one of {n} and {m} counts.

returns 'big' if {var} is over {m} and else 'small'
    if {var} > {m}:
        return 'big'
    return 'small'
> Is {n} over {m}? The function answers with a word.

turns {var} minutes into seconds
    return {var} * 60
> One minute has 60 seconds. <n * 60 = p>

turns {var} weeks into days
    days = {var} * 7
    return days
> One week has 7 days. <n * 7 = p>

returns the price of {var} tickets at {k} coins each
    price = {k}
    return {var} * price
> {n} tickets at {k} coins. <n * k = p>

returns the price of {var} tickets at {k} coins and a fee of {m}
    tickets = {var} * {k}
    return tickets + {m}
> <n * k = p> The fee comes on top. <p + m = q>

returns the last digit of {var}
    return {var} % 10
> The rest of {n} divided by 10 is its last digit.

returns {var} without its last digit
    return {var} // 10
> We divide {n} by 10 and drop the rest.

returns the next even number after {var}
    if {var} % 2 == 0:
        return {var} + 2
    return {var} + 1
> <n % 2 = r> The rest tells which step we take.

returns a list with {var}, twice {var} and three times {var}
    return [{var}, {var} * 2, {var} * 3]
> <n * 2 = p> <n * 3 = q>

returns a pair of {var} minus {d} and {var} plus {d}
    return {var} - {d}, {var} + {d}
> <n - d = p> <n + d = q>

returns the distance of {var} from {m}
    return abs({var} - {m})
> We take {low} from {high}. <high - low = p>

returns the area of a square with the side {var}
    side = {var}
    return side * side
> Side times side. <n * n = p>

returns the length around a square with the side {var}
    return 4 * {var}
> Four sides of {n}. <4 * n = p>

returns {var} times {k} if {var} is even and else {var}
    if {var} % 2 == 0:
        return {var} * {k}
    return {var}
> <n % 2 = r> With rest 0 we multiply, else we keep {n}.

adds 1 to {var} as long as {k} does not divide it
    while {var} % {k} != 0:
        {var} += 1
    return {var}
> We look for the next number after {n} that {k} divides.
""")
def draw_number(rng):
    n, m = rng.randrange(3, 40), rng.randrange(1, 40)
    return {"n": n, "k": rng.randrange(2, 10), "m": m, "d": rng.randrange(1, 4),
            "high": max(n, m), "low": min(n, m)}  # fmt: skip


@functions("pair", "a, b", "{n}, {m}", """
returns the sum of a and b times {k}
    return (a + b) * {k}
> <n + m = s> <s * k = p>

returns a times {k} plus b
    return a * {k} + b
> <n * k = p> <p + m = s>

returns the larger of a and b
    return a if a > b else b
> We compare {n} with {m}.

returns the smaller of a and b without min
    if a < b:
        return a
    return b
> We compare {n} with {m}.

returns how far a and b are apart
    if a > b:
        return a - b
    return b - a
> {n} and {m}: the smaller is taken from the larger.

returns the area of a field with the sides a and b
    return a * b
> Length times width. <n * m = p>

returns the length of a fence around a field of a by b
    return 2 * (a + b)
> <n + m = s> <s * 2 = p>

returns a and b in the other order
    return b, a
> {n} and {m} change places.

returns True if a plus b is over {t}
    return a + b > {t}
> <n + m = s> We compare {s} with {t}.

returns True if a and b are both over {k}
    return a > {k} and b > {k}
> {n} and {m} must both be over {k}.

returns True if a or b equals {k}
    return a == {k} or b == {k}
> One of {n} and {m} must be {k}.

returns b if a is even and else a
    return b if a % 2 == 0 else a
> <n % 2 = r> With rest 0 we take {m}, else {n}.

returns a list that holds a, b and their sum
    return [a, b, a + b]
> <n + m = s>

returns a dictionary with the sum and the product of a and b
    return {'sum': a + b, 'product': a * b}
> <n + m = s> <n * m = p>

returns the text of a sum, such as '2 + 3'
    return str(a) + ' + ' + str(b)
> {n} and {m} become text with a plus sign between them.
""")
def draw_pair(rng):
    n, m = rng.sample(range(2, 13), 2)
    return {"n": n, "m": m, "k": rng.randrange(2, 10), "d": rng.randrange(2, 5),
            "t": rng.randrange(5, 22)}  # fmt: skip


@functions("list", "{list}", "{data}", """
returns the sum of {list} with a loop
    total = 0
    for item in {list}:
        total += item
    return total
> We add one by one. {sums}

returns the sum of {list} plus {k}
    return sum({list}) + {k}
> {sums} Then {k} comes on top.

returns how many numbers are in {list}
    return len({list})
> We count the entries: {listing}.

returns the largest number in {list} with a loop
    best = {list}[0]
    for item in {list}:
        if item > best:
            best = item
    return best
> We start with {first} and keep the larger one: {tops}.

returns the smallest number in {list}
    return min({list})
> We look through {listing}.

returns the first and the last number of {list}
    return {list}[0], {list}[-1]
> The list begins with {first} and ends with {last}.

returns {list} in reverse order
    return {list}[::-1]
> From the end: {backwards}.

returns a sorted copy of {list}
    return sorted({list})
> In order: {ordered}.

returns {list} sorted from large to small
    return sorted({list}, reverse=True)
> From large to small: {falling}.

returns a list in which every number of {list} is doubled
    return [2 * item for item in {list}]
> {doubles}

adds {k} to every number of {list}
    return [item + {k} for item in {list}]
> {shifts}

keeps the numbers of {list} that are over {k}
    return [item for item in {list} if item > {k}]
> Over {k}: {big}

keeps the numbers of {list} that are under {k} with a loop
    kept = []
    for item in {list}:
        if item < {k}:
            kept.append(item)
    return kept
> Under {k}: {small}

keeps the even numbers of {list}
    return [item for item in {list} if item % 2 == 0]
> Even: {even}

drops the even numbers of {list}
    return [item for item in {list} if item % 2]
> Odd: {odd}

counts the even numbers in {list}
    count = 0
    for item in {list}:
        if item % 2 == 0:
            count += 1
    return count
> Even: {even}

counts how many numbers of {list} are over {k}
    return sum(1 for item in {list} if item > {k})
> Over {k}: {big}

tells whether {k} is in {list}
    return {k} in {list}
> We look for {k} in {listing}.

returns the place of {last} in {list}
    return {list}.index({last})
> Counting from 0, we look for {last} in {listing}.

returns {list} without its first number
    return {list}[1:]
> All but {first} stays.

returns {list} without its last number
    return {list}[:-1]
> All but {last} stays.

returns the first two numbers of {list}
    return {list}[:2]
> The first two of {listing}.

returns every second number of {list}
    return {list}[::2]
> We keep one and skip one in {listing}.

appends {k} to a copy of {list}
    return {list} + [{k}]
> {k} goes to the end.

puts {k} in front of {list}
    return [{k}] + {list}
> {k} goes to the front.

returns the running totals of {list}
    total, result = 0, []
    for item in {list}:
        total += item
        result.append(total)
    return result
> The first total is {first}. {sums}

returns the difference between the largest and the smallest number of {list}
    return max({list}) - min({list})
> The largest is {high}, the smallest is {low}. <high - low = gap>

swaps the first and the last number of {list}
    result = list({list})
    result[0], result[-1] = result[-1], result[0]
    return result
> {first} and {last} change places.

returns pairs of place and number for {list}
    return list(enumerate({list}))
> The places are counted from 0 for {listing}.

replaces every number of {list} over {k} by {k}
    return [min(item, {k}) for item in {list}]
> Over {k}: {big}

returns True if all numbers of {list} are over {k}
    return all(item > {k} for item in {list})
> Over {k}: {big}

returns True if any number of {list} is over {k}
    return any(item > {k} for item in {list})
> Over {k}: {big}
""")
def draw_list(rng):
    data = rng.sample(range(1, 13), rng.choice((3, 4, 4, 5)))
    k = rng.randrange(2, 15)
    tops = [max(data[: i + 1]) for i in range(len(data))]
    return list_orders(data) | {
        "k": k, "data": data, "sums": running(data), "listing": comma(data),
        "first": data[0], "last": data[-1], "tops": comma(tops),
        "high": max(data), "low": min(data),
        "doubles": " ".join(f"2 * {v} = {2 * v}." for v in data),
        "shifts": " ".join(f"{v} + {k} = {v + k}." for v in data),
        "big": verdicts(data, lambda v: v > k),
        "small": verdicts(data, lambda v: v < k),
        "even": verdicts(data, lambda v: v % 2 == 0),
        "odd": verdicts(data, lambda v: v % 2),
    }  # fmt: skip


def comma(values):
    """`3, 8, 5`."""
    return ", ".join(map(str, values))


def list_orders(data):
    """The list backwards, sorted up and sorted down, as text."""
    return {"backwards": comma(data[::-1]), "ordered": comma(sorted(data)),
            "falling": comma(sorted(data)[::-1])}  # fmt: skip


@functions("words", "words", "{data}", """
joins the words with '-'
    return '-'.join(words)
> {listing} with '-' between them.

joins the words with a space and adds '!'
    text = ' '.join(words)
    return text + '!'
> {listing} in one text, then '!'.

returns the words in reverse order
    return list(reversed(words))
> From the end: {backwards}.

returns the first word twice
    return words[0] + words[0]
> The first word is {first}.

returns the number of words
    return len(words)
> We count {listing}.

returns a dictionary from each word to its place
    return {word: i for i, word in enumerate(words)}
> The places are counted from 0: {listing}.

tells whether '{other}' is among the words
    return '{other}' in words
> We look for {other} in {listing}.

returns the words without '{last}'
    return [word for word in words if word != '{last}']
> We drop {last} and keep the others.

returns the words with '{other}' at the end
    return words + ['{other}']
> {other} goes to the end.

returns the last word in a greeting
    return 'hello ' + words[-1]
> The last word is {last}.

puts every word in brackets
    return ['(' + word + ')' for word in words]
> Each of {listing} gets brackets.

numbers the words from 1 and returns lines of text
    lines = []
    for i, word in enumerate(words, 1):
        lines.append(str(i) + ' ' + word)
    return lines
> We count from 1: {listing}.
""")
def draw_words(rng):
    data = rng.sample(POOLS["key"] + POOLS["animal"], rng.choice((2, 3, 3, 4)))
    other = rng.choice([*data, *POOLS["key"]])
    return {"data": data, "listing": comma(data), "other": other,
            "backwards": comma(data[::-1]), "first": data[0],
            "last": data[-1]}  # fmt: skip


@functions("dict", "prices", "{data}", """
returns the price of '{key}'
    return prices['{key}']
> We look up {key}.

returns the price of '{some}' or 0 if it is missing
    return prices.get('{some}', 0)
> We look for {some} among {listing}.

returns the sum of all prices
    return sum(prices.values())
> {sums}

returns the names that cost more than {k}
    return [name for name in prices if prices[name] > {k}]
> Over {k}: {big}

returns the name with the highest price
    return max(prices, key=prices.get)
> We compare {costs}.

raises every price by {k}
    return {name: p + {k} for name, p in prices.items()}
> {shifts}

doubles the price of '{key}' and returns it
    price = prices['{key}']
    return price * 2
> {key} costs {cost}. <cost * 2 = p>

returns the names in the order of the dictionary
    return list(prices)
> The names are {listing}.

returns the price of {n} pieces of '{key}'
    return {n} * prices['{key}']
> {key} costs {cost}. <n * cost = p>

tells whether '{some}' has a price
    return '{some}' in prices
> The names are {listing}. We look for {some}.

removes '{key}' and returns what is left
    rest = dict(prices)
    del rest['{key}']
    return rest
> {key} goes, the others stay.
""")
def draw_dict(rng):
    names = rng.sample(POOLS["key"], rng.choice((2, 3, 3)))
    costs = rng.sample(range(2, 13), len(names))
    data, k = dict(zip(names, costs)), rng.randrange(2, 15)
    key = rng.choice(names)
    return {"data": data, "k": k, "n": rng.randrange(2, 6), "key": key,
            "cost": data[key], "some": rng.choice([key, *POOLS["key"]]),
            "listing": comma(names), "costs": comma(costs),
            "sums": running(costs), "big": verdicts(costs, lambda v: v > k),
            "shifts": " ".join(f"{v} + {k} = {v + k}." for v in costs),
            }  # fmt: skip


@functions("loop", "{var}", "{n}", """
adds the numbers from 1 to {var}
    total = 0
    for i in range(1, {var} + 1):
        total += i
    return total
> {sums}

returns the product of the numbers from 1 to {var}
    result = 1
    for i in range(1, {var} + 1):
        result *= i
    return result
> {products}

counts down from {var} to 1
    steps = []
    while {var} > 0:
        steps.append({var})
        {var} -= 1
    return steps
> We go from {n} down to 1.

returns the first {var} multiples of {k}
    return [{k} * i for i in range(1, {var} + 1)]
> {multiples}

returns the squares from 1 to {var}
    return [i * i for i in range(1, {var} + 1)]
> {squares}

adds {k} to {m} again and again, {var} times
    total = {m}
    for _ in range({var}):
        total += {k}
    return total
> {n} times {k} is added to {m}. {adding}

doubles {k} {var} times
    result = {k}
    for _ in range({var}):
        result *= 2
    return result
> {doubling}

adds the numbers from 1 to {var} by calling itself
    if {var} == 0:
        return 0
    return {var} + {f}({var} - 1)
> The calls end at 0, then the sums follow. {sums}

returns a list of {var} zeros with {k} at the end
    return [0] * {var} + [{k}]
> {n} zeros, then {k}.

returns the even numbers below {var}
    return [i for i in range({var}) if i % 2 == 0]
> We start at 0 and stop below {n}.
""")
def draw_loop(rng):
    n, k, m = rng.randrange(2, 6), rng.randrange(2, 10), rng.randrange(1, 50)
    up = range(1, n + 1)
    return {"n": n, "k": k, "m": m, "sums": running([*up]),
            "products": running([*up], "*"), "adding": running([m] + [k] * n),
            "doubling": running([k] + [2] * n, "*"),
            "multiples": " ".join(f"{k} * {i} = {k * i}." for i in up),
            "squares": " ".join(f"{i} * {i} = {i * i}." for i in up),
            }  # fmt: skip


@programs("numbers", """
    {var} = {n}
    {var} = {var} + {m}
    print({var} * {k})
> {var} starts at {n}. <n + m = p> Then it is multiplied. <p * k = q>

    a = {n}
    b = {m}
    a, b = b, a
    print(a, b)
> a is {n} and b is {m}. They change places.

    {var} = {n}
    if {var} > {m}:
        print('over {m}')
    else:
        print('not over {m}')
> {var} is {n}. Is {n} over {m}?

    price = {n}
    amount = {k}
    cost = price * amount
    print('cost', cost)
> The price is {n} and the amount is {k}. <n * k = p>

    {var} = {n}
    {var} += {m}
    {var} -= {d}
    print({var})
> {var} starts at {n}. <n + m = p> <p - d = q>

    print({n} // {k}, {n} % {k})
> <n // k = p> <n % k = q>

    a = {n}
    b = a + {m}
    c = a + b
    print(c)
> a is {n}. b: <n + m = p> c: <n + p = q>

    total = {m}
    for i in range({d}):
        total += {k}
    print(total)
> {k} is added {d} times. <k * d = p> <m + p = q>

    {var} = {n}
    while {var} > {k}:
        {var} -= {k}
    print({var})
> We take {k} from {n} until at most {k} is left: {down}.

    for {var} in range({d}):
        print({var}, {n})
    print({m})
> {var} runs from 0 and stays below {d}. Each time {n} follows, at the end {m}.

    def {f}(x):
        return x + {m}
    print({f}({f}({n})))
> The inner call: <n + m = p> The outer call: <p + m = q>

    def {f}(x, y={k}):
        return x * y
    print({f}({n}))
> y keeps its value {k}. <n * k = p>

    print({n} > {m} and {k} > {d})
> {n} > {m} and {k} > {d} must both hold.

    print(max({n}, {m}) - min({n}, {m}))
> The larger is {high}, the smaller is {low}. <high - low = p>
""")
def draw_program(rng):
    n, k, m = rng.randrange(5, 40), rng.randrange(2, 10), rng.randrange(4, 40)
    down = [n]
    while down[-1] > k:
        down.append(down[-1] - k)
    return {"n": n, "k": k, "m": m, "d": rng.randrange(2, 5),
            "high": max(n, m), "low": min(n, m),
            "down": comma(down)}  # fmt: skip


@programs("lists", """
    {list} = {data}
    {list}.append({k})
    print({list})
> {k} goes to the end of the list.

    {list} = {data}
    print({list}[0] + {list}[-1])
> The first is {first}, the last is {last}. <first + last = s>

    {list} = {data}
    total = 0
    for item in {list}:
        total = total + item
    print(total)
> {sums}

    {list} = {data}
    for item in {list}:
        if item > {k}:
            print(item)
    print('end')
> Over {k}: {big} At the end comes the word.

    {list} = {data}
    count = 0
    for item in {list}:
        if item % 2 == 0:
            count += 1
    print('even:', count)
> Even: {even}

    {list} = {data}
    print(sorted({list})[0], sorted({list})[-1])
> In order: {ordered}.

    {list} = {data}
    {list}.reverse()
    print({list}[0])
> From the end: {backwards}.

    {list} = {data}
    print([item + {k} for item in {list}])
> {shifts}

    {list} = {data}
    {list}.pop()
    print(len({list}), {list})
> The last one, {last}, is taken out.

    {list} = {data}
    other = {list}
    other[0] = {k}
    print({list})
> Both names mean one list, so its first entry becomes {k}.

    {list} = {data}
    best = 0
    for item in {list}:
        if item > best:
            best = item
    print('best is', best)
> The best so far: {tops}.

    {list} = {data}
    print({list}[1:3])
> We count from 0 in {listing} and stop before place 3.

    {list} = {data}
    print(sum(1 for item in {list} if item < {k}))
> Under {k}: {small}
""")
def draw_program_list(rng):
    return draw_list(rng)


@programs("texts", """
    word = '{thing}'
    word = '{first}-' + word
    print(word + '-{first}')
> The word is {thing}. {first} stands on both sides of it.

    words = {data}
    for word in words:
        print('a', word)
> One line for each of {listing}.

    words = {data}
    print(' and '.join(words))
> {listing} with 'and' between them.

    name = '{A}'
    thing = '{first}'
    print(name, 'has a', thing)
> name is {A} and thing is {first}.

    words = {data}
    words[0] = '{other}'
    print(words)
> The first entry becomes {other}.

    pet = {'name': '{A}', 'kind': '{animal}'}
    pet['kind'] = '{animal2}'
    print(pet['name'], pet['kind'])
> The name is {A}. The kind was {animal} and becomes {animal2}.

    words = {data}
    print(len(words), words[-1])
> We count {listing}. The last one is {last}.

    print(['{first}', '{thing}'] * {n})
> The list with {first} and {thing} is repeated {n} times.
""")
def draw_text(rng):
    return draw_words(rng) | {"n": rng.randrange(2, 6)}


@edits("number", "{n}", """
Rename the variable {var} to {var2} in this function.
    def {f}({var}):
        total = {var} * {k}
        return total + {var}
    =>
    def {f}({var2}):
        total = {var2} * {k}
        return total + {var2}
> Only the name has changed. <n * k = p> <p + n = q>

Rename the function {g} to {f}.
    def {g}({var}):
        return {var} + {m}
    =>
    def {f}({var}):
        return {var} + {m}
> The body stays as it was. <n + m = p>

This function should add {m}, but it subtracts. Fix it.
    def {f}({var}):
        return {var} - {m}
    =>
    def {f}({var}):
        return {var} + {m}
> The minus becomes a plus. <n + m = p>

This function should return its result, but it does not. Fix it.
    def {f}({var}):
        result = {var} * {k}
    =>
    def {f}({var}):
        result = {var} * {k}
        return result
> The return line was missing. <n * k = p>

Add a docstring to this function.
    def {f}({var}):
        return {var} * {k} + {m}
    =>
    def {f}({var}):
        "Return {var} times {k} plus {m}."
        return {var} * {k} + {m}
> The result stays the same. <n * k = p> <p + m = q>

Write this function in one line.
    def {f}({var}):
        result = {var} + {m}
        result = result * {k}
        return result
    =>
    def {f}({var}):
        return ({var} + {m}) * {k}
> Both steps stand in one line. <n + m = p> <p * k = q>

Change {k} to {j} in this function.
    def {f}({var}):
        value = {var} * {k}
        return value
    =>
    def {f}({var}):
        value = {var} * {j}
        return value
> Now the factor is {j}. <n * j = p>

Give the second argument the default value {k}.
    def {f}({var}, factor):
        return {var} * factor
    =>
    def {f}({var}, factor={k}):
        return {var} * factor
> Without a second argument the factor is {k}. <n * k = p>

Use a variable named step for the number {m}.
    def {f}({var}):
        return {var} + {m}
    =>
    def {f}({var}):
        step = {m}
        return {var} + step
> step holds {m}. <n + m = p>

Add type hints for int.
    def {f}({var}):
        return {var} * {k}
    =>
    def {f}({var}: int) -> int:
        return {var} * {k}
> Type hints change no result. <n * k = p>
""")
def draw_edit(rng):
    k, j = rng.sample(range(2, 10), 2)
    return {"n": rng.randrange(3, 40), "k": k, "j": j,
            "m": rng.randrange(2, 40), "g": rng.choice(POOLS["function"]),
            }  # fmt: skip


@edits("list", "{data}", """
Replace the loop by a list comprehension.
    def {f}({list}):
        result = []
        for item in {list}:
            result.append(item + {k})
        return result
    =>
    def {f}({list}):
        return [item + {k} for item in {list}]
> The result is the same. {shifts}

Use sum instead of the loop.
    def {f}({list}):
        total = 0
        for item in {list}:
            total += item
        return total
    =>
    def {f}({list}):
        return sum({list})
> {sums}

Write the list comprehension as a loop.
    def {f}({list}):
        return [item for item in {list} if item > {k}]
    =>
    def {f}({list}):
        result = []
        for item in {list}:
            if item > {k}:
                result.append(item)
        return result
> Over {k}: {big}

The loop should start with total 0, not {k}. Fix it.
    def {f}({list}):
        total = {k}
        for item in {list}:
            total += item
        return total
    =>
    def {f}({list}):
        total = 0
        for item in {list}:
            total += item
        return total
> {sums}

It should return the largest number, but it returns the smallest. Fix it.
    def {f}({list}):
        return min({list})
    =>
    def {f}({list}):
        return max({list})
> The best so far: {tops}.

Rename {list} to {list2} in this function.
    def {f}({list}):
        first = {list}[0]
        last = {list}[-1]
        return [first, last]
    =>
    def {f}({list2}):
        first = {list2}[0]
        last = {list2}[-1]
        return [first, last]
> The first is {first} and the last is {last}.
""")
def draw_edit_list(rng):
    return draw_list(rng)
