"""One ``EpisodeEnv`` with a row of its own to write into."""

from typing import Any, NamedTuple

import numpy as np

from pronghorn import tree
from pronghorn.envs.base import action_converter
from pronghorn.envs.wrappers import EpisodeEnv
from pronghorn.vec.base import FLAGS
from pronghorn.vec.rows import ORDINARY, Host, own_rows


class Row(NamedTuple):
    """An answer, copied."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    over: bool
    first: bool
    valid: bool
    episode: int


class OneEnv:
    """Answers are returned as a ``Row``; ``advance`` goes through a ``Host``, which checks that all is finite."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.env = EpisodeEnv(*arguments, **options)
        self.spec = self.env.spec
        self.rows = own_rows(self.spec, 1)
        self._host = Host({0: self.env}, self.rows, action_converter(self.spec.action), self.spec, self._raise)

    def begin(self, *arguments: Any) -> Row:
        self.rows["flags"][:] = ORDINARY
        self.env.begin(*arguments)
        return self.row()

    def step(self, action: Any) -> Row:
        self.rows["flags"][:] = ORDINARY
        self.env.step(action)
        return self.row()

    def advance(self) -> Row:
        self._host.advance(np.array([0]))
        return self.row()

    def row(self) -> Row:
        observation = tree.map(lambda array: array[0].copy(), self.rows["observation"])
        flags = dict(zip(FLAGS, self.rows["flags"][:, 0].tolist(), strict=True))
        return Row(observation, float(self.rows["reward"][0]), episode=int(self.rows["episode"][0]), **flags)

    @staticmethod
    def _raise(error: Exception) -> None:
        raise error
