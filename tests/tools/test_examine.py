"""Each planted fault is named and no other, and none in sound envs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tools import ailing

from pronghorn.processes.supervise import unread
from pronghorn.tools import examine
from pronghorn.tools.examine import Chosen, Finding, Order
from pronghorn.types import UserError

HERE = {"worker"}
"""Says that torch is loaded, if it is in the process of these tests."""


def examined(env: str, steps: int, **env_args: Any) -> dict[str, Finding]:
    """The findings of an examination in this process, by name."""
    order = Order(env, env_args, seconds=60, num_envs=1, groups=1, notes_fd=-1, steps=steps)
    return {found.name: found for found in examine.examine(order, unread()) if isinstance(found, Finding)}


def ailments(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.verdict for name, finding in findings.items() if finding.verdict != "ok"}


@pytest.mark.parametrize(
    ("name", "verdicts", "text"),
    [
        ("WrongShape", {"observation": "hurts"}, r"observation has shape \(1,\), its space says \(2,\)"),
        ("NanObservation", {"observation": "hurts"}, "observation is not finite"),
        ("OutOfBounds", {"observation": "warning"}, r"observation leaves its space: .* … \d.* in box"),
        ("OtherDtype", {"observation": "warning"}, "observation is float64, its space says float32"),
        ("RealsForBytes", {"observation": "hurts"}, "observation is float64, its space says uint8"),
        ("OutsideCategories", {"observation": "hurts"}, "observation is 21, outside discrete"),
        ("SharedArray", {"observation": "warning"}, "observation is changed after it was returned"),
        ("NanReward", {"reward": "hurts"}, r"reward is not finite \(episode 0, after 10 steps\)"),
        ("ArrayReward", {"reward": "hurts"}, r"reward is array\(.*\), no real number"),
        ("IntegerFlag", {"ends": "hurts"}, "terminated is 0, no bool"),
        ("FourValues", {"calls": "hurts"}, "step returned 4 values"),
        ("OldReset", {"calls": "hurts"}, r"reset does not return \(observation, info\)"),
        ("RaisesInReset", {"calls": "hurts"}, "reset raises OSError: the door is stuck"),
        ("RaisesInStep", {"calls": "hurts"}, "step raises ZeroDivisionError: by zero"),
        ("NeverEnds", {"ends": "warning"}, r"no episode ended in [\d,]+ steps"),
        (
            "EndsOnlyOnce",
            {"ends": "hurts", "determinism": "warning"},
            "the first episode took 8 steps, every other ended at its first",
        ),
        ("LimitAsTermination", {"ends": "warning"}, "terminated after exactly 60 steps"),
        ("ResetsItself", {"ends": "hurts"}, "the env resets itself at an end"),
        ("IgnoresSeed", {"seeding": "warning", "determinism": "warning"}, "begins different episodes"),
        ("OneSeed", {"seeding": "warning"}, "every seed plays the same episode"),
        ("Unrepeatable", {"determinism": "warning"}, "played again, differ from step 1 on"),
        ("Remembers", {"determinism": "warning"}, "played in a new instance, differ from step 1 on"),
        ("Leaks", {"memory": "hurts"}, r"grows by \d+.* GB per million"),
        ("SlowReset", {"speed": "warning"}, "of the time goes into resets"),
        ("NothingLegal", {"mask": "hurts"}, "'action_mask' allows no action"),
        ("MaskInInfo", {"mask": "warning"}, "info has an 'action_mask', which nobody looks at"),
        ("Unbounded", {"spaces": "warning"}, "action space .* lacks bounds"),
        ("FloatImage", {"spaces": "warning"}, "looks like an image"),
        ("BadPicture", {"rendering": "warning"}, "rgb_array fails: RuntimeError: no display"),
    ],
)
def test_a_fault_is_named_and_nothing_else(name: str, verdicts: dict[str, str], text: str) -> None:
    findings = examined(f"tools.ailing:{name}", steps=400)
    ailing.Leaks.kept.clear()
    found = {check: verdict for check, verdict in ailments(findings).items() if check not in HERE}
    assert found == verdicts, [findings[check].text for check in found]
    finding = findings[next(iter(verdicts))]
    assert re.search(text, finding.text), finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("env", "env_args"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("MountainCar-v0", {}),
        ("Acrobot-v1", {}),
        ("HalfCheetah-v5", {}),
        ("ALE/Pong-v5", {"noop_max": 10}),
        ("pronghorn.envs.probes:CountingEnv", {"life": 2}),
        ("pronghorn.envs.probes:MaskedBanditEnv", {}),
        ("pronghorn.envs.probes:ImageBanditEnv", {}),
        ("pronghorn.envs.probes:InstructionEnv", {}),
        ("pronghorn.envs.probes:CueRecallEnv", {"cues": 4}),
        ("rig:MixedEnv", {}),
        ("tools.ailing:Sound", {}),
        ("tools.ailing:Masked", {}),
        ("tools.ailing:NothingLegalAtTheEnd", {}),
        ("tools.ailing:Mixed", {}),
    ],
)
def test_no_false_alarm(env: str, env_args: dict[str, Any]) -> None:
    findings = examined(env, steps=1000, **env_args)
    machine = HERE | {"rendering"}  # not every machine can draw
    assert ailments({name: finding for name, finding in findings.items() if name not in machine}) == {}
    assert len(findings) == 12


def test_engines_are_chosen_by_rule() -> None:
    order = Order("ALE/Pong-v5", {}, 60, num_envs=8, groups=1, notes_fd=-1, steps=10)
    chosen = [message for message in examine.examine(order, unread()) if isinstance(message, Chosen)]
    assert chosen == [Chosen("native", "native: ale-py steps these environments")]


def test_of_engines_alone_only_what_they_lack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("envpool")
    with pytest.raises(UserError, match="envpool/CartPole-v1 can be made, but steps many environments at once"):
        examined("envpool/CartPole-v1", steps=1)

    def needy(*_: Any, **__: Any) -> None:
        raise ImportError("it requires Qt\n`apt install qtbase5-dev`")

    monkeypatch.setattr("envpool.make_spec", needy)
    with pytest.raises(UserError, match=r"CoinrunEasy-v0 cannot be made: it requires Qt `apt install qtbase5-dev`$"):
        examined("envpool/CoinrunEasy-v0", steps=1)


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [
        ([1e8] * 40, "ok"),
        ([1e8 + 1e6 * min(n, 15) for n in range(40)], "ok"),  # caches that are full after a while
        ([1e8 + 1e6 * n for n in range(40)], "hurts"),
        ([1e8 + 2e5 * n for n in range(40)], "warning"),
        ([1e8 + 1e7 * (n % 2) for n in range(41)], "ok"),
        ([1e8, 2e8, 3e8], "ok"),  # too short to say
    ],
)
def test_what_counts_as_growth(sizes: list[float], verdict: str) -> None:
    memory = [(1000 * number, int(size)) for number, size in enumerate(sizes)]
    if verdict == "hurts":
        memory = [(steps // 2, size) for steps, size in memory]
    assert examine.check_memory(memory).verdict == verdict
