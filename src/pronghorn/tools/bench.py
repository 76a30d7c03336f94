"""``pronghorn bench ENV``: how fast each part is by itself, how fast training is, and how fast it could be.

What is measured runs in children (``tools.parts``), one for the parts and one for a real training run; this process
only listens, and so can end at any moment.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pronghorn.config import RunConfig, from_json, to_json
from pronghorn.processes.launch import Child, available_cores, launch
from pronghorn.telemetry import remedies
from pronghorn.types import UserError
from pronghorn.vec.base import EnvError, Failed

MODULE = "pronghorn.tools.parts"

PATIENCE = 600.0
"""Seconds in which a part has to be measured, or a run has to make its updates, beyond the time asked for."""

LOOP_SHARE = 3.0
"""Training is measured for so many times the seconds of a part: it has the most to it, and to warm up."""

WARM_UP = 0.25
"""Share of the measured training that is not counted: caches fill, and actors use up what they had in stock."""

WORTHWHILE = 1.1
"""A change that is not faster by this factor is not recommended."""


@dataclass(frozen=True)
class Order:
    """To a child: measure the parts for ``seconds`` each; or, with ``run``, train there. ``rate`` is about how many
    steps per second that will make."""

    config: dict[str, Any]
    seconds: float
    run: str = ""
    rate: float = 0.0


@dataclass(frozen=True)
class Decided:
    """From a child: the configuration with what was chosen, and the reasons."""

    config: dict[str, Any]
    reasons: list[str]


@dataclass(frozen=True)
class Trial:
    """A part done in one ``way``: ``cost`` in core-seconds, and ``seconds`` by the clock, of one step."""

    way: str
    threads: int
    cost: float
    seconds: float


@dataclass(frozen=True)
class Part:
    """From a child: a part, measured in several ways, of which a run takes the one named ``chosen``. ``others`` would
    be other environments (another engine), or none. ``compile_seconds`` came before it, once."""

    name: Literal["env", "inference", "learn"]
    trials: tuple[Trial, ...]
    chosen: str
    others: tuple[Trial, ...] = ()
    compile_seconds: float = 0.0

    @property
    def economical(self) -> Trial:
        """The way that takes the fewest core-seconds."""
        return min(self.trials, key=lambda trial: trial.cost)

    @property
    def fastest(self) -> Trial:
        """The way that takes the least time."""
        return min(self.trials, key=lambda trial: trial.seconds)

    @property
    def used(self) -> Trial:
        """The way of a run."""
        return next(trial for trial in self.trials if trial.way == self.chosen)


@dataclass(frozen=True)
class Costs:
    """Of one step: core-seconds of stepping envs, inference, and learning (all passes), each at the number of threads
    that takes the fewest; ``learn_fastest`` in seconds at the number that takes the least time.

    ``on_device`` names the parts that a GPU does, one after the other; these are in seconds of its time.
    """

    env: float
    inference: float
    learn: float
    learn_fastest: float
    on_device: tuple[str, ...] = ()

    def bound(self, cores: int) -> float:
        """Steps per second that no system doing the same work can exceed, even where everything overlaps."""
        times = self.overlapped(cores)
        there = sum(times[name] for name in self.on_device)
        here = sum(time for name, time in times.items() if name not in self.on_device)
        return 1 / max(here, there)

    def lockstep(self, cores: int) -> dict[str, float]:
        """Seconds of one step by part, where acting (on all cores, perfectly shared out) and learning take turns."""
        return self.overlapped(cores) | {"learn": self.learn_fastest}

    def bound_lockstep(self, cores: int) -> float:
        """Steps per second that a system which acts and learns in turn cannot exceed."""
        return 1 / sum(self.lockstep(cores).values())

    def overlapped(self, cores: int) -> dict[str, float]:
        """Seconds of one step by part, where everything overlaps: each part's use of the cores, or of the device."""
        parts = {"env": self.env, "inference": self.inference, "learn": self.learn}
        return {name: cost if name in self.on_device else cost / cores for name, cost in parts.items()}

    def reachable(self, cores: int, overlaps: bool) -> float:
        """The bound that a runner is held to: whether what it does ``overlaps`` decides."""
        return self.bound(cores) if overlaps else self.bound_lockstep(cores)


@dataclass(frozen=True)
class Verdict:
    """Where the time of a step goes: the ``part`` that takes most (or "overhead", what no part explains), its ``share``
    of the time, and what would help, in words."""

    part: str
    share: float
    advice: str


