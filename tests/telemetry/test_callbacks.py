from pathlib import Path
from typing import Any

import pytest

from pronghorn import config
from pronghorn.telemetry import callbacks
from pronghorn.telemetry.callbacks import Listeners, make_callback, register_callback
from pronghorn.types import UserError


class Recorder:
    """A callback and a sink that keeps what it is given, answers, and raises when it is told to."""

    def __init__(self, answer: Any = None, raises: BaseException | None = None) -> None:
        self.heard: list[Any] = []
        self._answer, self._raises = answer, raises

    def __call__(self, event: str, record: dict[str, Any]) -> Any:
        self.heard.append((event, record))
        record["mine"] = True  # a callback may keep what is its own
        if self._raises is not None:
            raise self._raises
        return self._answer

    def write(self, record: dict[str, Any]) -> None:
        self("write", dict(record))


def listeners(*heard: Recorder) -> tuple[Listeners, list[str]]:
    reasons: list[str] = []
    return Listeners(Path("run"), heard, heard, reasons.append), reasons  # type: ignore[arg-type]


def test_everyone_is_told_a_copy() -> None:
    first, second = Recorder(), Recorder("enough")
    made, reasons = listeners(first, second)
    record = {"step": 3}
    made.tell("report", record)
    assert first.heard == second.heard == [("report", {"run": Path("run"), "step": 3, "mine": True})]
    assert record == {"step": 3} and reasons == ["enough"] and made.failure is None
    made.write(record)
    assert first.heard[1] == ("write", {"step": 3, "mine": True})


@pytest.mark.parametrize("error", [ValueError("out of order"), SystemExit(3)])
@pytest.mark.parametrize("way", ["tell", "write"])
def test_who_raises_is_not_called_again_but_the_others_are(error: BaseException, way: str) -> None:
    error.__notes__ = []  # each is raised twice in these tests
    bad, good = Recorder(raises=error), Recorder()
    made, reasons = listeners(bad, good)

    def call() -> None:
        made.tell("report", {"step": 1}) if way == "tell" else made.write({"step": 1})

    call()
    call()
    assert (len(bad.heard), len(good.heard)) == (1, 2) and made.failure is error
    what = "the callback Recorder at 'report'" if way == "tell" else "the sink Recorder"
    assert reasons == [f"{what} raised {type(error).__name__}: {error}"]
    assert error.__notes__ == [f"raised by {what}; the run is saved: `pronghorn resume run` continues it"]


def test_the_first_failure_counts() -> None:
    made, reasons = listeners(Recorder(raises=ValueError("1")), Recorder(raises=KeyError("2")))
    made.tell("report", {"step": 1})
    assert repr(made.failure) == "ValueError('1')" and len(reasons) == 2


@pytest.mark.parametrize("answer", [True, False, 0, 475.0])
def test_an_answer_is_a_reason_or_none(answer: Any) -> None:
    made, _ = listeners(Recorder(answer))
    made.tell("report", {"step": 1})
    assert "a callback returns None, or in a string why the run should stop" in str(made.failure)


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CALLBACKS", config.CALLBACKS)
    monkeypatch.setattr(callbacks, "_MAKERS", {})
    try:
        register_callback("mine", lambda: Recorder(1))
        register_callback("mine", lambda: Recorder(2))
        assert config.CALLBACKS == ["mine"] and make_callback("mine")("start", {}) == 2
        assert make_callback("mine") is not make_callback("mine")
    finally:
        config.CALLBACKS.clear()
    for name in ("", "a,b", "a b", "none"):
        with pytest.raises(UserError, match=f"a callback cannot be registered as '{name}'"):
            register_callback(name, Recorder)
