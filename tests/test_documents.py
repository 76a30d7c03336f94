"""What README and docs say holds: links lead somewhere, and every command and all Python run, or say what they need."""

import argparse
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import rig

import pronghorn
from pronghorn import cli, config
from pronghorn.__main__ import HELP

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = r"(?:pronghorn|python|pip|make|git|apt|ssh|sbatch|\.|\.venv\S+)"
PLACEHOLDERS = {
    "ENV": "CartPole-v1",
    "ID": "CartPole-v1",
    "RUN": "runs/CartPole-v1-ppo-seed0",
    "KEY=VALUE": "render_mode=null",
    "DIR": "made",
    "PATH": "made/python",
    "PICTURE": "made/picture.png",
    "SECONDS": "1",
    **dict.fromkeys("NSRK", "1"),
}
TINY = "--num-envs 2 --evaluation-episodes 1 --layout serial --workers 1 --threads 1"
SHORTER = {
    "train": f"--steps 64 {TINY} --quiet",
    "bench": f"--steps 64 {TINY} --seconds 0.05 --quiet",
    "resume": "--steps 600 --quiet",
    "eval": "--episodes 1",
    "doctor": "--seconds 0.2",
}
OPTIONS = {
    "resume": cli.ResumeOptions,
    "eval": cli.EvalOptions,
    "plot": cli.PlotOptions,
    "compare": cli.CompareOptions,
    "export": cli.ExportOptions,
    "doctor": cli.DoctorOptions,
    "list": cli.ListOptions,
}
PYTHON_ELSEWHERE = {"python.md": "test_python_document.py", "own_parts.md": "test_own_parts.py"}
"""Pages whose Python is run by a test of their own, in its order."""


class Command(NamedTuple):
    """``marked``: it says what it needs, beside it or in a line of its section or block, so it need not be run here."""

    text: str
    marked: bool


def commands(page: str) -> Iterator[Command]:
    """Those in blocks, one a line, and whole ones within text, as they stand there.

    In a script those after ``srun`` and ``nohup`` count, too. A mark is a comment ``# needs …`` at a line's end, one on
    a line of its own for the rest of a block, or a line ``*Needs …*`` for a whole section.
    """
    for section in re.split(r"^#+ (?=.*\n\n)", page, flags=re.M):
        marked = re.search(r"^\*Needs ", section, re.M) is not None
        text = re.sub(r"^```.*?^```$", "", section, flags=re.M | re.S)
        for inline in re.findall(rf"`({PROGRAM} [^`]+)`", re.sub(r"^    .*", "", text, flags=re.M)):
            words = inline.split()
            if (words[0] == "pronghorn" and len(words) > 2) or words[1].endswith(".py"):
                yield Command(" ".join(words), marked)
        for block in blocks(section):
            within = marked
            for line in re.sub(r" *\\\n *|\n {8,}", " ", block).splitlines():
                within = within or line.startswith("# needs ")
                if found := re.search(rf"(?:^|^\$ |\b(?:nohup|srun) )({PROGRAM} \S.*)", line):
                    code, _, comment = re.sub(r" (?:>|&&) .*", "", found[1]).partition(" #")
                    yield Command(code.strip(), within or comment.strip().startswith("needs "))


def blocks(section: str) -> list[str]:
    """Fenced without a language, or indented."""
    section = re.sub(r"^```python\n.*?^```$", "", section, flags=re.M | re.S)
    fenced = re.findall(r"^```\w*\n(.*?)^```$", section, re.M | re.S)
    section = re.sub(r"^```.*?^```$", "", section, flags=re.M | re.S)
    indented = re.findall(r"(?:^\n)((?:^    \S.*\n)+)", section, re.M)
    return [*fenced, *(re.sub(r"^    ", "", block, flags=re.M) for block in indented)]


def concrete(text: str) -> list[str]:
    """Words with the first of each choice, all that is optional, and something for each placeholder."""
    text = re.sub(r"\[options of [^]]*\]|\.\.\.|…", "", text)
    words = shlex.split(text.replace("[--", "--").replace("]", "") if "[--" in text else text)
    words = [word.partition("|")[0].removesuffix(",") for word in words]
    return [PLACEHOLDERS.get(word, re.sub(r"\$\w+", "0", word)) for word in words]


def shorter(words: list[str]) -> list[str]:
    """The same with little to do."""
    text = re.sub(r" --(?:steps|episodes|seconds) \S+", "", shlex.join(words))
    return shlex.split(text) if "--help" in words else shlex.split(f"{text} {SHORTER.get(words[1], '')}")


def expanded(words: list[str]) -> list[str]:
    """As a shell does it."""
    return [str(path) for word in words for path in (sorted(Path().glob(word)) if "*" in word else [word])]


