"""The protocol of many envs stepped as one."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, IntArray, Step, UserError

FLAGS = ("terminated", "truncated", "over", "first", "valid")
"""The flags of ``Step``, in the order in which layouts keep them."""


class EnvError(RuntimeError):
    """An env raised, died or did not answer. The message names env index, phase and cause.

    ``env`` (an index over the whole run), ``phase`` and ``cause`` (the exception it raised) are given where known.
    """

    def __init__(self, message: str, env: int = -1, phase: str = "", cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.env, self.phase, self.cause = env, phase, cause


@dataclass(frozen=True)
class Failed:
    """From a process to its parent: its last words. ``mistake``: a UserError."""

    text: str
    mistake: bool


def last_words(error: BaseException) -> Failed:
    """What to say of the exception a process ends with: our own speak for themselves, any other has its traceback."""
    own = isinstance(error, (UserError, EnvError))
    text = str(error) if own else "".join(traceback.format_exception(error))
    return Failed(text, isinstance(error, UserError))


@dataclass(frozen=True)
class Timeouts:
    """Seconds an env may take in each phase before it counts as hung."""

    construct: float = 60.0
    reset: float = 60.0
    step: float = 30.0
    close: float = 5.0


class BatchedEnv(Protocol):
    """Many envs of one spec. Autoreset is next-step: the action after ``over`` is ignored and answered by the first
    observation of the next episode. So is the action that meets an env which failed and was started again.

    The life of an env: ``reset`` → ``recv`` (its first observation) → (``send`` → ``recv``)*. Between ``send`` and
    ``recv`` an env is in flight and must not be sent to again. ``recv`` names the envs it answers for; a caller sends
    to whichever of them it likes, in any grouping.
    """

    spec: EnvSpec
    num_envs: int
    pausable: bool
    """Whether all that is in flight can be received without sending anything more. Otherwise some envs wait in flight
    until others, too, have been sent to, and none may be left without an action."""

    def reset(self, episodes: IntArray, histories: Sequence[Tree] | None = None) -> None:
        """Begins episode ``episodes[i]`` in env i, for all envs; the observations come through ``recv``.

        ``histories[i]`` (actions as sampled, [n_i, …]) are replayed first: the env then stands where they lead, and
        its ``Step`` has ``first`` only if n_i is 0. Anything in flight is dropped.
        """

    def send(self, actions: Tree, envs: IntArray) -> None:
        """Gives env ``envs[i]`` the action ``actions[i]`` (as sampled; clipping and scaling happen here)."""

    def recv(self) -> Step:
        """Waits for the next envs in flight that are ready, together.

        Raises:
            EnvError: an env failed, or did not answer within its time-out.
        """

    def close(self) -> None:
        """Ends every env and process. May be called twice."""
