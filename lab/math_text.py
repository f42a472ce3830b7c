"""Arithmetic and word problems with worked steps."""

from arithmetic import digits, subtract, work
from grammar import family
from words import POOLS


def size(rng):
    """A number of two digits, or now and then of three."""
    return rng.randrange(11, rng.choice((100, 100, 1000)))


def two_numbers(rng):
    return {"a": size(rng), "b": size(rng)}


def steps_of(a, op, b):
    """The worked steps of one sum as a slot."""
    return {"steps": work(a, op, b)[1]}


@family("math", "add", """
What is {a} + {b}?
> We add {a} and {b}. <a + b = s>

Add {b} to {a}.
> Start with {a} and add {b}. <a + b = s>

Find the sum of {a} and {b}. Show your steps.
> The sum is {a} + {b}. <a + b = s>

{A} has {a} {thing}s. {B} gives {A.him} {b} more. How many {thing}s does {A} \
have now?
> {A} had {a} {thing}s and got {b} more, so we add. <a + b = s>

A shop sold {a} {food}s on {day} and {b} {food}s on {day2}. How many {food}s \
did it sell on both days?
> On {day} it was {a} and on {day2} it was {b}. Together that is {a} + {b}. \
<a + b = s>

There are {a} {animal}s and {b} {animal2}s on the farm. How many animals are \
there in all?
> We count all animals: {a} {animal}s plus {b} {animal2}s. <a + b = s>

The road from the {place} to the {place2} is {a} km long, and from there it is \
{b} km more to the {place3}. How long is the whole way?
> The whole way is {a} km and then {b} km. <a + b = s>

A book has {a2} pages. {A} read {a} of them on {day} and {b} on {day2}. How \
many pages did {A.she} read on the two days?
> Only the two days count: {a} pages and {b} pages. <a + b = s>

If you put {a} {color} {thing}s and {b} {color2} {thing}s into one bag, how \
many {thing}s are in the bag?
> The bag holds {a} {color} ones and {b} {color2} ones. <a + b = s>
""")
def draw_add(rng):
    return two_numbers(rng) | {"a2": rng.randrange(200, 1000)}


