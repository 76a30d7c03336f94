"""The checks of ``pronghorn doctor``, made where a run makes its envs: in a fresh interpreter without torch.

Run as ``python -m pronghorn.tools.examine``. It tells its parent what it begins and what it has found; the parent, who
reads the notes about every call of the env, decides when one has taken too long.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pronghorn import tree
from pronghorn.envs.base import ContractError, Env, EnvFactory, action_converter, unbatch
from pronghorn.envs.gymnasium import GymnasiumEnv, make
from pronghorn.envs.own import line
from pronghorn.envs.wrappers import conformer, leaf_names, wrong_answer
from pronghorn.processes import launch
from pronghorn.processes.shared import ArraySpec, SharedArrays
from pronghorn.processes.supervise import CLOSE, CONSTRUCT, NOTE_WORDS, RESET, STEP, Notes
from pronghorn.seeding import Domain, episode_seed, generator
from pronghorn.tree import Tree
from pronghorn.types import ACTION_MASK, EnvSpec, Leaf, UserError
from pronghorn.vec.engines import native_rule, native_spec
from pronghorn.vec.layout import choose, random_actions

Verdict = Literal["ok", "warning", "hurts"]

EPISODES, STEPS = 300, 50_000
"""That are played, if time allows."""

REPLAYED = 200
"""Steps of an episode that is played several times."""

A_LIMIT = 50
"""Episodes that all end after the same number of steps, this or more, are taken for cut by a limit."""

LEAK, SLOW_LEAK = 1e9, 5e7
"""Bytes per million steps that hurt, and that are worth a warning."""

NOISE_BYTES = 2_000_000
"""That a process may grow by without a cause in the env: allocators keep what they have."""

HUGE_REWARD = 1e6
SLOW_RESET, MUCH_RESETTING = 0.02, 0.5
"""Seconds of a reset, and share of the time spent in resets, that together are worth a warning."""

UNEVEN, LONG_STEP = 20.0, 0.01
"""Steps are uneven where one in twenty takes this many times the median, and at least so many seconds."""

RENDER_MODE = "rgb_array"

ENGINES_ALONE = ("EnvPool", "gymnasium vector")
"""Engines of envs that cannot be made one by one."""


@dataclass(frozen=True)
class Finding:
    """What a check has found: a verdict, why, and what would help (empty: nothing needs to)."""

    name: str
    verdict: Verdict
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Begun:
    """To the parent: the name of the check that is made next."""

    name: str


@dataclass(frozen=True)
class Refused:
    """To the parent: why the env cannot be made, a line."""

    text: str


@dataclass(frozen=True)
class Made:
    """To the parent: the env exists."""

    spec: EnvSpec


@dataclass(frozen=True)
class Chosen:
    """To the parent: where a run would step such envs, and why, a line."""

    layout: str
    reason: str


@dataclass(frozen=True)
class Order:
    """To the child: plays for ``seconds`` or ``steps``; ``num_envs`` and ``groups`` are of the run to be."""

    env: str
    env_args: dict[str, Any]
    seconds: float
    num_envs: int
    groups: int
    notes_fd: int
    steps: int = STEPS
    imports: tuple[str, ...] = ()


def notes_layout() -> dict[str, ArraySpec]:
    """The memory in which the child notes its calls."""
    return {"notes": ArraySpec((1, NOTE_WORDS), np.dtype(np.int64))}


class Broken(Exception):
    """The env cannot be played on with; ``finding`` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


