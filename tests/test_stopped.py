"""Ctrl-C, SIGTERM and a closed terminal, at every stage of every runner and of other commands: the exit code, seconds
taken, nothing left running, and a checkpoint to go on from."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from forked import Command, Terminal, alive, flags, wait_for

from pronghorn import checkpoint

COUNTING = "pronghorn.envs.probes:CountingEnv"
TINY = flags(threads=1, compile="false", num_envs=4, unroll_length=7, layers=8)
RUNNERS = {
    "serial": [COUNTING, "--layout", "serial"],
    "pool": [COUNTING, "--layout", "pool", "--workers", "2"],
    "native": ["vec.engine_stand_ins:CountingVector", "--layout", "native"],
    "async": [COUNTING, "--runner", "async", "--actors", "2"],
    "async, asking": [COUNTING, "--runner", "async", "--actors", "2", "--inference", "learner"],
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SLOW = '''
import time
from pathlib import Path
from pronghorn.envs.probes import CountingEnv

class Slow(CountingEnv):
    """Takes very long over a phase, from the second to be made on unless ``at_once``."""

    def __init__(self, phase, made, at_once=False):
        super().__init__()
        self._made, self._phase = made, phase if at_once or Path(made).exists() else ""
        Path(made).touch()
        if self._phase == "construct":
            self._pause()

    def reset(self, *, seed=None, options=None):
        if self._phase == "reset":
            self._pause()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self._phase == "step":
            self._pause()
        return super().step(action)

    def _pause(self):
        Path(f"{self._made}-slow").touch()
        time.sleep(25)
'''


def train(run: Path, *options: str) -> list[str]:
    return ["train", *options, *TINY, *flags(evaluation_episodes=2, steps="1M", run=run)]


def slow(tmp_path: Path, phase: str, **arguments: bool) -> list[str]:
    (tmp_path / "slow.py").write_text(SLOW)
    given = {"phase": phase, "made": str(tmp_path / "made"), **arguments}
    pairs = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in given.items()]
    return [f"{tmp_path / 'slow.py'}:Slow", *(word for pair in pairs for word in ("--env-arg", pair))]


def is_training(run: Path) -> bool:
    return (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0


def name_of(pid: int) -> str:
    """Of the program; empty once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def stop(command: Command, number: int, within: float, alone: bool = False) -> None:
    """Signals it as a terminal does, or as ``kill`` does; it ends in time, with all it has started."""
    started, begun = command.descendants(), time.monotonic()
    command.signal(number, alone)
    assert command.ended() == CODES[signal.Signals(number)], command.said()
    assert time.monotonic() - begun < within
    wait_for(lambda: not alive(started), 5)


def assert_goes_on(run: Path, output: Path) -> None:
    more = (checkpoint.load_latest(run).step if checkpoint.exists(run) else 0) + 100
    command = Command(["resume", str(run), "--steps", str(more), "--quiet"], output)
    assert command.ended() == 0, command.said()
    assert checkpoint.load_latest(run).step >= more


@pytest.mark.parametrize(
    ("runner", "number"), [*((runner, signal.SIGINT) for runner in RUNNERS), ("serial", signal.SIGTERM)]
)
def test_a_signal_saves_and_ends(runner, number, tmp_path):
    run = tmp_path / "run"
    command = Command(train(run, *RUNNERS[runner]), tmp_path / "said.txt")
    wait_for(lambda: is_training(run))
    assert (len(command.descendants()) > 0) == (runner not in ("serial", "native"))
    stop(command, number, within=20)
    assert "stopping: saving a checkpoint" in command.said() and "Traceback" not in command.said()
    assert "continue with `pronghorn resume" in command.said().splitlines()[-1]
    assert checkpoint.load_latest(run).skipped == []
    assert_goes_on(run, tmp_path / "resumed.txt")


@pytest.mark.parametrize("runner", ["serial", "async"])
def test_a_closed_terminal_saves_and_ends(runner, tmp_path):
    run = tmp_path / "run"
    terminal = Terminal()
    command = Command(train(run, *RUNNERS[runner]), tmp_path / "said.txt", terminal=terminal.name)
    wait_for(lambda: is_training(run))
    started = command.descendants()
    terminal.close()
    assert command.ended(15) == 129
    wait_for(lambda: not alive(started), 5)
    assert_goes_on(run, tmp_path / "resumed.txt")


@pytest.mark.parametrize("layout", ["serial", "pool"])
def test_the_second_signal_waits_for_nothing(layout, tmp_path):
    run = tmp_path / "run"
    options = [*slow(tmp_path, "step"), "--layout", layout, "--workers", "1"]
    command = Command(train(run, *options), tmp_path / "said.txt")
    wait_for((tmp_path / "made-slow").exists)
    command.signal(signal.SIGINT)
    wait_for(lambda: "saving" in command.said())
    stop(command, signal.SIGINT, within=10)
    assert "Traceback" not in command.said()


