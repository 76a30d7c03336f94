"""Envs that break the contract, through the command line: one line that names env and key, and exit code 2."""

from __future__ import annotations

import re

import pytest

from pronghorn.__main__ import main

SOURCE = '''
import numpy as np
from gymnasium import spaces

class Sound:
    """Until the tenth step, which is left to the others."""

    observation_space = spaces.Dict(
        place=spaces.Box(-1, 1, (3,), np.float32), level=spaces.Tuple((spaces.Box(0, 9, (), np.uint8),))
    )
    action_space = spaces.Discrete(2)
    count = 0

    def seen(self, place=(0, 0, 0), level=3):
        return {"place": np.array(place, np.float64), "level": (level,)}

    def reset(self, *, seed=None, options=None):
        return self.seen(), {}

    def step(self, action):
        self.count += 1
        sound = self.seen(), 1.0, self.count % 4 == 0, False, {}
        return self.tenth(*sound) if self.count == 10 else sound

class Four(Sound):
    def tenth(self, seen, reward, *rest):
        return seen, reward, True, {}

class Shape(Sound):
    def tenth(self, seen, *rest):
        return self.seen((0, 0)), *rest

class Kind(Sound):
    def tenth(self, seen, *rest):
        return self.seen(level=0.5), *rest

class Nan(Sound):
    def tenth(self, seen, *rest):
        return self.seen((0, 0, np.nan)), *rest

class NanReward(Sound):
    def tenth(self, seen, reward, *rest):
        return seen, np.nan, *rest

class NoFlag(Sound):
    def tenth(self, seen, reward, *rest):
        return seen, reward, None, None, {"done": True}

class Key(Sound):
    def tenth(self, seen, *rest):
        return {"place": np.zeros(3)}, *rest

class OldReset(Sound):
    def reset(self, *, seed=None, options=None):
        return self.seen()

class NoSeed(Sound):
    def reset(self):
        return self.seen(), {}
'''

OPTIONS = "--num-envs 3 --workers 2 --steps 600 --unroll-length 8 --layers 4 --compile false --threads 1"
STEP = r"env \d in step \(episode 2, after 1 steps\): "


MISTAKES = {
    "Four": STEP + r"step returned 4 values, as Gym did before 0\.26; return \(observation, reward, terminated, .*",
    "Shape": STEP + r"observation 'place' has shape \(2,\), its space says \(3,\)",
    "Kind": STEP + r"observation 'level/0' is float64, its space says uint8",
    "Nan": STEP + r"observation 'place' is not finite",
    "NanReward": STEP + r"reward is not finite",
    "NoFlag": STEP + r"terminated must be a bool, not None",
    "Key": STEP + r"observation has no 'level', its space has",
    "OldReset": r"env \d in reset \(episode 0, after 0 steps\): reset must return \(observation, info\); .*",
    "NoSeed": r"\./bad\.py:NoSeed: reset takes no seed, as in Gym before 0\.26; write reset\(.*",
}
PASSED_ON = ("Four", "Shape", "OldReset", "NoSeed")
"""A worker passes on what the same checks say, whatever that is: some of each method are enough."""

CELLS = [*((name, "serial") for name in MISTAKES), *((name, "pool") for name in PASSED_ON)]


@pytest.mark.parametrize(("name", "layout"), CELLS)
def test_mistakes_of_an_env(name, layout, tmp_path, monkeypatch, capsys):
    (tmp_path / "bad.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"./bad.py:{name}", "--layout", layout, *OPTIONS.split()]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(f"pronghorn: {MISTAKES[name]}\n", error), error
