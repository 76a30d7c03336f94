"""An actor in a process of its own. Run as ``python -m pronghorn.acting.remote``.

It fills columns that it shares with the learner, for as long as it has free ones, with the newest weights there are;
an unroll is begun and ended with the same, unless its actions are chosen at the learner. Only column numbers go over
the pipe.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from pronghorn.acting.actor import Actor
from pronghorn.processes import launch
from pronghorn.processes.supervise import Incident
from pronghorn.transport.shared import SharedWeights
from pronghorn.vec.base import Failed, last_words


@dataclass(frozen=True)
class Setup:
    """All that an actor process needs to know.

    ``make`` gives its actor and the weights it reads; it is told what happens to the envs. ``life`` counts the
    processes this one follows. In ``lock_step`` it waits for new weights after every unroll. ``observe``: so many
    unrolls of every env are of random actions, from which the statistics of version 0 are made.
    """

    make: Callable[[Callable[[Incident | Failed], None]], tuple[Actor, SharedWeights]]
    life: int
    lock_step: bool
    observe: int


@dataclass(frozen=True)
class Filled:
    """To the learner: these columns can be read. It sends back their numbers once it has."""

    columns: list[int]
    dropped: int
    longest_running: int


class Closed(Exception):
    """The learner has said so, or is gone."""


def main(arguments: Sequence[str]) -> int:
    """The life of an actor process; the exit code."""
    control = launch.enter(arguments)
    try:
        setup: Setup = control.recv()
        actor, weights = setup.make(control.send)
        with contextlib.closing(actor.vec):
            act(control, setup, actor, weights)
    except (Closed, EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            control.send(last_words(error))
        return 1


def act(control: Connection[Any, Any], setup: Setup, actor: Actor, weights: SharedWeights) -> NoReturn:
    """Fills columns until told to end. Raises Closed then."""
    memory, inference = actor.memory, actor.inference

    def hear(seconds: float) -> None:
        """Takes back columns that have been read."""
        while control.poll(seconds):
            message = control.recv()
            if message is None:
                raise Closed
            memory.give_back(message)
            seconds = 0.0

    def closed() -> bool:
        hear(0.0)
        return False

    def await_columns() -> None:
        while memory.free < memory.batch_size:
            hear(1.0)

    def unroll() -> None:
        actor.fill(closed)
        control.send(Filled(memory.hand_over(), actor.dropped, actor.longest_running))

    actor.start(setup.life)
    inference.load(*weights.fetch())
    seen, waits = weights.publications, setup.observe > 0
    inference.mode, inference.version = "random", -1
    for _ in range(setup.observe):
        await_columns()
        unroll()
    inference.mode = "sample"
    while True:
        await_columns()  # before the weights are fetched, which would only grow old
        while waits and weights.publications <= seen:
            hear(0.001)
        waits, seen = setup.lock_step, weights.publications
        if actor.choose is inference:  # else the weights are where it is chosen
            inference.load(*weights.fetch())
        unroll()


if __name__ == "__main__":
    # Not the ``__main__`` module's classes: the learner has to find those it is sent.
    from pronghorn.acting import remote

    sys.exit(remote.main(sys.argv[1:]))
