"""The examples of docs/python.md run, in their order, as they stand there."""

import re
from pathlib import Path

import rig

from pronghorn import cli

TEXT = (Path(__file__).parents[1] / "docs" / "python.md").read_text()


def test_the_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", TEXT, re.S)):
        if file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block)
        else:
            exec(compile(block, f"example {number} of docs/python.md", "exec"), names)
    assert (names["total"] > 0) and (tmp_path / "runs" / "sinks" / "metrics.csv").exists()
    with rig.parts_forgotten():
        (env, rest), *others = re.findall(r"pronghorn train (\S+) (--[^`\n]+)", TEXT)
        assert not others
        short = "--steps 8k --num-envs 8 --evaluation-episodes 5 --layout serial --workers 1 --quiet --run runs/named"
        assert cli.train([env, *rest.split(), *short.split()]) == 0
    assert (tmp_path / "runs" / "named" / "progress.txt").read_text().count("\n") > 2
