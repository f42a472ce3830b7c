"""The player of traces in a browser: it shows what a trace says, at each time, and harms nobody."""

import dataclasses
import re

import pytest
import site_checks as check
from made_traces import HOSTILE, a_trace
from site_checks import SITE

from dflash_lite.traces import TraceStep, player

STATE = """root => [...root.querySelectorAll('.df-lane')].map(lane => {
  const seen = e => getComputedStyle(e).visibility === 'visible';
  const tokens = [...lane.querySelectorAll('.df-text .df-token')];
  const shown = tokens.filter(seen);
  return {
    count: shown.length,
    first: tokens.slice(0, shown.length).every(seen),
    text: shown.map(e => e.textContent).join(''),
    fresh: tokens.flatMap((e, i) => e.classList.contains('df-fresh') ? [i] : []),
    now: lane.querySelector('.df-now').innerText,
  };
})"""


def reference(trace, t):
    """What a lane shows at a time, from the trace alone: tokens, steps that have ended."""
    steps = 0
    for step in trace.steps:
        if trace.prefill_seconds + step.seconds > t:
            break
        steps += 1
    if not trace.tokens or trace.prefill_seconds > t:
        return 0, steps
    return 1 + sum(step.new for step in trace.steps[:steps]), steps


def moments(*traces):
    """All times at which something changes."""
    begins = {trace.prefill_seconds for trace in traces}
    ends = {trace.prefill_seconds + step.seconds for trace in traces for step in trace.steps}
    return sorted({0.0} | begins | ends)


class Shown:
    """A player in a page."""

    def __init__(self, page, traces, number=0):
        self.page, self.traces = page, traces
        self.root = page.locator(".dflash-player").nth(number)
        self.stage = self.root.locator(".df-stage")
        self.slider = self.root.get_by_label("Time in seconds")

    @property
    def time(self):
        return float(self.stage.get_attribute("data-time"))

    def press(self, *keys):
        for key in keys:
            self.stage.press(key)

    def click(self, name):
        self.root.get_by_role("button", name=name).click()

    def go(self, t):
        """Drag the slider to a time."""
        move = "(e, t) => { e.value = t; e.dispatchEvent(new Event('input')); }"
        self.slider.evaluate(move, t)

    def check(self):
        """Compare all that is shown with the reference, at the time that is shown."""
        t, lanes, numbers = self.root.evaluate(
            f"root => [Number(root.querySelector('.df-stage').dataset.time), ({STATE})(root),"
            " [...root.querySelectorAll('.df-numbers')].map(e => e.innerText)]"
        )
        for trace, lane, said in zip(self.traces, lanes, numbers, strict=True):
            tokens, steps = reference(trace, t)
            assert lane["count"] == tokens and lane["first"], (t, lane)
            assert lane["text"] == "".join(trace.pieces[:tokens])
            begin = reference(trace, trace.prefill_seconds + trace.steps[steps - 2].seconds)[0]
            begin = 0 if not steps else 1 if steps == 1 else begin
            assert lane["fresh"] == list(range(begin, tokens)), (t, lane)
            parts = [f"{tokens} token{'s' * (tokens != 1)}"]
            if steps:
                step = trace.steps[steps - 1]
                parts.append(f"{(tokens - 1) / step.seconds:.1f} tokens/s")
                if trace.block > 1:
                    parts.append(f"{(tokens - 1) / steps:.2f} tokens a step with the bonus")
                if step.pages is not None:
                    parts.append(f"{step.pages} page{'s' * (step.pages != 1)}")
                assert lane["now"].startswith(f"Step {steps} of {len(trace.steps)}: ")
                if step.drafts:
                    assert f"{step.accepted} of {len(step.drafts)} draft" in lane["now"]
            else:
                says = "Prefill has read" if tokens else "Reading the prompt"
                assert lane["now"].startswith(says)
            assert said == " · ".join(parts)
        return t


