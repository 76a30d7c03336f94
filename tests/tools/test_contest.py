"""Contests of small scripts: whose turn it is, what is made of their rates, and what becomes of those that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pronghorn.tools import contest
from pronghorn.tools.contest import NOT_INSTALLED, Contestant, Failure, Spread, Standing
from pronghorn.types import UserError

SCRIPT = """
import json, sys
from pathlib import Path

log, name, *rates = sys.argv[1:]
before = Path(log).read_text().split() if Path(log).exists() else []
Path(log).write_text(" ".join([*before, name]))
rate = rates[before.count(name)]
if rate == "fail":
    print("first line", file=sys.stderr)
    sys.exit("out of   luck")
print("chatter")
print(json.dumps({"steps": 2 * int(rate), "seconds": 2}))
"""


@pytest.fixture
def entrant(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def make(name: str, *rates: int | str, module: str = "json") -> Contestant:
        arguments = (str(tmp_path / "log"), name, *map(str, rates))
        return Contestant(name, sys.executable, script, module, arguments)

    return make


def written(tmp_path: Path, text: str, *arguments: str) -> Contestant:
    script = tmp_path / "written.py"
    script.write_text(text)
    return Contestant("written", sys.executable, script, "json", arguments)


def test_they_take_turns_and_rounds_are_compared(entrant, tmp_path: Path) -> None:
    said: list[str] = []
    entered = [entrant("a", 100, 300, 200), entrant("b", 50, 100, 400), entrant("c", 10, 20, 30)]
    standings = contest.hold(entered, 3, 60, said.append)
    assert (tmp_path / "log").read_text() == "a b c a b c a b c"
    assert {name: standing.rates for name, standing in standings.items()} == {
        "a": [100, 300, 200],
        "b": [50, 100, 400],
        "c": [10, 20, 30],
    }
    assert contest.ratios(standings, "a") == {
        "b": Spread(2.0, 0.5, 3.0),  # 2, 3, ½: not the quotient of the medians, which is also 2 for none of the rounds
        "c": Spread(10.0, pytest.approx(200 / 30), 15.0),
    }
    assert contest.table(standings, ["a"]).splitlines() == [
        "   steps/s        a ÷ this",
        "a  200 (100–300)",
        "b  100 (50–400)   2.00 (0.50–3.00)",
        "c  20 (10–30)     10.00 (6.67–15.00)",
    ]
    assert said[3].split() == ["round", "2/3", "a", "300", "steps/s"] and len(said) == 9


def test_who_is_not_installed_is_listed(entrant, tmp_path: Path) -> None:
    entered = [entrant("a", 7), entrant("b", 7, module="no_such_module_at_all")]
    standings = contest.hold(entered, 1, 60, lambda line: None)
    assert (tmp_path / "log").read_text() == "a"
    assert standings["b"] == Standing([], NOT_INSTALLED)
    assert contest.table(standings, ["a"]).splitlines()[1:] == ["a  7 (7–7)", "b  not installed"]
    found = contest.report(standings, ["a"])
    assert found == {
        "steps_per_second": {"a": {"median": 7, "low": 7, "high": 7}, "b": None},
        "ratios": {"a": {}},
        "troubles": {"b": NOT_INSTALLED},
    }


def test_who_fails_is_out_and_the_others_go_on(entrant, tmp_path: Path) -> None:
    standings = contest.hold([entrant("a", 8, "fail"), entrant("b", 2, 4, 4)], 3, 60, lambda line: None)
    assert (tmp_path / "log").read_text() == "a b a b b"
    assert standings["a"] == Standing([8], "exited with 1: out of luck")
    assert standings["b"] == Standing([2, 4, 4])
    assert contest.ratios(standings, "a") == {"b": Spread(4, 4, 4)}  # of the round that both have
    assert contest.table(standings, ["a"]).splitlines()[-1] == "a, round 2: exited with 1: out of luck"
    nobody = contest.hold([entrant("a", "fail", "fail", "fail")], 1, 60, lambda line: None)
    assert nobody["a"].rates == [] and contest.ratios(nobody, "a") == {}
    assert contest.table(nobody, ["a"]).splitlines()[1] == "a  failed"


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("print('done')", "did not print how many steps it took in how many seconds"),
        ("print('[]')", "did not print how many steps it took in how many seconds"),
        ("""print('{"steps": 5, "seconds": 0}')""", "did not print how many steps it took in how many seconds"),
        ("", "did not print how many steps it took in how many seconds"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("import sys; sys.exit(3)", "exited with 3"),
    ],
)
def test_an_answer_that_is_none(tmp_path: Path, text: str, trouble: str) -> None:
    with pytest.raises(Failure, match=f"^{trouble}$"):
        written(tmp_path, text).rate(60)


def running(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(pid)


HANGING = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_who_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark, asked = tmp_path / "pid", time.monotonic()
    standings = contest.hold([written(tmp_path, HANGING, str(mark))], 2, 5.0, lambda line: None)
    assert time.monotonic() - asked < 60
    assert standings["written"] == Standing([], "did not finish within 5 s")
    assert ends(int(mark.read_text()))


GUARDED = """
import os, sys, time
from pathlib import Path
import work
work.end_with_parent()
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""

HOLDER = """
import sys
from pathlib import Path
from pronghorn.tools.contest import Contestant
Contestant("guarded", sys.executable, Path(sys.argv[1]), "json", (sys.argv[2],)).rate(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_contestant_ends_when_who_started_it_is_killed(tmp_path: Path) -> None:
    script, mark = tmp_path / "guarded.py", tmp_path / "pid"
    script.write_text(GUARDED)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(script), str(mark)])
    try:
        deadline = time.monotonic() + 60
        while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        contestant = int(mark.read_text())
        assert running(contestant)
        holder.send_signal(signal.SIGKILL)
        assert ends(contestant)
    finally:
        holder.kill()
        holder.wait(10)


SURROUNDINGS = """
import json, os
assert os.environ["OMP_NUM_THREADS"] == "1" and os.getsid(0) == os.getpid()
print(json.dumps({"steps": len(os.environ["PYTHONPATH"].split(os.pathsep)), "seconds": 1}))
"""


def test_other_interpreters_are_not_told_of_our_modules(tmp_path: Path) -> None:
    ours = written(tmp_path, SURROUNDINGS)
    other = tmp_path / "python"
    other.symlink_to(Path(sys.executable).resolve())
    assert ours.rate(60) > 2
    assert Contestant("other", str(other), ours.script, "json").rate(60) == 1


def test_a_contestant_is_at_home_where_its_module_is(entrant, tmp_path: Path) -> None:
    bare = str(tmp_path / "nothing")
    contestant = entrant("a", 1)
    assert contest.at_home(contestant, [bare, sys.executable]).python == sys.executable
    assert contest.at_home(entrant("b", 1, module="no_such_module_at_all"), [bare, sys.executable]).python == bare


def test_an_interpreter_that_is_none() -> None:
    with pytest.raises(UserError, match=r"^--peers no/such/python: no such program; name a Python"):
        contest.interpreter("no/such/python", "--peers")
    assert os.path.isabs(contest.interpreter("python3", "--peers"))  # noqa: PTH117
