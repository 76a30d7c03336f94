"""What README and docs say holds: links lead somewhere, the example runs, the commands and options exist."""

import re
import shlex
from pathlib import Path

import pytest

import pronghorn
from pronghorn import cli
from pronghorn.__main__ import HELP

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    assert [target for target in targets if "://" not in target and not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_options_exist(document):
    commands = re.findall(r"pronghorn train (\S+) (--[^`\n|]+)", document.read_text())
    for env, rest in commands:
        if "[" not in rest and "--import" not in rest:  # test_own_parts has the files
            options = ["0" if word == "S" else word for word in shlex.split(rest, comments=True)]  # a seed
            if "--help" not in options:
                cli.train_config(["CartPole-v1" if env == "ENV" else env, *options])
    assert set(re.findall(r"^pronghorn (\w+)", document.read_text(), re.M)) <= set(re.findall(r"^  (\w+)", HELP, re.M))


def test_the_example_of_the_readme_learns(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (tmp_path / "corridor.py").write_text(next(block for block in blocks if "class Corridor" in block))
    monkeypatch.chdir(tmp_path)
    result = pronghorn.train("./corridor.py:Corridor", env_args={"length": 4}, steps=30_000, quiet=True)
    assert pronghorn.evaluate(result.run, episodes=5)["length_mean"] == 4
    assert pronghorn.load(result.run).act([0.0]) == 1


SHORTER = {"pronghorn train": "--steps 2000 --evaluation-episodes 2", "pronghorn resume": "--steps 2500"}


def test_the_quick_start_can_be_followed(tmp_path, monkeypatch, capfd):
    """Every command and all the Python of docs/index.md, in their order, with fewer steps."""
    readme, start = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md"))
    (tmp_path / "corridor.py").write_text(re.search(r"```python\n(# corridor.*?)```", readme, re.S)[1])
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^pronghorn \w+ [^\n]+", start, re.M)
    assert len(commands) > 5
    for command in commands:
        words = re.sub(r" --steps \d+", "", command) + " " + SHORTER.get(" ".join(command.split()[:2]), "")
        assert cli.run(words.split()[1], shlex.split(words)[2:]) == 0, command
    (code,) = re.findall(r"```python\n(.*?)```", start, re.S)
    exec(code.replace("20_000", "2_000"), {})
    assert "return_mean" in capfd.readouterr().out