def check(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be run is understood, though nothing is made."""
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.M), words
    elif program == "python" and rest[0].endswith(".py"):
        check_script(ROOT / rest[0], rest[1:], monkeypatch)
    elif program == "pronghorn" and rest[0] == "train":
        cli.train_config(rest[1:])
    elif program == "pronghorn" and rest[0] == "bench":
        cli._configured(cli.BenchOptions, "bench", rest[1:])
    elif program == "pronghorn":
        cli.parse(OPTIONS[rest[0]], rest[0], rest[1:])


def check_script(script: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes as far as its arguments are parsed; what it passes on has to be understood by ``train``."""

    class Parsed(Exception):
        """It has come so far."""

    parse = argparse.ArgumentParser.parse_known_args

    def parse_and_stop(parser: argparse.ArgumentParser, *given: object, **named: object) -> None:
        _, rest = parse(parser)
        if rest:
            cli.train_config(["CartPole-v1", "--algorithm", "impala", *rest])
        raise Parsed

    with monkeypatch.context() as changed:
        changed.setattr(argparse.ArgumentParser, "parse_known_args", parse_and_stop)
        changed.setattr(sys, "argv", [str(script), *arguments])
        changed.syspath_prepend(script.parent)
        with pytest.raises(Parsed):
            runpy.run_path(str(script), run_name="__main__")


def python(page: Path) -> list[str]:
    """Its blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.S | re.M)


def write_files(pages: list[Path]) -> None:
    """The blocks that begin with the name of a file."""
    for block in (block for page in pages for block in python(page)):
        if file := re.match(r"# (\w+\.py)\b", block):
            Path(file[1]).write_text(block)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run, for every RUN."""
    folder = tmp_path_factory.mktemp("trained")
    words = f"pronghorn train CartPole-v1 --run {folder / PLACEHOLDERS['RUN']}".split()
    assert cli.train(shorter(words)[2:]) == 0
    return folder


@pytest.fixture
def workplace(trained, tmp_path, monkeypatch):
    """The working directory of whoever reads the docs: a run of CartPole, one that is called otherwise, the files."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    shutil.copytree(trained / PLACEHOLDERS["RUN"], tmp_path / "runs" / "HalfCheetah-v5-ppo-seed0")
    monkeypatch.chdir(tmp_path)
    write_files(PAGES)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=lambda path: path.stem)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
@pytest.mark.timeout(300)
def test_commands_run_or_say_what_they_need(page, workplace, monkeypatch):
    """With fewer steps. A mention with nothing but RUN or ENV in it is run only where it stands first."""
    before = {command.text for other in PAGES[: PAGES.index(page)] for command in commands(other.read_text())}
    for number, command in enumerate(commands(page.read_text())):
        words = concrete(command.text)
        with rig.parts_forgotten():
            if command.marked:
                check(words, monkeypatch)
                continue
            if command.text in before and re.search(r" (ENV|RUN)\b", command.text):
                continue
            assert words[0] == "pronghorn", f"{command.text} is neither run here nor says what it needs"
            run = ["--run", f"made/{number}"] if words[1] == "train" and "--run" not in words else []
            try:
                assert cli.run(words[1], [*expanded(shorter(words)[2:]), *run]) == 0, command.text
            except SystemExit as end:
                assert not end.code and "--help" in words, command.text


def test_commands_are_found():
    page = """# A
a `pronghorn eval RUN` and `pronghorn list`, `python x.py --b` and `pip install x`
```
pronghorn train A --layers 1 \\
          --steps 1   # needs nothing
$ pronghorn plot B  # more
# needs two
make c
```
## D

*Needs e.*

    pronghorn doctor F
"""
    assert [tuple(command) for command in commands(page)] == [
        ("pronghorn eval RUN", False),
        ("python x.py --b", False),
        ("pronghorn train A --layers 1 --steps 1", True),
        ("pronghorn plot B", False),
        ("make c", True),
        ("pronghorn doctor F", True),
    ]
    assert sum(not command.marked for page in PAGES for command in commands(page.read_text())) > 25


def test_the_options_and_extras_that_are_named_exist():
    scripts = "".join(path.read_text() for part in ("benchmarks", "examples") for path in (ROOT / part).rglob("*.py"))
    kinds = [cli.TrainOptions, cli.BenchOptions, *OPTIONS.values(), *config.LOSSES.values()]
    fields = {name for kind in kinds for name in kind.__dataclass_fields__}
    fields |= set(config.option_names(config.RunConfig(env="A")))
    fields |= {"import", "help", "regret", "name", "x"}  # an own algorithm's, and two that stand for any
    known = {f"--{no}{name.replace('_', '-')}" for name in fields for no in ("", "no-")}
    known |= set(re.findall(r'"(--[\w-]+)"', scripts))
    extras = set(re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))
    commands = set(re.findall(r"^  (\w+)", HELP, re.M))
    for page in PAGES:
        text = re.sub(r"^#SBATCH .*", "", page.read_text(), flags=re.M)
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= known, page
        named = re.findall(r"'(?:pronghorn|\.)\[([\w,-]+)\]'", text)
        assert {extra for names in named for extra in names.split(",")} <= extras, page
        assert set(re.findall(r"^pronghorn (\w+)", text, re.M)) <= commands, page


def test_the_example_of_the_readme_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files([ROOT / "README.md"])
    result = pronghorn.train("./corridor.py:Corridor", env_args={"length": 4}, steps=30_000, quiet=True)
    assert pronghorn.evaluate(result.run, episodes=5)["length_mean"] == 4
    assert pronghorn.load(result.run).act([0.0]) == 1


@pytest.mark.parametrize("page", [page for page in PAGES if python(page)], ids=lambda path: path.stem)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.name in PYTHON_ELSEWHERE:
        assert page.name in (ROOT / "tests" / PYTHON_ELSEWHERE[page.name]).read_text()
        return
    names = {"observation": np.zeros(4, np.float32)}
    for number, block in enumerate(python(page)):
        if not re.match(r"# \w+\.py\b", block):
            short = re.sub(r"steps=[\d_]+", "steps=2_000, quiet=True", block)
            exec(compile(short, f"block {number} of {page.name}", "exec"), names)
    assert names["policy"].act(names["observation"]) in (0, 1)
