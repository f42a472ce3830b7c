"""Record `make demo` in a terminal and draw it as book/_static/demo.svg, a moving picture.

    python tools/record_demo.py    run `make demo` twice and draw the second at its own speed

The picture is text and CSS, without scripts, so that it plays in an `<img>` on GitHub. Where the
reader asks for less motion it shows the last moment.
"""

import os
import re
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from html import escape

from chapters import ROOT, write_file

TARGET = ROOT / "book" / "_static" / "demo.svg"
COMMAND = ["make", "demo"]
COLUMNS = 80
TYPING, READING = 0.8, 6.0  # seconds before the run, and after it
STRIDE, LEADING, MARGIN, BAR = 8.4, 20, 18, 30  # pixels
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b.")


@dataclass
class Span:
    """What one row of the screen showed for a while."""

    row: int
    text: str
    start: float
    end: float | None = None  # None: to the end


class Screen:
    """As much of a terminal as the command uses: text that wraps, and erased lines."""

    def __init__(self, columns: int):
        self.columns, self.rows, self.row, self.column = columns, [""], 0, 0

    def feed(self, text: str) -> None:
        """Take output; an escape sequence must be whole."""
        at = 0
        for match in SEQUENCE.finditer(text):
            self.write(text[at : match.start()])
            self.control(match[1] or "", match[2] or "")
            at = match.end()
        self.write(text[at:])

    def write(self, text: str) -> None:
        for letter in text:
            if letter == "\r":
                self.column = 0
            elif letter == "\n":
                self.move(1)
            elif letter.isprintable():
                if self.column == self.columns:
                    self.move(1)
                    self.column = 0
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + letter + line[self.column + 1 :]
                self.column += 1

    def move(self, rows: int) -> None:
        self.row = max(0, self.row + rows)
        self.rows += [""] * (self.row + 1 - len(self.rows))

    def control(self, number: str, kind: str) -> None:
        if kind == "A":
            self.move(-int(number or 1))
        elif kind == "K":
            keep = "" if number == "2" else self.rows[self.row][: self.column]
            self.rows[self.row] = keep
        elif kind and kind not in "mhl":  # colours and the cursor do not matter here
            raise ValueError(f"the screen does not know the sequence {number}{kind}")


def record(command: list[str], columns: int) -> list[tuple[float, str]]:
    """Run a command in a terminal; what it wrote, with seconds since its start.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, columns))
    environment = os.environ | {"TERM": "xterm-256color"}
    start, events, rest = time.monotonic(), [], b""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    while data := read(master):
        text, rest = split_whole(rest + data)
        events.append((time.monotonic() - start, text))
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command)
    return events


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def split_whole(data: bytes) -> tuple[str, bytes]:
    """The part of the output that ends with whole characters and sequences, and the rest."""
    cut = re.search(rb"(\x1b(\[[?0-9;]*)?|[\xc0-\xff][\x80-\xbf]{0,2})$", data)
    if cut:
        whole = data[cut.start() :].decode("utf-8", "ignore")
        if not whole or whole.startswith("\x1b"):
            return data[: cut.start()].decode(), data[cut.start() :]
    return data.decode(), b""


def spans(events: list[tuple[float, str]], columns: int) -> list[Span]:
    """What each row showed, and when."""
    screen, shown, found = Screen(columns), {}, []
    for seconds, text in events:
        screen.feed(text)
        for row, line in enumerate(screen.rows):
            old = shown.get(row)
            if (old.text if old else "") == line:
                continue
            if old:
                old.end = seconds
            shown[row] = Span(row, line, seconds)
            found.append(shown[row])
    return [s for s in found if s.text and s.start != s.end]


def draw(found: list[Span], columns: int) -> str:
    """The picture."""
    seconds = max(s.start for s in found) + READING
    last_row = max(s.row for s in found if s.end is None)
    width = round(columns * STRIDE + 2 * MARGIN)
    height = BAR + (last_row + 1) * LEADING + MARGIN
    rules, texts = [], []
    for number, span in enumerate(found):
        kind = "t command" if span.row == 0 else "t count" if span.row == last_row else "t"
        if span.start > 0 or span.end is not None:
            rules.append(f"#r{number}{{animation-name:k{number}}}")
            rules.append(f"@keyframes k{number}{{{keyframes(span, seconds)}}}")
        kind += " past" if span.end is not None else ""
        y = BAR + span.row * LEADING + 14
        length = len(span.text) * STRIDE
        texts.append(
            f'<text id="r{number}" class="{kind}" x="{MARGIN}" y="{y}" '
            f'textLength="{length:.1f}">{escape(span.text)}</text>'
        )
    rows = [s.text for s in sorted(found, key=lambda s: s.row) if s.end is None]
    final = "".join(row if len(row) == columns else f"{row}\n" for row in rows)
    return PICTURE.format(
        width=width, height=height, seconds=f"{seconds:.2f}", rules="\n".join(rules),
        texts="\n".join(texts), final=escape(final.rstrip()),
    )


def keyframes(span: Span, seconds: float) -> str:
    """Hidden, visible from its start, hidden again from its end."""
    steps = [f"{100 * span.start / seconds:.3f}%{{opacity:1}}"]
    if span.start > 0:
        steps.insert(0, "0%{opacity:0}")
    if span.end is not None:
        steps.append(f"{100 * span.end / seconds:.3f}%,to{{opacity:0}}")
    return "".join(steps)


PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" role="img" aria-labelledby="title final">
<title id="title">make demo in a terminal, at its own speed</title>
<desc id="final">{final}</desc>
<style>
.t {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
fill: #e6edf3; white-space: pre }}
.command {{ fill: #7ee787 }}
.count {{ fill: #a5b4c3 }}
.past {{ opacity: 0 }}
@media (prefers-reduced-motion: no-preference) {{
.t {{ animation-duration: {seconds}s; animation-timing-function: step-end; \
animation-iteration-count: infinite }}
{rules}
}}
</style>
<rect x="0.5" y="0.5" width="100%" height="100%" rx="8" fill="#0d1117" stroke="#6e7681" \
style="width: calc(100% - 1px); height: calc(100% - 1px)"/>
<g fill="#6e7681"><circle cx="20" cy="16" r="5"/><circle cx="38" cy="16" r="5"/>\
<circle cx="56" cy="16" r="5"/></g>
{texts}
</svg>
"""


def main() -> int:
    record(COMMAND, COLUMNS)  # it installs, downloads and compiles where that is needed
    events = record(COMMAND, COLUMNS)
    typed = f"$ {' '.join(COMMAND)}\r\n"
    moments = [(0.0, typed), *((seconds + TYPING, text) for seconds, text in events)]
    picture = draw(spans(moments, COLUMNS), COLUMNS)
    write_file(TARGET, picture)
    print(f"{TARGET}: {len(picture) / 1000:.0f} kB, {events[-1][0]:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
