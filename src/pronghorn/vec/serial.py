"""All envs in this process, one after the other. Nothing can be done here about an env that hangs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from pronghorn import tree
from pronghorn.envs.base import EnvFactory, action_converter
from pronghorn.envs.wrappers import EpisodeEnv
from pronghorn.seeding import Domain
from pronghorn.tree import Tree
from pronghorn.types import IntArray, Step
from pronghorn.vec import rows
from pronghorn.vec.base import Timeouts


class SerialVec:
    """``BatchedEnv`` without processes. Env i is env ``first_index + i`` of the run; envs step in ``recv``.

    Raises:
        EnvError, UserError: an env could not be made; ``recv`` raises EnvError where one fails.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        run_seed: int,
        domain: Domain,
        groups: int = 1,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
        first_index: int = 0,
    ) -> None:
        self._envs: list[EpisodeEnv] = []
        try:
            for index, factory in enumerate(factories, first_index):
                self._envs.append(EpisodeEnv(factory, run_seed, domain, index))
            rows.check_equal([env.spec for env in self._envs], first_index)
        except BaseException:
            self.close()
            raise
        self.spec = self._envs[0].spec
        self.num_envs = len(factories)
        self._groups = rows.split_groups(self.num_envs, groups)
        layout = rows.rows_layout(self.spec, self.num_envs)
        self._rows = tree.map(lambda array: np.zeros(array.shape, array.dtype), layout)
        self._convert = action_converter(self.spec.action)
        self._host = rows.Host(dict(enumerate(self._envs)), self._rows, self._convert)
        self._flying: deque[IntArray] = deque()
        self._in_flight = np.zeros(self.num_envs, np.bool_)

    def reset(self, episodes: IntArray, histories: Sequence[Tree] | None = None) -> None:
        """See ``BatchedEnv``."""
        self._host.expect(rows.begins(episodes, histories))
        self._flying = deque(group.copy() for group in self._groups)
        self._in_flight[:] = True

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``BatchedEnv``. Raises ValueError if one of ``envs`` is in flight."""
        rows.check_landed(self._in_flight, envs)
        rows.write_actions(self._rows, self._convert, actions, envs)
        self._in_flight[envs] = True
        self._flying.append(envs.copy())

    def recv(self) -> Step:
        """See ``BatchedEnv``: the envs of the earliest ``send``."""
        envs = self._flying.popleft()
        for row in envs.tolist():
            self._host.advance(row)
        self._in_flight[envs] = False
        return rows.read_step(self._rows, envs)

    def close(self) -> None:
        """See ``BatchedEnv``."""
        while self._envs:
            self._envs.pop().close()
