"""Children as fresh interpreters: a thread budget, a private pipe, and an end that never comes later than ours.

A child runs ``python -m MODULE``: it inherits no threads and no state, and does not run the user's script again. It
is told everything through the control pipe, over which only its own parent may send callables (cloudpickle).

Children live in process groups of their own, so the terminal's signals do not reach them; SIGINT, SIGTERM and SIGHUP
sent to them by a job scheduler are swallowed. The parent decides: a child ends when told so over the pipe, when the
pipe closes, or by SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

SEND_TIMEOUT = 60
PR_SET_PDEATHSIG = 1


def available_cores() -> list[int]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def thread_budget(threads: int) -> dict[str, str]:
    """Environment variables that give a process ``threads`` threads for arithmetic, none of which spins while idle.

    They must be in the environment before NumPy or torch is loaded.
    """
    counts = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")
    budget = {f"{name}{'' if name.endswith('MAXIMUM') else '_NUM'}_THREADS": str(threads) for name in counts}
    return budget | {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


@dataclass(eq=False)
class Child:
    """A running child, and our end of its control pipe."""

    process: subprocess.Popen[bytes]
    control: Connection[Any, Any]

    def send(self, message: Any) -> None:
        """Sends anything cloudpickle can carry.

        Raises:
            OSError: the child is gone (BrokenPipeError), or has not read for 60 s (BlockingIOError).
        """
        self.control.send_bytes(cloudpickle.dumps(message))

    def fate(self, timeout: float = 1.0) -> str:
        """How a child that is ending has ended, in words; waits ``timeout`` seconds at most."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        if code >= 0:
            return f"exited with code {code}"
        return f"died with signal {-code}" + (" (out of memory?)" if code == -signal.SIGKILL else "")

    def kill(self) -> None:
        """Ends it now, together with whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def wait(self, timeout: float) -> None:
        """Waits until it has ended, ``timeout`` seconds at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)

    def end(self, timeout: float) -> None:
        """Gives a child that was told to end ``timeout`` seconds, then kills it. May be called twice."""
        self.wait(timeout)
        self.kill()
        self.control.close()


def launch(module: str, threads: int = 1, fds: Sequence[int] = ()) -> Child:
    """Starts ``python -m module`` with a thread budget; it inherits ``fds`` under the same numbers.

    Standard output and error are ours, modules resolve as they do here.
    """
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT, 0))
    # The kernel's parent-death signal watches the launching thread, not the process: only the main thread may ask.
    bound = threading.current_thread() is threading.main_thread()
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid()), str(int(bound))],
            env=os.environ | thread_budget(threads) | {"PYTHONPATH": path},
            pass_fds=(theirs.fileno(), *fds),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Child(process, Connection(ours.detach()))


def enter(arguments: Sequence[str]) -> Connection[Any, Any]:
    """To be called first thing in a child, with ``sys.argv[1:]``: ties its life to the parent's; its control pipe."""
    control_fd, parent, bound = (int(argument) for argument in arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler, not SIG_IGN: what a simulator starts must not inherit deafness to signals.
        signal.signal(number, lambda *_: None)
    if bound and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.set_inheritable(control_fd, False)
    threading.Thread(target=_end_with_parent, args=(control_fd, parent), daemon=True).start()
    return Connection(control_fd)


def _end_with_parent(control_fd: int, parent: int) -> None:
    poller = select.poll()
    poller.register(control_fd, 0)  # nothing but the other end's closing
    while not poller.poll(1000) and os.getppid() == parent:
        pass
    os._exit(1)
