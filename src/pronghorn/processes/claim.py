"""One process at a time works on a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pronghorn.types import UserError


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Holds ``directory``, which is made if need be, for this process alone. However suddenly that ends, it lets go.

    One that was made here and is still empty at the end is removed. Nothing is written to hold it; on a file system
    without locks nothing is held.

    Raises:
        UserError: another process holds it, or it cannot be made.
    """
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"run directory {directory} cannot be used: {error.strerror}; choose another") from error
    try:
        _lock(descriptor, directory)
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                directory.rmdir()
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{directory} is in use: another process trains in it") from error
