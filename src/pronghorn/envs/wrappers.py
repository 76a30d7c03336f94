"""One env with the habits the rest relies on: next-step autoreset, a seed per episode, checked outputs, and blame."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from pronghorn import seeding, tree
from pronghorn.envs.base import ContractError, EnvFactory
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf, UserError
from pronghorn.vec.base import EnvError

OLD_API = (
    "step returned 4 values, as Gym did before 0.26; return (observation, reward, terminated, truncated, info), "
    "where truncated says that a limit cut the episode and terminated that it really ended"
)


class Row(NamedTuple):
    """What one env answers, with the meaning the fields have in ``Step``. The observation may be the env's own
    buffer: copy it before the next call."""

    observation: Tree
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    first: bool
    episode: int


class EpisodeEnv:
    """Env ``index`` of a run: episode e is seeded with the stream (run seed, domain, index, e).

    ``note(phase)`` is called before each call of the env, with "construct", "reset" or "step".

    Raises (all methods):
        EnvError: the env raised; names index, phase, episode, step and cause.
        UserError: its answer breaks the contract, named alike; or passed on from the env.
    """

    def __init__(
        self,
        factory: EnvFactory,
        run_seed: int,
        domain: seeding.Domain,
        index: int,
        note: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self._stream = (run_seed, domain, index)
        self._index = index
        self._note = note
        self._episode = 0
        self._elapsed = 0
        self._ended = False
        self._env = self._call("construct", factory)
        self.spec: EnvSpec = self._env.spec
        self._conform = conformer(self.spec.observation)

    def begin(self, episode: int, history: Iterable[Tree] = ()) -> Row:
        """Starts ``episode`` and replays ``history`` (actions in the env's units).

        The row is never valid; it is ``first`` only without history. If the last replayed action ends the episode,
        the next ``step`` begins another one, as ever. A replay that ends early stops there: the caller, who compares
        the observation, will notice.
        """
        self._episode, self._elapsed, self._ended = episode, 0, False
        observation = self._call("reset", self._reset)
        for action in history:
            if self._ended:
                break
            observation = self.step(action).observation
        return Row(observation, 0.0, False, False, False, self._elapsed == 0, episode)

    def step(self, action: Tree) -> Row:
        """One step (``action`` in the env's units), or the start of the next episode if the last step ended one."""
        if self._ended:
            return self.begin(self._episode + 1)
        observation, reward, terminated, truncated = self._call("step", self._step, action)
        self._elapsed += 1
        self._ended = terminated or truncated
        return Row(observation, reward, terminated, truncated, True, False, self._episode)

    def close(self) -> None:
        """Closes the env."""
        self._env.close()

    def _call(self, phase: str, function: Callable[..., Any], *arguments: Any) -> Any:
        self._note(phase)
        try:
            return function(*arguments)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            where = "" if phase == "construct" else f" (episode {self._episode}, after {self._elapsed} steps)"
            if isinstance(error, ContractError):
                raise UserError(f"env {self._index} in {phase}{where}: {error}") from error
            raise EnvError(f"env {self._index}: {type(error).__name__} in {phase}{where}: {error}") from error

    def _reset(self) -> Tree:
        answer = self._env.reset(seed=seeding.stream_seed(*self._stream, self._episode))
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            raise ContractError("reset must return (observation, info), info being a dict")
        return self._conform(answer[0])

    def _step(self, action: Tree) -> tuple[Tree, float, bool, bool]:
        answer = self._env.step(action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            old = isinstance(answer, tuple) and len(answer) == 4
            raise ContractError(
                OLD_API if old else "step must return (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, _ = answer
        return self._conform(observation), _real(reward), _flag("terminated", terminated), _flag("truncated", truncated)


def conformer(spec: Tree) -> Callable[[Tree], Tree]:
    """A function that gives observations the structure and dtypes of ``spec`` (a tree of ``Leaf``).

    It raises ContractError, naming the key, where the structure or a shape differs, a cast would change values, or
    a value is NaN or infinite.
    """
    names = tree.like(spec, [f" {name!r}" if name else "" for name in tree.named(spec)])

    def cast(name: str, leaf: Leaf, value: Any) -> Any:
        array = np.asarray(value)
        if array.shape != leaf.shape:
            raise ContractError(f"observation{name} has shape {array.shape}, its space says {leaf.shape}")
        if array.dtype != leaf.dtype:
            converted = array.astype(leaf.dtype)
            if not np.can_cast(array.dtype, leaf.dtype, "same_kind") and not np.array_equal(converted, array):
                raise ContractError(f"observation{name} is {array.dtype}, its space says {leaf.dtype}")
            array = converted
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ContractError(f"observation{name} is not finite")
        return array

    def conform(observation: Tree) -> Tree:
        try:
            nested = tree.conform(spec, observation)
        except (KeyError, TypeError, IndexError) as error:
            raise ContractError(f"observation is not nested as its space says: {error!r}") from error
        return tree.map(cast, names, spec, nested)

    if isinstance(spec, Leaf):
        return lambda observation: cast("", spec, observation)
    return conform


def _real(reward: Any) -> float:
    if not isinstance(reward, (float, int, np.floating, np.integer, np.bool_)):
        array = np.asarray(reward)
        if array.shape != () or array.dtype.kind not in "fiub":
            raise ContractError(f"reward must be a real number, not {reward!r}")
    value = float(reward)
    if not math.isfinite(value):
        raise ContractError(f"reward is {value}")
    return value


def _flag(name: str, flag: Any) -> bool:
    if not isinstance(flag, (bool, np.bool_)):
        array = np.asarray(flag)
        if array.shape != () or array.dtype != np.bool_:
            raise ContractError(f"{name} must be a bool, not {flag!r}")
    return bool(flag)
