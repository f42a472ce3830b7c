"""The lists of versions agree with pyproject.toml, and Colab's versions stay where they are."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import notebooks

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
COLAB = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([\w.-]+)==(\S+)$", (ROOT / "constraints/colab-tpu-2026-08.txt").read_text(), re.M
    )
}
INSTALLED = {canonicalize_name(d.name): d for d in metadata.distributions()}
on_colabs_versions = pytest.mark.skipif(
    any(INSTALLED[name].version != COLAB[name] for name in ("jax", "flax", "numpy")),
    reason="for Colab's versions: make test-colab",
)


def test_slow_tests_are_there():
    """A renamed one would count as quick."""
    for line in (ROOT / "tests" / "slow_tests.txt").read_text().split():
        file, name = line.split("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        # a Hypothesis state machine has one test, of this name
        assert f"def {name}(" in text or name == "runTest" and ".TestCase" in text, line


def test_conda_environment_follows_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    python = next(line for line in conda if line.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))
    assert len(conda) == 2 and "pip" in conda, "packages come from pyproject.toml, through pip"
    match = re.fullmatch(r"-e \.\[([a-z,]+)\]", *pip["pip"])
    assert set(match[1].split(",")) == set(EXTRAS) - {"browser", "tpu"}


@pytest.mark.parametrize("name", ["dependencies", *sorted(EXTRAS)])
def test_lower_bounds_admit_colabs_versions(name):
    if name in ("book", "browser"):
        return  # not for Colab
    for line in EXTRAS.get(name, PROJECT["dependencies"]):
        requirement = Requirement(line)
        there = COLAB.get(canonicalize_name(requirement.name))
        assert there is None or requirement.specifier.contains(there), f"Colab has {there}: {line}"


def test_installed_versions_are_those_asked_for():
    for line in PROJECT["dependencies"] + EXTRAS["test"]:
        requirement = Requirement(line)
        version = INSTALLED[canonicalize_name(requirement.name)].version
        assert requirement.specifier.contains(version, prereleases=True), f"{version} for {line}"


def test_constraints_say_their_date():
    first = (ROOT / "constraints/colab-tpu-2026-08.txt").read_text().splitlines()[0]
    assert first.startswith("#") and "2026-08" in first


@on_colabs_versions
def test_environment_has_colabs_versions():
    different = {
        name: (d.version, COLAB[name])
        for name, d in INSTALLED.items()
        if name in COLAB and name != "pip" and d.version != COLAB[name]
    }
    assert different == {}


@on_colabs_versions
def test_installing_on_colab_moves_no_version(tmp_path):
    """Resolve our dependencies where pip sees the packages that Colab has, and no others."""
    venv.create(tmp_path / "colab", with_pip=False)
    python = tmp_path / "colab" / "bin" / "python"
    packages = next((tmp_path / "colab").glob("lib/python*/site-packages"))
    for name, distribution in INSTALLED.items():
        if name in COLAB:
            info = Path(str(distribution.locate_file(""))) / Path(distribution._path).name
            shutil.copytree(info, packages / info.name)
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--dry-run",
               "--report", tmp_path / "report.json", *PROJECT["dependencies"]]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    added = {
        canonicalize_name(item["metadata"]["name"]): item["download_info"]["url"]
        for item in json.loads((tmp_path / "report.json").read_text())["install"]
    }
    assert {"jaxtyping", "gguf"} <= set(added), "Colab has neither"
    assert sorted(set(added) & set(COLAB)) == []
    assert [url for url in added.values() if not url.endswith("-none-any.whl")] == []


# The public address
# ------------------

PLACES = sorted([*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *ROOT.glob("book/*.md"),
                 *ROOT.glob("chapters/*.ipynb")])


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.name)
def test_public_address_is_the_one_of_pyproject(path):
    text = path.read_text(encoding="utf-8")
    slug = notebooks.address().removeprefix("https://github.com/")
    for found in re.findall(r"colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)/blob", text):
        assert found == slug
    for found in re.findall(r"github\.com/([\w.-]+/dflash_lite)\b", text):
        assert found == slug


def test_readme_opens_every_chapter_in_colab():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in notebooks.chapter_paths():
        link = notebooks.colab_link(f"chapters/{path.stem}.ipynb")
        assert link in text, f"README.md has no link to {link}"
