"""Keep what the notebooks show while they are tested, so that the book need not run them again.

A plugin of pytest, for `--keep-outputs`. nbclient knows what becomes an output, jupyter-cache
keeps it, and `make book` finds it there.
"""

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from filelock import FileLock
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionComplete

from chapters import ROOT

sys.path.insert(0, str(ROOT / "book" / "_ext"))
import pages  # noqa: E402


class Recorder:
    """The page of a chapter, filled from the messages of a kernel that runs its notebook.

    Args:
        chapter: its .py file.
        notebook: the tested one: a cell of its own, then the code cells of the chapter.
    """

    def __init__(self, chapter: Path, notebook: dict):
        self.chapter = chapter
        self.page = pages.read(chapter.read_text(encoding="utf-8"))
        self.client = NotebookClient(self.page, record_timing=False)
        self.client.reset_execution_trackers()
        self.client.kc = MagicMock()  # what widgets would answer the kernel goes nowhere
        self.places = [i for i, cell in enumerate(self.page.cells) if cell.cell_type == "code"]
        tested = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        self.fits = tested[1:] == [self.page.cells[i].source for i in self.places]
        self.passed = 0  # cells of the notebook
        self.request = ""

    def hear(self, number: int, message: dict) -> None:
        """Take a message that came while a cell of the notebook ran."""
        parent = message["parent_header"].get("msg_id", "")
        if message["msg_type"] == "execute_input":
            self.request = parent
            self.client.clear_before_next_output = False
        if not self.fits or number == 0 or parent != self.request:
            return
        place = self.places[number - 1]
        try:
            self.client.process_message(message, self.page.cells[place], place)
        except CellExecutionComplete:
            pass

    def keep(self, folder: Path) -> bool:
        """Put the page into the cache, if all cells passed."""
        if not self.fits or self.passed < 1 + len(self.places):
            return False
        self.client.set_widgets_metadata()
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):  # several workers, one database
            get_cache(folder).cache_notebook_bundle(
                CacheBundleIn(self.page, str(self.chapter)), check_validity=False, overwrite=True
            )
        return True


class KeepOutputs:
    """The plugin: a recorder for each notebook that lies beside its chapter."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or pages.cache_folder()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        notebook = item.parent
        chapter = notebook.path.with_suffix(".py")
        if notebook.path.suffix != ".ipynb" or not chapter.is_file():
            return (yield)
        recorder = getattr(notebook, "recorder", None)
        if recorder is None:
            recorder = notebook.recorder = Recorder(chapter, notebook.nb)
            recorder.get = notebook.get_kernel_message

        def get(*args, **options):
            message = recorder.get(*args, **options)
            recorder.hear(item.cell_num, message)
            return message

        notebook.get_kernel_message = get
        result = yield
        recorder.passed += 1
        recorder.keep(self.folder)
        return result
