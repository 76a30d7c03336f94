"""``pronghorn doctor ENV``: is it fit to be trained on? The env lives in a child, which may hang or die."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from pronghorn import build
from pronghorn.config import RunConfig
from pronghorn.processes.launch import Child, launch
from pronghorn.processes.shared import SharedArrays
from pronghorn.processes.supervise import LONGEST_SLEEP, NOTE_WORDS, Patience, read_note
from pronghorn.tools.examine import Begun, Chosen, Finding, Made, Order, Refused, notes_layout
from pronghorn.types import EnvSpec, UserError

CHECKS = (
    "spaces",
    "agent",
    "worker",
    "calls",
    "observation",
    "mask",
    "reward",
    "ends",
    "speed",
    "memory",
    "seeding",
    "determinism",
    "rendering",
)
"""In the order in which they are shown."""

IDLE_SECONDS = 180.0
"""That the child may take without calling the env: more than any time-out of the pool it tries."""

WIDTH = 110


@dataclass
class Diagnosis:
    """What was found out about an env. ``layout`` is empty where it was not chosen."""

    env: str
    preset: str
    findings: list[Finding] = field(default_factory=list)
    layout: str = ""
    reason: str = ""

    @property
    def verdict(self) -> str:
        """The worst."""
        verdicts = {finding.verdict for finding in self.findings}
        return next((verdict for verdict in ("hurts", "warning") if verdict in verdicts), "ok")

    @property
    def missing(self) -> list[str]:
        """Checks that could not be made."""
        made = {finding.name for finding in self.findings}
        return [name for name in CHECKS if name not in made]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "verdict": self.verdict, "not_examined": self.missing}

    def table(self) -> str:
        """For people: a line or more per check, and what follows from them."""
        lines = [self.env]
        for finding in sorted(self.findings, key=lambda finding: CHECKS.index(finding.name)):
            head = f"  {finding.verdict:<8} {finding.name:<12} "
            lines += textwrap.wrap(finding.text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
            if finding.remedy:
                arrow = " " * len(head) + "→ "
                lines += textwrap.wrap(finding.remedy, WIDTH, initial_indent=arrow, subsequent_indent=" " * len(arrow))
        if self.missing:
            lines.append(f"  not examined: {', '.join(self.missing)}")
        lines.append(f"preset {self.preset}" + (f"; layout {self.reason}" if self.reason else ""))
        summary = {"ok": "fit to be trained on", "warning": "can be trained on, with warnings"}
        hurting = ", ".join(finding.name for finding in self.findings if finding.verdict == "hurts")
        return "\n".join([*lines, summary.get(self.verdict, f"not fit to be trained on: {hurting}")])


def diagnose(config: RunConfig, seconds: float = 10.0) -> Diagnosis:
    """Examines the config's env, which is played for ``seconds``; its other options say what it is to be fit for.

    Raises:
        UserError: the env cannot be made, or not within the time-out.
    """
    found = Diagnosis(config.env, config.preset)
    limits = {**vars(build.timeouts(config)), "idle": IDLE_SECONDS}
    with closing(SharedArrays(notes_layout())) as shared:
        child = launch("pronghorn.tools.examine", fds=(shared.fd,))
        try:
            sizes = config.vec.num_envs, config.vec.groups
            child.send(Order(config.env, config.env_args, seconds, *sizes, shared.fd, imports=config.imports))
            _hear(child, shared, limits, config, found)
        finally:
            child.end(0.0)
    return found


def _hear(child: Child, shared: SharedArrays, limits: dict[str, float], config: RunConfig, found: Diagnosis) -> None:
    """Everything the child says, and how it ended if that was not the end of it."""
    check = ""
    for message in _messages(child, shared, limits):
        if isinstance(message, Begun):
            check = message.name
        elif isinstance(message, Refused):
            if not check:
                raise UserError(message.text)
            found.findings.append(Finding("calls", "hurts", f"{message.text} (in the check of {check})"))
        elif isinstance(message, Made):
            check = "calls"
            found.findings.append(check_agent(config, message.spec))
        elif isinstance(message, Chosen):
            found.layout, found.reason = message.layout, message.reason
        elif isinstance(message, Finding):
            _add(found, message)
        elif not check:
            raise UserError(f"{config.env} cannot be made: {message}")
        elif check == "rendering":
            found.findings.append(Finding(check, "warning", message, "training needs no pictures; videos do"))
        else:
            remedy = "--env-timeout sets how long it may take; a run starts it again a few times, then gives up"
            _add(found, Finding("calls", "hurts", message, remedy))


def _add(found: Diagnosis, finding: Finding) -> None:
    """In place of an earlier finding of that name."""
    found.findings = [*(other for other in found.findings if other.name != finding.name), finding]


def _messages(child: Child, shared: SharedArrays, limits: dict[str, float]) -> Iterator[Any]:
    """What the child sends before its None; a last one, a string, if it hangs or dies."""
    patience = Patience(shared.arrays["notes"].reshape(1, NOTE_WORDS), {"start": 60.0, "pause": 60.0, **limits})
    while True:
        if child.control.poll(LONGEST_SLEEP):
            try:
                message = child.control.recv()
            except (EOFError, OSError):
                yield f"its process {child.fate()}{_where(shared)}"
                return
            if message is None:
                return
            yield message
        elif (seconds := patience.over(0)) is not None:
            child.kill()
            yield f"no answer for {seconds:g} s{_where(shared)}"
            return


def _where(shared: SharedArrays) -> str:
    """The call of the env that was made last, if it has not returned."""
    _, phase = read_note(int(shared.arrays["notes"][0, 0]))
    return "" if phase == "idle" else f" in {phase}"


def check_agent(config: RunConfig, spec: EnvSpec) -> Finding:
    """Whether there is a network for these spaces."""
    try:
        agent = build.agent(config, spec)
    except UserError as error:
        return Finding("agent", "hurts", " ".join(str(error).split()), "change the space in a wrapper")
    return Finding("agent", "ok", f"{sum(weight.numel() for weight in agent.parameters()):,} weights")
