"""A user's callbacks, and all that listens to a run: what fails in it ends the run, with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from pronghorn.config import CALLBACKS, check_free
from pronghorn.telemetry.writers import MetricsWriter

Callback: TypeAlias = Callable[[str, dict[str, Any]], str | None]
"""Called with an event and its record; returns why the run should stop, or None.

Events are "report" and "evaluation", with a record of ``metrics.jsonl``, and those of ``events.jsonl`` ("start",
"resume", "checkpoint", "restart", "warning", "stop") with what is written there. Every record has the ``step``, and in
``run`` the directory of the run, a Path.
"""

_MAKERS: dict[str, Callable[[], Callback]] = {}


def register_callback(name: str, make: Callable[[], Callback]) -> None:
    """Adds a callback for ``--callbacks name``: ``make()`` is called once a run, and what it returns at every event.

    Raises:
        UserError: ``name`` cannot be written on the command line.
    """
    check_free("callback", name, ())
    if name not in CALLBACKS:
        CALLBACKS.append(name)
    _MAKERS[name] = make


def make_callback(name: str) -> Callback:
    """The callback called ``name`` in the config."""
    return _MAKERS[name]()


class Listeners:
    """The sinks and callbacks of a run, which must not take what was learnt with them when they fail.

    Args:
        run: its directory.
        callbacks, writers: are told of events; take records of metrics.
        ask: is called with the reason for which the run is to stop.
    """

    def __init__(
        self,
        run: Path,
        callbacks: Iterable[Callback],
        writers: Iterable[MetricsWriter],
        ask: Callable[[str], None],
    ) -> None:
        self._run, self._ask = run, ask
        self.callbacks, self.writers = list(callbacks), list(writers)
        self.failure: BaseException | None = None
        """The first exception of a listener; whoever raised is not called again."""

    def write(self, record: dict[str, Any]) -> None:
        """To every writer."""
        for writer in list(self.writers):
            try:
                writer.write(record)
            except (Exception, SystemExit) as error:
                self.writers.remove(writer)
                self._fail(f"the sink {_name(writer)}", error)

    def tell(self, event: str, record: dict[str, Any]) -> None:
        """To every callback."""
        for callback in list(self.callbacks):
            try:
                reason = callback(event, {"run": self._run, **record})
                if reason is not None and not isinstance(reason, str):
                    raise TypeError(f"a callback returns None, or in a string why the run should stop, not {reason!r}")
            except (Exception, SystemExit) as error:
                self.callbacks.remove(callback)
                self._fail(f"the callback {_name(callback)} at {event!r}", error)
            else:
                if reason is not None:
                    self._ask(reason)

    def _fail(self, where: str, error: BaseException) -> None:
        if self.failure is None:
            error.add_note(f"raised by {where}; the run is saved: `pronghorn resume {self._run}` continues it")
            self.failure = error
        self._ask(f"{where} raised {type(error).__name__}: {error}")


def _name(listener: Any) -> str:
    return getattr(listener, "__name__", type(listener).__name__)
