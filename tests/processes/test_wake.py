import os
import time

from pronghorn.processes import wake as wake_module
from pronghorn.processes.launch import launch
from pronghorn.processes.wake import Waiter, Wake


def test_counts_and_times_out():
    first, second = Wake(), Wake()
    waiter = Waiter([first.fds[0], second.fds[0]])
    start = time.monotonic()
    assert waiter.wait(0.05) == []
    assert time.monotonic() - start >= 0.05
    assert first.take() == 0
    for _ in range(3):
        second.notify()
    assert waiter.wait(1) == [second.fds[0]]
    assert second.take() == 3
    assert waiter.wait(0) == []
    for wake in (first, second, first):
        wake.close()


def test_pipes_where_there_is_no_eventfd(monkeypatch):
    monkeypatch.delattr(os, "eventfd", raising=False)
    monkeypatch.setattr(wake_module, "PULSE", b"\0")
    wake = Wake()
    assert wake.fds[0] != wake.fds[1]
    wake.notify()
    wake.notify()
    assert wake.take() == 2
    assert wake.take() == 0
    wake.close()


def test_round_trip_is_cheap_and_death_wakes():
    request, answer = Wake(), Wake()
    child = launch("processes.processes_child", fds=[request.fds[0], answer.fds[0]])
    waiter = Waiter([answer.fds[0], child.control.fileno()])
    trips = 300
    child.send(("echo", request.fds, answer.fds, trips))
    for _ in range(trips):
        request.notify()
        assert waiter.wait(5) == [answer.fds[0]]
        assert answer.take() == 1

    child.send(("exit", 1))
    assert waiter.wait(10) == [child.control.fileno()]
    child.end(0)
    request.close()
    answer.close()
