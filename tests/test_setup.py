"""Finding a Python and making an environment, and what they say when they cannot."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import setup

ROOT = Path(__file__).resolve().parent.parent
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
REAL = os.path.realpath(sys.executable)

BROKEN_SHIM = "#!/bin/sh\necho 'pyenv: python: command not found' >&2\nexit 127\n"
PRETENDS = """\
#!/bin/sh
shift
code="$1"
shift
exec {real} -c 'import sys; {change}; exec(sys.argv.pop(1))' "$code" "$@"
"""
TOO_OLD = PRETENDS.format(real=REAL, change="sys.version_info = (3, 9, 18)")
NO_VENV = PRETENDS.format(real=REAL, change='sys.modules["ensurepip"] = None')


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# Finding a Python
# ----------------


@pytest.fixture
def find(tmp_path):
    """Run find_python.sh where only `tmp_path/bin` and the system's tools are on the PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "sed", "env"):
        (tools / name).symlink_to(shutil.which(name))

    def run(*versions, **variables):
        env = {"PATH": f"{tmp_path}/bin:{tools}", "HOME": str(tmp_path / "home"), **variables}
        command = ["sh", ROOT / "tools" / "find_python.sh", *versions]
        run = subprocess.run(command, env=env, capture_output=True, text=True)
        return run.returncode, run.stdout.strip(), run.stderr.strip()

    return run


def pyenv_python(tmp_path, version):
    path = tmp_path / "home" / ".pyenv" / "versions" / version / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.symlink_to(REAL)
    return str(path)


def test_broken_shim_is_survived(find, tmp_path):
    script(tmp_path / "bin" / f"python{VERSION}", BROKEN_SHIM)
    path = pyenv_python(tmp_path, f"{VERSION}.1")
    assert find(VERSION) == (0, path, "")


def test_pyenv_root_is_respected(find, tmp_path):
    pyenv_python(tmp_path, f"{VERSION}.1")
    (tmp_path / "home" / ".pyenv").rename(tmp_path / "elsewhere")
    path = tmp_path / "elsewhere" / "versions" / f"{VERSION}.1" / "bin" / "python"
    assert find(VERSION, PYENV_ROOT=f"{tmp_path}/elsewhere") == (0, str(path), "")


def test_a_name_that_lies_about_its_version_is_passed_over(find, tmp_path):
    script(tmp_path / "bin" / f"python{VERSION}", TOO_OLD)
    path = pyenv_python(tmp_path, f"{VERSION}.1")
    assert find("3.99", VERSION) == (0, path, "")


def test_python_without_venv_is_passed_over(find, tmp_path):
    script(tmp_path / "bin" / f"python{VERSION}", NO_VENV)
    path = pyenv_python(tmp_path, f"{VERSION}.1")
    assert find(VERSION) == (0, path, "")


def test_environment_keeps_its_python(find, tmp_path):
    pyenv_python(tmp_path, f"{VERSION}.1")
    path = tmp_path / ".venv" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.symlink_to(REAL)
    assert find(VERSION, VENV=f"{tmp_path}/.venv") == (0, str(path), "")
    path.unlink()
    path.symlink_to("/nowhere/python")
    assert find(VERSION, VENV=f"{tmp_path}/.venv")[1].endswith(f"{VERSION}.1/bin/python")


def test_no_python_is_said_in_one_line(find):
    code, out, error = find("3.98", "3.97")
    assert (code, out) == (1, "")
    assert error == (
        "No Python 3.98 or 3.97 with venv was found: install one (Debian: python3-venv), or name "
        "one with PYTHON=/path/to/python."
    )


@pytest.mark.parametrize("text, says", [
    (TOO_OLD, "is Python 3.9"), (BROKEN_SHIM, "does not run"), (NO_VENV, "has no venv module"),
    ("#!/bin/sh\n", "is no Python"), ("#!/bin/sh\necho no\n", "is no Python"),
])
def test_named_python_is_checked(find, tmp_path, text, says):
    pyenv_python(tmp_path, f"{VERSION}.1")
    python = script(tmp_path / "mine", text)
    code, out, error = find(VERSION, PYTHON=str(python))
    assert (code, out) == (1, "")
    assert error == f"PYTHON={python} {says}; name a Python of {VERSION} with venv."