@pytest.mark.parametrize("phase", ["construct", "reset"])
@pytest.mark.parametrize("layout", ["serial", "pool"])
def test_a_signal_while_envs_are_made_ends_at_once(phase, layout, tmp_path):
    run = tmp_path / "run"
    options = [*slow(tmp_path, phase), "--layout", layout, "--workers", "1"]
    command = Command(train(run, *options), tmp_path / "said.txt")
    wait_for((tmp_path / "made-slow").exists)
    stop(command, signal.SIGTERM, within=20)
    assert "stopped before training" in command.said() and "Traceback" not in command.said()
    assert run.exists() == (phase == "reset")
    if run.exists():
        (tmp_path / "made").unlink()
        source = tmp_path / "slow.py"
        source.write_text(source.read_text().replace("time.sleep(25)", "pass"))
        assert_goes_on(run, tmp_path / "resumed.txt")
        assert "begun from the start" in (run / "events.jsonl").read_text()


@pytest.mark.parametrize("number", CODES)
def test_a_signal_before_there_is_a_run_leaves_nothing(number, tmp_path):
    run = tmp_path / "run"
    command = Command(train(run, *slow(tmp_path, "construct", at_once=True)), tmp_path / "said.txt")
    wait_for((tmp_path / "made-slow").exists)
    stop(command, number, within=20)
    assert command.said() == "" and not run.exists()


def test_a_signal_within_an_evaluation(tmp_path):
    run = tmp_path / "run"
    options = flags(steps="100k", run=run, evaluate_every=100, evaluation_episodes=1_000_000)
    command = Command(["train", *RUNNERS["serial"], *TINY, *options], tmp_path / "said.txt")
    wait_for(lambda: is_training(run))
    time.sleep(1)
    stop(command, signal.SIGINT, within=20)
    assert 100 <= checkpoint.load_latest(run).step < 200
    assert checkpoint.load_latest(run).state["run"]["counters"]["evaluated_at"] == -1


@pytest.mark.parametrize(
    ("runner", "number", "alone"), [("serial", signal.SIGTERM, True), ("async", signal.SIGINT, False)]
)
@pytest.mark.timeout(400)
def test_a_signal_while_the_update_is_compiled(runner, number, alone, tmp_path):
    """In the middle of a compiler's work, which nobody but us would end where the signal is sent to us alone."""
    run, work = tmp_path / "run", tmp_path / "work"
    work.mkdir()
    options = [*RUNNERS[runner], *TINY, *flags(compile="true", epochs=1, minibatches=1, run=run)]
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(work)}
    command = Command(["train", *options], tmp_path / "said.txt", environment=places)
    wait_for(lambda: "cc1plus" in map(name_of, command.descendants()), 250)
    stop(command, number, within=20, alone=alone)
    assert "Traceback" not in command.said()
    assert command.said().splitlines()[-1] == f"stopped before training went on; continue with `pronghorn resume {run}`"
    assert list(work.glob("cc*")) == []  # the compiler has removed what it had begun


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has ended."""
    folder = tmp_path_factory.mktemp("trained")
    made = ["train", *RUNNERS["serial"], *TINY, *flags(steps=100, evaluation_episodes=2, run=folder / "run"), "--quiet"]
    command = Command(made, folder / "said.txt")
    assert command.ended() == 0, command.said()
    return folder / "run"


OTHERS = {
    "eval": (["eval", "RUN", "--episodes", "1000000"], None),
    "eval, loading": (["eval", "RUN"], "pronghorn.checkpoint:load_latest"),
    "plot, reading": (["plot", "RUN", "--out", "OUT.png"], "pronghorn.tools.groups:read_metrics"),
    "plot, writing": (["plot", "RUN", "--out", "OUT.png"], "matplotlib.figure:Figure.savefig"),
    "compare": (["compare", "RUN"], "pronghorn.tools.groups:read_metrics"),
    "export": (["export", "RUN", "--out", "OUT.onnx"], "torch.onnx:export"),
    "export, writing": (["export", "RUN", "--out", "OUT.onnx"], "pathlib:Path.write_bytes"),
    "bench": (["bench", COUNTING, "--seconds", "50"], None),
    "bench, training": (["bench", COUNTING, "--seconds", "0.5"], None),
    "doctor": (["doctor", "HalfCheetah-v5", "--seconds", "50"], None),
}
"""Commands, and the function in which the signal comes; None: once it has children, if any, and a second later."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", OTHERS)
def test_other_commands_end_at_once(name, number, trained, tmp_path):
    """They say nothing, and leave nothing: no process, no half of a file."""
    if name.startswith("export"):
        pytest.importorskip("onnxscript")
    places = {"RUN": str(trained), "OUT.png": str(tmp_path / "out.png"), "OUT.onnx": str(tmp_path / "out.onnx")}
    words, pauses_at = OTHERS[name]
    if words[0] == "bench":
        words = [*words, *TINY, "--layout", "serial", "--quiet"]
    before = set(trained.rglob("*"))
    work, said = tmp_path / "work", tmp_path / "said.txt"
    work.mkdir()
    arguments = [places.get(word, word) for word in words]
    command = Command(arguments, said, environment={"TMPDIR": str(work)}, pauses_at=pauses_at)
    if name == "bench, training":
        wait_for(lambda: any(is_training(folder) for folder in work.glob("*/run")))
    elif pauses_at is not None:
        wait_for(command.paused)
    else:
        wait_for(lambda: words[0] == "eval" or bool(command.descendants()))
        time.sleep(1)
    stop(command, number, within=20, alone=number == signal.SIGTERM)
    assert command.said() == ""
    assert set(trained.rglob("*")) == before
    assert set(tmp_path.iterdir()) - {Path(f"{said}.paused")} == {work, said}
    assert list(work.glob("pronghorn*")) == []
