import io
import re
import subprocess
import sys

import pytest

from pronghorn.telemetry.panel import Panel

NAN = float("nan")
RECORD = {
    "step": 20_480,
    "frames": 81_920,
    "seconds": 7.0,
    "steps_per_second": 1_000.0,
    "episodes": 230,
    "return/mean": 1834.21,
    "length/mean": 1000.0,
    "loss/policy": -0.0123456,
    "loss/value": NAN,
    "policy/kl": 0.0123456,
    "policy/entropy": 3.21987,
    "value/explained_variance": float("-inf"),
    "time/env": 0.614,
    "time/learn": 0.22,
}
EVALUATION = {"eval/return": 2011.4, "eval/return_std": 45.12, "eval/episodes": 10}


class Output(io.StringIO):
    def __init__(self, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._terminal = terminal
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue()).replace("\r", "")

    def view(self) -> list[str]:
        """The newest live view, without its borders."""
        newest = self.text().split("╭")[-1]
        return [line.strip("│ ") for line in newest.splitlines()[1:] if line.startswith("│")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Output:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Output(terminal=True)


def test_the_live_view_says_it_all(terminal: Output) -> None:
    with Panel("HalfCheetah-v5 ppo", 80_480, file=terminal, every=0) as panel:
        panel.update(RECORD | EVALUATION | {"step": 10_240, "return/mean": 0.0})
        panel.update(RECORD)
    assert "HalfCheetah-v5 ppo" in terminal.text()
    progress, *rest = terminal.view()
    assert re.fullmatch(r"[━╸╺]+ 25% of 80,480, 1:00 left", progress)
    assert rest == [
        "steps       20,480  81,920 frames  1,000 steps/s",
        "training    return 1834  mean of the last 100 of 230 episodes",
        "1000 steps each  ▁█",
        "evaluation  return 2011 ± 45.12 over 10 episodes  at step 10,240",
        "learning    KL 0.01235  entropy 3.22",
        "losses      policy -0.01235",
        "time        env 61%  learn 22%",
    ]


def test_the_lag_of_actors_and_the_queue(terminal: Output) -> None:
    lags = {"lag/mean": 1.25, "lag/p95": 3.0, "lag/max": 4, "lag/dropped": 2, "queue/columns": 17}
    each = {f"actor/{actor}/lag/{name}": actor + 2.0 for actor in range(2) for name in ("mean", "p95", "max")}
    with Panel("run", 1000, file=terminal, every=0) as panel:
        panel.update({"step": 100} | lags | each)
    assert terminal.view()[3:] == [
        "policy lag  mean 1.25  p95 3  max 4  dropped 2  17 unrolls in the queue",
        "actors' lag 0: 2.0, 95% 2, max 2  1: 3.0, 95% 3, max 3",
    ]


def test_the_bottleneck_and_actors_that_are_too_slow(terminal: Output) -> None:
    found = "environments, 62% of the time", "more --workers or --runner async"
    pipe = Output(terminal=False)
    for file in (terminal, pipe):
        with Panel("run", 1000, file=file, every=0) as panel:
            panel.update({"step": 100, "return/mean": 1.0, "time/env": 0.62, "actors/stale": 2}, 0, found)
            panel.update({"step": 110, "eval/return": 3.0})  # an evaluation has nothing new to say of either
    assert terminal.view()[4:] == [
        "alarm       2 actors too slow: unrolls come too late to be learnt from",
        "fewer --num-envs,  a shorter --unroll-length",
        "or a larger --max-policy-lag",
        "time        env 62%",
        "bottleneck  environments, 62% of the time  more --workers or --runner async",
    ]
    first, second, last = pipe.getvalue().splitlines()
    assert first.endswith("2 stale actors") and second.endswith("2 stale actors")
    assert last == "bottleneck: environments, 62% of the time: more --workers or --runner async"


def test_before_the_first_episode_ends(terminal: Output) -> None:
    with Panel("run", 1000, file=terminal, every=0) as panel:
        panel.update({"step": 100, "return/mean": NAN}, longest_running=1234)
    assert terminal.view()[1:] == ["steps       100", "training    0 episodes finished, longest running 1,234 steps"]


def test_every_line_fits_80_columns_and_none_says_nan(terminal: Output) -> None:
    plain = Output(terminal=False)
    huge = {key: -123456.789 if value == value else NAN for key, value in RECORD.items()}
    huge |= {f"time/phase{index}": 0.5 for index in range(20)} | {f"loss/{index}": 1e-12 for index in range(20)}
    huge |= {"step": 9_999_999_999, "frames": 40_000_000_000, "steps_per_second": 1e-3, "steps/dropped": 5}
    huge |= {"eval/return": -123456.7, "eval/return_std": 1e30, "eval/episodes": 1000, "lag/mean": 0.5}
    for file in (terminal, plain):
        with Panel("a very long name " * 10, 10_000_000_000, file=file, every=0) as panel:
            panel.update(huge)
            panel.update(dict.fromkeys(huge, NAN) | {"step": 5})
        lines = file.text().replace("╯╭", "╯\n╭").splitlines()
        assert max(map(len, lines)) <= 80
        assert "nan" not in file.text().lower()
    assert any("lag" in line for line in terminal.text().splitlines())


def test_a_pipe_gets_one_line_per_report() -> None:
    pipe = Output(terminal=False)
    with Panel("run", 80_480, file=pipe, every=0) as panel:
        panel.update({"step": 8}, longest_running=8)
        panel.update(RECORD | EVALUATION)
        panel.message("saved [bold]x")
        panel.update(RECORD)
    newest = "20,480 steps (25%), 1,000/s, 1:00 left, return 1834, eval 2011 ± 45.12"
    assert pipe.getvalue().splitlines() == [
        "8 steps (0%), 0 episodes finished, longest running 8 steps",
        newest,
        "saved [bold]x",
        newest,
    ]


def test_a_message_keeps_its_brackets_and_stands_above_the_view(terminal: Output) -> None:
    with Panel("run", 10, file=terminal, every=0) as panel:
        panel.update({"step": 1})
        panel.message("env 3 [TimeoutError]: [/bold] " + "long " * 30)
    before, after = terminal.text().split("env 3 [TimeoutError]: [/bold] " + "long " * 30)
    assert "╭" in before and "╭" in after


def test_quiet_says_nothing(terminal: Output) -> None:
    for file in (terminal, Output(terminal=False)):
        with Panel("run", 10, quiet=True, file=file, every=0) as panel:
            panel.update({"step": 1})
            panel.message("hello")
        assert file.getvalue() == ""


def test_an_ascii_output_is_no_reason_to_stop() -> None:
    for tty in (False, True):
        file = Output(terminal=tty, encoding="ascii")
        with Panel("run", 80_480, file=file, every=0) as panel:
            panel.update(RECORD | EVALUATION)
        assert "eval 2011 ? 45.12" in file.getvalue()


def test_a_dumb_terminal_gets_lines(terminal: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Panel("run", 10, file=terminal, every=0) as panel:
        panel.update({"step": 1})
    assert terminal.getvalue() == "1 steps (10%), 0 episodes finished, longest running 0 steps\n"


def test_the_view_is_closed_when_the_run_fails(terminal: Output) -> None:
    with pytest.raises(RuntimeError), Panel("run", 10, file=terminal, every=0) as panel:
        panel.update({"step": 1})
        raise RuntimeError
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is shown again


def test_rich_is_not_loaded_without_a_terminal() -> None:
    code = (
        "import sys; from pronghorn.telemetry.panel import Panel\n"
        "with Panel('run', 10) as panel: panel.update({'step': 1})\n"
        "assert not {'rich', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, timeout=60)


def test_reports_in_quick_succession_wait_but_evaluations_and_the_last_do_not() -> None:
    pipe = io.StringIO()
    with Panel("run", 100, file=pipe, every=1000.0) as panel:
        for step in range(1, 6):
            panel.update({"step": step})
        panel.update({"step": 6, "eval/return": 1.0})
        panel.update({"step": 7})
        panel.update({"step": 8})
    steps = [text.split()[0] for text in pipe.getvalue().splitlines()]
    assert steps == ["1", "6", "8"]
