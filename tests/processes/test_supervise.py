import threading
import time

import numpy as np
import pytest

from pronghorn.processes import supervise
from pronghorn.processes.supervise import (
    IDLE,
    LONGEST_PAUSE,
    NOTE_WORDS,
    PHASES,
    RESET,
    STEP,
    WINDOW,
    Incident,
    Notes,
    Patience,
    Supervisor,
    Watchdog,
    read_note,
)


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(supervise.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_notes_say_who_and_what_and_that_it_is_another_call():
    cells = np.zeros((2, NOTE_WORDS), np.int64)
    note = Notes(cells[1])
    words = []
    for row, phase in ((0, STEP), (0, STEP), (2**28 - 1, RESET)):
        note(row, phase)
        words.append(int(cells[1, 0]))
        assert read_note(words[-1]) == (row, PHASES[phase])
    assert len(set(words)) == 3 and not cells[0].any() and not cells[1, 1:].any()
    note.idle()
    assert read_note(int(cells[1, 0])) == (0, "idle")


def test_patience_counts_from_the_beginning_of_each_call(clock):
    cells = np.zeros((2, NOTE_WORDS), np.int64)
    notes = [Notes(cell) for cell in cells]
    patience = Patience(cells, {"idle": float("inf"), "step": 2.0, "reset": 5.0})
    notes[0](7, STEP)
    notes[1](8, RESET)
    assert [patience.over(0), patience.over(1)] == [None, None]
    clock.now += 2.5
    assert [patience.over(0), patience.over(1)] == [2.0, None]
    patience.forget(0)
    assert patience.over(0) is None
    clock.now += 1.5
    notes[0](7, STEP)  # the same env in the same phase, but another call
    assert patience.over(0) is None
    clock.now += 1.5
    assert [patience.over(0), patience.over(1)] == [None, 5.0]
    notes[1](0, IDLE)
    clock.now += 1e9
    assert patience.over(1) is None


def test_restarts_are_counted_over_an_hour_with_growing_pauses(clock):
    reported = []
    supervisor = Supervisor(restarts=9, report=reported.append)
    incident = Incident(3, "step", "why")
    pauses = [supervisor.permit(incident) for _ in range(10)]
    assert pauses == [0.05 * 2**count for count in range(7)] + [LONGEST_PAUSE] * 2 + [None]
    assert reported == [incident] * 9
    assert supervisor.verdict == "(after 9 restarts within an hour; --env-restarts allows 9)"
    clock.now += WINDOW - 1
    assert supervisor.permit(incident) is None
    clock.now += 2
    assert supervisor.permit(incident) == 0.05


def test_pauses_grow_only_where_failures_follow_closely(clock):
    supervisor = Supervisor()
    assert supervisor.permit(Incident(0, "step", "")) == 0.05
    clock.now += 59
    assert supervisor.permit(Incident(0, "step", "")) == 0.1
    clock.now += 61
    assert supervisor.permit(Incident(0, "step", "")) == 0.05


def test_nothing_is_restarted_where_errors_fail():
    reported = []
    supervisor = Supervisor("fail", 10, reported.append)
    assert supervisor.permit(Incident(0, "step", "")) is None and not reported
    assert supervisor.verdict == "(--env-errors restart would start it again)"


def test_the_watchdog_fires_once_for_a_call_that_does_not_return():
    fired = []
    done = threading.Event()

    def fire(*found):
        fired.append((*found, time.monotonic() - start))
        done.set()

    with Watchdog({"step": 0.3, "reset": 60.0}, fire) as watchdog:
        for _ in range(10):  # many short calls are no long one
            watchdog.note(4, STEP)
            time.sleep(0.05)
        watchdog.note(4, RESET)
        time.sleep(0.4)
        watchdog.note.idle()
        time.sleep(0.4)
        assert not fired
        start = time.monotonic()
        watchdog.note(5, STEP)
        assert done.wait(5)
        time.sleep(0.4)
    assert len(fired) == 1 and fired[0][:3] == (5, "step", 0.3) and 0.3 <= fired[0][3] < 1.3


def test_the_watchdog_watches_calls_of_many():
    fired = []
    with Watchdog({"construct": 0.2}, lambda *found: fired.append(found)) as watchdog:
        with pytest.raises(RuntimeError), watchdog.watch("construct"):
            raise RuntimeError
        time.sleep(0.4)
        assert not fired
        with watchdog.watch("construct"):
            time.sleep(0.6)
    assert fired == [(0, "construct", 0.2)]
