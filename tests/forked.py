"""Commands in processes of their own, to be killed, signalled or starved. A server that has loaded torch once forks
them, so one begins within milliseconds."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pty
import resource
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pronghorn.api", "pronghorn.cli"])
LONGEST = 100.0


class Command:
    """``pronghorn ARGUMENTS`` in a process group of its own, which is where a terminal's Ctrl-C goes.

    Args:
        output: file of what it prints.
        most_bytes: a file may have; more is refused as by a full disk.
        terminal: the name of a terminal, to which it prints instead; it leads a session there.
        environment: variables that it has beside ours.
        pauses_at: ``module:function`` that, once called, writes half of the file whose path it is given, if it is
            given one, and then takes very long: ``paused`` says when.
    """

    def __init__(
        self,
        arguments: list[str],
        output: Path,
        most_bytes: int | None = None,
        terminal: str | None = None,
        environment: dict[str, str] | None = None,
        pauses_at: str | None = None,
    ) -> None:
        self.output = output
        others = (most_bytes, terminal, environment or {}, pauses_at)
        self._process = CONTEXT.Process(target=_run, args=(arguments, str(output), *others))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def signal(self, number: int, alone: bool = False) -> None:
        """To the process group, as a terminal does; or to the process alone, as ``kill`` does."""
        with contextlib.suppress(ProcessLookupError):
            (os.kill if alone else os.killpg)(self.pid, number)

    def kill(self) -> None:
        """As ``kill -9`` does, and waits until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.ended()

    def ended(self, seconds: float = LONGEST) -> int:
        """Its exit code."""
        self._process.join(seconds)
        code = self._process.exitcode
        assert code is not None, f"still running after {seconds} s: {self.said()}"
        return code

    def paused(self) -> bool:
        """Whether it has come to where it pauses."""
        return Path(f"{self.output}.paused").exists()

    def said(self) -> str:
        """What it has printed so far."""
        return self.output.read_text() if self.output.exists() else ""

    def descendants(self) -> set[int]:
        """Processes it has started, and those they have."""
        found: set[int] = set()
        ask = [self.pid]
        while ask:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{ask.pop()}/task").iterdir():
                    children = {int(pid) for pid in (task / "children").read_text().split()}
                    ask += children
                    found |= children
        return found


class Terminal:
    """A terminal that somebody looks at until it is closed. ``name`` is what a command opens it by."""

    def __init__(self) -> None:
        self._ours, self._theirs = pty.openpty()
        self.name = os.ttyname(self._theirs)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """As its window is."""
        self._closed.set()
        self._thread.join()
        os.close(self._theirs)
        os.close(self._ours)

    def _look(self) -> None:
        while not self._closed.is_set():
            if select.select([self._ours], [], [], 0.05)[0]:
                os.read(self._ours, 65536)


def flags(**options: object) -> list[str]:
    """``--num-envs 4`` for num_envs=4."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def wait_for(condition: Callable[[], bool], seconds: float = LONGEST) -> None:
    """Until it is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def alive(pids: set[int]) -> set[int]:
    """Those that run; one that nobody has waited for yet does not."""
    return {pid for pid in pids if _state(pid) not in ("", "Z", "X")}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _run(
    arguments: list[str],
    output: str,
    most_bytes: int | None,
    terminal: str | None,
    environment: dict[str, str],
    pauses_at: str | None,
) -> None:
    os.environ.update(environment)
    tempfile.tempdir = None  # to be read from the environment again
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if terminal is None:
        os.setpgid(0, 0)
        target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    else:
        os.setsid()
        os.environ["TERM"] = "xterm-256color"
        target = os.open(terminal, os.O_RDWR)  # the first terminal that the leader of a session opens is the session's
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1, closefd=False) for descriptor in (1, 2))
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    if pauses_at is not None:
        _make_pause(pauses_at, f"{output}.paused")
    from pronghorn.__main__ import main

    os._exit(_exit_code(main, arguments))


def _make_pause(where: str, marker: str) -> None:
    def pause(*arguments: object, **named: object) -> None:
        for path in arguments:
            if isinstance(path, Path) and not path.is_dir():
                with path.open("w") as file:
                    file.write("half of it")
        with Path.open(Path(marker), "w"):
            for _ in range(600):  # not at once: a signal just before a sleep is noticed only when that is over
                time.sleep(0.1)

    module, _, names = where.partition(":")
    *owners, name = names.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, pause)


def _exit_code(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """As the interpreter would exit."""
    import traceback

    try:
        code = main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return code
