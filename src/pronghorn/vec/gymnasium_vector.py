"""Engine over a ``gymnasium.vector.VectorEnv``, whatever its autoreset mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pronghorn import tree
from pronghorn.envs.base import ContractError
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.envs.wrappers import leaf_names, words_of, wrong_answer
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, IntArray, Leaf, UserError
from pronghorn.vec.native import ActionRows, Answer


class VectorEngine:
    """``Engine`` over ``make(num_envs)``. All envs step at once, when each has an action for a live observation.

    Where the env starts new episodes by itself within the ending step (SAME_STEP), the final observations are handed
    out first; the new episodes' first ones then answer the ignored actions, on their own. Where it never does
    (DISABLED), the ignored actions start them, likewise on their own.

    Raises:
        UserError: it lacks something of a ``VectorEnv``, has another number of envs, an unsupported space, or does not
            answer as a ``VectorEnv`` does.
    """

    def __init__(self, name: str, make: Callable[[int], Any], num_envs: int) -> None:
        from gymnasium.vector import AutoresetMode

        self._name, self._num_envs = name, num_envs
        self._envs: Any = make(num_envs)
        for part in ("num_envs", "single_observation_space", "single_action_space", "reset", "step"):
            if not hasattr(self._envs, part):
                raise UserError(f"{name} is not a vector environment: it has no {part}")
        if self._envs.num_envs != num_envs:
            raise UserError(f"{name} was asked for {num_envs} envs and has {self._envs.num_envs}")
        mode = _autoreset_mode(name, self._envs)
        self._next_step, self._same_step = mode == AutoresetMode.NEXT_STEP, mode == AutoresetMode.SAME_STEP
        self.pausable = self._next_step  # in the other modes an env that begins anew is a row behind the others
        self.spec = EnvSpec(
            name,
            leaf_of_space(self._envs.single_observation_space, f"observation space of {name}"),
            leaf_of_space(self._envs.single_action_space, f"action space of {name}"),
            max_episode_steps=getattr(getattr(self._envs, "spec", None), "max_episode_steps", None),
            seedable=False,
        )
        self._names = tree.like(self.spec.observation, leaf_names(self.spec.observation))
        self._rows = ActionRows(self.spec.action, num_envs, num_envs)
        self._all: IntArray = np.arange(num_envs)
        self._over = np.zeros(num_envs, np.bool_)
        self._beginning: list[IntArray] = []
        self._newest: Tree = None
        self._warned = False

    def reset(self, seeds: IntArray) -> None:
        """See ``Engine``. A library that takes no list of seeds gets the first one for its only generator."""
        try:
            answer = self._envs.reset(seed=seeds.tolist())
        except Exception:
            answer = self._envs.reset(seed=int(seeds[0]))
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            raise UserError(f"{self._name}: reset must return (observation, info), info being a dict")
        self._newest = self._nested(answer[0])
        self._rows.clear()
        self._over[:] = False
        self._beginning = [self._all]

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``Engine``."""
        ended = self._over[envs]
        if ended.any() and not self._next_step:
            self._beginning.append(envs[ended])
            actions, envs = tree.map(lambda array: array[~ended], actions), envs[~ended]
        self._rows.put(actions, envs)

    @property
    def able(self) -> bool:
        """See ``Engine``."""
        return bool(self._beginning) or self._rows.complete

    def recv(self) -> Answer:
        """See ``Engine``."""
        if self._beginning:
            envs, self._beginning = np.concatenate(self._beginning), []
            return self._begin(envs)
        return self._step(self._rows.take(self._all))

    def close(self) -> None:
        """See ``Engine``."""
        envs, self._envs = self._envs, None
        if hasattr(envs, "close"):
            envs.close()

    def _begin(self, envs: IntArray) -> Answer:
        ended = self._over[envs]
        if ended.any() and not self._same_step:
            mask = np.zeros(self._num_envs, np.bool_)
            mask[envs] = True
            self._newest = self._nested(self._envs.reset(options={"reset_mask": mask})[0])
        self._over[envs] = False
        observation = tree.map(lambda array: array[envs], self._newest)
        false = np.zeros(len(envs), np.bool_)
        return Answer(envs, observation, np.zeros(len(envs)), false, false.copy(), false.copy(), ~false)

    def _step(self, actions: Tree) -> Answer:
        answer = self._envs.step(actions)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise UserError(f"{self._name}: {wrong_answer(answer)}")
        observation, *outcome, infos = answer
        reward, terminated, truncated = map(np.array, outcome)
        parts = ("reward", reward, "fiub"), ("terminated", terminated, "b"), ("truncated", truncated, "b")
        for what, array, kinds in parts:
            if array.shape != (self._num_envs,):
                raise UserError(f"{self._name}: {what} has shape {array.shape}, not ({self._num_envs},)")
            if array.dtype.kind not in kinds:
                raise UserError(f"{self._name}: {what} is {array.dtype}, not {'bool' if kinds == 'b' else 'real'}")
        newest = self._nested(observation)
        first = self._over & self._next_step
        self._over = terminated | truncated
        if self._same_step and self._over.any():
            self._newest = tree.map(np.copy, newest)
            self._put_final(infos, newest, terminated, truncated)
        return Answer(self._all.copy(), newest, reward, terminated, truncated, self._over.copy(), first)

    def _put_final(self, infos: dict[str, Any], observation: Tree, terminated: Any, truncated: Any) -> None:
        """Replaces the first observations of new episodes by the final ones of those that ended."""
        final = infos.get("final_obs", infos.get("final_observation"))
        known = infos.get("_final_obs", infos.get("_final_observation", np.full(self._num_envs, final is not None)))
        for env in np.flatnonzero(self._over).tolist():
            if known[env]:
                alone = tree.map(lambda value: (value,), _entry(self.spec.observation, final, env))
                values = tree.leaves(self._nested(alone))
                for array, value in zip(tree.leaves(observation), values, strict=True):
                    array[env] = value[0]
                continue
            # What follows a cut is not known, and must not be learnt from a new episode's beginning.
            terminated[env], truncated[env] = True, False
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self._name} gives no final observation (infos['final_obs']): every end counts as terminated",
                    stacklevel=2,
                )

    def _nested(self, observation: Any) -> Tree:
        """Own copies of the arrays, nested as the space is, texts as numbers of words."""

        def array(name: str, leaf: Leaf, values: Any) -> Any:
            return np.stack([words_of(name, text) for text in values]) if leaf.kind == "text" else np.array(values)

        try:
            nested = tree.conform(self.spec.observation, observation)
            return tree.map(array, self._names, self.spec.observation, nested)
        except ContractError as error:
            raise UserError(f"{self._name}: {error}") from error
        except (KeyError, TypeError, IndexError) as error:
            raise UserError(f"{self._name}: observation is not nested as its space says: {error!r}") from error


def _autoreset_mode(name: str, envs: Any) -> Any:
    from gymnasium.vector import AutoresetMode

    declared = getattr(envs, "autoreset_mode", None) or (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    if declared is None:
        warnings.warn(
            f"{name} does not say how it starts new episodes (metadata['autoreset_mode']): taken for NEXT_STEP",
            stacklevel=2,
        )
        return AutoresetMode.NEXT_STEP
    return AutoresetMode(declared)


def _entry(spec: Tree, final: Any, env: int) -> Any:
    """The part of one env: ``final`` holds observations, or is one whose leaves are batched."""
    if isinstance(spec, dict) and isinstance(final, dict):
        return {key: _entry(part, final[key], env) for key, part in spec.items()}
    if isinstance(spec, tuple) and isinstance(final, tuple):
        return tuple(_entry(part, value, env) for part, value in zip(spec, final, strict=True))
    return final[env]
