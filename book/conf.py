"""Sphinx configuration: sphinx-build -W --keep-going -b html -c book . build/html"""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import pages  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"].removesuffix("/")

project = html_title = "dflash_lite"
author = "the dflash_lite authors"
copyright = "the dflash_lite authors, Apache-2.0"
release = PROJECT["version"]
language = "en"

root_doc = "book/index"
include_patterns = ["book/*.md", "chapters/[0-9]*.py"]
exclude_patterns = [".*", "build", "dflash_lite", "tests", "weights"]
extensions = [
    "myst_nb",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "sphinxcontrib.katex",
    "pages",
]

myst_enable_extensions = ["alert", "amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3
bibtex_bibfiles = ["references.bib"]

# Chapters run once, here or before in `make test`; jupyter-cache keeps the outputs.
nb_custom_formats = {".py": "pages.read"}
nb_execution_mode = "cache"
nb_execution_cache_path = str(pages.cache_folder())
nb_execution_timeout = 900  # seconds a cell, on a busy machine
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars
nb_ipywidgets_js = {}  # else a widget asks a CDN
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"

# Kernels see the checkout's package, and a wrong solution stops the build.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["DFLASH_LITE_CHECK"] = "strict"

# Mathematics without a CDN: the scripts come with the extension, style and fonts from here.
katex_prerender = False
katex_css_path = "katex/katex.min.css"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "repository_url": REPOSITORY,
    "repository_branch": "main",
    "use_repository_button": True,
    "use_issues_button": True,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
