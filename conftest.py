"""Test the chapters as they are written: nbval collects jupytext percent files.

    pytest --nbval-lax --nbval-current-env chapters/*.py    each cell runs without an error
    pytest --nbval --nbval-current-env --nbval-sanitize-with tools/sanitize.cfg chapters/*.ipynb
                                                            each output is what the notebook says

With `--keep-outputs` the book finds what passing notebooks show, and does not run them again.
"""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parent / "tools"))


def pytest_addoption(parser):
    parser.addoption("--keep-outputs", action="store_true", help="keep outputs for the book")


def pytest_configure(config):
    if config.option.nbval or config.option.nbval_lax:
        os.environ.setdefault("DFLASH_LITE_CHECK", "strict")
    if config.option.keep_outputs:
        from keep_outputs import KeepOutputs

        config.pluginmanager.register(KeepOutputs())


def pytest_collectstart(collector):
    """Warnings are not part of a notebook."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path, parent):
    if module_path.parent.name != "chapters":
        return None
    from nbval import plugin

    class ChapterFile(plugin.IPyNbFile):
        def collect(self):
            option = self.config.option
            if not (option.nbval or option.nbval_lax):
                return
            import jupytext

            notebook = jupytext.reads(self.path.read_text(encoding="utf-8"), fmt="py:percent")
            with mock.patch.object(plugin.nbformat, "read", return_value=notebook):
                yield from super().collect()

    return ChapterFile.from_parent(parent, path=module_path)
