import json
from pathlib import Path

import numpy as np

from pronghorn.telemetry import events
from pronghorn.telemetry.events import EventLog


def test_events_are_lines_in_order_and_time_counts_on(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "events.jsonl"
    now = [50.0]
    monkeypatch.setattr(events.time, "monotonic", lambda: now[0])
    log = EventLog(path)
    now[0] = 51.5
    log.write("restart", 7, envs=np.array([1, 2]), cause="hung", norm=float("nan"), run=Path("a/b"))
    assert json.loads(path.read_text()) == {
        "event": "restart",
        "seconds": 1.5,
        "step": 7,
        "envs": [1, 2],
        "cause": "hung",
        "run": "a/b",
    }
    log.close()

    resumed = EventLog(path, seconds=1.5)
    now[0] = 53.0
    resumed.write("resume", 7)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["restart", "resume"]
    assert json.loads(lines[1])["seconds"] == 3.0
    resumed.close()
    resumed.close()
