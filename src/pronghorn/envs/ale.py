"""Atari games by Gymnasium id (``ALE/Pong-v5``): their options, and one game with the usual preprocessing."""

from __future__ import annotations

import dataclasses
import importlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from pronghorn.config import nearest
from pronghorn.types import EnvSpec, Leaf, UserError

REMEDY = "pip install 'pronghorn[atari]'"


@dataclass(frozen=True)
class AtariOptions:
    """How a game is played and seen, equal in every layout. Raises UserError for a value that cannot work."""

    frame_skip: int = 4
    """frames an action is held for; the last two are merged by their maximum"""
    stack: int = 4
    """newest frames in an observation"""
    screen: int = 84
    """height and width of a grey frame"""
    noop_max: int = 30
    """a game starts with a random number of no-ops up to this"""
    life_loss: bool = False
    """a lost life is ``terminated``, and the game goes on"""
    fire_reset: bool = False
    """press FIRE once at the start of a game that has it"""
    sticky: float = 0.0
    """probability that a frame repeats the last action instead"""
    full_action_set: bool = False
    """all 18 actions instead of those the game uses"""
    max_frames: int = 108_000
    """a game is cut after this many frames (its no-ops not counted), rounded down to whole steps"""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, kind = getattr(self, item.name), type(item.default)
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise UserError(f"--env-arg {item.name} must be {kind.__name__}, not {value!r}")
        for name, least in (("frame_skip", 1), ("stack", 1), ("screen", 1), ("noop_max", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--env-arg {name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.sticky < 1:
            raise UserError(f"--env-arg sticky must be a probability below 1, not {self.sticky}")
        if self.max_frames < self.frame_skip:
            raise UserError(f"--env-arg max_frames must be at least frame_skip ({self.frame_skip})")

    @classmethod
    def of(cls, env_args: dict[str, Any]) -> AtariOptions:
        """From a user's arguments. Raises UserError for an unknown one, naming the nearest."""
        known = [item.name for item in dataclasses.fields(cls)]
        for name in env_args:
            if name not in known:
                raise UserError(f"Atari games have no --env-arg {name!r}; {nearest(name, known)}")
        return cls(**env_args)

    @property
    def max_steps(self) -> int:
        """Agent steps after which a game is cut."""
        return self.max_frames // self.frame_skip

    def describe(self) -> str:
        """One line for whoever starts a run."""
        return (
            f"Atari: {self.stack} grey frames of {self.screen}×{self.screen}, frame skip {self.frame_skip}, "
            f"up to {self.noop_max} no-ops, sticky actions {self.sticky or 'off'}, "
            f"fire at reset {_switch(self.fire_reset)}, ends at lost lives {_switch(self.life_loss)}, "
            f"full action set {_switch(self.full_action_set)}, cut after {self.max_steps * self.frame_skip} frames"
        )

    def spec(self, name: str, actions: int, seedable: bool) -> EnvSpec:
        """Observations [stack, screen, screen] uint8; ``actions`` discrete choices."""
        shape = (self.stack, self.screen, self.screen)
        return EnvSpec(
            name,
            Leaf("box", shape, np.dtype(np.uint8), low=np.zeros(shape), high=np.full(shape, 255.0)),
            Leaf("discrete", (), np.dtype(np.int64), categories=(actions,)),
            action_repeat=self.frame_skip,
            max_episode_steps=self.max_steps,
            seedable=seedable,
        )


class AtariEnv:
    """One game: max of the last two frames, grey, resized by area, stacked; a new game's stack repeats its first frame.

    Rewards are raw. Frames equal those of ``gymnasium.wrappers.AtariPreprocessing`` bit for bit.

    Raises:
        UserError: a package is missing, there is no such game, or ``env_args`` do not fit ``AtariOptions``.
    """

    def __init__(self, env: str, env_args: dict[str, Any]) -> None:
        import gymnasium

        self._options = options = AtariOptions.of(env_args)
        name = require_game(env)
        self._cv2 = _import("cv2", env)
        game: Any = gymnasium.make(
            name,
            disable_env_checker=True,
            obs_type="ram",  # the cheapest: frames are taken from the emulator, two per step
            frameskip=1,
            repeat_action_probability=options.sticky,
            full_action_space=options.full_action_set,
            max_num_frames_per_episode=0,  # it would count no-ops; cut here instead
        )
        self._game = game.unwrapped
        self._ale = self._game.ale
        full = options.full_action_set
        self._actions = self._ale.getLegalActionSet() if full else self._ale.getMinimalActionSet()
        self._fire = [action for action in self._actions if action.name == "FIRE" and options.fire_reset]
        height, width = self._ale.getScreenDims()
        self._newest, self._last = np.zeros((2, height, width), np.uint8)
        self._stack: deque[Any] = deque(maxlen=options.stack)
        self._lives = self._elapsed = 0
        self.spec = options.spec(env, len(self._actions), seedable=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a game. Seeding loads it anew (tens of milliseconds)."""
        self._game.reset(seed=seed)
        noops = int(self._game.np_random.integers(1, self._options.noop_max + 1)) if self._options.noop_max else 0
        for action in [self._ale.getLegalActionSet()[0]] * noops + self._fire:
            self._ale.act(action)
            if self._ale.game_over():
                self._ale.reset_game()
        self._lives, self._elapsed = self._ale.lives(), 0
        self._ale.getScreenGrayscale(self._newest)
        self._last.fill(0)
        self._stack.extend([self._frame()] * self._options.stack)
        return np.stack(self._stack), {"lives": self._lives}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Holds the action. A lost life is as in ``Env``; ``info["lives"]`` are those left."""
        held, skip = self._actions[int(action)], self._options.frame_skip
        reward = 0.0
        for remaining in reversed(range(skip)):
            reward += self._ale.act(held)
            if self._ale.game_over():
                break
            if remaining < 2:
                self._ale.getScreenGrayscale(self._last if remaining else self._newest)
        self._elapsed += 1
        self._stack.append(self._frame())
        over, lives = self._ale.game_over(), self._ale.lives()
        lost = self._options.life_loss and lives < self._lives
        self._lives = lives
        truncated = self._elapsed >= self._options.max_steps and not over
        info = {"lives": lives}
        if lost and not over and not truncated:
            info["episode_over"] = False
        return np.stack(self._stack), reward, over or lost, truncated, info

    @property
    def render_fps(self) -> float:
        """A game has 60 frames a second."""
        return 60 / self._options.frame_skip

    def render(self) -> Any:
        """The emulator's screen in colour, [210, 160, 3] in most games."""
        return self._ale.getScreenRGB()

    def close(self) -> None:
        """Frees the emulator."""
        self._game.close()

    def _frame(self) -> Any:
        if self._options.frame_skip > 1:
            np.maximum(self._newest, self._last, out=self._newest)
        size = (self._options.screen, self._options.screen)
        return self._cv2.resize(self._newest, size, interpolation=self._cv2.INTER_AREA)


def require_game(env: str) -> str:
    """``env``, once its package is registered and knows it.

    Raises:
        UserError: ale-py is missing, or has no such game.
    """
    import gymnasium

    ale_py = _import("ale_py", env)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    gymnasium.register_envs(ale_py)
    if env not in gymnasium.registry:
        games = [name for name in gymnasium.registry if name.startswith("ALE/") and name.endswith("-v5")]
        raise UserError(f"there is no environment {env!r}; {nearest(env, games, 'ALE/Pong-v5 is one')}")
    return env


def _import(module: str, env: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{env} needs {error.name or module}: {REMEDY}") from error


def _switch(on: bool) -> str:
    return "on" if on else "off"
