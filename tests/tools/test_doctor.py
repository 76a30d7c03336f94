"""What the doctor says of an env that is examined in a child: verdicts, layout, exit codes; hangs and deaths."""

from __future__ import annotations

import json
import re

import pytest

from pronghorn import build
from pronghorn.__main__ import main
from pronghorn.presets import resolve
from pronghorn.tools import doctor
from pronghorn.vec.base import Timeouts


def diagnosed(name: str, **timeouts: float) -> doctor.Diagnosis:
    _, config = resolve.resolve(f"tools.ailing:{name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "timeouts", lambda config: Timeouts(**timeouts))
        return doctor.diagnose(config, seconds=0.2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Hangs", "no answer for 1 s in step"),
        ("HangsInReset", "no answer for 1 s in reset"),
        ("Dies", "its process exited with code 7 in step"),
    ],
)
def test_a_hang_and_a_death_are_verdicts(name: str, text: str) -> None:
    found = diagnosed(name, step=1.0, reset=1.0)
    findings = {finding.name: finding for finding in found.findings}
    assert (findings["calls"].verdict, findings["calls"].text) == ("hurts", text) and findings["calls"].remedy
    assert [finding.name for finding in found.findings if finding.verdict != "ok"] == ["calls"]
    assert {"determinism", "memory"} <= set(found.missing) and "worker" not in found.missing
    table = found.table().splitlines()
    assert table[-1] == "not fit to be trained on: calls" and f"  not examined: {', '.join(found.missing)}" in table


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CannotBeMade", "tools.ailing:CannotBeMade raises OSError: no licence"),
        ("NeverMade", "tools.ailing:NeverMade cannot be made: no answer for 2 s in construct"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {"NeverMade": 2.0}.get(name, 60.0)
    monkeypatch.setattr(build, "timeouts", lambda config: Timeouts(construct=seconds))
    assert main(["doctor", f"tools.ailing:{name}"]) == 2
    assert capsys.readouterr().err == f"pronghorn: {message}\n"


def test_the_command_on_a_sound_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "tools.ailing:Sound", "--seconds", "0.3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tools.ailing:Sound" and lines[-1] == "fit to be trained on"
    assert re.match(r"  ok       worker       made in a fresh interpreter in ", lines[3])
    assert re.match(r"preset ppo-generic; layout (serial|pool): ", lines[-2])


def test_spaces_without_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "tools.ailing:IntegerActions", "--seconds", "0.2"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "hurts agent action space: a box of int64 is not supported; use MultiDiscrete → " in out


def test_the_command_on_an_ailing_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "tools.ailing:NanReward", "--seconds", "0.2", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["env"], found["verdict"], found["layout"]) == ("tools.ailing:NanReward", "hurts", "")
    reward = next(finding for finding in found["findings"] if finding["name"] == "reward")
    assert reward["verdict"] == "hurts" and reward["remedy"] and found["not_examined"] == []
