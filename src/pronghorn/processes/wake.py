"""Wake-ups between processes: a counter that one side raises and the other sleeps on (about 10 µs there and back)."""

from __future__ import annotations

import math
import os
import select
import sys
from collections.abc import Iterable

PULSE = (1).to_bytes(8, sys.byteorder) if hasattr(os, "eventfd") else b"\0"

WAKE_FDS = 1 if hasattr(os, "eventfd") else 2
"""Descriptors of a ``Wake`` in a process."""


class Wake:
    """One direction, one reader. ``fds`` (to read, to write) are inherited by a child, which passes them here."""

    def __init__(self, fds: tuple[int, int] | None = None) -> None:
        self.fds = _open() if fds is None else fds

    def notify(self) -> None:
        """Counts one up and wakes the reader."""
        os.write(self.fds[1], PULSE)

    def take(self) -> int:
        """How often it was notified since the last ``take``; does not wait."""
        try:
            data = os.read(self.fds[0], 4096)
        except BlockingIOError:
            return 0
        return int.from_bytes(data, sys.byteorder) if len(PULSE) == 8 else len(data)

    def close(self) -> None:
        """May be called twice."""
        for fd in set(self.fds) - {-1}:
            os.close(fd)
        self.fds = (-1, -1)


class Waiter:
    """Sleeps on several descriptors at once: wake-ups (``wake.fds[0]``) and control pipes.

    A control pipe counts as ready when it holds a message or its other end has closed: so a wait for a wake-up also
    sees the death of the process that was to give it.
    """

    def __init__(self, fds: Iterable[int]) -> None:
        self._poller = select.poll()
        for fd in fds:
            self._poller.register(fd, select.POLLIN)

    def wait(self, timeout: float) -> list[int]:
        """The ready descriptors; empty after ``timeout`` seconds."""
        return [fd for fd, _ in self._poller.poll(math.ceil(timeout * 1000))]


def _open() -> tuple[int, int]:
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    return read, write