def measure(config: RunConfig, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures each part for ``seconds`` and training for three times as long; what ``--json`` prints.

    ``say`` is told of every part when it is finished, in a line.

    Raises:
        UserError: the options or the env cannot be used, or the run ends before it has made an update.
        EnvError: an env failed for good, or whatever else went wrong in a child, with its traceback.
    """
    cores, about = len(available_cores()), machine()
    say(f"{config.env}, {config.preset}, {config.runner} runner, {cores} cores, load {about['load']}")
    decided, parts = _parts(config, seconds, say)
    config = from_json(RunConfig, decided.config)
    on_device = () if config.device == "cpu" else ("learn", *(("inference",) * (config.inference == "learner")))
    learn = parts["learn"]
    costs = Costs(
        parts["env"].economical.cost,
        parts["inference"].economical.cost,
        learn.economical.cost,
        learn.fastest.seconds,
        on_device,
    )
    reachable = costs.reachable(cores, config.runner == "async")
    loop, start_up = _loop(config, seconds * LOOP_SHARE, reachable)
    say(f"{'loop':<10} {loop:>10,.0f} steps/s  a training run, {start_up:.0f} s after its start")
    verdict = judge(config, costs, parts, loop, cores)
    alone = {name: rate(seconds) for name, seconds in costs.overlapped(cores).items()}
    return {
        "env": alone["env"],
        "inference": alone["inference"],
        "learn": alone["learn"],
        "loop": loop,
        "bound": costs.bound(cores),
        "bound_lockstep": costs.bound_lockstep(cores),
        "efficiency": loop / reachable,
        "bottleneck": verdict.part,
        "bottleneck_share": verdict.share,
        "advice": verdict.advice,
        "core_seconds_per_step": {name: part.economical.cost for name, part in parts.items()},
        "threads": {name: part.economical.threads for name, part in parts.items()},
        "layout": {
            "chosen": parts["env"].chosen,
            "actors": config.actors,
            "reason": _layout_reason(config, decided.reasons),
            "steps_per_second": {t.way: rate(t.seconds) for t in (*parts["env"].trials, *parts["env"].others)},
        },
        "compile_seconds": learn.compile_seconds,
        "start_up_seconds": start_up,
        "preset": config.preset,
        "algorithm": config.algorithm,
        "runner": config.runner,
        "machine": about | {"device": config.device},
    }


def summary(found: Mapping[str, Any]) -> str:
    """The end of the answer for people, after the lines of the parts; ``found`` is what ``measure`` returns."""
    own = "overlapped" if found["runner"] == "async" else "in lock-step"
    share = f"{found['bottleneck_share']:.0%} of the time of a step"
    return "\n".join(
        [
            f"bounds     {found['bound_lockstep']:,.0f} steps/s in lock-step, {found['bound']:,.0f} overlapped",
            f"efficiency {found['efficiency']:.2f} of the bound {own}",
            f"bottleneck: {found['bottleneck']}, {share}; {found['advice']}",
        ]
    )


def judge(config: RunConfig, costs: Costs, parts: Mapping[str, Part], loop: float, cores: int) -> Verdict:
    """What the time of a step of a run with ``loop`` steps per second is spent on, and what would help."""
    overlaps = config.runner == "async"
    times = costs.overlapped(cores) if overlaps else costs.lockstep(cores)
    times = {**times, "overhead": 1 / loop - 1 / costs.reachable(cores, overlaps)}
    part = max(times, key=lambda name: times[name])
    apart = costs.bound(cores) > WORTHWHILE * costs.bound_lockstep(cores)
    overlap = remedies.overlap(config) if apart else []
    advice = {
        "env": lambda: _advice_on_env(config, parts["env"], overlap),
        "inference": lambda: f"more rows to a forward pass: --num-envs {2 * config.vec.num_envs}",
        "learn": lambda: _advice_on_learning(config, parts["learn"]),
        "overhead": lambda: _advice_on_waiting(config, overlap, cores),
    }[part]()
    return Verdict(part, times[part] * loop, advice)


def reports(run: Path) -> list[dict[str, Any]]:
    """The reports of updates in the metrics of a run, as far as they are written; none where there is no file yet."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [record for record in records if "steps_per_second" in record]


def steady_rate(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Median steps per second of the reports after the warm-up; None where there is none among ``records``."""
    begins = WARM_UP * records[-1]["seconds"] if records else 0.0
    rates = [record["steps_per_second"] for record in records[1:] if record["seconds"] > begins]
    return statistics.median(rates) if rates else None


def thread_counts(most: int, *also: int) -> list[int]:
    """1, 2, 4, … and ``most``, and those ``also`` asked for."""
    doubled = {2**power for power in range(most.bit_length()) if 2**power <= most}
    return sorted({*doubled, most, *also})


def rate(seconds: float) -> float:
    """Per second."""
    return 1 / max(seconds, 1e-12)


def machine() -> dict[str, Any]:
    """What the figures depend on. ``load`` is the one-minute load average: above 0.5 somebody else is at work."""
    return {
        "cores": len(available_cores()),
        "load": round(os.getloadavg()[0], 2),
        "processor": platform.processor() or platform.machine(),
        "system": platform.system(),
        "torch": version("torch"),
    }


def _parts(config: RunConfig, seconds: float, say: Callable[[str], None]) -> tuple[Decided, dict[str, Part]]:
    """What was chosen for the run, and its parts by name."""
    decided: Decided | None = None
    parts: dict[str, Part] = {}
    with _child(Order(to_json(config), seconds)) as child:
        for message in _messages(child, PATIENCE + 10 * seconds):
            if isinstance(message, Decided):
                decided = message
                say(f"{'layout':<10} {_layout_reason(config, message.reasons)}")
            else:
                parts[message.name] = message
                say(describe(message))
    assert decided is not None
    return decided, parts


def describe(part: Part) -> str:
    """A line on a part, with all the ways it was measured in."""
    best = part.economical
    ways = [f"{trial.way} {rate(trial.seconds):,.0f}" for trial in (*part.trials, *part.others)]
    compiling = f"; compiled in {part.compile_seconds:.0f} s" if part.compile_seconds else ""
    line = f"{part.name:<10} {rate(best.cost):>10,.0f} steps/s  per core, {1e6 * best.cost:,.1f} µs a step"
    return f"{line}; by the clock: {', '.join(ways)}{compiling}"


def _loop(config: RunConfig, seconds: float, rate: float) -> tuple[float, float]:
    """(steps per second of a real run, seconds until it began), which is ended once it has run for ``seconds``."""
    with tempfile.TemporaryDirectory(prefix="pronghorn-bench-", ignore_cleanup_errors=True) as folder:
        run, start = Path(folder) / "run", time.time()
        with _child(Order(to_json(config), seconds, str(run), rate)) as child:
            for _ in _messages(child, PATIENCE + 10 * seconds, every=0.5):
                # Reading them takes time of the cores, so only once it can be over.
                records = reports(run) if time.time() - start > seconds else []
                if records and records[-1]["seconds"] >= seconds and steady_rate(records):
                    break
        if not (records := reports(run)):
            raise UserError(f"--steps {config.steps} end before the first update; use more")
        began = (run / "metrics.jsonl").stat().st_mtime - records[-1]["seconds"]
    return steady_rate(records) or records[-1]["steps_per_second"], max(0.0, began - start)


@contextmanager
def _child(order: Order) -> Iterator[Child]:
    """A child with its order. It does not outlive the context; what it has started ends with it."""
    child = launch(MODULE)
    try:
        child.send(order)
        yield child
    finally:
        child.end(0.0)


def _messages(child: Child, patience: float, every: float | None = None) -> Iterator[Any]:
    """What a child sends before its None. With ``every``, None is yielded whenever so many seconds have passed.

    Raises:
        UserError, EnvError: it failed, has died, or was silent for ``patience`` seconds.
    """
    heard = time.monotonic()
    while True:
        try:
            message = child.control.recv() if child.control.poll(every or 1.0) else ""
        except (EOFError, OSError):
            raise EnvError(f"the process that is measured {child.fate()}") from None
        if message is None:
            return
        if isinstance(message, Failed):
            raise UserError(message.text) if message.mistake else EnvError(message.text)
        if message != "":
            heard = time.monotonic()
            yield message
        elif every is not None:
            yield None
        if time.monotonic() - heard > patience:
            raise EnvError(f"the process that is measured has said nothing for {patience:g} s")


def _layout_reason(config: RunConfig, reasons: Iterable[str]) -> str:
    """Why envs run where they do, in the words of the run."""
    kinds = ("serial: ", "pool: ", "native: ", "actors: ")
    found = [reason for reason in reasons if reason.startswith(kinds)]
    return "; ".join(found) or f"{config.vec.layout}: asked for"


def _advice_on_env(config: RunConfig, part: Part, overlap: list[str]) -> str:
    if config.runner == "sync":
        best = min((*part.trials, *part.others), key=lambda trial: trial.seconds)
        if part.used.seconds > WORTHWHILE * best.seconds:
            layout = best.way.partition(",")[0]
            return f"--layout {layout}{f' --workers {best.threads}' * (layout != 'serial')} steps them faster"
    if overlap:
        return f"{' or '.join(overlap)} steps them while it learns"
    return "only a faster simulator or more cores would help"


def _advice_on_learning(config: RunConfig, part: Part) -> str:
    if part.used.seconds > WORTHWHILE * part.fastest.seconds:
        return f"--threads {part.fastest.threads} learns faster"
    return " or ".join([*remedies.lighter_updates(config), "a smaller network", "another --device"])


def _advice_on_waiting(config: RunConfig, overlap: list[str], cores: int) -> str:
    if config.runner == "async":
        return " or ".join(remedies.actors(config, cores))
    if overlap:
        return f"{' or '.join(overlap)} acts while it learns"
    if groups := remedies.groups(config):
        return f"{' or '.join(groups)} steps one half while actions are chosen for the other"
    return f"more environments to a call: --num-envs {2 * config.vec.num_envs}"
