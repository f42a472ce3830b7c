"""The closed vocabulary from which every example draws its nouns and names.

Every noun begins with a consonant and takes a plain -s in the plural, so that
templates may write "a {thing}" and "{thing}s" without rules of grammar.
"""


class Name(str):
    """A person's name that knows its pronouns: `{A.she}`, `{A.her}`, ..."""

    girls = frozenset(
        "Anna Mia Lena Sara Ella Nora Ruby Lucy Rosa Kate Jane Maya Zoe Lily"
        " Emma Clara Ida Vera Tina Gina".split()
    )

    def __getattr__(self, pronoun):
        """The pronoun of this person, named by its female form."""
        male = {"she": "he", "her": "his", "him": "him", "She": "He",
                "Her": "His"}  # fmt: skip
        if pronoun not in male:
            raise AttributeError(pronoun)
        female = "her" if pronoun == "him" else pronoun
        return female if self in self.girls else male[pronoun]


BOYS = (
    "Tom Ben Max Leo Sam Jack Paul Noah Finn Hugo Omar Ivan Luke Adam Carl"
    " Dan Eric Fred Nick Theo"
)

POOLS = {
    "name": [Name(n) for n in [*sorted(Name.girls), *BOYS.split()]],
    "thing": "book pencil coin ball cup card shell stone marble sticker button"
    " stamp ticket lamp basket bottle candle flower ribbon spoon plate kite"
    " map key bell drum hat coat rope bag toy doll letter picture blanket"
    " bucket hammer lantern mirror ring".split(),
    "food": "pear plum cookie muffin carrot lemon banana biscuit pancake melon"
    " nut bun roll pie cake tart".split(),
    "animal": "dog cat rabbit horse duck goat cow pig bird frog turtle hen lamb"
    " parrot kitten bear".split(),
    "place": "park garden school market library station beach forest kitchen"
    " museum farm harbor village bakery castle river bridge hill shop barn"
    " lake tower theater meadow".split(),
    "adj": "small big shiny heavy round soft little bright warm clean broken"
    " golden wooden pretty strange tiny plain dusty lovely large".split(),
    "color": "red blue green yellow white black brown pink purple gray".split(),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "month": "January February March April May June July August September"
    " October November December".split(),
    "job": "teacher farmer baker driver doctor sailor painter nurse pilot"
    " gardener cook singer".split(),
    "mood": "happy sad tired proud calm brave hungry curious nervous"
    " cheerful".split(),
    "hobby": "reading drawing swimming cooking dancing painting singing running"
    " fishing hiking".split(),
    "weather": "sunny rainy windy cloudy foggy snowy".split(),
    "time": "morning afternoon evening night".split(),
    "verb": "found lost bought sold carried cleaned painted dropped washed hid"
    " moved wrapped".split(),
    "function": [
        f"{verb}_{noun}"
        for verb in "get find make compute build take".split()
        for noun in "value result number score total answer output data".split()
    ],
    "var": "n x a value number count size num".split(),
    "list": "items values numbers data scores nums".split(),
    "key": "pen cup hat box key map bag jar fan mat".split(),
}

PEOPLE = "ABCD"  # slots that hold different names


def choose(rng, pool, taken):
    """One entry of a pool that is not among the values already taken."""
    while True:
        word = rng.choice(POOLS[pool])
        if word not in taken:
            return word
