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