class Patient:
    """One env, whose every call is noted beforehand. Random actions, legal under a mask.

    Raises (all methods but ``close``):
        Broken: the env raised, or its answer cannot be taken apart.
    """

    def __init__(self, factory: EnvFactory, notes: Notes) -> None:
        self._notes = notes
        notes(0, CONSTRUCT)
        self.env: Env = factory()
        notes.idle()
        self.spec = self.env.spec
        self._convert = action_converter(self.spec.action)

    def reset(self, seed: int) -> Tree:
        """The first observation, as it came."""
        answer = self._call(RESET, "reset", lambda: self.env.reset(seed=seed))
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            text = "reset does not return (observation, info)"
            raise Broken(Finding("calls", "hurts", text, "return both; before Gym 0.26 it was the observation alone"))
        return answer[0]

    def step(self, action: Tree) -> tuple[Any, ...]:
        """The five values, as they came."""
        answer = self._call(STEP, "step", lambda: self.env.step(action))
        if not isinstance(answer, tuple) or len(answer) != 5:
            text, _, remedy = wrong_answer(answer).partition("; ")
            raise Broken(Finding("calls", "hurts", text, remedy))
        return answer

    def action(self, observation: Tree, random: np.random.Generator) -> Tree:
        """A random one in the env's own units."""
        mask = _mask(observation)
        seen = {} if mask is None else {ACTION_MASK: mask[None]}
        return unbatch(self.spec.action, self._convert(random_actions(self.spec, seen, 1, random)))[0]

    def close(self) -> None:
        """Closes the env; whether it can be does not matter."""
        self._notes(0, CLOSE)
        with contextlib.suppress(Exception, SystemExit):
            self.env.close()
        self._notes.idle()

    def _call(self, phase: int, name: str, call: Callable[[], Any]) -> Any:
        self._notes(0, phase)
        try:
            return call()
        except (Exception, SystemExit) as error:
            text = f"{name} raises {type(error).__name__}: {line(error)}"
            raise Broken(Finding("calls", "hurts", text, "a run starts it again a few times, then gives up")) from error
        finally:
            self._notes.idle()


class Eye:
    """Looks at observations, as they came, and reports what is wrong with them to ``blame``."""

    def __init__(self, spec: EnvSpec, blame: Callable[[Finding], None]) -> None:
        self._spec, self._blame = spec.observation, blame
        self._names, self._leaves = leaf_names(spec.observation), tree.leaves(spec.observation)
        self._conform = conformer(spec.observation)
        self._last: list[Any] = []
        self._copies: list[Any] = []

    def look(self, observation: Tree) -> None:
        """At the next one."""
        try:
            values = tree.leaves(self._conform(observation))
        except ContractError as error:
            self._find("hurts", str(error), "make the space and the answers agree")
            return
        answers = tree.leaves(tree.conform(self._spec, observation))
        for name, leaf, value, answer in zip(self._names, self._leaves, values, answers, strict=True):
            self._look_at(f"observation{name}", leaf, value, answer)
        self._compare(answers)

    def _look_at(self, name: str, leaf: Leaf, value: Any, answer: Any) -> None:
        if leaf.kind == "box":
            assert leaf.low is not None and leaf.high is not None
            if not np.isfinite(value).all():
                self._find("hurts", f"{name} is not finite", "a run stops at the first such value; look for 0/0")
            elif not ((value >= leaf.low) & (value <= leaf.high)).all():
                text = f"{name} leaves its space: {value.min():g} … {value.max():g} in {leaf.describe()}"
                self._find("warning", text, "widen the bounds of its space, or clip")
        elif leaf.kind != "text":
            index = np.ravel(value if leaf.start is None else value - leaf.start)
            if (index < 0).any() or (index >= np.asarray(leaf.categories)).any():
                self._find("hurts", f"{name} is {value}, outside {leaf.describe()}", "widen the space, or count from 0")
        if isinstance(answer, np.ndarray) and answer.dtype != leaf.dtype and leaf.kind != "text":
            text = f"{name} is {answer.dtype}, its space says {leaf.dtype}: every one is converted"
            self._find("warning", text, f"return it as {leaf.dtype}")

    def _compare(self, answers: list[Any]) -> None:
        """With the last observation: is it still what it was?"""
        for name, was, copy in zip(self._names, self._last, self._copies, strict=False):
            if copy is not None and not np.array_equal(was, copy, equal_nan=copy.dtype.kind == "f"):
                text = f"observation{name} is changed after it was returned: each step writes into the same array"
                self._find("warning", text, "return a copy; a run takes its own at once, other code may not")
        self._last = answers
        self._copies = [answer.copy() if isinstance(answer, np.ndarray) else None for answer in answers]

    def _find(self, verdict: Verdict, text: str, remedy: str) -> None:
        self._blame(Finding("observation", verdict, text, remedy))