@family("math", "subtract", """
What is {a} - {b}?
> We take {b} from {a}. <a - b = s>

Subtract {b} from {a}.
> Start with {a} and take away {b}. <a - b = s>

Find the difference between {a} and {b}.
> The difference is {a} - {b}. <a - b = s>

{A} had {a} {thing}s. {A.She} gave {b} of them to {B}. How many {thing}s does \
{A} still have?
> {A} gave away {b} of {a} {thing}s, so we subtract. <a - b = s>

A baker made {a} {food}s. By the {time}, {b} of them were gone. How many \
{food}s were left?
> Of {a} {food}s, {b} are gone. <a - b = s>

The {place} is {a} m away. {A} has walked {b} m so far. How many meters are \
left?
> The whole way is {a} m and {b} m are done. <a - b = s>

{A} wants to buy a {thing} for {a} coins but has only {b} coins. How many \
coins are missing?
> The {thing} costs {a} and {A} has {b}. <a - b = s>

A book has {a} pages. {A} is on page {b}. How many pages come after that?
> There are {a} pages, and {b} of them are behind {A.him}. <a - b = s>
""")
def draw_subtract(rng):
    b, s = size(rng), size(rng)
    return {"a": b + s, "b": b} if b + s < 1000 else {"a": b, "b": b // 3}


@family("math", "compare", """
{A} has {a} {thing}s and {B} has {b} {thing}s. How many more does {A} have?
> {A} has more, so we take {b} from {a}. <a - b = s>

On {day} there were {b} people at the {place}, and on {day2} there were {a}. \
By how much did the number grow?
> It grew from {b} to {a}. <a - b = s>

The {color} rope is {a} cm long. The {color2} rope is {b} cm long. How much \
longer is the {color} rope?
> We compare {a} cm with {b} cm. <a - b = s>

A {animal} weighs {a} kg and a {animal2} weighs {b} kg. What is the difference \
in kg?
> The {animal} is heavier: {a} kg against {b} kg. <a - b = s>
""")
def draw_compare(rng):
    return draw_subtract(rng)


@family("math", "missing", """
Which number must be added to {b} to get {a}?
> The missing number is {a} - {b}. <a - b = s>

{b} + ? = {a}. What is the missing number?
> We need {a} - {b}. <a - b = s>

{A} had {b} {thing}s in the {time}. After a walk to the {place} {A.she} has \
{a}. How many did {A.she} find?
> {A} went from {b} to {a}, so {A.she} found {a} - {b}. <a - b = s>

{A} thinks of a number. {A.She} adds {b} and gets {a}. What is the number?
> We go back from {a} and take away {b}. <a - b = s>
""")
def draw_missing(rng):
    return draw_subtract(rng)


@family("math", "multiply", """
What is {a} * {k}?
> We multiply {a} by {k}. <a * k = s>

Multiply {a} by {k}.
> The task is {a} * {k}. <a * k = s>

What is {k} times {a}? Explain each step.
> {k} times {a} is {a} * {k}. <a * k = s>

{A} has {k} {adj} boxes. Each box holds {a} {thing}s. How many {thing}s are \
there?
> There are {k} boxes with {a} {thing}s each. <a * k = s>

One {thing} costs {a} coins. How much do {k} {thing}s cost?
> {k} {thing}s cost {k} times {a} coins. <a * k = s>

A {job} works {a} hours each week. How many hours is that in {k} weeks?
> Each of the {k} weeks has {a} hours. <a * k = s>

There are {k} rows of chairs in the {place}, and each row has {a} chairs. How \
many chairs are there?
> {k} rows of {a} chairs make {a} * {k}. <a * k = s>

{A} swims {a} m every {time}. How far does {A.she} swim in {k} days?
> {A.She} swims {a} m on each of {k} days. <a * k = s>
""")
def draw_multiply(rng):
    return {"a": rng.randrange(3, 100), "k": rng.randrange(2, 10)}


@family("math", "divide", """
What is {a} / {k}?
> We divide {a} by {k}. <a / k = s>

Divide {a} by {k}.
> The task is {a} / {k}. <a / k = s>

How many times does {k} go into {a}?
> We need {a} / {k}. <a / k = s>

{A} shares {a} {food}s equally among {k} friends. How many does each friend get?
> {a} {food}s are split into {k} equal parts. <a / k = s>

{k} {thing}s cost {a} coins. How much does one {thing} cost?
> One {thing} costs {a} / {k} coins. <a / k = s>

A {job} puts {a} {thing}s into bags of {k}. How many bags are filled?
> Each bag takes {k} of the {a} {thing}s. <a / k = s>

{A} needs {a} minutes to clean {k} rooms of the same size. How many minutes \
does one room take?
> {a} minutes are spread over {k} rooms. <a / k = s>
""")
def draw_divide(rng):
    k = rng.randrange(2, 10)
    return {"a": k * rng.randrange(2, 100), "k": k}


@family("math", "remainder", """
What is the remainder of {a} divided by {k}?
> We divide and look at the rest. {steps} The remainder is {r}.

Divide {a} by {k} with remainder and give only the remainder.
> {steps} What remains is {r}.

{A} packs {a} {thing}s into boxes of {k}. How many {thing}s do not fit into a \
full box?
> We fill boxes of {k} with {a} {thing}s. {steps} Left over: {r}.

{a} children form teams of {k} at the {place}. How many children are left \
without a team?
> {a} children make teams of {k}. {steps} Left over: {r}.

A rope of {a} m is cut into pieces of {k} m. How many meters remain?
> We cut {a} m into pieces of {k} m. {steps} The rest is {r} m.
""")
def draw_remainder(rng):
    k = rng.randrange(2, 10)
    a = k * rng.randrange(2, 80) + rng.randrange(1, k)
    return {"a": a, "k": k, "r": a % k, "answer": a % k} | steps_of(a, "/", k)


@family("math", "three", """
What is {a} + {b} + {c}?
> First {a} + {b}. <a + b = s> Then we add {c}. <s + c = t>

{A} found {a} {thing}s, {B} found {b} and {C} found {c}. How many did they \
find together?
> We add the finds of {A} and {B} first. <a + b = s> Then those of {C}. \
<s + c = t>

A {job} drove {a} km on {day}, {b} km on {day2} and {c} km on {day3}. How many \
km is that in all?
> First {day} and {day2}. <a + b = s> Then {day3}. <s + c = t>

Add up the prices: {thing} {a}, {thing2} {b}, {thing3} {c}.
> The {thing} and the {thing2} first. <a + b = s> Then the {thing3}. <s + c = t>
""")
def draw_three(rng):
    return {x: rng.randrange(5, 80) for x in "abc"}


@family("math", "gain_loss", """
What is {a} + {b} - {c}?
> From left to right. <a + b = s> Then we take {c} away. <s - c = t>

{A} had {a} {thing}s, bought {b} more and gave {c} to {B}. How many {thing}s \
are left?
> After buying {A} has {a} + {b}. <a + b = s> {A.She} gives {c} away. \
<s - c = t>

There were {a} people on a bus. At the {place} {b} people got on and {c} got \
off. How many people are on the bus now?
> {b} people get on. <a + b = s> {c} people get off. <s - c = t>

A jar holds {a} {food}s. {A} puts in {b}. Then {B} eats {c}. How many are in \
the jar?
> {A} fills the jar up. <a + b = s> {B} eats {c}. <s - c = t>

At the {place} it was {a} degrees. It got {b} degrees warmer and later {c} \
degrees colder. How warm is it now?
> It gets warmer first. <a + b = s> Then it gets colder. <s - c = t>
""")
def draw_gain_loss(rng):
    a, b = rng.randrange(8, 70), rng.randrange(5, 50)
    return {"a": a, "b": b, "c": rng.randrange(3, a)}


@family("math", "times_plus", """
What is {a} * {k} + {b}?
> The product comes first. <a * k = p> Then we add {b}. <p + b = s>

{A} buys {k} bags with {a} {food}s each and gets {b} {food}s from {B}. How \
many {food}s does {A} have?
> The bags hold {a} * {k}. <a * k = p> Then {b} more. <p + b = s>

A taxi costs {b} coins plus {a} coins for each km. What does a ride of {k} km \
cost?
> {k} km cost {a} * {k}. <a * k = p> We add the {b} coins. <p + b = s>

{A} saves {a} coins every week. {A.She} had {b} coins at the start. How many \
coins does {A.she} have after {k} weeks?
> In {k} weeks {A} saves {a} * {k}. <a * k = p> With the {b} from the start: \
<p + b = s>

A box with {k} {thing}s is weighed. Each {thing} weighs {a} g and the empty \
box {b} g. What is the weight in g?
> The {thing}s weigh {a} * {k}. <a * k = p> The box adds {b}. <p + b = s>
""")
def draw_times_plus(rng):
    a, k = rng.randrange(3, 30), rng.randrange(2, 10)
    return {"a": a, "k": k, "b": rng.randrange(4, 100)}


@family("math", "times_minus", """
What is {m} - {a} * {k}?
> The product comes first. <a * k = p> We take it from {m}. <m - p = s>

{A} pays with {m} coins for {k} {food}s at {a} coins each. How much change \
does {A.she} get?
> The {food}s cost {a} * {k}. <a * k = p> The change is {m} minus that. \
<m - p = s>

A rope is {m} cm long. {A} cuts off {k} pieces of {a} cm. How many cm are left?
> The pieces take {a} * {k}. <a * k = p> The rest of {m} stays. <m - p = s>

A book has {m} pages. {A} reads {a} pages a day for {k} days. How many pages \
are still to read?
> In {k} days {A} reads {a} * {k}. <a * k = p> We take this from {m}. \
<m - p = s>

A tank holds {m} liters. {k} buckets of {a} liters are taken out. How many \
liters stay in the tank?
> The buckets take {a} * {k}. <a * k = p> The tank keeps the rest of {m}. \
<m - p = s>
""")
def draw_times_minus(rng):
    a, k = rng.randrange(3, 25), rng.randrange(2, 10)
    return {"a": a, "k": k, "m": a * k + rng.randrange(1, 90)}


@family("math", "two_products", """
What is {a} * {k} + {b} * {n}?
> Both products first. <a * k = p> <b * n = q> Then the sum. <p + q = s>

{A} buys {k} {food}s for {a} coins each and {n} {thing}s for {b} coins each. \
What does {A.she} pay?
> The {food}s: <a * k = p> The {thing}s: <b * n = q> Together: <p + q = s>

A {place} has {k} tables with {a} seats and {n} tables with {b} seats. How \
many seats are there?
> The first tables: <a * k = p> The other tables: <b * n = q> All seats: \
<p + q = s>

{A} runs {a} km on each of {k} days and {b} km on each of {n} days. How many \
km is that?
> The first days: <a * k = p> The other days: <b * n = q> In all: <p + q = s>
""")
def draw_two_products(rng):
    k, n = rng.sample(range(2, 10), 2)
    a, b = rng.randrange(2, 15), rng.randrange(2, 15)
    return {"a": a, "b": b, "k": k, "n": n}


@family("math", "percent", """
What is {p}% of {n}?
> 10% of {n} is {t}. {p}% is {m} times as much. <t * m = s>

{A} has {n} {thing}s, and {p}% of them are {color}. How many {thing}s are \
{color}?
> 10% of {n} {thing}s is {t}. We need {m} times that. <t * m = s>

A {thing} costs {n} coins. On {day} it is {p}% cheaper. By how many coins does \
the price fall?
> 10% of {n} is {t}. The price falls by {m} times {t}. <t * m = s>

A coat costs {n} coins. The shop takes {p}% off. What is the new price?
> 10% of {n} is {t}, and {p}% is {m} times that. <t * m = s> We take it from \
{n}. <n - s = r>

{p}% of the {n} seats in the {place} are taken. How many seats are free?
> 10% of {n} is {t}, so we take {m} times {t}. <t * m = s> The others are \
free. <n - s = r>
""")
def draw_percent(rng):
    t, m = rng.randrange(2, 90), rng.randrange(2, 10)
    return {"n": 10 * t, "t": t, "m": m, "p": 10 * m}


@family("math", "fraction", """
What is {m}/{k} of {n}?
> One part of {k}: <n / k = u> Now {m} parts: <u * m = s>

{A} reads {m}/{k} of a book with {n} pages. How many pages is that?
> We split {n} into {k} parts. <n / k = u> {A} reads {m} of them. <u * m = s>

Of {n} {thing}s, {m}/{k} are {color}. How many {color} {thing}s are there?
> One part is {n} / {k}. <n / k = u> There are {m} such parts. <u * m = s>
""")
def draw_fraction(rng):
    k = rng.randrange(3, 10)
    return {"k": k, "m": rng.randrange(2, k), "n": k * rng.randrange(2, 40)}


@family("math", "units", """
How many minutes are {h} hours and {m} minutes?
> One hour has 60 minutes. <h * 60 = x> Then {m} minutes more. <x + m = s>

A film at the {place} lasts {h} hours and {m} minutes. How long is that in \
minutes?
> {h} hours of 60 minutes: <h * 60 = x> Add {m} minutes. <x + m = s>

How many cm are {h} m and {m} cm?
> One meter has 100 cm. <h * 100 = x> Then {m} cm more. <x + m = s>

A {thing} costs {h} dollars and {m} cents. What is the price in cents?
> One dollar has 100 cents. <h * 100 = x> Add {m} cents. <x + m = s>

How many days are {h} weeks and {d} days?
> One week has 7 days. <h * 7 = x> Then {d} days more. <x + d = s>

{A} stays at the {place} for {h} weeks and {d} days. How many days is that?
> {h} weeks of 7 days: <h * 7 = x> Add {d} days. <x + d = s>

How many {food}s are {h} dozen {food}s and {m} more?
> One dozen is 12. <12 * h = x> Then {m} more. <x + m = s>

{A} is {h} years and {d} months old. How many months is that?
> One year has 12 months. <12 * h = x> Add {d} months. <x + d = s>

A {animal} weighs {h} kg and {g} g. What is its weight in g?
> One kg has 1000 g. <h * 1000 = x> Then {g} g more. <x + g = s>
""")
def draw_units(rng):
    m, g = rng.randrange(5, 60), rng.randrange(101, 1000)
    return {"h": rng.randrange(2, 10), "m": m, "d": rng.randrange(2, 7), "g": g}


@family("math", "arrival", """
A train leaves at {h}:{mm} and needs {d} minutes. When does it arrive?
> The minutes first: <m + d = t> {over}

{A} starts {hobby} at {h}:{mm} and stops {d} minutes later. What time is it \
then?
> We add the minutes. <m + d = t> {over}

The clock at the {place} shows {h}:{mm}. What will it show in {d} minutes?
> {d} minutes pass. <m + d = t> {over}

A {food} goes into the oven at {h}:{mm} and bakes for {d} minutes. When is it \
done?
> It bakes for {d} minutes. <m + d = t> {over}
""")
def draw_arrival(rng):
    h, m, d = rng.randrange(1, 12), rng.randrange(60), rng.randrange(5, 60)
    late, rest = divmod(m + d, 60)
    over = f"That is less than 60, so the hour stays {h}."
    if late:
        over = f"That is an hour and more. {subtract(m + d, 60)}"
        over += f" The hour goes from {h} to {h + 1}."
    answer = f"{h + late}:{rest:02d}"
    return {"h": h, "m": m, "mm": f"{m:02d}", "d": d, "over": over,
            "answer": answer}  # fmt: skip


@family("math", "duration", """
A lesson starts at {h}:{mm} and ends at {h}:{ee}. How many minutes does it last?
> It ends at minute {e} and starts at minute {m}. <e - m = t>

{A} waits at the {place} from {h}:{mm} to {h}:{ee}. For how many minutes does \
{A.she} wait?
> From minute {m} to minute {e}. <e - m = t>

A bus should come at {h}:{mm} but comes at {h}:{ee}. How many minutes late is \
it?
> The bus is late from minute {m} to minute {e}. <e - m = t>
""")
def draw_duration(rng):
    m, e = sorted(rng.sample(range(60), 2))
    return {"h": rng.randrange(1, 13), "m": m, "e": e, "mm": f"{m:02d}",
            "ee": f"{e:02d}"}  # fmt: skip


@family("math", "weekday", """
Today is {start}. Which day is it in {n} days?
> <n / 7 = w> After {w} weeks it is {start} again. {count}

{A} goes to the {place} on {start} and comes back {n} days later. Which day is \
that?
> <n / 7 = w> {w} weeks later it is {start} too. {count}

A {thing} was sent on a {start} and came after {n} days. On which day did it \
come?
> <n / 7 = w> Full weeks lead from {start} to {start}: {w} of them. {count}
""")
def draw_weekday(rng):
    i, n = rng.randrange(7), rng.randrange(8, 70)
    days = [POOLS["day"][(i + j) % 7] for j in range(n % 7 + 1)]
    count = f"Then {n % 7} more: {', '.join(days[1:])}."
    count = count if n % 7 else "No day is left."
    return {"start": days[0], "n": n, "count": count, "answer": days[-1]}


@family("math", "sequence", """
Continue: {x1}, {x2}, {x3}, {x4}, ?
> From {x1} to {x2} the step is {k}. <x4 + k = x5>

What is the next number? {x1}, {x2}, {x3}, {x4}
> Each number is {k} more than the one before. <x4 + k = x5>

{A} writes {x1}, {x2}, {x3} and {x4}. Which number comes next?
> {A} adds {k} each time. <x4 + k = x5>

A plant is {x1} cm high. A week later it is {x2} cm, then {x3} cm, then {x4} \
cm. How high is it after one more week?
> It grows {k} cm a week. <x4 + k = x5>
""")
def draw_sequence(rng):
    a, k = rng.randrange(1, 60), rng.randrange(2, 10)
    return {f"x{i + 1}": a + i * k for i in range(4)} | {"k": k}


@family("math", "falling", """
Count further down: {x1}, {x2}, {x3}, {x4}, ?
> The numbers fall by {k}. <x4 - k = x5>

{A} counts down: {x1}, {x2}, {x3}, {x4}. What comes next?
> {A} takes away {k} each time. <x4 - k = x5>

A candle is {x1} mm high, after an hour {x2} mm, then {x3} mm, then {x4} mm. \
How high is it one hour later?
> It loses {k} mm each hour. <x4 - k = x5>
""")
def draw_falling(rng):
    a, k = rng.randrange(60, 100), rng.randrange(2, 10)
    return {f"x{i + 1}": a - i * k for i in range(4)} | {"k": k}


@family("math", "doubling", """
Keep doubling: {x1}, {x2}, {x3}, ?
> Each number is twice the one before. <x3 * 2 = x4>

A {animal} eats {x1} {food}s on {day}, {x2} on the next day and {x3} on the \
day after, always twice as many. How many does it eat then?
> The number doubles each day. <x3 * 2 = x4>

{A} has {a} coins. The number doubles every year. How many coins are there \
after 3 years?
> Year one: <a * 2 = y> Year two: <y * 2 = z> Year three: <z * 2 = w>
""")
def draw_doubling(rng):
    a = rng.randrange(3, 100)
    return {"a": a, "x1": a, "x2": 2 * a, "x3": 4 * a}


@family("math", "average", """
What is the average of {a}, {b} and {c}?
> First the sum. <a + b = s> <s + c = t> Then we divide by 3. <t / 3 = m>

{A} scored {a}, {b} and {c} points in three games. What is the mean score?
> All points: <a + b = s> <s + c = t> There were 3 games. <t / 3 = m>

It took {A} {a} minutes on {day}, {b} minutes on {day2} and {c} minutes on \
{day3} to walk to the {place}. How long did it take on average?
> All minutes: <a + b = s> <s + c = t> Three days: <t / 3 = m>
""")
def draw_average(rng):
    a, b, c = (rng.randrange(2, 40) for _ in range(3))
    return {"a": a, "b": b, "c": c + (-a - b - c) % 3}


@family("math", "rectangle", """
A rectangle is {a} cm long and {k} cm wide. What is its area?
> The area is length times width. <a * k = s>

The {place} has a floor of {a} m by {k} m. How many square meters is that?
> We multiply {a} by {k}. <a * k = s>

A rectangle has sides of {a} cm and {b} cm. What is its perimeter?
> One long and one short side: <a + b = h> Twice that: <h * 2 = s>

{A} walks once around a field that is {a} m long and {b} m wide. How far does \
{A.she} walk?
> Half of the way is {a} + {b}. <a + b = h> The whole way: <h * 2 = s>

A square has sides of {a} cm. How long are all four sides together?
> Four equal sides: <a * 4 = s>
""")
def draw_rectangle(rng):
    a, b = sorted(rng.sample(range(4, 100), 2), reverse=True)
    return {"a": a, "b": b, "k": rng.randrange(2, 10)}


def compare_steps(a, b):
    """Two numbers compared digit by digit from the left."""
    if len(str(a)) != len(str(b)):
        long, short = max(a, b), min(a, b)
        return f"{long} has more digits than {short}."
    names, steps = ["ones", "tens", "hundreds"], []
    for i in reversed(range(len(str(a)))):
        x, y = digits(a)[i], digits(b)[i]
        steps.append(f"{names[i]}: {x} and {y} are equal")
        if x != y:
            more = "more" if x > y else "less"
            steps[-1] = f"{names[i]}: {x} is {more} than {y}"
            break
    return "Compare the " + ", ".join(steps) + "."


@family("math", "larger", """
Which number is larger, {a} or {b}?
> {how} So {high} is larger than {low}.

{A} has {a} points and {B} has {b} points. What is the higher score?
> {how} So the higher score is {high}.

Two {thing}s cost {a} and {b} coins. What does the more expensive one cost?
> {how} So the higher price is {high}.

The {place} has {a} rooms and the {place2} has {b} rooms. What is the larger \
number?
> {how} So {high} is the larger number.
""")
def draw_larger(rng):
    a, b = rng.sample(range(10, 1000), 2)
    if rng.randrange(2):
        b = a - a % 100 + b % 100
    b += a == b
    return {"a": a, "b": b, "how": compare_steps(a, b), "high": max(a, b),
            "low": min(a, b), "answer": max(a, b)}  # fmt: skip


@family("math", "rounding", """
Round {a} to the nearest ten.
> {a} lies between {low} and {high}. The last digit is {d}, {rule}

About how many {thing}s are {a} {thing}s, to the nearest ten?
> The tens around {a} are {low} and {high}. The last digit is {d}, {rule}

{A} paid {a} coins and wants to tell {B} a round number. Which ten is closest?
> {a} is between {low} and {high}. Its last digit is {d}, {rule}
""")
def draw_rounding(rng):
    a = rng.randrange(11, 990)
    low, d = a - a % 10, a % 10
    up = f"which is 5 or more, so we go up to {low + 10}."
    rule = up if d >= 5 else f"which is less than 5, so we go down to {low}."
    return {"a": a, "low": low, "high": low + 10, "d": d, "rule": rule,
            "answer": low + 10 * (d >= 5)}  # fmt: skip


def sort_steps(numbers):
    """The smallest number is taken out again and again."""
    steps, left = [], list(numbers)
    while len(left) > 1:
        listing = ", ".join(map(str, left))
        steps.append(f"The smallest of {listing} is {min(left)}.")
        left.remove(min(left))
    return " ".join([*steps, f"The last one is {left[0]}."])


@family("math", "sort", """
Sort these numbers from small to large: {numbers}
> {how}

{A} has cards with the numbers {numbers}. Put them in order, the smallest first.
> {how}

The prices are {numbers}. List them from low to high.
> {how}
""")
def draw_sort(rng):
    numbers = rng.sample(range(1, 100), rng.choice((3, 3, 4)))
    return {"numbers": ", ".join(map(str, numbers)), "how": sort_steps(numbers),
            "answer": ", ".join(map(str, sorted(numbers)))}  # fmt: skip


@family("math", "digit_sum", """
What is the sum of the digits of {n}?
> The digits are {x}, {y} and {z}. <x + y = s> <s + z = t>

{A} adds up the digits of the number {n}. What does {A.she} get?
> {A} sees {x}, {y} and {z}. <x + y = s> <s + z = t>

The house number is {n}. Add its digits.
> We read {x}, {y} and {z}. <x + y = s> <s + z = t>
""")
def draw_digit_sum(rng):
    z, y, x = digits(n := rng.randrange(100, 1000))
    return {"n": n, "x": x, "y": y, "z": z}


@family("math", "digits", """
Write the digits of {n} in reverse order.
> The digits are {x}, {y}, {z} and {w}. From the end: {w}, {z}, {y}, {x}.

{A} reads the number {n} from right to left. Which digits does {A.she} say?
> From left to right it is {x}, {y}, {z}, {w}. From right to left: {w}, {z}, \
{y}, {x}.

A lock opens with the digits of {n} backwards. Which digits are they?
> Forwards: {x}, {y}, {z}, {w}. Backwards: {w}, {z}, {y}, {x}.
""")
def draw_digits(rng):
    w, z, y, x = digits(n := rng.randrange(1000, 10000))
    return {"n": n, "x": x, "y": y, "z": z, "w": w, "answer": f"{w}{z}{y}{x}"}


@family("math", "parity", """
Is {n} even or odd?
> The last digit of {n} is {d}. {d} is {p}, so {n} is {p}.

{A} wants to share {n} {thing}s with {B} so that both get the same number. Is \
{n} even or odd?
> We look at the last digit, {d}. It is {p}, so {n} is {p}.

The bus to the {place} has the number {n}. Is this an even or an odd number?
> Only the last digit counts: {d}. That makes {n} {p}.
""")
def draw_parity(rng):
    n = rng.randrange(10, 10000)
    p = "odd" if n % 2 else "even"
    return {"n": n, "d": n % 10, "p": p, "answer": p}


@family("math", "age", """
{A} is {a} years old. {B} is {d} years older. How old will {B} be in {t} years?
> {B} is {a} + {d} now. <a + d = x> In {t} years: <x + t = y>

{A} is {a} years old. In {t} years, {A.she} will be as old as {B} is now. How \
old will {B} be {d} years from now?
> {B} is {a} + {t} now. <a + t = x> Then {d} years more. <x + d = y>

{A} was {a} years old {t} years ago. How old will {A.she} be in {d} years?
> Now {A} is {a} + {t}. <a + t = x> Later: <x + d = y>

{A} is {a}. {A.Her} brother is {k} times as old. How old is the brother in {d} \
years?
> The brother is {a} * {k} now. <a * k = x> Then {d} more years. <x + d = y>
""")
def draw_age(rng):
    a, d, t = rng.randrange(4, 40), rng.randrange(2, 20), rng.randrange(2, 20)
    return {"a": a, "d": d, "t": t, "k": rng.randrange(2, 4)}


@family("math", "long_product", """
What is {a} * {b}?
> We split {b} into tens and ones. <a * b = s>

{b} {job}s carry {a} {thing}s each. How many {thing}s do they carry?
> {b} times {a}, with {b} split into tens and ones. <a * b = s>

A wall has {b} rows of {a} stones. How many stones are in the wall?
> We need {a} * {b} and split {b} into tens and ones. <a * b = s>
""")
def draw_long_product(rng):
    b = rng.randrange(1, 5) * 10 + rng.randrange(1, 10)
    return {"a": rng.randrange(11, 100), "b": b}


@family("math", "speed", """
A {job} drives {v} km in one hour. How far is that in {k} hours?
> Each hour adds {v} km. <v * k = s>

A ship needs {k} hours for {w} km. How many km does it make in one hour?
> We divide {w} km by {k} hours. <w / k = s>

{A} walks {k} km an hour. The {place} is {w} km away. How many hours does the \
way take?
> {w} km at {k} km an hour. <w / k = s>

A train makes {v} km an hour for {k} hours and then {u} km more. How long is \
the way?
> The first part: <v * k = p> Then {u} km. <p + u = s>
""")
def draw_speed(rng):
    k = rng.randrange(2, 10)
    return {"k": k, "v": rng.randrange(11, 100), "w": k * rng.randrange(4, 60),
            "u": rng.randrange(5, 60)}  # fmt: skip


@family("math", "share", """
{A} has {a} {food}s and {B} has {b}. They put them together and share them \
with friends, so that {k} people get the same number. How many does each get?
> Together they have {a} + {b}. <a + b = s> Shared by {k}: <s / k = t>

A {job} has {a} {color} and {b} {color2} {thing}s and fills {k} bags equally. \
How many {thing}s are in each bag?
> All {thing}s: <a + b = s> Into {k} bags: <s / k = t>

{a} girls and {b} boys go to the {place} in {k} equal groups. How many \
children are in each group?
> All children: <a + b = s> In {k} groups: <s / k = t>

What is ({a} + {b}) / {k}?
> The brackets first. <a + b = s> Then we divide. <s / k = t>
""")
def draw_share(rng):
    k = rng.randrange(2, 10)
    total = k * rng.randrange(4, 22)
    a = rng.randrange(2, total - 1)
    return {"a": a, "b": total - a, "k": k}


@family("math", "twice", """
{A} has {a} {thing}s. {B} has twice as many. How many do they have together?
> {B} has twice {a}. <a * 2 = x> Together: <x + a = s>

A {adj} {thing} costs {a} coins and a {adj2} one costs {k} times as much. What \
do both cost together?
> The {adj2} one costs {a} * {k}. <a * k = x> Both: <x + a = s>

{A} is {a} cm from the wall. {B} is {k} times as far away. How many cm is {B} \
behind {A}?
> {B} is {a} * {k} away. <a * k = x> The difference: <x - a = s>

The {place} is {a} km away. {A} goes there and back {k} times. How many km is \
that?
> There and back is twice {a}. <a * 2 = x> Now {k} times: <x * k = s>
""")
def draw_twice(rng):
    return {"a": rng.randrange(4, 70), "k": rng.randrange(3, 7)}


@family("math", "half", """
What is half of {n}?
> Half of {n} is {n} / 2. <n / 2 = s>

{A} gives half of {A.her} {n} {thing}s to {B} and finds {b} new ones. How many \
{thing}s does {A} have?
> Half of {n}: <n / 2 = h> Then {b} new ones. <h + b = s>

A {animal} is {n} cm long and a {animal2} is half as long. How long are both \
in a row?
> The {animal2} is half of {n}. <n / 2 = h> In a row: <n + h = s>
""")
def draw_half(rng):
    return {"n": 2 * rng.randrange(5, 200), "b": rng.randrange(4, 50)}


@family("math", "largest_gap", """
On {day} the {place} had {a} guests, on {day2} {b} and on {day3} {c}. How many \
more guests came on the best day than on the worst?
> The best day had {high} guests and the worst {low}. <high - low = s>

Take the smallest of {a}, {b} and {c} away from the largest.
> The largest is {high}, the smallest is {low}. <high - low = s>

{A}, {B} and {C} have {a}, {b} and {c} {thing}s. Add the largest and the \
smallest number.
> The largest is {high}, the smallest is {low}. <high + low = s>
""")
def draw_largest_gap(rng):
    a, b, c = rng.sample(range(10, 100), 3)
    return {"a": a, "b": b, "c": c, "high": max(a, b, c), "low": min(a, b, c)}


@family("math", "seats", """
{a} guests come to the {place}. {k} guests fit at a table. How many tables are \
needed so that all can sit?
> Full tables: <a / k = t> The {r} guests left need one more. <t + 1 = s>

A boat takes {k} people. {a} people want to cross the river. How many trips \
are needed?
> Full boats: <a / k = t> The last {r} need a trip too. <t + 1 = s>

{A} sends {a} {thing}s in boxes of {k}. How many boxes does {A.she} need for \
all?
> Full boxes: <a / k = t> {r} {thing}s remain for one more box. <t + 1 = s>
""")
def draw_seats(rng):
    k = rng.randrange(3, 10)
    a = k * rng.randrange(2, 10) + rng.randrange(1, k)
    return {"a": a, "k": k, "r": a % k}
