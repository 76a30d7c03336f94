"""All envs in this process, one after the other."""

from __future__ import annotations

import functools
import time
import traceback
from collections import deque
from collections.abc import Sequence

import numpy as np

from pronghorn.envs.base import EnvFactory, action_converter
from pronghorn.envs.wrappers import EpisodeEnv
from pronghorn.processes.supervise import Incident, Notes, Supervisor, unread
from pronghorn.seeding import Domain
from pronghorn.tree import Tree
from pronghorn.types import IntArray, Step
from pronghorn.vec import rows
from pronghorn.vec.base import EnvError


class SerialVec:
    """``BatchedEnv`` without processes. Env i is env ``first_index + i`` of the run; envs step in ``recv``.

    An env that raises is built anew where ``supervisor`` permits it. One that hangs holds up this process: ``notes``
    tell a ``Watchdog`` which it is. ``ready``: a ``recv`` answers for that many envs, whatever was sent together.

    Raises:
        EnvError, UserError: an env could not be made; ``recv`` raises EnvError where one fails.
    """

    pausable = True

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        run_seed: int,
        domain: Domain,
        groups: int = 1,
        first_index: int = 0,
        supervisor: Supervisor | None = None,
        notes: Notes | None = None,
        ready: int | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._note = notes or unread()
        self._envs: list[EpisodeEnv] = []
        self._ready = ready
        try:
            for index, factory in enumerate(factories, first_index):
                note = functools.partial(self._note, index)
                make = functools.partial(EpisodeEnv, factory, run_seed, domain, index, note)
                self._envs.append(rows.construct(make, self._permit))
            rows.check_equal([env.spec for env in self._envs], first_index)
        except BaseException:
            self.close()
            raise
        self._note.idle()
        self.spec = self._envs[0].spec
        self.num_envs = len(factories)
        self._groups = rows.split_groups(self.num_envs, groups)
        self._rows = rows.own_rows(self.spec, self.num_envs)
        self._convert = action_converter(self.spec.action)
        self._host = rows.Host(dict(enumerate(self._envs)), self._rows, self._convert, self.spec, self._permit)
        self._flying: deque[IntArray] = deque()
        self._in_flight = np.zeros(self.num_envs, np.bool_)

    def reset(self, episodes: IntArray, histories: Sequence[Tree] | None = None) -> None:
        """See ``BatchedEnv``."""
        self._host.expect(rows.begins(episodes, histories))
        self._flying = deque(group.copy() for group in self._groups)
        self._in_flight[:] = True

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``BatchedEnv``. Raises ValueError if one of ``envs`` is in flight."""
        index = rows.as_index(envs)
        rows.check_landed(self._in_flight, index, envs)
        rows.write_actions(self._rows, self._convert, actions, index)
        self._in_flight[index] = True
        self._flying.append(envs.copy())

    def recv(self) -> Step:
        """See ``BatchedEnv``: the envs of the earliest ``send``."""
        envs = self._flying.popleft()
        if self._ready is not None:
            waiting = np.concatenate([envs, *self._flying])
            envs, rest = waiting[: self._ready], waiting[self._ready :]
            self._flying = deque([rest] if len(rest) else [])
        self._host.advance(envs)
        self._note.idle()
        index = rows.as_index(envs)
        self._in_flight[index] = False
        return rows.read_step(self._rows, envs, index)

    def close(self) -> None:
        """See ``BatchedEnv``. An env that fails to close is reported, no more."""
        while self._envs:
            env = self._envs.pop()
            try:
                env.close()
            except EnvError as error:
                self._supervisor.report(_incident(error))
        self._note.idle()

    def _permit(self, error: EnvError) -> None:
        pause = rows.permitted(self._supervisor, _incident(error), error.cause)
        self._note.idle()
        time.sleep(pause)


def _incident(error: EnvError) -> Incident:
    trace = "".join(traceback.format_exception(error.cause)).rstrip() if error.cause else ""
    lost = () if error.phase == "close" else (error.env,)
    return Incident(error.env, error.phase, str(error), lost, trace)
