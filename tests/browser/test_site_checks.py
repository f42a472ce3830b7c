"""Each check of the site finds the fault that it is for: small pages with one fault each."""

import base64

import pytest
import site_checks as check

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FORMULA = '<span class="math"><span class="katex">x</span></span>'


@pytest.fixture
def plant(tmp_path, light):
    """Write a page with this body, open it and return its browser page."""

    def planted(body, page=light):
        (tmp_path / "pixel.png").write_bytes(PIXEL)
        (tmp_path / "page.html").write_text(
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
            f"content='width=device-width'><body><main><article>{body}</article></main></html>"
        )
        page.goto((tmp_path / "page.html").as_uri())
        return page

    return planted


def test_a_good_page_has_no_problem(plant, tmp_path):
    page = plant(
        f"<p id=here>text, a price of $5 <a href='page.html#here'>link</a> {FORMULA}"
        "<code>$a$</code><img src=pixel.png alt='one red point'><pre>print(1)</pre>"
    )
    for one in (check.markup, check.pictures, check.contrast, check.sideways, check.code_width):
        assert one(page) == []
    assert check.links(tmp_path) == []


@pytest.mark.parametrize(
    "body, problem",
    [
        ('<span class="math">\\(x\\)</span>', "not set"),
        ('<span class="katex-error">\\frac</span>', "KaTeX error"),
        ("<p>a formula $x^2$ as it was typed", "raw"),
        ("<p>a formula \\(x^2\\) as it was typed", "raw"),
        ("<p>a [link](https://a.example/ b) with a space", "raw"),
        ("<p>so ** bold** it failed", "raw"),
        (
            "<style>@font-face {font-family: Lost; src: url(lost.woff2)}</style>"
            "<p style='font-family: Lost'>text",
            "font Lost is missing",
        ),
    ],
)
def test_markup(plant, body, problem):
    (found,) = check.markup(plant(body))
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "body, problem",
    [
        ("<img src=lost.png alt='a plot'>", "picture lost.png is missing"),
        ("<img src=pixel.png>", "picture pixel.png has no alt text"),
        ("<img src=pixel.png alt=' '>", "picture pixel.png has no alt text"),
        ("<img src=./pixel.png alt=../_images/pixel.png>", "picture pixel.png has no alt text"),
        ("<svg id=curve width=9 height=9><path d='M0 0h9'/></svg>", "drawing curve has no label"),
    ],
)
def test_pictures(plant, body, problem):
    assert check.pictures(plant(body)) == [problem]


@pytest.mark.parametrize(
    "style",
    [
        "color: #888",
        "color: black; background: #333",
        "opacity: 0.4",
        "color: rgb(0 0 0 / 40%)",
        "color: color(srgb 0.6 0.6 0.6)",
        "color: #999; font-size: 30px",
    ],
)
def test_contrast(plant, style):
    (found,) = check.contrast(plant(f"<p style='{style}'>pale"))
    assert found.endswith("pale")


def test_contrast_allows_less_for_large_text(plant):
    assert check.contrast(plant("<p style='color: #888; font-size: 30px'>large")) == []


def test_contrast_looks_into_folded_boxes(plant):
    body = "<details><summary>more</summary><p style='color: #ccc'>pale</details>"
    assert len(check.contrast(plant(body))) == 1


def test_sideways(plant, phone):
    wide = "<div style='width: 800px; height: 1px'></div>"
    assert check.sideways(plant(wide, phone)) != []
    assert check.sideways(plant(f"<div style='overflow-x: auto'>{wide}</div>", phone)) == []
    hidden = f"<style>html, body {{overflow-x: hidden}}</style>{wide}"
    assert check.sideways(plant(hidden, phone)) != []


def test_code_width(plant):
    box = "<pre style='width: 300px; overflow-x: auto'>{}</pre>"
    assert len(check.code_width(plant(box.format("x" * 80)))) == 1
    assert check.code_width(plant(box.format("x" * 81))) == []


def test_watching(plant, light, tmp_path):
    with check.watched(light, tmp_path.as_uri()) as problems:
        plant(
            "<img src=lost.png alt=plot><img src=http://127.0.0.1:9/far.png alt=plot>"
            "<script>console.error('spoken'); throw new Error('thrown')</script>"
        )
    text = "\n".join(problems)
    assert "console: spoken" in text
    assert "thrown" in text
    assert "left the site: http://127.0.0.1:9/far.png" in text
    assert "failed: file:" in text and "lost.png" in text


def test_watching_sees_a_page_that_is_not_there(light, server):
    with check.watched(light, server) as problems:
        light.goto(f"{server}/lost.html")
    assert f"404: {server}/lost.html" in problems


COPY = """<div><pre>{code}</pre><button class=copybtn onclick='{script}'>copy</button></div>"""


@pytest.mark.parametrize(
    "script, problem",
    [
        ('navigator.clipboard.writeText("print(1)")', None),
        ("", "copied 'nothing'"),
        ('navigator.clipboard.writeText("print(2)")', "copied 'print(2)'"),
    ],
)
def test_copy(light, server, script, problem):
    light.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server)
    light.goto(f"{server}/genindex.html")
    light.set_content(COPY.format(code="print(1)", script=script))
    buttons, problems = check.copy(light)
    assert buttons == 1
    assert len(problems) == (problem is not None)
    assert all(p.startswith(problem) for p in problems)


def test_colab(plant):
    address = "https://colab.research.google.com/github/a/b/blob/main/chapters/01_a.ipynb"
    assert check.colab(plant(f"<a href={address}>Colab</a>"), address) == []
    assert check.colab(plant(f"<a href={address}x>Colab</a>"), address) != []
    assert check.colab(plant("<p>no button"), address) != []


def test_search_finds_nothing_for_a_word_that_is_nowhere(light, files):
    assert check.search(light, files, "zyxwvut") == []


@pytest.mark.parametrize(
    "body, problem",
    [
        ("<a href=lost.html>link</a>", "page.html links to lost.html, which is not there"),
        ("<a href=#lost>link</a>", "page.html links to #lost, but that id is not there"),
        ("<a href=page.html#lost>link</a>", "page.html links to page.html#lost, but"),
        ("<script src=lost.js></script>", "page.html links to lost.js, which is not there"),
        ("<script src=https://a.example/b.js></script>", "page.html loads https://a.example/b.js"),
        ("<img src=//a.example/b.png alt=plot>", "page.html loads //a.example/b.png"),
        ("<iframe src=https://a.example></iframe>", "page.html loads https://a.example"),
    ],
)
def test_links(tmp_path, body, problem):
    (tmp_path / "page.html").write_text(body)
    (found,) = check.links(tmp_path)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "rule", ["@import 'https://a.example/b.css';", "p {background: url(//a.example/b.png)}"]
)
def test_style_sheets(tmp_path, rule):
    (tmp_path / "page.css").write_text(rule)
    (found,) = check.links(tmp_path)
    assert found.startswith("page.css loads")
