"""One env with the habits the rest relies on: next-step autoreset, a seed per episode, checked outputs, and blame."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pronghorn import seeding, tree
from pronghorn.envs.base import ContractError, EnvFactory
from pronghorn.envs.text import word_numbers
from pronghorn.processes.supervise import CLOSE, CONSTRUCT, PHASES, RESET, STEP
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf, UserError
from pronghorn.vec.base import FLAGS, EnvError

OLD_API = (
    "step returned 4 values, as Gym did before 0.26; return (observation, reward, terminated, truncated, info), "
    "where truncated says that a limit cut the episode and terminated that it really ended"
)
REALS = {float, int, np.float64, np.float32}
TERMINATED, TRUNCATED, OVER, FIRST, VALID = range(len(FLAGS))


class EpisodeEnv:
    """Env ``index`` of a run: episode e is seeded with the stream (run seed, domain, index, e).

    ``note(phase)`` is called before each call of the env, with an index into ``supervise.PHASES``.

    After ``attach`` every answer is written straight into the env's row of shared arrays (``vec.rows.rows_layout``).
    ``step`` leaves the flags of an ordinary step (valid, nothing else) to its caller, who sets them for many envs at
    once, and so does it with the check that all numbers are finite.

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
        note: Callable[[int], None] = lambda phase: None,
    ) -> None:
        self.index = index
        self._factory = factory
        self._stream = (run_seed, domain, index)
        self._note = note
        self._episode = -1
        self._elapsed = 0
        self._over = False
        self._construct()

    def attach(self, rows: dict[str, Tree], row: int) -> None:
        """Answers go to ``row`` of these arrays from now on."""
        self._target = tree.map(lambda array: array[row, ...], rows["observation"])
        self._flags, self._rewards, self._row = rows["flags"][:, row], rows["reward"], row
        self._episodes = rows["episode"]

    def begin(self, episode: int, history: Iterable[Tree] = ()) -> None:
        """Starts ``episode`` and replays ``history`` (actions in the env's units).

        The row is never valid; it is ``first`` only without history. If the last replayed action ends the episode,
        the next ``step`` begins another one, as ever. A replay that ends early stops there: the caller, who compares
        the observation, will notice.
        """
        self._episodes[self._row] = self._episode = episode
        self._elapsed, self._over = 0, False
        self._note(RESET)
        try:
            answer = self._env.reset(seed=seeding.episode_seed(*self._stream, episode))
            if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
                raise ContractError(
                    "reset must return (observation, info); before Gym 0.26 it was the observation alone"
                )
            self._write(answer[0])
        except (Exception, SystemExit) as error:
            raise self.fault(RESET, error) from error
        for action in history:
            if self._over:
                break
            self.step(action)
        self._flags[:] = False
        self._flags[FIRST] = self._elapsed == 0
        self._rewards[self._row] = 0.0

    def step(self, action: Tree) -> None:
        """One step (``action`` in the env's units), or the start of the next episode if the last step ended one."""
        if self._over:
            self.begin(self._episode + 1)
            return
        self._note(STEP)
        try:
            answer = self._step(action)
            if type(answer) is not tuple or len(answer) != 5:
                raise ContractError(wrong_answer(answer))
            observation, reward, terminated, truncated, info = answer
            if type(observation) is np.ndarray and (observation.dtype, observation.shape) == self._expected:
                self._target[...] = observation  # as ``_write`` does, without the call
            else:
                self._write(observation)
            self._rewards[self._row] = reward if type(reward) in REALS else _real(reward)
            if terminated is not False or truncated is not False:
                self._end(terminated, truncated, info)
        except (Exception, SystemExit) as error:
            raise self.fault(STEP, error) from error
        self._elapsed += 1

    def rebuild(self) -> None:
        """Replaces a simulator that has failed by a new one, which begins the next episode."""
        self._note(CLOSE)
        with contextlib.suppress(Exception, SystemExit):  # it was broken before
            self._env.close()
        was = self.spec
        self._construct()
        if found := difference(was, self.spec):
            raise self.fault(CONSTRUCT, ContractError(f"built anew, it differs in {found}"))
        self.begin(self._episode + 1)

    def close(self) -> None:
        """Closes the env."""
        self._note(CLOSE)
        try:
            self._env.close()
        except (Exception, SystemExit) as error:
            raise self.fault(CLOSE, error) from error

    def refuse(self, what: str) -> Exception:
        """What is wrong with the newest answer (already written), as the exception that blames the env."""
        phase = STEP if self._elapsed else RESET
        self._elapsed -= phase == STEP
        return self.fault(phase, ContractError(what))

    def fault(self, number: int, error: BaseException) -> Exception:
        """``error``, raised by the env in a phase or found in its answer, as the exception that blames it."""
        if isinstance(error, UserError):
            return error
        phase = PHASES[number]
        begun = self._episode >= 0 and number != CONSTRUCT
        where = f" (episode {self._episode}, after {self._elapsed} steps)" if begun else ""
        if isinstance(error, ContractError):
            return UserError(f"env {self.index} in {phase}{where}: {error}")
        return EnvError(
            f"env {self.index}: {type(error).__name__} in {phase}{where}: {error}", self.index, phase, error
        )

    def _construct(self) -> None:
        self._note(CONSTRUCT)
        try:
            self._env = self._factory()
        except (Exception, SystemExit) as error:
            raise self.fault(CONSTRUCT, error) from error
        self.spec: EnvSpec = self._env.spec
        self._step = self._env.step
        self._conform = conformer(self.spec.observation)
        leaf = self.spec.observation
        self._expected = (leaf.dtype, leaf.shape) if isinstance(leaf, Leaf) else None

    def _write(self, observation: Tree) -> None:
        if type(observation) is np.ndarray and (observation.dtype, observation.shape) == self._expected:
            self._target[...] = observation
            return
        values = self._conform(observation)
        for target, value in zip(tree.leaves(self._target), tree.leaves(values), strict=True):
            target[...] = value

    def _end(self, terminated: Any, truncated: Any, info: Any) -> None:
        terminated, truncated = _flag("terminated", terminated), _flag("truncated", truncated)
        if terminated or truncated:
            self._over = truncated or not isinstance(info, dict) or bool(info.get("episode_over", True))
            self._flags[TERMINATED], self._flags[TRUNCATED], self._flags[OVER] = terminated, truncated, self._over