def test_named_python_is_taken(find, tmp_path):
    pyenv_python(tmp_path, f"{VERSION}.1")
    assert find(PYTHON=REAL) == (0, REAL, "")
    assert find(PYTHON="/nowhere/python")[2].startswith("PYTHON=/nowhere/python does not run;")


def test_a_named_python_reaches_the_shell_as_it_is_written():
    """A quote ends nothing, and no command runs."""
    make = ["make", "-C", ROOT, "--no-print-directory", "package", "PYTHON=a'b\"; echo c"]
    run = subprocess.run(make, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith("PYTHON=a'b\"; echo c does not run; name a Python")


# Making an environment
# ---------------------

FAKE_PYTHON = """\
#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$*" >> {folder}/log
cat {folder}/says
exit $(cat {folder}/code)
"""


class Fake:
    """A project whose environment's Python is a script: it notes what pip is asked to do."""

    def __init__(self, folder):
        self.folder, self.venv, self.made = folder, folder / ".venv", 0
        (folder / "pyproject.toml").write_text("one\n")
        self.pip(0, "")

    def create(self, folder):
        self.made += 1
        shutil.rmtree(folder, ignore_errors=True)
        script(folder / "bin" / "python", FAKE_PYTHON.format(folder=self.folder))

    def pip(self, code, says):
        (self.folder / "code").write_text(str(code))
        (self.folder / "says").write_text(says)

    def set_up(self, *options):
        """Run setup.py; return its exit code and what pip was asked to do."""
        (self.folder / "log").write_text("")
        code = setup.main([str(self.venv), *options], self.folder)
        return code, (self.folder / "log").read_text()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = Fake(tmp_path)

    class Builder:
        def __init__(self, **options):
            assert options["with_pip"] and options["clear"]

        create = staticmethod(fake.create)

    monkeypatch.setattr(venv, "EnvBuilder", Builder)
    return fake


def test_complete_environment_is_left_alone(fake):
    code, asked = fake.set_up("--extras", "test")
    assert code == 0 and "-e .[test]" in asked
    assert fake.set_up("--extras", "test") == (0, "")
    assert fake.set_up() == (0, ""), "it has more than is asked for"
    assert fake.made == 1


def test_a_path_with_spaces(fake):
    fake.venv = fake.folder / "a folder" / "my venv"
    fake.venv.parent.mkdir()
    code, asked = fake.set_up("--extras", "test book")
    assert code == 0 and "-e .[book,test]" in asked
    assert fake.set_up("--extras", "test") == (0, "")


def test_extras_add_up(fake):
    fake.set_up("--extras", "test")
    assert "-e .[book,test]" in fake.set_up("--extras", "book")[1]
    assert fake.set_up("--extras", "book test") == (0, "")
    assert fake.made == 1


def test_changed_requirements_are_installed(fake):
    constraints = fake.folder / "constraints.txt"
    constraints.write_text("numpy==2.1\n")
    options = ["--constraints", str(constraints)]
    assert f"-c {constraints}" in fake.set_up(*options)[1]
    assert fake.set_up(*options) == (0, "")
    constraints.write_text("numpy==2.2\n")
    assert fake.set_up(*options)[1] != ""
    (fake.folder / "pyproject.toml").write_text("two\n")
    assert fake.set_up(*options)[1] != ""
    assert fake.made == 1


def test_interrupted_install_goes_on(fake, capsys, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(setup, "install", interrupt)
        assert fake.set_up()[0] == 130
    assert "goes on from here" in capsys.readouterr().err
    packages = fake.venv / "lib" / "python3" / "site-packages"
    for name, files in {"whole": ["INSTALLER", "RECORD"], "half": ["METADATA"]}.items():
        (packages / f"{name}-1.dist-info").mkdir(parents=True)
        for file in files:
            (packages / f"{name}-1.dist-info" / file).touch()
    code, asked = fake.set_up()
    assert code == 0 and asked != "" and fake.made == 1
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]
    assert fake.set_up() == (0, "")


def test_environment_without_its_python_is_made_again(fake):
    fake.set_up()
    python = fake.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    code, asked = fake.set_up()
    assert code == 0 and asked != "" and fake.made == 2


def failure(fake, capsys):
    capsys.readouterr()
    assert fake.set_up()[0] == 1
    assert fake.set_up()[0] == 1, "a failed install is not taken for a complete one"
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if not line.startswith(("Making", "Installing"))][0]


