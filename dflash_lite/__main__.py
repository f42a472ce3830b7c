"""The command `dflash-lite`, also `python -m dflash_lite`.

It hears Ctrl-C while the modules are still loading, a tenth of a second or more.

Made by tools/tangle.py, for the chapter that names a `main`:
edit the tool, not this file.
"""

import os
import signal


def interrupt(*_: object) -> None:
    """End with one line and code 130: there is nothing yet to be kept."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.write(2, b"dflash-lite: interrupted\n")
    finally:
        os._exit(128 + signal.SIGINT)


def main() -> None:
    """Load the command and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    from dflash_lite import training_runs

    training_runs.main()


if __name__ == "__main__":
    main()
