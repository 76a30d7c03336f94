"""The first signal asks a run to save and stop, the second ends it now; a callback may ask, too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
MOMENT = 2.0
"""Seconds that other programs have to end after a signal."""

SHOW_CURSOR = "\x1b[?25h"


class Interrupted(BaseException):
    """Raised by a signal inside ``StopRequest.immediately``."""


class StopRequest:
    """A context in which SIGINT, SIGTERM and SIGHUP set ``requested`` (the number of the signal).

    ``notice`` is what the first one prints on standard error. A SIGHUP that is ignored, as by ``nohup``, stays so.
    Elsewhere than in the main thread signals cannot be handled, and nothing changes.
    """

    def __init__(self, notice: str = "stopping: saving a checkpoint (again to stop now)") -> None:
        self._notice = notice
        self.requested: int | None = None
        self.reason: str | None = None
        self._immediately = False
        self._others: list[int] = []
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether a stop was asked for."""
        return self.requested is not None or self.reason is not None

    def ask(self, reason: str) -> None:
        """A stop without a signal; the first ``reason`` is kept."""
        if self.reason is None:
            self.reason = reason

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP; 0 without a signal."""
        return 0 if self.requested is None else 128 + self.requested

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def immediately(self) -> Iterator[None]:
        """Here a signal raises ``Interrupted`` at once: for long work that leaves nothing to save. Programs
        that libraries begin to run in it (a compiler) get the signal, too."""
        if self():
            raise Interrupted
        self._others = _below()
        self._immediately = True
        try:
            yield
        except Exception:
            if self():
                raise Interrupted from None
            raise
        finally:
            self._immediately = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            _say("stopped at once")
            os._exit(128 + number)
        self.requested = number
        if self._immediately:
            _pass_on(number, [pid for pid in _below() if pid not in self._others])
            raise Interrupted
        _say(self._notice)


def _pass_on(number: int, to: list[int]) -> None:
    """To those of our process group: they have had what a terminal sends, but not what is sent to this process alone,
    and nobody else would end them. They get a moment to remove what they have half written. Children of our own have
    groups of their own."""
    told = []
    for pid in reversed(to):
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == os.getpgrp():
                os.kill(pid, number)
                told.append(pid)
    deadline = time.monotonic() + MOMENT
    while time.monotonic() < deadline and any(map(_runs, told)):
        time.sleep(0.01)


def _below() -> list[int]:
    """Processes that this one has started, and those that they have; none where there is no /proc."""
    found = [os.getpid()]
    for parent in found:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found[1:]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _say(text: str) -> None:
    """On standard error, past Python's buffers, which may be in use; a live view has hidden the terminal's cursor."""
    with contextlib.suppress(OSError):  # the terminal may be what has gone
        os.write(2, f"{SHOW_CURSOR if os.isatty(2) else ''}\n{text}\n".encode())
