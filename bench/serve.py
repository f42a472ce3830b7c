"""What a worker process does: answer requests on standard input, one line of JSON each."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(handlers: dict[str, Callable[..., Any]]) -> None:
    """Call the handler that a request names; stop when the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library's own printing goes to the log
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(handlers[request.pop("do")](**request)), file=answers, flush=True)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result