def difference(was: EnvSpec, now: EnvSpec) -> str:
    """The first leaf in which two specs do not look the same from outside, and how; empty if there is none."""
    expected, found = was.describe(), now.describe()
    for key in sorted(expected | found):
        if expected.get(key) != found.get(key):
            return f"{key}: {found.get(key, 'absent')} against {expected.get(key, 'absent')}"
    return ""


def conformer(spec: Tree) -> Callable[[Tree], Tree]:
    """A function that gives observations the structure and dtypes of ``spec`` (a tree of ``Leaf``), texts as numbers.

    It raises ContractError, naming the key, where the structure or a shape differs or a cast would change values (other
    than by rounding to the space's reals).
    """
    names = tree.like(spec, list(leaf_names(spec)))
    if isinstance(spec, Leaf):
        return lambda observation: conform_leaf("", spec, observation)
    return lambda observation: tree.map(conform_leaf, names, spec, nested_like(spec, observation))


def nested_like(spec: Tree, observation: Tree) -> Tree:
    """The observation in the structure of ``spec``. Raises ContractError where it has another."""
    try:
        return tree.conform(spec, observation)
    except KeyError as error:
        raise ContractError(f"observation has no {error.args[0]!r}, its space has") from error
    except (TypeError, IndexError) as error:
        raise ContractError(f"observation is not nested as its space says: {error}") from error


def conform_leaf(name: str, leaf: Leaf, value: Any) -> NDArray[Any]:
    """One leaf of ``conformer``; ``name`` as ``leaf_names`` has it."""
    if leaf.kind == "text":
        return words_of(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of unequal lengths
        raise ContractError(f"observation{name} is not an array: {error}") from error
    if array.shape != leaf.shape:
        raise ContractError(f"observation{name} has shape {array.shape}, its space says {leaf.shape}")
    if array.dtype == leaf.dtype:
        return array
    converted = converted_to(array, leaf.dtype)
    if converted is None:
        raise ContractError(f"observation{name} is {array.dtype}, its space says {leaf.dtype}")
    return converted


def words_of(name: str, text: Any) -> NDArray[np.int16]:
    """``word_numbers`` of an env's answer; ContractError if it is no string, with ``name`` as ``leaf_names`` has it."""
    if not isinstance(text, str):
        raise ContractError(f"observation{name} is {type(text).__name__}, its space says text")
    return word_numbers(text)


def converted_to(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The same values in another dtype, though reals may be rounded; None where it cannot hold them."""
    if array.dtype.kind not in "fiub":
        return None
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype)
    return converted if dtype.kind == "f" or np.array_equal(converted, array) else None


def leaf_names(spec: Tree) -> list[str]:
    """What to append to "observation" in a message, for each leaf: " 'path'", or nothing for the only one."""
    return [f" {name!r}" if name else "" for name in tree.named(spec)]


def wrong_answer(answer: Any) -> str:
    """What is wrong with the answer to a step that is not a tuple of five."""
    if isinstance(answer, tuple) and len(answer) == 4:
        return OLD_API
    return "step must return (observation, reward, terminated, truncated, info)"


def _real(reward: Any) -> float:
    array = np.asarray(reward)
    if array.shape != () or array.dtype.kind not in "fiub":
        raise ContractError(f"reward must be a real number, not {reward!r}")
    return float(reward)


def _flag(name: str, flag: Any) -> bool:
    if not isinstance(flag, (bool, np.bool_)):
        array = np.asarray(flag)
        if array.shape != () or array.dtype != np.bool_:
            raise ContractError(f"{name} must be a bool, not {flag!r}")
    return bool(flag)
