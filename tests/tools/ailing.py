"""Envs with one fault each, for the doctor to name; and a few sound ones of unusual spaces."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

import numpy as np
from gymnasium import spaces


class Sound:
    """Draws at random where it goes; an episode is cut after 20 steps, and terminated at the walls."""

    observation_space: Any = spaces.Box(-4, 4, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self) -> None:
        self.random, self.place, self.time = np.random.default_rng(0), 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.place, self.time = float(self.random.uniform(-1, 1)), 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.place += 0.4 * float(action) - 0.2 + self.random.uniform(-0.1, 0.1)
        self.time += 1
        return self.seen(), -abs(self.place), bool(abs(self.place) > 3), self.time >= 20, {}

    def seen(self) -> Any:
        return np.array([self.place, self.time / 20], np.float32)


class Altered(Sound):
    """Changes the answer to every step from the tenth of an episode on."""

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        return self.change(*answer) if self.time >= 10 else answer

    def change(self, *answer: Any) -> Any:
        raise NotImplementedError


class WrongShape(Altered):
    def change(self, seen: Any, *rest: Any) -> Any:
        return seen[:1], *rest


class NanObservation(Altered):
    def change(self, seen: Any, *rest: Any) -> Any:
        return seen * np.float32(np.nan), *rest


class OutOfBounds(Altered):
    def change(self, seen: Any, *rest: Any) -> Any:
        return seen + np.float32(10), *rest


class OtherDtype(Altered):
    def change(self, seen: Any, *rest: Any) -> Any:
        return seen.astype(np.float64), *rest


class RealsForBytes(Sound):
    observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def seen(self) -> Any:
        return np.full(2, 0.5)


class OutsideCategories(Altered):
    observation_space = spaces.Discrete(21)

    def seen(self) -> Any:
        return self.time

    def change(self, seen: Any, *rest: Any) -> Any:
        return 21, *rest


class SharedArray(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.array = np.zeros(2, np.float32)

    def seen(self) -> Any:
        self.array[:] = super().seen()
        return self.array


class NanReward(Altered):
    def change(self, seen: Any, reward: Any, *rest: Any) -> Any:
        return seen, np.nan, *rest


class ArrayReward(Altered):
    def change(self, seen: Any, reward: Any, *rest: Any) -> Any:
        return seen, np.array([reward]), *rest


class IntegerFlag(Altered):
    def change(self, seen: Any, reward: Any, terminated: Any, *rest: Any) -> Any:
        return seen, reward, int(terminated), *rest


class FourValues(Sound):
    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward, terminated or truncated, info


class OldReset(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class RaisesInReset(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.time:
            raise OSError("the\ndoor is stuck")
        return super().reset(seed=seed)


class RaisesInStep(Altered):
    def change(self, *answer: Any) -> Any:
        raise ZeroDivisionError("by zero")


class NeverEnds(Sound):
    def step(self, action: Any) -> Any:
        seen, reward, *_ = super().step(action)
        return np.clip(seen, -4, 4), reward, False, False, {}


class EndsOnlyOnce(Sound):
    """The counter that ends an episode is not reset."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def step(self, action: Any) -> Any:
        seen, reward, *_ = super().step(action)
        self.total += 1
        return seen, reward, self.total >= 8, False, {}


class LimitAsTermination(Sound):
    def step(self, action: Any) -> Any:
        self.place *= 0.5
        seen, reward, *_ = super().step(action)
        return seen * np.float32([1, 0.3]), reward, self.time >= 60, False, {}


class ResetsItself(Sound):
    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            info = {"final_observation": seen}
            seen, _ = self.reset()
        return seen, reward, terminated, truncated, info


class IgnoresSeed(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()


class OneSeed(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=7)


class Unrepeatable(Sound):
    """Draws from a generator of its own while it steps."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng()

    def step(self, action: Any) -> Any:
        self.place += self.own.uniform(-0.1, 0.1)
        return super().step(action)


class Remembers(Sound):
    """Each instance has a bias of its own, drawn when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = np.random.default_rng().uniform(0.1, 0.2)

    def step(self, action: Any) -> Any:
        self.place += self.bias
        return super().step(action)


class Leaks(Sound):
    kept: Any = []  # noqa: RUF012 (that is the fault)

    def step(self, action: Any) -> Any:
        # Memory of its own: what numpy allocates may lie where something else was before, and nothing grows.
        self.kept.append(mmap.mmap(-1, 80_000))
        self.kept[-1].write(bytes([1]) * 80_000)
        return super().step(action)


class SlowReset(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(0.03)
        return super().reset(seed=seed)


class Masked(Sound):
    observation_space = spaces.Dict(at=Sound.observation_space, action_mask=spaces.MultiBinary(2))

    def seen(self) -> Any:
        return {"at": super().seen(), "action_mask": self.mask()}

    def mask(self) -> Any:
        return np.array([1, self.time % 2], np.int8)

    def step(self, action: Any) -> Any:
        assert self.mask()[action], "illegal"
        return super().step(action)


class NothingLegal(Masked):
    def mask(self) -> Any:
        return np.array([1, 0], np.int8) if self.time != 7 else np.zeros(2, np.int8)

    def step(self, action: Any) -> Any:
        return Sound.step(self, action)


class NothingLegalAtTheEnd(Masked):
    def mask(self) -> Any:
        return np.array([1, 0], np.int8) if self.time < 20 else np.zeros(2, np.int8)


class MaskInInfo(Sound):
    def step(self, action: Any) -> Any:
        *answer, _ = super().step(action)
        return *answer, {"action_mask": np.ones(2)}


class Unbounded(Sound):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(action[0])


class IntegerActions(Sound):
    action_space = spaces.Box(0, 1, (1,), np.int64)

    def step(self, action: Any) -> Any:
        return super().step(action[0])


class FloatImage(Sound):
    observation_space = spaces.Box(0, 1, (24, 24, 3), np.float32)

    def seen(self) -> Any:
        return np.full((24, 24, 3), abs(self.place) / 4, np.float32)


class BadPicture(Sound):
    metadata: Any = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()

    def render(self) -> Any:
        raise RuntimeError("no display")


class Hangs(Altered):
    def change(self, *answer: Any) -> Any:
        time.sleep(3600)


class HangsInReset(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.time:
            time.sleep(3600)
        return super().reset(seed=seed)


class Dies(Altered):
    def change(self, *answer: Any) -> Any:
        os._exit(7)


class CannotBeMade(Sound):
    def __init__(self) -> None:
        raise OSError("no\nlicence")


class NeverMade(Sound):
    def __init__(self) -> None:
        time.sleep(3600)


class Mixed(Sound):
    """A nested observation with an image, a text and a discrete value from -1 on; two actions at once."""

    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (36, 36, 1), np.uint8),
        order=spaces.Text(20),
        rest=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2), Sound.observation_space)),
    )
    action_space = spaces.Dict(turn=spaces.Discrete(2, start=5), push=spaces.Tuple((spaces.Box(-1, 3, (2,)),)))

    def seen(self) -> Any:
        camera = np.full((36, 36, 1), self.time, np.uint8)
        rest = self.time % 3 - 1, np.array([0, 1], np.int8), super().seen()
        return {"camera": camera, "order": "go left" if self.place > 0 else "go right", "rest": rest}

    def step(self, action: Any) -> Any:
        assert action["turn"] in (5, 6) and (np.abs(action["push"][0] - 1) <= 2).all()
        return super().step(action["turn"] - 5)