@pytest.fixture
def show(tmp_path):
    """Save a player, or several, as a page, open it and return the first; no script may fail."""
    pages, errors = [], []

    def note(error):
        errors.append(str(error))

    def shown(page, traces, title="A race", also=""):
        page.emulate_media(media="screen")
        page.on("pageerror", note)
        pages.append(page)
        player(traces, title).save(tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text("utf-8").replace("</body>", also + "</body>")
        (tmp_path / "page.html").write_text(text, "utf-8")
        with check.watched(page, tmp_path.as_uri()) as problems:
            page.goto((tmp_path / "page.html").as_uri())
        assert problems == []
        return Shown(page, traces)

    yield shown
    for page in pages:
        page.remove_listener("pageerror", note)
    assert errors == []


@pytest.fixture
def race():
    """A plain trace and one with drafts, of one text; the plain one leads at first."""
    drafted = a_trace(40, 7, seed=5, pages=True)
    plain = a_trace(40, 0, seed=5, prefill_seconds=0.03)
    return [plain, drafted]


def test_the_slider_shows_what_the_trace_says(show, light, race):
    shown = show(light, race)
    stops = moments(*race)
    between = [(a + b) / 2 for a, b in zip(stops, stops[1:])]
    for t in [*sorted(stops + between), *sorted(stops, reverse=True), stops[7], stops[3]]:
        shown.go(t)
        assert shown.check() == (t if t in stops else pytest.approx(t, abs=1e-9))
        assert shown.slider.evaluate("e => e.valueAsNumber") == pytest.approx(t, abs=1e-9)


def test_steps_go_from_change_to_change(show, light, race):
    shown = show(light, race)
    stops = moments(*race)
    assert shown.check() == 0
    forth = [lambda: shown.click("Next"), lambda: shown.press("ArrowRight")]
    back = [lambda: shown.click("Back"), lambda: shown.press("ArrowLeft")]
    for n, stop in enumerate(stops[1:]):
        forth[n % 2]()
        assert shown.check() == stop
    shown.press("ArrowRight")
    assert shown.check() == stops[-1], "nothing is behind the end"
    for n, stop in enumerate(reversed(stops[:-1])):
        back[n % 2]()
        assert shown.check() == stop
    shown.press("ArrowLeft")
    assert shown.check() == 0
    shown.press("End")
    assert shown.check() == stops[-1]
    shown.press("Home")
    assert shown.check() == 0
    shown.press("End")
    shown.click("Restart")
    assert shown.check() == 0
    shown.go((stops[4] + stops[5]) / 2)
    shown.press("ArrowLeft")
    assert shown.check() == stops[4]


def test_it_plays_when_told_and_in_time(show, light, race):
    shown = show(light, race)
    end = moments(*race)[-1]
    light.wait_for_timeout(300)
    assert shown.time == 0, "nothing plays by itself"
    shown.root.get_by_label("Speed").select_option("0.5")
    before = light.evaluate("performance.now()")
    shown.press(" ")
    times = [shown.check() for _ in range(12)]
    assert times == sorted(times) and 0 < times[-1] < end
    shown.press(" ")
    stopped = shown.check()
    passed = (light.evaluate("performance.now()") - before) / 1000
    assert 0.1 * passed < stopped <= 0.5 * passed + 0.02, "half as fast as the clock"
    light.wait_for_timeout(200)
    assert shown.time == stopped
    assert shown.root.get_by_role("button", name="Play").is_visible()
    shown.root.get_by_label("Speed").select_option("4")
    shown.click("Play")
    shown.root.get_by_role("button", name="Play").wait_for()
    assert shown.check() == end
    shown.click("Play")
    light.wait_for_timeout(50)
    shown.click("Pause")
    assert shown.check() <= end, "from the end it starts again"


def test_a_jump_while_it_plays_stops_it_there(show, light, race):
    shown = show(light, race)
    shown.root.get_by_label("Speed").select_option("0.25")
    shown.press(" ", "Home")
    light.wait_for_timeout(100)
    assert shown.check() == 0
    shown.press("Home", "ArrowRight")
    shown.root.get_by_label("Speed").select_option("4")
    shown.click("Play")
    shown.root.get_by_role("button", name="Play").wait_for()
    shown.root.get_by_label("Speed").select_option("0.25")
    shown.press("Home", " ")
    light.wait_for_timeout(100)
    assert shown.check() < 0.5, "it goes on from where it was put"


def test_keys_leave_other_things_alone(show, light, race):
    shown = show(light, race)
    shown.press("Control+ArrowRight")
    assert shown.time == 0
    speed = shown.root.get_by_label("Speed")
    speed.press("ArrowDown")
    assert shown.time == 0 and speed.input_value() == "2"
    speed.press("ArrowRight")
    assert shown.time == 0, "the arrows choose a speed there"
    shown.root.get_by_role("button", name="Next").press(" ")
    assert shown.check() == moments(*race)[1], "space on a button presses it, and plays nothing"
    marks = shown.root.get_by_label("Mark spaces")
    marks.press(" ")
    assert not marks.is_checked() and shown.time == moments(*race)[1]
    shown.slider.press("ArrowRight")
    assert shown.check() == moments(*race)[2], "the slider steps from change to change"
    light.evaluate("document.activeElement.blur()")
    light.keyboard.press("End")
    assert shown.time == moments(*race)[2], "only when focused"


def test_one_sees_who_overtakes(show, light):
    """Made so that the leads are known: the plain one, the drafter, the plain one again."""
    step = lambda end, new: TraceStep(
        end, (1,) * 4, ("x",) * 4, new - 1, 0.1 if new < 5 else None, None, 1, new
    )
    common = {"tokens": (1,) * 9, "pieces": ("x",) * 9, "prefill_seconds": 0.1}
    base = a_trace(9, 0)
    slow = [TraceStep((i + 1) / 10, (), (), 0, None, None, 1, 1) for i in range(8)]
    plain = dataclasses.replace(base, steps=slow, **common)
    drafted = dataclasses.replace(
        base, drafter="d", block=5, steps=[step(0.25, 5), step(0.9, 3)], **common
    )
    shown = show(light, [plain, drafted])
    lead, changes = shown.root.locator(".df-lead"), shown.root.locator(".df-changes button:visible")
    bars = shown.root.locator(".df-track i")
    widths = lambda: bars.evaluate_all("a => a.map(e => e.offsetWidth)")
    names = "1. plain decoding", "2. d, 4 drafts a step"
    assert lead.inner_text() == "No token yet." and changes.count() == 0
    for t, text, takes in [
        (0.1, "Level at 1 token.", 0),
        (0.31, f"{names[0]} is ahead by 2 tokens.", 1),
        (0.36, f"{names[1]} is ahead by 3 tokens.", 2),
        (0.601, "Level at 6 tokens.", 2),
        (0.8, f"{names[0]} is ahead by 2 tokens.", 3),
        (1.0, f"{names[0]} ended first, 0.100 s before {names[1]}.", 3),
    ]:
        shown.go(t)
        shown.check()
        assert lead.inner_text() == text and changes.count() == takes
        (one, two), ahead = widths(), text[0]
        assert one > two if ahead == "1" and t < 1 else two > one if ahead == "2" else one == two
    said = [changes.nth(n).inner_text() for n in range(3)]
    assert said == [f"0.200 s: {names[0]}", f"0.350 s: {names[1]}", f"0.700 s: {names[0]}"]
    changes.nth(1).click()
    assert shown.check() == 0.35


def test_a_step_tells_what_was_refused_and_why(show, light):
    base = a_trace(1, 3)
    step = TraceStep(0.1, (5, 6, 7), (" yes", " no\n", " never"), 1, 0.03, 0.4, 9, 2, 4)
    trace = dataclasses.replace(
        base, tokens=(1, 5, 9), pieces=("a", " yes", ""), steps=[step],
        settings=base.settings | {"max_new_tokens": 3},
    )
    shown = show(light, trace)
    shown.traces = [trace]
    shown.press("End")
    shown.check()
    now = shown.root.locator(".df-now")
    assert now.locator("u").all_text_contents() == [" yes"]
    assert now.locator("s").all_text_contents() == [" no\n", " never"]
    struck = "a => a.map(e => getComputedStyle(e).textDecorationLine)"
    assert set(now.locator("s .df-token").evaluate_all(struck)) == {"line-through"}
    assert "(target gave 3%, drafter 40%)" in now.inner_text()
    said = shown.root.get_by_role("status").inner_text()
    assert re.fullmatch(
        r"0\.141 seconds\. 1\. a smaller one, 3 drafts a step: 3 tokens, 20\.0 tokens/s, 2\.00 "
        r"tokens a step with the bonus, 4 pages; step 1, 1 of 3 drafts accepted, refused ·no↵, "
        r"target gave 3%, drafter 40%\. ?", said)


def test_kinds_of_tokens_differ_without_colour(show, light, race):
    shown = show(light, race)
    shown.press("End")
    look = """e => { const s = getComputedStyle(e); const solid = side =>
      s[side + 'Style'] + s[side + 'Width'] + !/, 0\\)$/.test(s[side + 'Color']);
      return [solid('borderTop'), solid('borderBottom'), s.textDecorationLine].join(); }"""
    legend = [shown.root.locator(f".df-legend .df-{kind}").evaluate(look)
              for kind in ("first", "token.df-draft", "own", "refused")]
    assert len(set(legend)) == 4
    lane = shown.root.locator(".df-lane").nth(1)
    found = [lane.locator(".df-text .df-token").nth(n) for n in range(40)]
    expected, trace = ["first"], race[1]
    for step in trace.steps:
        expected += ["draft"] * min(step.accepted, step.new)
        expected += ["own"] * (step.new - step.accepted)
    kinds = ["first", "draft", "own"]
    looks = [kinds[legend.index(token.evaluate(look))] for token in found]
    assert looks == expected and {"draft", "own"} < set(looks)


def test_white_space_is_marked_and_copies_as_it_is(show, light):
    shown = show(light, a_trace(9, 0, pieces=[" a", "\n", "\tb", "c"]))
    shown.press("End")
    mark = "e => getComputedStyle(e, '::before').content"
    spaces = shown.root.locator(".df-text .df-space")
    found = {spaces.nth(n).text_content(): spaces.nth(n).evaluate(mark)
             for n in range(spaces.count())}
    assert found.items() <= {" ": '"·"', "\n": '"↵"', "\t": '"⇥"'}.items() and len(found) > 1
    shown.root.get_by_label("Mark spaces").uncheck()
    assert spaces.first.evaluate(mark) == "none"


def test_a_screen_reader_is_told_and_each_control_has_a_name(show, light, race):
    shown = show(light, race)
    live = shown.root.get_by_role("status")
    assert live.get_attribute("aria-live") == "polite"
    shown.press("ArrowRight")
    assert live.inner_text().startswith("0.030 seconds. 1. plain decoding: 1 token.")
    shown.press("ArrowRight", "ArrowRight")
    quiet = live.inner_text()
    shown.press(" ")
    light.wait_for_timeout(150)
    assert live.inner_text() == quiet, "not at each step while it plays"
    shown.press(" ")
    assert live.inner_text() != quiet
    names = {"Play", "Back", "Next", "Restart", "Table of steps"}
    for name in names:
        assert shown.root.get_by_role("button", name=name).count() == 1
    assert shown.root.get_by_role("slider", name="Time in seconds").count() == 1
    assert shown.root.get_by_role("combobox", name="Speed").count() == 1
    assert shown.root.get_by_role("checkbox", name="Mark spaces").count() == 1
    assert shown.root.get_by_role("group", name="A race").count() == 1
    assert re.fullmatch(r"0\.\d{3} seconds", shown.slider.get_attribute("aria-valuetext"))
    shown.stage.focus()
    light.keyboard.press("Tab")
    assert light.evaluate("document.activeElement.textContent") == "▶ Play"
    assert light.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_table_opens(show, light, race):
    shown = show(light, race)
    tables = shown.root.locator("table")
    assert tables.count() == 2 and not tables.first.is_visible()
    shown.click("Table of steps")
    assert tables.first.is_visible() and tables.nth(1).is_visible()
    assert tables.nth(1).locator("tbody tr").count() == len(race[1].steps)
    button = shown.root.get_by_role("button", name="Table of steps")
    assert button.get_attribute("aria-expanded") == "true"


def test_without_scripts_the_table_is_there(show, chromium, race):
    context = chromium.new_context(java_script_enabled=False)
    shown = show(context.new_page(), race)
    assert shown.root.locator("table tbody tr").count() == sum(len(t.steps) for t in race)
    for n in range(2):
        assert shown.root.locator("table").nth(n).is_visible()
        assert shown.root.locator(".df-text").nth(n).inner_text() == "".join(race[n].pieces)
    assert shown.root.locator("button, input, select").count() == 0
    context.close()


def test_a_notebook_that_is_not_trusted_shows_the_table(light, race):
    """JupyterLab takes scripts, styles and unknown attributes out of such a notebook."""
    html = re.sub(r"<(script|style).*?</\1>", "", player(race).html, flags=re.S)
    html = re.sub(r' (data-title|scope|type)="[^"]*"', "", html)
    light.set_content(html)
    assert light.locator("table tbody tr").count() == sum(len(t.steps) for t in race)
    assert light.locator("table").nth(1).is_visible()
    shown = light.locator("body").inner_text()
    assert "{" not in shown and "target gave" in shown


def test_hostile_text_does_nothing(show, light, dark, chromium):
    pieces = [*HOSTILE, "<svg/onload=alert(1)>", "javascript:alert(1)"]
    trace = a_trace(80, 5, pieces=pieces, prompt="".join(HOSTILE), model=HOSTILE[0],
                    drafter=HOSTILE[1])
    asked = []
    light.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    shown = show(light, [trace, trace], title=HOSTILE[0] + HOSTILE[4])
    for _ in moments(trace):
        shown.press("ArrowRight")
    shown.click("Table of steps")
    light.wait_for_timeout(100)
    assert asked == [] and light.locator("img, svg, i:not(.df-track i), a").count() == 0
    assert light.locator("script").count() == 2
    for sign in "\x00\x1b\u202e\u2066\u200f\u2028\ufeff":
        assert sign not in light.evaluate("document.body.innerText")
    text = shown.root.locator(".df-lane .df-text").first.text_content()
    assert HOSTILE[0] in text and "U+D800" in text and "U+202Eabc" in text
    (tokens, _), lanes = reference(trace, 1e9), shown.root.evaluate(STATE)
    assert lanes[0]["count"] == tokens == 80 and lanes == [lanes[1], lanes[0]]


def test_players_do_not_meet(show, light, race):
    """Also when the same one stands there twice, and when a notebook runs its script again."""
    other = [a_trace(30, 4, seed=9)]
    also = player(other, "Another").html + player(race, "A race").html
    one = show(light, race, also=also)
    two, three = Shown(light, other, 1), Shown(light, race, 2)
    assert light.locator(".df-stage").count() == 3
    one.press("ArrowRight", "ArrowRight")
    two.press("End")
    stops = moments(*race)
    assert (one.check(), two.check(), three.check()) == (stops[2], moments(*other)[-1], 0)
    two.click("Table of steps")
    tables = light.locator(".df-still")
    assert [tables.nth(n).is_visible() for n in range(3)] == [False, True, False]
    light.evaluate("""() => { const old = document.querySelectorAll('.dflash-player script')[1];
      const s = document.createElement('script'); s.textContent = old.textContent;
      old.replaceWith(s); }""")
    assert light.locator(".df-stage").count() == 3 and one.check() == stops[2]
    three.press("ArrowRight")
    assert (one.check(), three.check()) == (stops[2], stops[1])
    assert light.evaluate("document.querySelectorAll('[id]').length") == 0


def test_a_page_that_was_saved_while_it_showed_still_works(show, light, race, tmp_path):
    """Browsers save what the script has made, too."""
    show(light, race).press("ArrowRight")
    (tmp_path / "saved.html").write_text(light.content(), "utf-8")
    light.goto((tmp_path / "saved.html").as_uri())
    shown = Shown(light, race)
    assert shown.stage.count() == 1 and shown.check() == 0
    shown.press("ArrowRight")
    assert shown.check() == moments(*race)[1]


def test_it_works_in_a_sandbox(light, race):
    """Colab shows an output in a frame of its own that may run scripts and nothing else."""
    light.set_content("<iframe sandbox=allow-scripts width=900 height=900></iframe>")
    light.locator("iframe").evaluate("(e, html) => e.srcdoc = html", player(race).html)
    frame = light.frame_locator("iframe")
    frame.locator(".df-stage").press("ArrowRight")
    assert frame.locator(".df-time").inner_text().startswith("0.030 of")


PAPER = "e => getComputedStyle(e).backgroundColor"
DAY, NIGHT = "rgb(255, 255, 255)", "rgb(20, 24, 31)"


@pytest.mark.parametrize("screen", ["light", "dark"])
@pytest.mark.parametrize(
    "where, mark, paper",
    [
        ("html", "", None),
        ("html", "data-theme=dark", NIGHT),
        ("html", "data-theme=light", DAY),
        ("html", "theme=dark", NIGHT),
        ("body", "data-jp-theme-light=false", NIGHT),
        ("body", "data-jp-theme-light=true", DAY),
        ("body", "class=vscode-dark", NIGHT),
    ],
)
def test_all_text_stands_out_by_day_and_by_night(show, request, race, screen, where, mark, paper):
    page = request.getfixturevalue(screen)
    odd = a_trace(60, 5, pieces=HOSTILE)
    shown = show(page, [*race, odd])
    if mark:
        name, value = mark.split("=")
        page.locator(where).evaluate("(e, [n, v]) => e.setAttribute(n, v)", [name, value])
    paper = paper or (DAY if screen == "light" else NIGHT)
    shown.click("Table of steps")
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "End"):
        shown.press(key)
        assert check.contrast(page) == []
    assert shown.root.evaluate(PAPER) == paper