@dataclass
class Play:
    """What was seen in some hundred episodes of random actions."""

    faults: dict[str, Finding] = field(default_factory=dict)
    rewards: array[float] = field(default_factory=lambda: array("d"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    terminated: int = 0
    """episodes"""
    truncated: int = 0
    running: int = 0
    """steps of the episode that has not ended"""
    step_seconds: array[float] = field(default_factory=lambda: array("d"))
    reset_seconds: array[float] = field(default_factory=lambda: array("d"))
    memory: list[tuple[int, int]] = field(default_factory=list)
    """(steps, bytes of the process), now and then"""
    masked: bool = False

    def blame(self, finding: Finding) -> None:
        """Keeps the worst of each check, of equals the first; says when."""
        known = self.faults.get(finding.name)
        if known is None or (known.verdict, finding.verdict) == ("warning", "hurts"):
            where = f" (episode {len(self.lengths)}, after {self.running} steps)"
            self.faults[finding.name] = Finding(finding.name, finding.verdict, finding.text + where, finding.remedy)

    @property
    def steps(self) -> int:
        """In all."""
        return len(self.step_seconds)


def played(patient: Patient, seconds: float, steps: int = STEPS) -> Play:
    """Random play until time, episodes or steps have run out, or the env cannot be played on with."""
    play = Play()
    try:
        _play(patient, play, time.perf_counter() + seconds, steps)
    except Broken as broken:
        play.blame(broken.finding)
    return play


def _play(patient: Patient, play: Play, deadline: float, most_steps: int) -> None:
    random = generator(0, Domain.PROBE_ENV, 1)
    eye = Eye(patient.spec, play.blame)
    play.masked = isinstance(patient.spec.observation, dict) and ACTION_MASK in patient.spec.observation
    limit = patient.spec.max_episode_steps
    for episode in range(EPISODES):
        play.running = 0
        start = time.perf_counter()
        observation = patient.reset(episode_seed(0, Domain.PROBE_ENV, 0, episode))
        play.reset_seconds.append(time.perf_counter() - start)
        over = False
        while True:
            eye.look(observation)
            if play.masked and not over:  # what follows the end is ignored
                _look_at_mask(observation, play)
            if over or play.steps == most_steps or time.perf_counter() > deadline:
                break
            action = patient.action(observation, random)
            start = time.perf_counter()
            observation, reward, terminated, truncated, info = patient.step(action)
            play.step_seconds.append(time.perf_counter() - start)
            play.running += 1
            _look_at_reward(reward, play)
            over = _look_at_end(terminated, truncated, info, limit, play)
            if play.steps % 100 == 0 or over:
                play.memory.append((play.steps, _resident()))
        if not over:
            return
        play.lengths.append(play.running)
        if play.steps == most_steps or time.perf_counter() > deadline:
            return


def _look_at_mask(observation: Tree, play: Play) -> None:
    mask = _mask(observation)
    if mask is None:
        return
    if not mask.any():
        text, remedy = f"{ACTION_MASK!r} allows no action", "allow one always, until the episode is over"
        play.blame(Finding("mask", "hurts", text, remedy))
    elif not np.isin(mask, (0, 1)).all():
        play.blame(Finding("mask", "warning", f"{ACTION_MASK!r} has other values than 0 and 1", "1 is legal, 0 is not"))


def _look_at_reward(reward: Any, play: Play) -> None:
    value = np.asarray(reward)
    if value.shape != () or value.dtype.kind not in "fiub":
        play.blame(Finding("reward", "hurts", f"reward is {reward!r}, no real number", "return a float"))
        return
    play.rewards.append(float(value))
    if not np.isfinite(value):
        remedy = "a run stops at the first such value; look for 0/0"
        play.blame(Finding("reward", "hurts", "reward is not finite", remedy))


def _look_at_end(terminated: Any, truncated: Any, info: Any, limit: int | None, play: Play) -> bool:
    """Whether the episode is over."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if np.asarray(flag).shape != () or np.asarray(flag).dtype != np.bool_:
            play.blame(Finding("ends", "hurts", f"{name} is {flag!r}, no bool", "return True or False"))
    terminated, truncated = (bool(np.asarray(flag).any()) for flag in (terminated, truncated))
    info = info if isinstance(info, dict) else {}
    if not play.masked and ACTION_MASK in info:
        text = f"info has an {ACTION_MASK!r}, which nobody looks at: a policy sees only the observation"
        remedy = f"make the observation a Dict with the key {ACTION_MASK!r}"
        play.blame(Finding("mask", "warning", text, remedy))
    if not (terminated or truncated):
        if limit is not None and play.running == limit:
            text = f"an episode goes on beyond its limit of {limit} steps"
            play.blame(Finding("ends", "warning", text, "report the cut as truncated"))
        return False
    if {"final_observation", "final_obs"} & info.keys():
        text = "the env resets itself at an end: the last observation is that of the next episode"
        play.blame(Finding("ends", "hurts", text, "take its autoreset wrapper off; a run resets by itself"))
    if info.get("TimeLimit.truncated") and not truncated:
        text = "a time limit is reported as terminated, as in Gym before 0.26"
        play.blame(Finding("ends", "hurts", text, "report it as truncated, or values are learnt too low"))
    if not truncated and not info.get("episode_over", True):
        return False  # a life was lost
    play.terminated += terminated
    play.truncated += truncated
    return True


def check_spaces(spec: EnvSpec) -> Finding:
    """Bounds of actions; what looks like an image but would not be seen as one."""
    for path, leaf in tree.named(spec.action).items():
        if leaf.kind == "box" and not (np.isfinite(leaf.low).all() and np.isfinite(leaf.high).all()):
            text = f"action {path or 'space'} ({leaf.describe()}) lacks bounds: it is passed on as sampled, near 0"
            return Finding("spaces", "warning", text, "give two finite bounds; [-1, 1] is then mapped to them")
    for path, leaf in tree.named(spec.observation).items():
        real = leaf.kind == "box" and leaf.dtype.kind == "f" and len(leaf.shape) == 3
        if real and min(leaf.shape) <= 4 and sorted(leaf.shape)[1] >= 20:
            text = f"observation {path or 'space'} ({leaf.describe()}) looks like an image, but is no uint8: flattened"
            return Finding("spaces", "warning", text, "return bytes, which a convolutional network sees")
    return Finding("spaces", "ok", "; ".join(f"{path} {line}" for path, line in spec.describe().items()))


def check_worker(seconds: float) -> Finding:
    """What it took to make the env here, a fresh interpreter like that of an env worker."""
    if "torch" in sys.modules:
        text = f"made in {_duration(seconds)}, but it loads torch: some 200 MB in every worker"
        return Finding("worker", "warning", text, "import torch only where it is used, or not at all")
    return Finding("worker", "ok", f"made in a fresh interpreter in {_duration(seconds)}")


def check_calls(play: Play) -> Finding:
    """Reset and step answer."""
    text = f"{play.steps:,} steps in {len(play.reset_seconds)} episodes"
    return play.faults.get("calls") or Finding("calls", "ok", text)


def check_observation(play: Play) -> Finding:
    """Structure, shape, dtype, values."""
    return play.faults.get("observation") or Finding("observation", "ok", "always within its space")


def check_mask(play: Play) -> Finding:
    """Something is always legal."""
    text = "always allows an action" if play.masked else "none: every action is legal"
    return play.faults.get("mask") or Finding("mask", "ok", text)


def check_reward(play: Play) -> Finding:
    """Real, finite, of a usual size."""
    if "reward" in play.faults:
        return play.faults["reward"]
    rewards = np.asarray(play.rewards)
    if not len(rewards):
        return Finding("reward", "ok", "none was seen")
    if np.abs(rewards).max() > HUGE_REWARD:
        text = f"up to {np.abs(rewards).max():.3g} in size"
        return Finding("reward", "warning", text, "keep --reward-scaling on, or scale it in the env")
    if not rewards.any():
        return Finding("reward", "ok", "always 0 under random actions: there is nothing to learn from until one is not")
    return Finding("reward", "ok", f"mean {rewards.mean():.3g}, from {rewards.min():.3g} to {rewards.max():.3g}")


def check_ends(play: Play, limit: int | None) -> Finding:
    """Episodes end, and say why."""
    if "ends" in play.faults:
        return play.faults["ends"]
    lengths = np.asarray(play.lengths)
    if not len(lengths):
        if limit is not None or "calls" in play.faults:
            until = "" if limit is None else f"; the limit is {limit:,}"
            return Finding("ends", "ok", f"none in {play.steps:,} steps{until}")
        text = f"no episode ended in {play.steps:,} steps, and the env names no limit"
        return Finding("ends", "warning", text, "cut it with gymnasium.wrappers.TimeLimit, or report truncated")
    if len(lengths) > 3 and lengths[0] > 1 and (lengths[1:] == 1).all():
        text = f"the first episode took {lengths[0]} steps, every other ended at its first"
        return Finding("ends", "hurts", text, "let reset clear what ends an episode")
    if len(lengths) > 1 and lengths[0] >= A_LIMIT and (lengths == lengths[0]).all() and not play.truncated:
        text = f"every episode is terminated after exactly {lengths[0]} steps"
        return Finding("ends", "warning", text, "if that is a time limit, report it as truncated")
    text = f"{play.terminated} terminated, {play.truncated} truncated, after {int(np.median(lengths))} steps (median)"
    return Finding("ends", "ok", text)


def check_speed(play: Play) -> Finding:
    """Times of steps and resets."""
    if not play.steps:
        return Finding("speed", "ok", "no step was seen")
    steps, resets = np.asarray(play.step_seconds), np.asarray(play.reset_seconds)
    median, most, reset = np.median(steps), np.percentile(steps, 95), np.median(resets)
    text = (
        f"a step takes {_duration(median)}, 95% at most {_duration(most)}; a reset {_duration(reset)}, "
        f"the slowest {_duration(resets.max())}"
    )
    share = reset * len(play.lengths) / (steps.sum() + reset * len(play.lengths))
    if reset > SLOW_RESET and share > MUCH_RESETTING:
        text = f"{share:.0%} of the time goes into resets; {text}"
        return Finding("speed", "warning", text, "keep what does not change between episodes; --layout pool")
    if most > UNEVEN * median and most > LONG_STEP:
        if os.getloadavg()[0] > len(launch.available_cores()):
            return Finding("speed", "ok", f"{text}; other processes keep this machine busy")
        return Finding("speed", "warning", text, "--ready-envs takes whichever envs are ready first")
    return Finding("speed", "ok", text)


def check_memory(memory: Sequence[tuple[int, int]]) -> Finding:
    """Whether the process grows on and on. The first half is left out: there caches are filled."""
    later = memory[len(memory) // 2 :]
    if len(later) < 4 or not later[-1][1]:
        return Finding("memory", "ok", "not known: too few steps, or the system does not tell")
    steps = [count for count, _ in later]
    levels = [float(np.median([size for _, size in part])) for part in _split(later, 4)]
    growth, middle = later[-1][1] - later[0][1], (steps[-1] - steps[0]) or 1
    rate = growth * 1e6 / middle
    steady = all(after > before for before, after in itertools.pairwise(levels))
    if growth < NOISE_BYTES or rate < SLOW_LEAK or not steady:
        return Finding("memory", "ok", f"flat over {steps[-1]:,} steps, at {later[-1][1] / 1e6:.0f} MB")
    text = f"grows by {growth / 1e6:.1f} MB in {middle:,} steps: {rate / 1e9:.2g} GB per million"
    return Finding("memory", "hurts" if rate > LEAK else "warning", text, "look for lists that reset does not empty")


def check_seeding(patient: Patient) -> Finding:
    """A seed decides how an episode begins, wherever the last one was left; other seeds begin others."""
    same = [_rows(patient, 1, length)[0] for length in (3, 0, 0)]
    if not patient.spec.seedable:
        return Finding("seeding", "ok", "the env says that it takes no seed: resumed runs begin new episodes")
    if len(set(same)) > 1:
        text = "reset with the same seed begins different episodes"
        return Finding("seeding", "warning", text, "draw from self.np_random after super().reset(seed=seed)")
    others = {tuple(_rows(patient, seed, 20)) for seed in range(1, 5)}
    if len(others) == 1:
        text = "every seed plays the same episode"
        return Finding("seeding", "warning", text, "if anything is drawn at random, draw it from reset's seed")
    return Finding("seeding", "ok", "the seed decides the episode")


def check_determinism(patient: Patient, factory: EnvFactory, notes: Notes) -> Finding:
    """Seed and actions decide all rows: in this instance, and in a new one."""
    if not patient.spec.seedable:
        return Finding("determinism", "ok", "not asked for: the env says that it takes no seed")
    rows, again = (_rows(patient, 1, REPLAYED) for _ in range(2))
    fresh = Patient(factory, notes)
    try:
        anew = _rows(fresh, 1, REPLAYED)
    finally:
        fresh.close()
    for other, where in ((again, "played again"), (anew, "played in a new instance")):
        if other != rows:
            row = next((n for n, pair in enumerate(zip(rows, other, strict=False)) if pair[0] != pair[1]), len(other))
            text = f"the same seed and actions, {where}, differ from step {row} on"
            remedy = "draw at random only from reset's seed, and let reset clear all state; else resume is not exact"
            return Finding("determinism", "warning", text, remedy)
    return Finding("determinism", "ok", f"seed and actions decide all of {len(rows) - 1} steps")


def check_rendering(patient: Patient, order: Order, notes: Notes) -> Finding:
    """Whether pictures can be had; training needs none."""
    simulator = patient.env.simulator if isinstance(patient.env, GymnasiumEnv) else None
    if RENDER_MODE not in ((getattr(simulator, "metadata", None) or {}).get("render_modes") or ()):
        return Finding("rendering", "ok", f"the env has no render mode {RENDER_MODE!r}: no videos")
    remedy = "training needs no pictures; videos do"
    try:
        env_args = {**order.env_args, "render_mode": RENDER_MODE}
        drawing = Patient(lambda: make(order.env, env_args, order.imports), notes)
        try:
            drawing.reset(0)
            notes(0, STEP)
            picture = np.asarray(drawing.env.simulator.render())  # type: ignore[attr-defined]
        finally:
            drawing.close()
    except (Exception, SystemExit) as error:
        return Finding("rendering", "warning", f"{RENDER_MODE} fails: {type(error).__name__}: {line(error)}", remedy)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        text = f"{RENDER_MODE} gives {picture.dtype} {picture.shape}, not uint8 (height, width, 3)"
        return Finding("rendering", "warning", text, remedy)
    return Finding("rendering", "ok", f"{RENDER_MODE}, {picture.shape[1]}×{picture.shape[0]}")


def examine(order: Order, notes: Notes) -> Iterator[Any]:
    """All that is told to the parent, in order.

    Raises what the env raises when it is made, and UserError where it only exists as one of many.
    """

    def factory() -> Env:
        return make(order.env, order.env_args, order.imports)

    if native_rule(order.env) in ENGINES_ALONE:
        native_spec(order.env, order.env_args)  # says what is missing, or wrong with the arguments
        raise UserError(f"{order.env} can be made, but steps many environments at once, which cannot be examined")

    start = time.perf_counter()
    patient = Patient(factory, notes)
    spec = patient.spec
    yield Made(spec)
    yield check_spaces(spec)
    yield check_worker(time.perf_counter() - start)
    yield Begun("calls")
    play = played(patient, order.seconds, order.steps)
    yield from (check_calls(play), check_observation(play), check_mask(play), check_reward(play))
    yield from (check_ends(play, spec.max_episode_steps), check_speed(play), check_memory(play.memory))
    if "calls" not in play.faults:
        try:
            yield Begun("seeding")
            yield check_seeding(patient)
            yield Begun("determinism")
            yield check_determinism(patient, factory, notes)
        except Broken as broken:
            yield broken.finding
            return
    if all(fault.verdict != "hurts" for fault in play.faults.values()):
        yield Begun("layout")
        yield _chosen(order, factory, notes)
    yield Begun("rendering")
    yield check_rendering(patient, order, notes)
    patient.close()


def _chosen(order: Order, factory: EnvFactory, notes: Notes) -> Chosen:
    if engine := native_rule(order.env):
        return Chosen("native", f"native: {engine} steps these environments")
    layout, _, reason = choose(factory, order.num_envs, len(launch.available_cores()), order.groups, notes)
    return Chosen(layout, reason)


def _rows(patient: Patient, seed: int, steps: int) -> list[str]:
    """A digest of the first observation, then one of each step, up to the end of the episode."""
    random = generator(0, Domain.PROBE_ENV, 2)
    observation = patient.reset(episode_seed(0, Domain.PROBE_ENV, 0, seed))
    rows = [_digest(observation)]
    over = False
    while len(rows) <= steps and not over:
        answer = patient.step(patient.action(observation, random))
        observation, info = answer[0], answer[4]
        rows.append(_digest(answer[:4]))
        over = bool(answer[3]) or (bool(answer[2]) and (not isinstance(info, dict) or info.get("episode_over", True)))
    return rows


def _digest(values: Tree) -> str:
    digest = hashlib.sha256()
    for value in tree.leaves(values):
        numbers = value if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object else None
        digest.update(repr(value).encode() if numbers is None else numbers.tobytes())
    return digest.hexdigest()


def _mask(observation: Tree) -> Any:
    """As an array; None where there is none."""
    try:
        return np.asarray(observation[ACTION_MASK])
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def _split(values: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    bounds = [len(values) * number // parts for number in range(parts + 1)]
    return [values[low:high] for low, high in itertools.pairwise(bounds)]


def _duration(seconds: float) -> str:
    """Three digits with a unit: 45.2 µs, 1.31 ms, 2.04 s."""
    scale, unit = next((pair for pair in ((1, "s"), (1e3, "ms")) if seconds * pair[0] >= 1), (1e6, "µs"))
    return f"{seconds * scale:.3g} {unit}"


def main(arguments: Sequence[str]) -> int:
    """The life of the child; the exit code."""
    control = launch.enter(arguments)
    os.dup2(2, 1)  # what an env prints is no part of the answer
    order: Order = control.recv()
    notes = Notes(SharedArrays(notes_layout(), order.notes_fd).arrays["notes"][0])
    try:
        for message in examine(order, notes):
            control.send(message)
    except UserError as error:
        control.send(Refused(line(error)))
    except (Exception, SystemExit) as error:
        control.send(Refused(f"{order.env} raises {type(error).__name__}: {line(error)}"))
    control.send(None)
    return 0


if __name__ == "__main__":
    # Not the ``__main__`` module's classes: the parent has to know those it is sent.
    from pronghorn.tools import examine as module

    sys.exit(module.main(sys.argv[1:]))
