"""What a session tells those who listen to it."""

from __future__ import annotations

import json

import numpy as np
import rig

from pronghorn.processes.signals import StopRequest
from pronghorn.session import Session


class Recorder:
    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def close(self):
        pass


def test_only_what_exists_is_told(tmp_path):
    sink, told = Recorder(), []
    run = tmp_path / "run"
    run.mkdir()

    def listen(event, record):
        told.append({"event": event, **record})

    nothing = {"loss/value": float("nan"), "policy/kl": -float("inf"), "lag/mean": np.float32("nan")}
    with Session(run, rig.config(sinks=("csv",)), True, None, StopRequest(), [listen], [sink]) as session:
        session.record({"step": 3, "seconds": 1.0, "loss/policy": 0.5, **nothing}, 0)
    expected = {"step": 3, "seconds": 1.0, "loss/policy": 0.5}
    assert sink.records == [expected] and told == [{"event": "report", "run": run, **expected}]
    assert json.loads((run / "metrics.jsonl").read_text()) == expected
    assert (run / "metrics.csv").read_text() == "step,seconds,loss/policy\n3,1.0,0.5\n"
