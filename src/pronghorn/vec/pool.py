"""Envs in worker processes, several each, over shared memory: one wake-up per worker and request, one back."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pronghorn.envs.base import EnvFactory, action_converter
from pronghorn.processes.launch import Child, available_cores, launch
from pronghorn.processes.shared import SharedArrays, anonymous
from pronghorn.processes.wake import Waiter, Wake
from pronghorn.seeding import Domain
from pronghorn.tree import Tree
from pronghorn.types import IntArray, Step, UserError
from pronghorn.vec import rows
from pronghorn.vec.base import EnvError, Timeouts
from pronghorn.vec.worker import IDLE, PHASES, Failed, Made, Setup, status_layout

MODULE = "pronghorn.vec.worker"
CLOSE_TIMEOUT = 5.0
LONGEST_SLEEP = 1.0
MOST_REMEMBERED = 1000


@dataclass
class _Worker:
    """Our view of one worker: how many requests it was given and how many it has answered."""

    child: Child
    request: Wake
    answer: Wake
    sent: int = 0
    answered: int = 0
    due: int = 0
    made: Made | None = None


class PoolVec:
    """``BatchedEnv`` over ``workers`` processes. Env i is env ``first_index + i`` of the run and lives in worker
    ``i % workers``, so every group is spread over all of them. Answers come in the order of the requests.

    A request costs a worker one wake-up, however many envs it has in it. Several requests may be in flight.

    Raises:
        EnvError, UserError: an env could not be made; every method that waits raises EnvError where one fails.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        run_seed: int,
        domain: Domain,
        groups: int = 1,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
        first_index: int = 0,
        workers: int = 2,
    ) -> None:
        self.num_envs = len(factories)
        self._first_index = first_index
        self._seconds: dict[str, float] = {"idle": timeouts.step, **vars(timeouts)}
        self._longest_sleep = min(LONGEST_SLEEP, *(seconds / 4 for seconds in self._seconds.values()))
        self._groups = rows.split_groups(self.num_envs, groups)
        self._flying: deque[tuple[IntArray, list[tuple[_Worker, int]]]] = deque()
        self._in_flight = np.zeros(self.num_envs, np.bool_)
        workers = min(workers, self.num_envs)
        self._status = SharedArrays(status_layout(self.num_envs, workers))
        self._remembered: dict[bytes, list[tuple[_Worker, IntArray]]] = {}
        self._block: SharedArrays | None = None
        self._workers: list[_Worker] = []
        self._rows_fd = anonymous()  # sized when the spec is known
        try:
            for index in range(workers):
                self._start(index, workers, factories, run_seed, domain)
            self._waiter = Waiter(
                fd for worker in self._workers for fd in (worker.answer.fds[0], worker.child.control.fileno())
            )
            self._wait(lambda worker: worker.made is not None, "construct")
            specs = [worker.made.specs for worker in self._workers if worker.made]
            ordered = [specs[env % workers][env // workers] for env in range(self.num_envs)]
            rows.check_equal(ordered, first_index)
            self.spec = ordered[0]
            self._convert = action_converter(self.spec.action)
            self._block = SharedArrays(rows.rows_layout(self.spec, self.num_envs), self._rows_fd)
            self._rows: dict[str, Tree] = self._block.arrays
            for worker in self._workers:
                self._tell(worker, {})
        except BaseException:
            self.close()
            raise

    def reset(self, episodes: IntArray, histories: Sequence[Tree] | None = None) -> None:
        """See ``BatchedEnv``. Waits until what is in flight has landed."""
        self._wait(lambda worker: worker.answered == worker.sent)
        self._flying.clear()
        self._in_flight[:] = False
        begins = rows.begins(episodes, histories)
        for index, worker in enumerate(self._workers):
            self._tell(worker, {env: begin for env, begin in begins.items() if env % len(self._workers) == index})
        for group in self._groups:
            self._request(group.copy())

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``BatchedEnv``. Raises ValueError if one of ``envs`` is in flight."""
        rows.check_landed(self._in_flight, envs)
        rows.write_actions(self._rows, self._convert, actions, envs)
        self._request(envs.copy())

    def recv(self) -> Step:
        """See ``BatchedEnv``: the envs of the earliest ``send``."""
        envs, tickets = self._flying[0]
        for worker, ticket in tickets:
            worker.due = ticket
        self._wait(lambda worker: worker.answered >= worker.due)
        self._flying.popleft()
        self._in_flight[envs] = False
        return rows.read_step(self._rows, envs)

    def close(self) -> None:
        """See ``BatchedEnv``. Workers that do not end within 5 s are killed."""
        for worker in self._workers:
            try:
                worker.child.send(None)
            except (OSError, ValueError):
                worker.child.kill()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while self._workers:
            worker = self._workers.pop()
            worker.child.end(max(0.0, deadline - time.monotonic()))
            worker.request.close()
            worker.answer.close()
        self._rows = {}
        self._status.close()
        if self._block is not None:
            self._block.close()
        elif self._rows_fd >= 0:
            os.close(self._rows_fd)
            self._rows_fd = -1

    def _start(self, index: int, workers: int, factories: Sequence[EnvFactory], run_seed: int, domain: Domain) -> None:
        request, answer = Wake(), Wake()
        fds = {self._status.fd, self._rows_fd, *request.fds, *answer.fds}
        child = launch(MODULE, threads=1, fds=sorted(fds))
        worker = _Worker(child, request, answer)
        self._workers.append(worker)
        setup = Setup(
            worker=index,
            workers=workers,
            num_envs=self.num_envs,
            factories=factories[index::workers],
            run_seed=run_seed,
            domain=domain,
            first_index=self._first_index,
            status_fd=self._status.fd,
            rows_fd=self._rows_fd,
            request_fds=request.fds,
            answer_fds=answer.fds,
            core=_core(index, workers),
        )
        self._tell(worker, setup)

    def _request(self, envs: IntArray) -> None:
        tickets: list[tuple[_Worker, int]] = []
        for worker, own in self._shares(envs):
            worker.sent += 1
            self._status.arrays["ticket"][own] = worker.sent
            tickets.append((worker, worker.sent))
        for worker, _ in tickets:
            worker.request.notify()
        self._in_flight[envs] = True
        self._flying.append((envs, tickets))

    def _shares(self, envs: IntArray) -> list[tuple[_Worker, IntArray]]:
        """Which worker has which of ``envs``; remembered, since the same ones come again and again."""
        key = envs.tobytes()
        shares = self._remembered.get(key)
        if shares is None:
            owners = envs % len(self._workers)
            shares = [(self._workers[index], envs[owners == index]) for index in sorted(set(owners.tolist()))]
            if len(self._remembered) < MOST_REMEMBERED:
                self._remembered[key] = shares
        return shares

    def _tell(self, worker: _Worker, message: Any) -> None:
        try:
            worker.child.send(message)
        except OSError:
            if worker.child.control.poll():
                self._hear(worker)  # its last words
            raise self._blame(worker, worker.child.fate()) from None

    def _wait(self, ready: Callable[[_Worker], bool], idle_phase: str = "idle") -> None:
        """Sleeps until ``ready`` holds for all workers, looking after those for which it does not."""
        seen = self._status.arrays["busy"].copy()
        start = time.monotonic()
        since = [start] * len(self._workers)
        next_look = start + self._longest_sleep
        while not all(map(ready, self._workers)):
            awake = self._waiter.wait(self._longest_sleep)
            for worker in self._workers:
                if worker.answer.fds[0] in awake:
                    worker.answered += worker.answer.take()
                if worker.child.control.fileno() in awake:
                    self._hear(worker)
            now = time.monotonic()
            if now < next_look:
                continue
            next_look = now + self._longest_sleep
            for index, worker in enumerate(self._workers):
                if ready(worker):
                    continue
                if worker.child.process.poll() is not None:
                    raise self._blame(worker, worker.child.fate())
                if (self._status.arrays["busy"][index] != seen[index]).any():
                    seen[index], since[index] = self._status.arrays["busy"][index], now
                phase = idle_phase if seen[index, 2] == IDLE else PHASES[seen[index, 2]]
                if now - since[index] > self._seconds[phase]:
                    worker.child.kill()
                    raise self._blame(worker, f"gave no answer for {self._seconds[phase]:g} s and was killed")

    def _hear(self, worker: _Worker) -> None:
        """Takes a message from the worker's pipe; raises what it reports, or that it has died."""
        try:
            message = worker.child.control.recv()
        except (EOFError, OSError):
            raise self._blame(worker, worker.child.fate()) from None
        if isinstance(message, Failed):
            raise UserError(message.text) if message.mistake else EnvError(message.text)
        worker.made = message

    def _blame(self, worker: _Worker, fate: str) -> EnvError:
        index = self._workers.index(worker)
        _, env, phase = self._status.arrays["busy"][index].tolist()
        if phase != IDLE:
            return EnvError(f"env {self._first_index + env}: its worker {fate} in {PHASES[phase]}")
        own = range(self._first_index + index, self._first_index + self.num_envs, len(self._workers))
        return EnvError(f"envs {', '.join(map(str, own))}: their worker {fate} between two steps")


def _core(index: int, workers: int) -> int | None:
    """One core for each worker where there are as many of both: workers that are woken together are often put on the
    same core otherwise, one after the other. With other numbers the kernel knows better."""
    cores = available_cores()
    return cores[index] if workers == len(cores) and hasattr(os, "sched_setaffinity") else None