@pytest.fixture
def narrow(chromium):
    size = {"width": 360, "height": 740}
    context = chromium.new_context(viewport=size, is_mobile=True, has_touch=True)
    yield context.new_page()
    context.close()


def test_a_phone_needs_no_sideways_scrolling(show, narrow, race):
    long = a_trace(40, 7, pieces=["x" * 200, " word", "\n"], drafter="d" * 99, prompt="p" * 400)
    shown = show(narrow, [*race, long], title="t" * 100)
    shown.click("Table of steps")
    width = "[document.documentElement.scrollWidth, innerWidth]"
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight", "End"):
        shown.press(key)
        assert narrow.evaluate(width) == [360, 360]
    inside = """root => [...root.querySelectorAll('.df-stage *, .df-text')].filter(e =>
      e.getClientRects().length && e.getBoundingClientRect().right > 360)
      .map(e => e.className + e.textContent)"""
    assert shown.root.evaluate(inside) == [], "nothing is cut off"


def test_paper_gets_the_text_and_the_table(show, dark, race):
    shown = show(dark, race)
    dark.locator("html").evaluate("e => e.dataset.theme = 'dark'")
    dark.emulate_media(media="print")
    assert not shown.stage.is_visible()
    for n in range(2):
        assert shown.root.locator("table").nth(n).is_visible()
        text = shown.root.locator(".df-still .df-text").nth(n).inner_text()
        assert text == "".join(race[n].pieces)
    assert shown.root.evaluate(PAPER) == DAY
    dark.emulate_media(media="screen")
    assert shown.stage.is_visible() and not shown.root.locator("table").first.is_visible()


