from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pronghorn import config
from pronghorn.telemetry import sinks
from pronghorn.telemetry.sinks import Wandb, make_sink, register_sink, require
from pronghorn.telemetry.writers import Csv, TensorBoard
from pronghorn.types import UserError


class FakeWandb:
    """Stands in for the package, and keeps what it is told."""

    def __init__(self) -> None:
        self.errors = SimpleNamespace(Error=type("Error", (Exception,), {}))
        self.begun: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.finished = 0
        self.refuses = ""

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **options: Any) -> FakeWandb:
        if self.refuses:
            raise self.errors.Error(self.refuses)
        self.begun.append(options)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "step")

    def log(self, record: dict[str, Any]) -> None:
        self.logged.append(record)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    made = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", made)  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


def test_a_resumed_run_goes_on_over_there(fake: FakeWandb, tmp_path: Path) -> None:
    first = Wandb(tmp_path, {"steps": 7}, None)
    first.write({"step": 10, "a": 1.0})
    first.write({"step": 20, "a": 2.0})
    first.write({"step": 20, "eval/episodes": 5})
    first.write({"step": 30, "a": 3.0})
    first.close()
    # The run ended before the next checkpoint: from 20 on everything is done again.
    resumed = Wandb(tmp_path, {"steps": 7}, 20)
    resumed.write({"step": 30, "a": 3.0})
    resumed.write({"step": 30, "eval/episodes": 5})
    resumed.write({"step": 40, "a": 4.0})
    assert fake.logged == [
        {"step": 10, "a": 1.0},
        {"step": 20, "a": 2.0},
        {"step": 20, "eval/episodes": 5},
        {"step": 30, "a": 3.0},
        {"step": 30, "eval/episodes": 5},
        {"step": 40, "a": 4.0},
    ]
    once, again = fake.begun
    assert once["id"] == again["id"] and len(once["id"]) == 8 and once["resume"] == "allow" and once["dir"] == tmp_path
    assert (once["project"], once["name"], once["config"]) == ("pronghorn", tmp_path.name, {"steps": 7})
    assert fake.finished == 1


def test_runs_have_ids_and_projects_of_their_own(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Wandb(tmp_path / name, {}, None).write({"step": 1})
    assert fake.begun[0]["id"] != fake.begun[1]["id"] and fake.begun[0]["project"] == "mine"
    assert len(fake.logged) == 2


def test_what_wandb_refuses_is_one_line(fake: FakeWandb, tmp_path: Path) -> None:
    fake.refuses = "No API key configured.\nUse `wandb login`."
    with pytest.raises(UserError, match=r"--sinks wandb: No API key configured\. Use `wandb login`\."):
        Wandb(tmp_path, {}, None)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require(["tensorboard", "csv"])
    with pytest.raises(UserError, match=r"--sinks wandb needs a package .*: pip install 'pronghorn\[wandb\]'"):
        require(["wandb"])


OFFLINE = """
import sys
from pathlib import Path
from pronghorn.telemetry.sinks import make_sink
assert "wandb" not in sys.modules
for resumed_at, steps in ((None, (1, 2, 3)), (2, (3, 4))):
    sink = make_sink("wandb", Path(sys.argv[1]), {"seed": 5}, resumed_at)
    for step in steps:
        sink.write({"step": step, "loss/value": step / 2})
    sink.close()
"""


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is an extra")
def test_the_real_one_offline(tmp_path: Path) -> None:
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path / "unused")}
    result = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=100
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    name = json.loads((tmp_path / "wandb.json").read_text())["id"]
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{name}.wandb"] * 2
    assert [history(file) for file in files] == [[(1, 0.5), (2, 1.0), (3, 1.5)], [(4, 2.0)]]


def history(path: Path) -> list[tuple[int, float]]:
    """(step, loss/value) of every row in a file of wandb's own: after 7 bytes of its own a LevelDB log, records (in
    parts where they would cross a block of 32 KiB) behind checksum, length and kind of part."""
    protocol = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, parts, rows = path.read_bytes(), 7, b"", []
    while at + 7 < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, length, part = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # whole, or the last part
            record = protocol.Record.FromString(parts)
            parts = b""
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if items:
                rows.append((json.loads(items["step"]), json.loads(items["loss/value"])))
    return rows


def test_sinks_by_name(tmp_path: Path) -> None:
    made = [make_sink(name, tmp_path, {}, None) for name in ("tensorboard", "csv")]
    for sink in made:
        sink.close()
    assert [type(sink) for sink in made] == [TensorBoard, Csv]
    assert {path.name for path in tmp_path.iterdir()} == {"tensorboard", "metrics.csv"}
    assert set(config.SINKS) == set(sinks._MAKERS)


def test_registering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_MAKERS", dict(sinks._MAKERS))
    try:
        register_sink("mine", lambda run, options, resumed_at: Csv(run / f"{options['seed']}-{resumed_at}.csv"))
        make_sink("mine", tmp_path, {"seed": 8}, 30).close()
        assert [path.name for path in tmp_path.iterdir()] == ["8-30.csv"] and config.SINKS[-1] == "mine"
    finally:
        config.SINKS.remove("mine")
    for name in ("csv", "none", "a,b", ""):
        with pytest.raises(UserError, match=f"a sink cannot be registered as '{name}'"):
            register_sink(name, lambda *_: Csv(tmp_path / "x.csv"))
