"""The child of the pool: several envs, stepped when woken. Run as ``python -m pronghorn.vec.worker``."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pronghorn.envs.base import EnvFactory, action_converter
from pronghorn.envs.wrappers import EpisodeEnv
from pronghorn.processes import launch
from pronghorn.processes.shared import ArraySpec, SharedArrays
from pronghorn.processes.supervise import NOTE_WORDS, PAUSE, Notes
from pronghorn.processes.wake import Waiter, Wake
from pronghorn.seeding import Domain
from pronghorn.types import EnvSpec, IntArray, UserError
from pronghorn.vec import rows
from pronghorn.vec.base import EnvError

AWAKE_SECONDS = 200e-6
"""How long a worker waits awake, though it gives way to whoever wants the core: longer than it takes to choose actions
for a batch. To wake a sleeping core can take as long as several steps."""


@dataclass(frozen=True)
class Setup:
    """All a worker needs to know. ``owned`` are its rows; ``each`` says to report every env by itself."""

    worker: int
    workers: int
    num_envs: int
    owned: IntArray
    factories: Sequence[EnvFactory]
    run_seed: int
    domain: Domain
    first_index: int
    status_fd: int
    rows_fd: int
    request_fds: tuple[int, int]
    answer_fds: tuple[int, int]
    each: bool


@dataclass(frozen=True)
class Made:
    """To the parent: the envs exist. It answers with a dict of rows that begin once the rows are laid out."""

    specs: list[EnvSpec]


@dataclass(frozen=True)
class Failed:
    """To the parent: an exception, as text. ``mistake`` says that it was a UserError, and the end of the worker;
    otherwise the parent answers with the seconds to wait before the env is built anew."""

    text: str
    env: int
    phase: str
    trace: str
    mistake: bool


class Closed(Exception):
    """The parent has said so."""


def status_layout(num_envs: int, workers: int) -> dict[str, ArraySpec]:
    """``ticket`` [num_envs]: number of the newest request an env belongs to; ``done`` [num_envs]: of the newest it has
    been through. ``told`` [workers]: how many dicts of rows to begin the parent has sent it. ``busy`` [workers,
    NOTE_WORDS]: see ``Notes``; the rows in them are those of the pool."""

    def numbers(*shape: int) -> ArraySpec:
        return ArraySpec(shape, np.dtype(np.int64))

    return {
        "ticket": numbers(num_envs),
        "done": numbers(num_envs),
        "told": numbers(workers),
        "busy": numbers(workers, NOTE_WORDS),
    }


def main(arguments: Sequence[str]) -> int:
    """The life of a worker; the exit code."""
    control = launch.enter(arguments)
    try:
        setup = control.recv()
        Worker(control, setup).run(setup)
    except Closed:
        return 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 1
    except BaseException as error:
        with contextlib.suppress(OSError):
            control.send(_failed(error))
        return 1
    return 0


class Worker:
    """Makes the envs, then answers requests until told to end by the message None."""

    def __init__(self, control: Connection[Any, Any], setup: Setup) -> None:
        self._control, self._owned, self._each = control, setup.owned, setup.each
        status = SharedArrays(status_layout(setup.num_envs, setup.workers), setup.status_fd).arrays
        self._tickets, self._done = status["ticket"], status["done"]
        self._note = Notes(status["busy"][setup.worker])
        self._index = rows.as_index(setup.owned)
        self._told, self._heard = status["told"][setup.worker :], 0
        self._request, self._answer = Wake(setup.request_fds), Wake(setup.answer_fds)
        self._waiter = Waiter([control.fileno(), setup.request_fds[0]])
        self._envs: dict[int, EpisodeEnv] = {}

    def run(self, setup: Setup) -> None:
        """Makes the envs, then answers requests, in their order."""
        try:
            self._make(setup)
            gc.collect()
            gc.freeze()  # what exists now stays: no later collection need look at it
            while True:
                requests = self._requests()
                while self._heard < self._told[0]:  # before the request that it belongs to
                    self._expect()
                for _ in range(requests):
                    self._advance()
        except Closed:
            self._close()

    def _make(self, setup: Setup) -> None:
        for row, factory in zip(setup.owned.tolist(), setup.factories, strict=True):
            note = functools.partial(self._note, row)
            index = setup.first_index + row
            make = functools.partial(EpisodeEnv, factory, setup.run_seed, setup.domain, index, note)
            self._envs[row] = rows.construct(make, self._permit)
        self._note.idle()
        specs = [env.spec for env in self._envs.values()]
        self._control.send(Made(specs))
        begins = self._hear()  # the rows are laid out
        arrays = SharedArrays(rows.rows_layout(specs[0], setup.num_envs), setup.rows_fd).arrays
        convert = action_converter(specs[0].action)
        self._host = rows.Host(self._envs, arrays, convert, specs[0], self._permit)
        self._host.expect(begins)

    def _requests(self) -> int:
        """How many have come, if any; waits a short while awake, then asleep."""
        asleep = time.perf_counter() + AWAKE_SECONDS
        while not (requests := self._request.take()):
            if time.perf_counter() < asleep:
                os.sched_yield()
            elif self._control.fileno() in self._waiter.wait(60):
                self._expect()
        return requests

    def _expect(self) -> None:
        self._host.expect(self._hear())
        self._heard += 1

    def _advance(self) -> None:
        """The earliest request."""
        tickets = self._tickets[self._index]
        ticket = tickets[tickets > self._done[self._index]].min()
        envs = self._owned[tickets == ticket]
        for some in envs[:, None] if self._each else (envs,):
            self._host.advance(some)
            self._done[some] = ticket
            self._note.idle()
            self._answer.notify()

    def _hear(self) -> Any:
        message = self._control.recv()
        if message is None:
            raise Closed
        return message

    def _permit(self, error: EnvError) -> None:
        self._note.idle()
        self._control.send(_failed(error))
        seconds = self._hear()
        self._note(error.env, PAUSE)
        time.sleep(seconds)

    def _close(self) -> None:
        for env in self._envs.values():
            try:
                env.close()
            except Exception as error:
                self._control.send(_failed(error))


def _failed(error: BaseException) -> Failed:
    mistake = isinstance(error, UserError)
    found = error if isinstance(error, EnvError) else EnvError("")
    cause = found.cause or error
    text = str(error) if str(error) else type(error).__name__
    trace = "" if mistake else "".join(traceback.format_exception(cause)).rstrip()
    return Failed(text, found.env, found.phase, trace, mistake)


if __name__ == "__main__":
    # Not the ``__main__`` module's classes: the parent has to find those it is sent.
    from pronghorn.vec import worker

    sys.exit(worker.main(sys.argv[1:]))
