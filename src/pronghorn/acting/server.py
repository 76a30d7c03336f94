"""One forward pass for all actors: IMPALA's dynamic batching, in a thread of the learner's process.

An actor asks for some of its envs and waits for the answer. What they observe lies in the columns, which the server
reads; all else, a few numbers per env, goes over a ``Desk``. Nobody but an actor writes its columns, so one that dies
leaves nothing half done.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pronghorn import tree
from pronghorn.acting.inference import Choice, Inference, Place
from pronghorn.networks.agent import Agent
from pronghorn.networks.encoders import Inputs
from pronghorn.processes.shared import ArraySpec, SharedArrays
from pronghorn.processes.wake import Waiter, Wake
from pronghorn.transport.shared import SharedWeights
from pronghorn.tree import Tree
from pronghorn.types import BoolArray, IntArray, Metrics, action_dtype

LONGEST_SLEEP = 1.0
CLOSE_SECONDS = 5.0


def desk_layout(agent: Agent, num_envs: int, actors: int) -> dict[str, Any]:
    """Shared arrays of a desk. ``question`` and ``answer`` have a row per env of the run, ``asked``, ``answered`` and
    ``version`` an entry per actor: the number of its question, of the one answered last, and who chose the answer."""

    def rows(shape: Sequence[int], dtype: Any) -> ArraySpec:
        return ArraySpec((num_envs, *shape), np.dtype(dtype))

    action = tree.map(lambda leaf: rows(leaf.shape, action_dtype(leaf)), agent.spec.action)
    core_state = tree.map(lambda tensor: rows(tensor.shape[1:], tensor.numpy().dtype), agent.initial_state(1))
    each = ArraySpec((actors,), np.dtype(np.int64))
    return {
        "question": {
            "waits": rows((), np.bool_),
            "column": rows((), np.int64),
            "row": rows((), np.int64),
            "first": rows((), np.bool_),
            "core_state": core_state,
            "last_step": () if agent.last_step is None else (action, rows((), np.float32)),
            "noise": rows((agent.distribution.noise_size,), np.float32),
        },
        "answer": (action, rows((agent.distribution.parameter_size,), np.float32), core_state),
        "asked": each,
        "answered": each,
        "version": each,
        "closed": ArraySpec((1,), np.dtype(np.bool_)),
    }


class DeskFds(NamedTuple):
    """Descriptors of a desk: its memory, the wake-up of the server, and one for each actor."""

    memory: int
    server: tuple[int, int]
    actors: tuple[tuple[int, int], ...]

    def all(self) -> list[int]:
        """For a child to inherit."""
        return sorted({self.memory, *self.server, *itertools.chain(*self.actors)})


class Desk:
    """Where actors ask and are answered. An actor attaches to ``fds`` with the same layout."""

    def __init__(self, layout: dict[str, Any], fds: DeskFds | None = None) -> None:
        actors = layout["asked"].shape[0]
        self._shared = SharedArrays(layout, None if fds is None else fds.memory)
        self.server = Wake(None if fds is None else fds.server)
        self.actors = [Wake(None if fds is None else fds.actors[actor]) for actor in range(actors)]
        self.fds = DeskFds(self._shared.fd, self.server.fds, tuple(wake.fds for wake in self.actors))
        arrays = self._shared.arrays
        self.question: dict[str, Tree] = arrays["question"]
        self.answer: Tree = arrays["answer"]
        self.asked: IntArray = arrays["asked"]
        self.answered: IntArray = arrays["answered"]
        self.version: IntArray = arrays["version"]
        self.closed: BoolArray = arrays["closed"]

    def close(self) -> None:
        """May be called twice."""
        for wake in (self.server, *self.actors):
            wake.close()
        self.question, self.answer = {}, ()
        self.asked = self.answered = self.version = np.zeros(0, np.int64)
        self.closed = np.ones(1, bool)
        self._shared.close()


class Client:
    """An actor's end: chooses by asking the server. Random actions are drawn here, with the weights of the start.

    Args:
        desk: attached to.
        actor: our number there.
        envs: ours, as numbers of the run; those of a ``Place`` count from the first of them.
        inference: of this process, for what is random.
    """

    def __init__(self, desk: Desk, actor: int, envs: range, inference: Inference) -> None:
        own = slice(envs.start, envs.stop)
        self._desk, self._actor, self._inference = desk, actor, inference
        self._question, self._answer = _at(desk.question, own), _at(desk.answer, own)
        self._wake = desk.actors[actor]
        self._waiter = Waiter([self._wake.fds[0]])

    def __call__(
        self, observation: Tree, first: BoolArray, core_state: Tree, noise: NDArray[np.float32], place: Place
    ) -> Choice:
        """As ``Inference``; every env has a column.

        Raises:
            BrokenPipeError: the server has ended.
        """
        if self._inference.mode == "random":
            return self._inference(observation, first, core_state, noise, place)
        self._question["waits"][:] = False
        question = {
            "waits": np.ones(len(first), bool),
            "column": place.columns,
            "row": place.rows,
            "first": first,
            "core_state": core_state,
            "last_step": tuple(observation[1:]) if isinstance(observation, Inputs) else (),
            "noise": noise,
        }
        _put(self._question, place.envs, question)
        number = time.monotonic_ns()  # a moment: it gives the order of arrival, and no two lives of an actor share it
        self._desk.asked[self._actor] = number
        self._desk.server.notify()
        self._await(number)
        action, behaviour, core_state = _at(self._answer, place.envs)
        return Choice(action, behaviour, core_state, int(self._desk.version[self._actor]))

    def _await(self, number: int) -> None:
        while self._desk.answered[self._actor] != number:
            if self._desk.closed[0]:
                raise BrokenPipeError("the learner does not answer any more")
            self._waiter.wait(LONGEST_SLEEP)
            self._wake.take()


@dataclass(frozen=True)
class Request:
    """A question of one actor: its ``number`` is the moment it was asked, in ns; ``envs`` are numbers of the run."""

    actor: int
    number: int
    envs: IntArray


class InferenceServer:
    """Answers what is asked at ``desk``, in a thread, with the newest weights there are when a pass begins.

    Args:
        desk: belongs to the caller.
        shares: the envs of each actor.
        observation: of all columns, [column, row, …].
        inference: the agent, with weights of its own.
        weights: where the newest come from.
        minimum, maximum, timeout: see ``due``.
    """

    def __init__(
        self,
        desk: Desk,
        shares: Sequence[range],
        observation: Tree,
        inference: Inference,
        weights: SharedWeights,
        minimum: int,
        maximum: int,
        timeout: float,
    ) -> None:
        self._desk, self._shares, self._observation = desk, shares, observation
        self._inference, self._weights, self._loaded = inference, weights, 0
        self._minimum, self._maximum, self._timeout = minimum, maximum, timeout
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._passes = self._envs = 0
        self._busy = 0.0
        self._told = 0, 0, 0.0, time.perf_counter()

    def start(self) -> None:
        """From here on questions are answered."""
        self._thread.start()

    def check(self) -> None:
        """Raises what has ended the server, if anything has."""
        if self._error is not None:
            raise RuntimeError("inference for the actors has failed") from self._error

    def forget(self, actor: int) -> None:
        """It has died; what it asked is not answered any more."""
        self._desk.answered[actor] = self._desk.asked[actor]

    def metrics(self) -> Metrics:
        """Since the last call: envs per forward pass, if there was one, and the thread's share of the time."""
        passes, envs, busy, then = self._told
        self._told = self._passes, self._envs, self._busy, time.perf_counter()
        share = {"time/inference": (self._told[2] - busy) / (self._told[3] - then)}
        served = self._told[0] - passes
        return {"inference/batch": (self._told[1] - envs) / served, **share} if served else share

    def close(self) -> None:
        """Ends the thread; actors that wait are told. May be called twice."""
        self._closing.set()
        self._desk.server.notify()
        self._thread.join(CLOSE_SECONDS)
        self._observation = ()  # which would keep the columns

    def _run(self) -> None:
        try:
            torch.set_num_threads(1)  # of this thread: few rows gain nothing from more
            waiter = Waiter([self._desk.server.fds[0]])
            with self._inference.own_stream():
                while not self._closing.is_set():
                    if pause := self._serve():
                        waiter.wait(pause)
                        self._desk.server.take()
        except BaseException as error:
            self._error = error
        finally:
            self._desk.closed[0] = True
            for wake in self._desk.actors:
                wake.notify()

    def _serve(self) -> float:
        """Answers what is due; how many seconds from now something may be."""
        waiting = self._waiting()
        if not waiting:
            return LONGEST_SLEEP
        waited = (time.monotonic_ns() - waiting[0].number) / 1e9
        sizes = [len(request.envs) for request in waiting]
        count = due(sizes, waited, self._minimum, self._maximum, self._timeout)
        if not count:
            return self._timeout - waited
        begun = time.perf_counter()
        self._answer(waiting[:count])
        self._busy += time.perf_counter() - begun
        return 0.0

    def _waiting(self) -> list[Request]:
        """What is asked and not answered, in order of arrival."""
        asked = self._desk.asked.copy()
        actors = np.flatnonzero(asked != self._desk.answered)
        return [self._request(int(actor), int(asked[actor])) for actor in actors[np.argsort(asked[actors])]]

    def _request(self, actor: int, number: int) -> Request:
        share = self._shares[actor]
        waits = self._desk.question["waits"][share.start : share.stop]
        return Request(actor, number, share.start + np.flatnonzero(waits))

    def _answer(self, requests: Iterable[Request]) -> None:
        """One forward pass for all of ``requests``."""
        envs = np.concatenate([request.envs for request in requests])
        question = _at(self._desk.question, envs)
        observation = _at(self._observation, (question["column"], question["row"]))
        if question["last_step"]:
            observation = Inputs(observation, *question["last_step"])
        self._renew()
        choice = self._inference(observation, question["first"], question["core_state"], question["noise"])
        _put(self._desk.answer, envs, choice[:3])
        for request in requests:
            self._desk.version[request.actor] = choice.version
            self._desk.answered[request.actor] = request.number
            self._desk.actors[request.actor].notify()
        self._passes, self._envs = self._passes + 1, self._envs + len(envs)

    def _renew(self) -> None:
        newest = self._weights.publications
        if newest != self._loaded:
            self._inference.load(*self._weights.fetch())
            self._loaded = newest


def due(sizes: Sequence[int], waited: float, minimum: int, maximum: int, timeout: float) -> int:
    """How many of the requests that wait, for ``sizes`` envs in order of arrival, are to be answered now.

    None before they are ``minimum`` envs in all, or the first has ``waited`` for ``timeout`` seconds. Then so many that
    they are ``maximum`` envs at most: requests are not split, and one that is larger is answered alone.
    """
    if not sizes or (sum(sizes) < minimum and waited < timeout):
        return 0
    return max(1, sum(total <= maximum for total in itertools.accumulate(sizes)))


def _at(values: Tree, index: Any) -> Tree:
    return tree.map(lambda array: array[index], values)


def _put(target: Tree, index: Any, values: Tree) -> None:
    for array, value in zip(tree.leaves(target), tree.leaves(values), strict=True):
        array[index] = value
