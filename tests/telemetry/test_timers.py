import pytest

from pronghorn.telemetry.timers import PhaseTimers


def test_phases_add_up_by_the_clock_until_reset() -> None:
    ticks = iter([1.0, 3.0, 10.0, 14.0, 20.0, 21.0, 30.0, 30.5])
    timers = PhaseTimers(lambda: next(ticks))
    with timers("env"):
        pass
    with timers("learn"):
        pass
    with pytest.raises(KeyError), timers("env"):
        raise KeyError
    assert timers.seconds() == {"env": 3.0, "learn": 4.0}
    assert timers.shares(12.0) == {"time/env": 0.25, "time/learn": 1 / 3}
    assert timers.shares(0.0) == {}
    timers.reset()
    with timers("env"):
        pass
    assert timers.seconds() == {"env": 0.5, "learn": 0.0}