def test_no_room_on_the_disk(fake, capsys, monkeypatch):
    usage = shutil.disk_usage(fake.folder)._replace(free=1.2e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert failure(fake, capsys) == (
        "The disk has 1.2 GB free and .venv needs about 3 GB: free some space and run the "
        "command again."
    )
    assert not fake.venv.exists()


def test_disk_that_fills_up(fake, capsys):
    fake.pip(1, "Collecting jax\nERROR: [Errno 28] No space left on device\n")
    assert failure(fake, capsys).startswith("The disk is full: the environment needs about 3 GB")


def test_no_network(fake, capsys):
    command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--dry-run", "zzz-none"]
    env = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "PIP_NO_INDEX": "0",
           "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    fake.pip(run.returncode, run.stdout + run.stderr)
    assert failure(fake, capsys).startswith("pip cannot reach the package index: connect to")


def test_other_failures_show_the_end_of_pips_words(fake, capsys):
    fake.pip(2, "".join(f"line {i}\n" for i in range(20)) + "ERROR: broken package\n")
    assert fake.set_up()[0] == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-9] == "pip could not install the packages; its last lines:"
    assert lines[-1] == "    ERROR: broken package"


def test_folder_that_cannot_be_made(fake, capsys, monkeypatch):
    def fail(folder):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(venv.EnvBuilder, "create", staticmethod(fail))
    assert fake.set_up()[0] == 1
    assert "cannot be made: [Errno 30] Read-only file system" in capsys.readouterr().err


@pytest.mark.parametrize("block", [
    lambda fake: (fake.venv / "complete.json").mkdir(),
    lambda fake: (fake.folder / "pyproject.toml").unlink(),
])
def test_what_cannot_be_read_or_written_is_said_in_one_line(fake, capsys, block):
    assert fake.set_up()[0] == 0
    (fake.venv / "complete.json").unlink()
    block(fake)
    capsys.readouterr()
    assert fake.set_up()[0] == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "complete.json" in line or "pyproject.toml" in line


def test_a_list_of_constraints_that_is_not_there(fake, capsys):
    assert fake.set_up("--constraints", "none.txt")[0] == 1
    assert "none.txt" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["work", "file", "orphan", "beside"])
def test_nothing_of_the_users_is_erased(tmp_path, capsys, kind):
    folder = tmp_path / "v"
    if kind == "work":
        folder.mkdir()
        (folder / "thesis.txt").write_text("precious")
    elif kind == "beside":  # an environment, made by another Python where the work is
        script(folder / "bin" / "python", "#!/bin/sh\nexit 1\n")
        (folder / "pyvenv.cfg").write_text("")
        (folder / "thesis.txt").write_text("precious")
    elif kind == "file":
        folder.write_text("precious")
    else:
        folder = tmp_path / "no" / "such" / "folder"
    assert setup.main([str(folder)]) != 0
    said = capsys.readouterr().err
    assert "name another" in said and "Traceback" not in said
    assert kind not in ("work", "beside") or (folder / "thesis.txt").read_text() == "precious"
    assert kind != "file" or folder.read_text() == "precious"


@pytest.mark.parametrize("text", [
    "[1]", '{"extras": 5}', "{}", "nonsense", '{"key": "x", "extras": [[1]]}',
    '{"key": 5, "extras": []}',
])  # fmt: skip
def test_a_stamp_that_is_none(tmp_path, text):
    (tmp_path / "stamp").write_text(text)
    assert setup.read_stamp(tmp_path / "stamp") == {}
