"""The site in a browser: it reads well, works from files, and asks nothing of other hosts."""

import re
import tomllib

import pytest
import site_checks as check
from site_checks import ROOT, SITE


def test_links_lead_somewhere_and_nothing_comes_from_elsewhere():
    assert check.links(SITE) == []


# A page is slow to open, so each of these opens it once for all it asks.
def test_page_on_a_server(page_name, light, server):
    light.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server)
    with check.watched(light, server) as problems:
        light.goto(f"{server}/{page_name}")
    assert problems == []
    assert check.markup(light) == []
    assert check.pictures(light) == []
    buttons, problems = check.copy(light)
    assert problems == []
    assert buttons > 0 or not page_name.startswith("chapters/")


def test_page_from_files_on_a_desk(page_name, light, files):
    with check.watched(light, files) as problems:
        light.goto(f"{files}/{page_name}")
    assert problems == []
    assert check.markup(light) == []
    assert check.pictures(light) == []
    assert check.sideways(light) == []
    assert check.code_width(light) == []
    assert check.contrast(light) == []
    if page_name.startswith("chapters/"):
        assert check.colab(light, colab_address(page_name)) == []


def colab_address(page_name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    path = project["urls"]["Repository"].removeprefix("https://github.com/")
    notebook = page_name.removesuffix(".html") + ".ipynb"
    return f"https://colab.research.google.com/github/{path}/blob/main/{notebook}"


def test_page_reads_well_at_night(page_name, dark, files):
    dark.goto(f"{files}/{page_name}")
    assert dark.locator("html").get_attribute("data-theme") == "dark"
    assert check.contrast(dark) == []


def test_page_fits_a_phone(page_name, phone, files):
    phone.goto(f"{files}/{page_name}")
    assert check.sideways(phone) == []


def test_chapters_have_mathematics_and_figures():
    """So that the checks above had something to look at."""
    chapters = "".join(p.read_text("utf-8") for p in SITE.glob("chapters/*.html"))
    assert 'class="math' in chapters and 'class="cell_output' in chapters and "<img" in chapters


@pytest.mark.parametrize("origin", ["server", "files"])
def test_search_finds_a_chapter_by_a_word_of_its_title(chapter, origin, light, request):
    base = request.getfixturevalue(origin)
    title = re.search("<h1>(.*?)<", (SITE / chapter).read_text("utf-8"))[1]
    word = max(re.findall("[A-Za-z]+", title), key=len)
    with check.watched(light, base) as problems:
        assert chapter in check.search(light, base, word)
    assert problems == []


def test_search_box_opens_and_searches(light, files):
    light.goto(f"{files}/book/index.html")
    light.keyboard.press("Control+k")
    box = light.locator("dialog input[type=search]")
    box.fill("glossary")
    box.press("Enter")
    light.wait_for_url("**/search.html?q=glossary**")


def test_dark_mode_can_be_chosen(light, files):
    light.goto(f"{files}/book/index.html")
    for mode in ("dark", "light"):
        light.locator(".theme-switch-button:visible").first.click()
        light.locator(f".theme-change-button[data-mode={mode}]:visible").click()
        assert light.locator("html").get_attribute("data-theme") == mode


def test_solutions_are_folded(light, files):
    for path in SITE.glob("chapters/*.html"):
        light.goto(path.as_uri())
        assert light.get_by_text("BEGIN SOLUTION").count() == 0
        solutions = light.locator("details.solution")
        holes = light.locator(".tag_exercise > .cell_input")
        assert solutions.count() == holes.count()
        for n in range(holes.count()):
            assert "NotImplementedError" in holes.nth(n).inner_text()
            assert not solutions.nth(n).locator("pre").is_visible()
            solutions.nth(n).locator("summary").click()
            assert "NotImplementedError" not in solutions.nth(n).locator("pre").inner_text()


def test_first_page_leads_to_the_book(light, files):
    light.goto(f"{files}/index.html")
    light.wait_for_url("**/book/index.html")
