"""The first signal asks, the second ends; inside ``immediately`` the first interrupts."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from pronghorn.processes.signals import Interrupted, StopRequest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_asks(number, code, capfd):
    before = signal.getsignal(number)
    with StopRequest("stopping here") as stop:
        assert not stop() and stop.exit_code == 0
        os.kill(os.getpid(), number)
        assert stop() and stop.exit_code == code
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == "\nstopping here\n"


def test_a_stop_that_is_asked_for_is_no_signal(capfd):
    with StopRequest() as stop:
        stop.ask("first")
        stop.ask("second")
        assert stop() and (stop.reason, stop.exit_code) == ("first", 0)
        assert capfd.readouterr().err == ""
        os.kill(os.getpid(), signal.SIGINT)  # the first signal still, so the process goes on
        assert stop.exit_code == 130


def test_immediately_interrupts_and_what_fails_meanwhile_is_the_interruption():
    with StopRequest() as stop:
        with pytest.raises(Interrupted), stop.immediately():
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted), stop.immediately():
            raise AssertionError("not reached: a stop was asked for already")
    with StopRequest() as stop, pytest.raises(Interrupted), stop.immediately():
        stop.requested = signal.SIGINT  # as if a child of ours had died of the same signal
        raise RuntimeError("compiler failed")
    with StopRequest() as stop, pytest.raises(ValueError, match="ours"), stop.immediately():
        raise ValueError("ours")


def test_what_is_begun_meanwhile_in_our_group_is_interrupted_too():
    def sleeping(**options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "30"], **options)

    before, started = sleeping(), []
    with StopRequest() as stop, pytest.raises(Interrupted), stop.immediately():
        started += [sleeping(), sleeping(process_group=0)]
        os.kill(os.getpid(), signal.SIGTERM)
    assert started[0].wait(10) == -signal.SIGTERM
    for other in (before, started[1]):  # not ours to end; and one that its own means end
        assert other.poll() is None
        other.kill()
        other.wait(10)


def test_the_second_signal_ends_the_process():
    code = (
        "import os, signal\n"
        "from pronghorn.processes.signals import StopRequest\n"
        "with StopRequest():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 143 and ended.stdout == "" and "stopped at once" in ended.stderr


def test_other_threads_change_nothing():
    before, seen = signal.getsignal(signal.SIGINT), []

    def elsewhere():
        with StopRequest() as stop:
            seen.append((signal.getsignal(signal.SIGINT), stop()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert seen == [(before, False)]


def test_nohup_keeps_a_run_going():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_does_not_keep_the_first_signal_from_asking():
    code = (
        "import os, signal\n"
        "from pronghorn.processes.signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    os.close(2)\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    print(stop.exit_code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "129\n"
