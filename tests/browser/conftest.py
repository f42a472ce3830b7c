"""A real Chromium on the built site, from a server on this machine and from files.

    make test-browser

SITE names another folder than build/html, CHROMIUM another browser than the one in PATH.
"""

import functools
import http.server
import os
import shutil
import threading

import pytest
from playwright.sync_api import sync_playwright
from site_checks import SITE

QUIET = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update""".split()


def pytest_sessionstart(session):
    if not (SITE / "book" / "index.html").is_file():
        pytest.exit(f"no site in {SITE}: run `make book` first", returncode=1)


def pytest_generate_tests(metafunc):
    pages = [p for folder in ("book", "chapters") for p in sorted(SITE.glob(f"{folder}/*.html"))]
    pages = [p.relative_to(SITE).as_posix() for p in pages]
    if "page_name" in metafunc.fixturenames:
        metafunc.parametrize("page_name", [*pages, "genindex.html", "search.html"])
    if "chapter" in metafunc.fixturenames:
        metafunc.parametrize("chapter", [p for p in pages if p.startswith("chapters/")])


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def server():
    """The address of a server that offers the site."""
    handler = functools.partial(Silent, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def files():
    """The address of the site as files."""
    return SITE.as_uri()


@pytest.fixture(scope="session")
def chromium():
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not path:
        pytest.exit("no Chromium: `tools/browser.sh` installs Debian's or says what to do", 1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


def opened(chromium, **options):
    context = chromium.new_context(**options)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def light(chromium):
    yield from opened(chromium, viewport={"width": 1280, "height": 900}, color_scheme="light")


@pytest.fixture(scope="session")
def dark(chromium):
    yield from opened(chromium, viewport={"width": 1280, "height": 900}, color_scheme="dark")


@pytest.fixture(scope="session")
def phone(chromium):
    size = {"width": 390, "height": 844}
    yield from opened(chromium, viewport=size, is_mobile=True, has_touch=True)
