"""What a page of the site must do. Each check returns the list of problems that it found."""

import os
import re
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("SITE", ROOT / "build" / "html")).resolve()
SCRIPT = Path(__file__).with_suffix(".js").read_text("utf-8")
STYLE_ADDRESS = re.compile(r"""(?:url\(|@import\s)\s*["']?([^"')\s]+)""")


@contextmanager
def watched(page, base):
    """Collect console errors, failed requests and requests that leave `base` or the page."""
    problems = []
    listeners = {
        "console": lambda m: m.type == "error" and problems.append(f"console: {m.text}"),
        "pageerror": lambda e: problems.append(f"script: {e}"),
        # aborted: of a page that was left before all of it had come
        "requestfailed": lambda r: (
            r.failure == "net::ERR_ABORTED" or problems.append(f"failed: {r.url}")
        ),
        "request": lambda r: (
            r.url.startswith((base, "data:", "blob:")) or problems.append(f"left the site: {r.url}")
        ),
        "response": lambda r: r.status >= 400 and problems.append(f"{r.status}: {r.url}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        yield problems
        page.wait_for_timeout(100)  # for what scripts ask for once the page is there
    finally:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)


def ask(page, question):
    """The answer of a function in site_checks.js."""
    return page.evaluate(f"async () => {{ {SCRIPT}\nreturn await {question}(); }}")


def markup(page):
    """Each formula is set, with its fonts, and no Markdown shows as it was typed."""
    return ask(page, "markup")


def pictures(page):
    """Each picture has arrived and says what it shows."""
    return ask(page, "pictures")


def contrast(page):
    """Text stands out from its background by WCAG's AA: 4.5, or 3 for large text."""
    return ask(page, "contrast")


def sideways(page):
    """The page is no wider than the screen; what is wider scrolls in a box of its own."""
    return ask(page, "sideways")


def code_width(page):
    """Code of 80 columns or fewer shows whole."""
    return ask(page, "codeWidth")


def copy(page):
    """Each copy button puts its code on the clipboard. Returns the number of buttons too."""
    ask(page, "unfold")
    buttons, problems = page.locator("button.copybtn"), []
    for n in range(buttons.count()):
        code = buttons.nth(n).locator("xpath=..").locator("pre").text_content().strip()
        page.evaluate("navigator.clipboard.writeText('nothing')")
        buttons.nth(n).dispatch_event("click")
        for _ in range(20):
            copied = page.evaluate("navigator.clipboard.readText()").strip()
            if copied != "nothing":
                break
            page.wait_for_timeout(50)
        if copied != code:
            problems.append(f"copied {copied[:60]!r}, not {code[:60]!r}")
    return buttons.count(), problems


def colab(page, address):
    """One button leads to the chapter's notebook in Colab."""
    links = page.locator("a[href*='colab.research.google.com']")
    found = [links.nth(n).get_attribute("href") for n in range(links.count())]
    return [] if found == [address] else [f"Colab links {found}, not {address}"]


def search(page, base, word):
    """The pages that a search for `word` lists."""
    page.goto(f"{base}/search.html?q={word}")
    page.wait_for_function(
        "document.querySelector('.search-summary')?.textContent.match(/found|finished|did not/)",
        timeout=20000,
    )
    page.wait_for_timeout(300)
    results = page.locator("ul.search a")
    hrefs = [results.nth(n).get_attribute("href") for n in range(results.count())]
    return [urlsplit(h).path.removeprefix("./") for h in hrefs]


class References(HTMLParser):
    """The ids of a page, what it links to, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(filter(None, [attributes.get("id"), attributes.get("name")]))
        if tag in ("a", "area"):
            self.links.append(attributes.get("href"))
        elif tag == "link":
            self.loads.append(attributes.get("href"))
        else:
            self.loads.append(attributes.get("src"))


def links(site):
    """Links within the site have a target, and nothing is loaded from elsewhere."""
    site = Path(site)
    pages = {p: References(p.read_text("utf-8")) for p in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site)
        if "_static" in name.parts:
            continue
        for address in filter(None, page.links + page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    problems.append(f"{name} loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                problems.append(f"{name} links to {address}, which is not there")
            elif parts.fragment and target.suffix == ".html":
                if unquote(parts.fragment) not in pages[target].ids:
                    problems.append(f"{name} links to {address}, but that id is not there")
    for path in sorted(site.rglob("*.css")):
        for address in STYLE_ADDRESS.findall(path.read_text("utf-8")):
            if re.match("(https?:)?//", address):
                problems.append(f"{path.relative_to(site)} loads {address}")
    return problems