def test_less_motion_moves_from_change_to_change(show, chromium, race):
    context = chromium.new_context(reduced_motion="reduce")
    page = context.new_page()
    shown = show(page, race)
    page.wait_for_timeout(200)
    assert shown.time == 0
    shown.press(" ")
    times = {shown.check() for _ in range(20)}
    assert len(times) > 1 and times <= set(moments(*race))
    context.close()


@pytest.mark.parametrize("count", [0, 1])
def test_the_shortest_traces_play(show, light, count):
    shown = show(light, a_trace(count))
    shown.press("ArrowRight", "End", " ")
    light.wait_for_timeout(100)
    assert shown.root.locator(".df-numbers").inner_text() == f"{count} token{'s' * (count != 1)}"


def test_the_chapter_shows_it(light, dark):
    """In the theme of the book, whose switch it follows."""
    for page, paper in ((light, DAY), (dark, NIGHT)):
        page.emulate_media(media="screen")
        page.goto((SITE / "chapters" / "92_traces.html").as_uri())
        players = page.locator(".dflash-player")
        assert players.count() == 2
        for root, leads in zip(players.all(), ("2. a small model", "2. PromptLookup")):
            assert root.evaluate(PAPER) == paper
            root.locator(".df-stage").press("End")
            assert root.locator(".df-lead").inner_text().startswith(leads)
        root = players.first
        page.locator("html").evaluate("e => e.dataset.theme = 'light'")
        assert root.evaluate(PAPER) == DAY
        page.locator("html").evaluate("e => e.dataset.theme = 'dark'")
        assert root.evaluate(PAPER) == NIGHT
        assert check.contrast(page) == []
        size = root.evaluate("e => getComputedStyle(e).fontSize")
        for part in (".df-lead", ".df-race b", ".df-text", "button", "select"):
            found = root.locator(part).first.evaluate("e => getComputedStyle(e).fontSize")
            assert found == size, f"the theme changes {part}"


def test_no_other_style_meets_its_elements(show, light, race):
    """The book's theme has `.row`, `.lead` and `.table`; another page has others."""
    shown = show(light, race)
    shown.press("End")
    shown.click("Table of steps")
    classes = shown.root.evaluate("""root => [...new Set([root, ...root.querySelectorAll('*')]
      .flatMap(e => [...e.classList]))]""")
    others = {name for name in classes if not name.startswith("df-")}
    assert others == {"dflash-player", "tex2jax_ignore", "mathjax_ignore"}
