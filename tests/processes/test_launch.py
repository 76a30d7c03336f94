import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from pronghorn.processes.launch import launch


@pytest.fixture
def child():
    child = launch("processes.processes_child", threads=3)
    yield child
    child.end(0)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until_gone(pid, seconds=5):
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def call(child, function):
    child.send(("call", function))
    assert child.control.poll(10)
    return child.control.recv()


def test_budget_path_and_emptiness(child):
    def report():
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")
        return [os.environ[name] for name in names], "torch" in sys.modules, sys.path

    budget, torch_loaded, path = call(child, report)
    assert budget == ["3", "3", "PASSIVE"]
    assert not torch_loaded
    assert set(sys.path) - {""} <= set(path)


def test_signals_of_others_are_swallowed(child):
    assert call(child, lambda: 1) == 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.process.pid, number)
    assert call(child, lambda: 2) == 2
    assert os.getpgid(child.process.pid) != os.getpgid(0)


def test_grandchildren_hear_signals_and_go_with_the_child(child):
    def start():
        return subprocess.Popen(["sleep", "600"]).pid

    first, second = call(child, start), call(child, start)
    os.kill(first, signal.SIGTERM)

    def reap():
        return os.waitpid(-1, 0)[0]

    assert call(child, reap) == first
    child.end(0)
    assert wait_until_gone(second)


def test_end_is_patient_then_firm(child):
    child.send(("hang",))
    start = time.monotonic()
    child.end(0.3)
    assert time.monotonic() - start >= 0.3
    assert child.process.returncode == -signal.SIGKILL
    child.end(0.3)


def test_fate(child):
    assert child.fate(0.01) == "stopped answering"
    child.send(("exit", 7))
    assert child.fate(5) == "exited with code 7"
    other = launch("processes.processes_child")
    os.kill(other.process.pid, signal.SIGKILL)
    assert other.fate(5) == "died with signal 9 (out of memory?)"
    other.end(0)


@pytest.mark.parametrize("thread", [False, True])
def test_ends_with_its_parent(thread):
    script = """
        import os, signal, threading
        from pronghorn.processes.launch import launch
        def main():
            global child
            child = launch("processes.processes_child")
            child.send(("call", lambda: 1))
            child.control.recv()
            child.send(("hang",))
        starter = threading.Thread(target=main)
        (starter.start(), starter.join()) if THREAD else main()
        assert child.process.poll() is None
        print(child.process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    code = textwrap.dedent(script).replace("THREAD", str(thread))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, env=environment)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    assert wait_until_gone(int(parent.stdout))


def test_outlives_the_thread_that_started_it():
    started = []
    thread = threading.Thread(target=lambda: started.append(launch("processes.processes_child")))
    thread.start()
    thread.join()
    (child,) = started
    assert call(child, lambda: 1) == 1
    time.sleep(0.1)
    assert call(child, lambda: 2) == 2
    child.end(0)
