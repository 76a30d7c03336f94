"""Envs in worker processes, several each, over shared memory: one wake-up per worker and request, one back."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pronghorn.envs.base import EnvFactory, action_converter
from pronghorn.envs.wrappers import difference
from pronghorn.processes.launch import SEND_TIMEOUT, Child, launch
from pronghorn.processes.shared import BLOCK_FDS, SharedArrays, anonymous, mapped
from pronghorn.processes.supervise import LONGEST_SLEEP, START, Incident, Notes, Patience, Supervisor, read_note
from pronghorn.processes.wake import WAKE_FDS, Waiter, Wake
from pronghorn.seeding import Domain
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, IntArray, Step, UserError
from pronghorn.vec import rows
from pronghorn.vec.base import Timeouts
from pronghorn.vec.worker import Failed, Made, Setup, status_layout

MODULE = "pronghorn.vec.worker"
PAUSE_SECONDS = 30.0
"""More than any back-off lasts."""

START_SECONDS = 60.0
"""For a worker to come to its first env: an interpreter and its imports, on a machine where many start at once."""

MOST_REMEMBERED = 1000
ANY = -1


@dataclass(eq=False)
class _Worker:
    """Our view of one worker. ``owned``: its rows. ``specs``: of its envs, once they are made. ``sent``, ``answered``:
    requests it was given, and has answered."""

    owned: IntArray
    child: Child
    request: Wake
    answer: Wake
    specs: list[EnvSpec] | None = None
    sent: int = 0
    answered: int = 0


class PoolVec:
    """``BatchedEnv`` over ``workers`` processes. Env i is env ``first_index + i`` of the run; every group is spread
    over all workers. Answers come in the order of the requests.

    A request costs a worker one wake-up, however many envs it has in it. Several requests may be in flight.

    An env that raises is built anew in its worker; a worker that dies, or hangs and is killed, is replaced, and the
    running episodes of all its envs are lost: as far as ``supervisor`` permits. Such an env answers with the first
    observation of its next episode.

    Args:
        ready: ``recv`` answers as soon as that many envs are ready, whichever they are, instead of in order.

    Raises:
        EnvError, UserError: an env could not be made; every method that waits raises EnvError where one fails.
    """

    pausable = True

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        run_seed: int,
        domain: Domain,
        groups: int = 1,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
        first_index: int = 0,
        workers: int = 2,
        supervisor: Supervisor | None = None,
        ready: int | None = None,
    ) -> None:
        self.num_envs = len(factories)
        self._factories, self._run_seed, self._domain, self._first_index = factories, run_seed, domain, first_index
        self._supervisor = supervisor or Supervisor()
        self._ready = ready
        seconds = {"idle": timeouts.step, "pause": PAUSE_SECONDS, "start": START_SECONDS, **vars(timeouts)}
        self._close_seconds = timeouts.close
        self._longest_sleep = min(LONGEST_SLEEP, *(value / 4 for value in seconds.values()))
        self._groups = rows.split_groups(self.num_envs, groups)
        count = min(workers, self.num_envs)
        self._owners = _owners(self._groups, count)
        self._status = SharedArrays(status_layout(self.num_envs, count))
        self._ticket, self._done = self._status.arrays["ticket"], self._status.arrays["done"]
        self._patience = Patience(self._status.arrays["busy"], seconds)
        self._in_flight = np.zeros(self.num_envs, np.bool_)
        self._flying: deque[tuple[IntArray, slice | IntArray, list[tuple[int, int]]]] = deque()
        self._requests = 0
        self._looked = time.monotonic()
        self._remembered: dict[bytes, list[int]] = {}
        self._block: SharedArrays | None = None
        self._closed = False
        self._workers: list[_Worker] = []
        self._rows_fd = anonymous()  # sized when the spec is known
        try:
            for index in range(count):
                self._workers.append(self._start(index))
            self._listen()
            self._wait(lambda: all(worker.specs is not None for worker in self._workers))
            specs = dict[int, EnvSpec]()
            for worker in self._workers:
                specs |= zip(worker.owned.tolist(), worker.specs or (), strict=True)
            rows.check_equal([specs[env] for env in range(self.num_envs)], first_index)
            self.spec = specs[0]
            self._convert = action_converter(self.spec.action)
            self._block = SharedArrays(rows.rows_layout(self.spec, self.num_envs), self._rows_fd)
            self._rows: dict[str, Tree] = self._block.arrays
            for index in range(count):
                self._tell(index, {})
        except BaseException:
            self.close()
            raise

    def reset(self, episodes: IntArray, histories: Sequence[Tree] | None = None) -> None:
        """See ``BatchedEnv``. Waits until what is in flight has landed."""
        self._wait(lambda: bool((self._done == self._ticket).all()))
        self._flying.clear()
        self._in_flight[:] = False
        self._rows["episode"][:] = episodes - 1  # for a worker that dies before it hears of it
        begins = rows.begins(episodes, histories)
        for index, worker in enumerate(self._workers):
            # A replacement that is not there yet begins these episodes anyway, though without a history.
            if worker.specs is not None and self._tell(index, {row: begins[row] for row in worker.owned.tolist()}):
                self._status.arrays["told"][index] += 1
        for group in self._groups:
            self._request(group.copy(), rows.as_index(group))

    def send(self, actions: Tree, envs: IntArray) -> None:
        """See ``BatchedEnv``. Raises ValueError if one of ``envs`` is in flight."""
        index = rows.as_index(envs)
        rows.check_landed(self._in_flight, index, envs)
        rows.write_actions(self._rows, self._convert, actions, index)
        self._request(envs.copy(), index)

    def recv(self) -> Step:
        """See ``BatchedEnv``: the envs of the earliest ``send``, or the first that are ready."""
        if self._ready is None:
            envs, index, dues = self._flying[0]
            # The one that was woken last comes first: where the others are faster, we sleep only once.
            for number, due in reversed(dues):
                self._await_answer(number, due)
            self._flying.popleft()
        else:
            self._look()  # nobody waits for a worker that is gone as long as others are ready
            enough = min(self._ready, int(self._in_flight.sum()))
            self._wait(lambda: len(self._landed()) >= enough)
            envs = self._landed()[:enough]
            index = rows.as_index(envs)
        self._in_flight[index] = False
        return rows.read_step(self._rows, envs, index)

    def close(self) -> None:
        """See ``BatchedEnv``. Workers that do not end within 5 s are killed; failures are reported, no more."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            try:
                worker.child.send(None)
            except (OSError, ValueError):
                worker.child.kill()
        deadline = time.monotonic() + self._close_seconds
        for index, worker in enumerate(self._workers):
            self._hear_last_words(worker, deadline)
            if worker.child.process.poll() is None:
                cause = f"{self._who(index)} gave no answer for {self._close_seconds:g} s and was killed"
                self._supervisor.report(Incident(*self._call(index), cause))
            worker.child.end(0.0)
            worker.request.close()
            worker.answer.close()
        self._workers, self._rows = [], {}
        del self._ticket, self._done, self._patience  # views, which keep the memory
        self._status.close()
        if self._block is not None:
            self._block.close()
        else:
            os.close(self._rows_fd)

    def _start(self, index: int) -> _Worker:
        request, answer = Wake(), Wake()
        fds = {self._status.fd, self._rows_fd, *request.fds, *answer.fds}
        child = launch(MODULE, threads=1, fds=sorted(fds))
        owned = np.flatnonzero(self._owners == index)
        Notes(self._status.arrays["busy"][index])(int(owned[0]), START)  # until it can say so itself
        worker = _Worker(owned, child, request, answer)
        setup = Setup(
            worker=index,
            workers=len(self._status.arrays["told"]),
            num_envs=self.num_envs,
            owned=owned,
            factories=[self._factories[row] for row in owned.tolist()],
            run_seed=self._run_seed,
            domain=self._domain,
            first_index=self._first_index,
            status_fd=self._status.fd,
            rows_fd=self._rows_fd,
            request_fds=request.fds,
            answer_fds=answer.fds,
            each=self._ready is not None,
        )
        with contextlib.suppress(OSError):  # dead at once: whoever waits for it will see
            child.send(setup)
        return worker

    def _listen(self) -> None:
        """Waiters for the answer of each worker, and of any; all hear every control pipe."""
        answers = [worker.answer.fds[0] for worker in self._workers]
        controls = [worker.child.control.fileno() for worker in self._workers]
        self._waiters = [Waiter([*part, *controls]) for part in (*([fd] for fd in answers), answers)]

    def _request(self, envs: IntArray, index: slice | IntArray) -> None:
        self._requests += 1
        self._in_flight[index] = True
        self._ticket[index] = self._requests
        dues = []
        for number in self._owners_of(envs):
            worker = self._workers[number]
            worker.sent += 1
            dues.append((number, worker.sent))
            if worker.specs is not None:  # else a replacement, which will be told once it is there
                worker.request.notify()
        if self._ready is None:
            self._flying.append((envs, index, dues))

    def _owners_of(self, envs: IntArray) -> list[int]:
        """Which workers own some of ``envs``; remembered, since the same ones come again and again."""
        key = envs.tobytes()
        owners = self._remembered.get(key)
        if owners is None:
            owners = sorted(set(self._owners[envs].tolist()))
            if len(self._remembered) < MOST_REMEMBERED:
                self._remembered[key] = owners
        return owners

    def _landed(self) -> IntArray:
        """The envs that are in flight and have answered."""
        return np.flatnonzero(self._in_flight & (self._done == self._ticket))

    def _tell(self, index: int, message: Any) -> bool:
        """Whether the worker could be told; if not, it is replaced."""
        try:
            self._workers[index].child.send(message)
        except BlockingIOError:
            self._replace(index, f"has not listened for {SEND_TIMEOUT} s and was killed")
            return False
        except OSError:
            self._hear(index)
            return False
        return True

    def _await_answer(self, number: int, due: int) -> None:
        self._wait(lambda: self._workers[number].answered >= due, number)

    def _wait(self, ready: Callable[[], Any], number: int = ANY) -> None:
        """Sleeps until ``ready`` holds, which an answer of worker ``number`` may bring about; looks after them all."""
        while not ready():
            awake = self._waiters[number].wait(self._longest_sleep)
            for index, worker in enumerate(self._workers):
                if worker.answer.fds[0] in awake:
                    worker.answered += worker.answer.take()
                if worker.child.control.fileno() in awake:
                    self._hear(index)
            self._look()

    def _look(self) -> None:
        """Now and then, replaces workers that have died or hang. Where we were away meanwhile, their time begins only
        now."""
        now = time.monotonic()
        since = now - self._looked
        if since <= self._longest_sleep:
            return
        self._looked = now
        away = since > 2 * self._longest_sleep
        for index, worker in enumerate(self._workers):
            idle = worker.specs is not None and (self._done[worker.owned] == self._ticket[worker.owned]).all()
            if away or idle:
                self._patience.forget(index)
            elif worker.child.process.poll() is not None:
                if worker.child.control.poll():
                    self._hear(index)  # its last words, or the end
                else:  # what it has started lives on and holds the pipe open
                    self._replace(index, worker.child.fate())
            elif (seconds := self._patience.over(index)) is not None:
                worker.child.kill()
                self._replace(index, f"gave no answer for {seconds:g} s and was killed")

    def _hear(self, index: int) -> None:
        """Takes a message from the worker's pipe, and does what it asks for. Raises a user's mistake."""
        worker = self._workers[index]
        try:
            message = worker.child.control.recv()
        except (EOFError, OSError):
            return self._replace(index, worker.child.fate())
        if isinstance(message, Made):
            worker.specs = message.specs
            if self._block is not None:  # a replacement
                for row, spec in zip(worker.owned.tolist(), message.specs, strict=True):
                    if found := difference(self.spec, spec):
                        raise UserError(
                            f"env {self._first_index + row} in construct: built anew, it differs in {found}"
                        )
                begun = self._rows["episode"]
                self._tell(index, {row: (int(begun[row]) + 1, None) for row in worker.owned.tolist()})
                for _ in range(worker.sent - worker.answered):
                    worker.request.notify()
        elif message.mistake:
            raise UserError(message.text)
        elif not message.phase:  # our own fault
            raise RuntimeError(f"worker {index}: {message.text}\n{message.trace}")
        else:
            self._tell(index, rows.permitted(self._supervisor, _incident(message)))

    def _replace(self, index: int, fate: str) -> None:
        """Starts a new worker in the place of one that has died."""
        old = self._workers[index]
        env, phase = self._call(index)
        lost = tuple(self._first_index + row for row in old.owned.tolist())
        cause = f"{self._who(index)} {fate} {f'in {phase}' if phase else 'between two steps'}"
        time.sleep(rows.permitted(self._supervisor, Incident(env, phase, cause, lost)))
        old.child.end(0.0)
        old.request.close()
        old.answer.close()
        self._status.arrays["told"][index] = 0
        new = self._workers[index] = self._start(index)
        late = old.owned[self._done[old.owned] != self._ticket[old.owned]]
        new.sent, new.answered = old.sent, old.sent - len(set(self._ticket[late].tolist()))
        self._patience.forget(index)
        self._listen()

    def _hear_last_words(self, worker: _Worker, deadline: float) -> None:
        control = worker.child.control
        try:
            while control.poll(max(0.0, deadline - time.monotonic())):
                message = control.recv()
                if isinstance(message, Failed) and message.phase == "close":
                    self._supervisor.report(_incident(message))
        except (EOFError, OSError):
            pass  # it has ended
        worker.child.wait(max(0.0, deadline - time.monotonic()))

    def _call(self, index: int) -> tuple[int, str]:
        """(env or -1, phase) of what a worker is or was doing."""
        row, phase = read_note(int(self._status.arrays["busy"][index, 0]))
        return (self._first_index + row, phase) if phase not in ("idle", "pause") else (-1, "")

    def _who(self, index: int) -> str:
        env, phase = self._call(index)
        if phase:
            return f"env {env}: its worker"
        own = ", ".join(str(self._first_index + row) for row in self._workers[index].owned.tolist())
        return f"envs {own}: their worker"


def footprint(spec: EnvSpec, num_envs: int, workers: int) -> tuple[int, int]:
    """(bytes of shared memory, descriptors in this process) of a pool, without making one."""
    blocks = rows.rows_layout(spec, num_envs), status_layout(num_envs, workers)
    control, wakes = 1, 2
    return sum(map(mapped, blocks)), len(blocks) * BLOCK_FDS + workers * (control + wakes * WAKE_FDS)


def _incident(message: Failed) -> Incident:
    lost = () if message.phase == "close" else (message.env,)
    return Incident(message.env, message.phase, message.text, lost, message.trace)


def _owners(groups: Sequence[IntArray], workers: int) -> IntArray:
    """The worker of each env: a contiguous part of every group, so that no two write into the same lines of memory; the
    larger parts of unequal ones go round."""
    owners, shift = [], 0
    for group in groups:
        sizes = np.full(workers, len(group) // workers)
        sizes[: len(group) % workers] += 1
        owners.append(np.repeat(np.arange(workers), np.roll(sizes, shift)))
        shift += len(group) % workers
    return np.concatenate(owners)
