"""The child of the pool: several envs, stepped when woken. Run as ``python -m pronghorn.vec.worker``."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
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
from pronghorn.processes.wake import Waiter, Wake
from pronghorn.seeding import Domain
from pronghorn.types import EnvSpec, UserError
from pronghorn.vec.rows import Host, rows_layout

PHASES = ("idle", "construct", "reset", "step")
IDLE = 0


@dataclass(frozen=True)
class Setup:
    """All a worker needs to know. It owns rows ``worker``, ``worker + workers``, … of ``num_envs``."""

    worker: int
    workers: int
    num_envs: int
    factories: Sequence[EnvFactory]
    run_seed: int
    domain: Domain
    first_index: int
    status_fd: int
    rows_fd: int
    request_fds: tuple[int, int]
    answer_fds: tuple[int, int]
    core: int | None
    """Where to stay, if anywhere."""


@dataclass(frozen=True)
class Made:
    """To the parent: the envs exist. It answers with an empty dict once the rows are laid out."""

    specs: list[EnvSpec]


@dataclass(frozen=True)
class Failed:
    """To the parent: an exception, as text; ``mistake`` if it was a UserError."""

    text: str
    mistake: bool


def status_layout(num_envs: int, workers: int) -> dict[str, ArraySpec]:
    """``ticket`` [num_envs]: the number of the worker's request that an env belongs to. ``busy`` [workers, 3]: calls
    made so far, the row of the env being called, and what it is called for (an index into ``PHASES``)."""
    return {
        "ticket": ArraySpec((num_envs,), np.dtype(np.int64)),
        "busy": ArraySpec((workers, 3), np.dtype(np.int64)),
    }


def main(arguments: Sequence[str]) -> int:
    """The life of a worker; the exit code."""
    control = launch.enter(arguments)
    try:
        serve(control, control.recv())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 1
    except BaseException as error:
        mistake = isinstance(error, UserError)
        cause = error.__cause__ or error
        trace = "" if mistake else "\n" + "".join(traceback.format_exception(cause)).rstrip()
        with contextlib.suppress(OSError):
            control.send(Failed(f"{error}{trace}" if str(error) else f"{type(error).__name__}{trace}", mistake))
        return 1
    return 0


def serve(control: Connection[Any, Any], setup: Setup) -> None:
    """Makes the envs, then answers requests until told to end by the message None; a dict tells which rows begin."""
    if setup.core is not None:
        os.sched_setaffinity(0, {setup.core})
    status = SharedArrays(status_layout(setup.num_envs, setup.workers), setup.status_fd).arrays
    request, answer = Wake(setup.request_fds), Wake(setup.answer_fds)
    tickets, busy = status["ticket"][setup.worker :: setup.workers], status["busy"][setup.worker]
    envs: dict[int, EpisodeEnv] = {}
    owned = range(setup.worker, setup.num_envs, setup.workers)
    for row, factory in zip(owned, setup.factories, strict=True):

        def note(phase: str, row: int = row) -> None:
            busy[0] += 1
            busy[1] = row
            busy[2] = PHASES.index(phase)

        envs[row] = EpisodeEnv(factory, setup.run_seed, setup.domain, setup.first_index + row, note)
    busy[2] = IDLE
    spec = envs[setup.worker].spec
    control.send(Made([env.spec for env in envs.values()]))
    if control.recv() is None:
        return
    host = Host(
        envs, SharedArrays(rows_layout(spec, setup.num_envs), setup.rows_fd).arrays, action_converter(spec.action)
    )

    gc.collect()
    gc.freeze()  # what exists now stays: no later collection need look at it
    waiter = Waiter([control.fileno(), request.fds[0]])
    ticket = 0
    while True:
        ready = waiter.wait(60)
        if control.fileno() in ready:  # before the request that it belongs to
            message = control.recv()
            if message is None:
                break
            host.expect(message)
            continue
        for _ in range(request.take()):
            ticket += 1
            for position in np.flatnonzero(tickets == ticket).tolist():
                host.advance(owned[position])
            busy[2] = IDLE
            answer.notify()
    for env in envs.values():
        env.close()


if __name__ == "__main__":
    # Not the ``__main__`` module's classes: the parent has to find those it is sent.
    from pronghorn.vec import worker

    sys.exit(worker.main(sys.argv[1:]))
