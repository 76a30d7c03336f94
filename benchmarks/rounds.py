"""What the comparisons here share: rounds as those of ``pronghorn bench --peers``, told on standard error."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pronghorn.tools import contest
from pronghorn.tools.contest import Contestant, Standing

SCRIPTS = Path(__file__).resolve().parent / "contestants"


def hold(contestants: Sequence[Contestant], rounds: int, timeout: float) -> dict[str, Standing]:
    """See ``contest.hold``."""
    # So that whoever ends us ends the contestant too, which runs in a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return contest.hold(contestants, rounds, timeout, functools.partial(print, file=sys.stderr, flush=True))
