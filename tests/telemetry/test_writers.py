import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pronghorn.telemetry.writers import Csv, LineFile, TensorBoard, truncate_after


def read(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = LineFile(path)
    writer.write({"step": np.int64(3), "a": 0.1, "d": np.float32(0.5)})
    assert path.read_text() == '{"step": 3, "a": 0.1, "d": 0.5}\n'
    writer.close()
    writer.close()


def test_what_is_not_a_number_is_refused(tmp_path: Path) -> None:
    writer = LineFile(tmp_path / "metrics.jsonl")
    with pytest.raises(TypeError, match="object is not JSON"):
        writer.write({"step": object()})
    for value in (float("nan"), -float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            writer.write({"step": 1, "a": value})
    writer.close()


def test_a_line_cut_short_by_a_crash_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "ret')
    writer = LineFile(path)
    writer.write({"step": 3})
    writer.close()
    assert read(path) == [{"step": 1}, {"step": 3}]


def test_truncation_keeps_everything_up_to_the_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    truncate_after(path, 5)
    assert not path.exists()
    path.write_text('{"step": 1}\n{"step": 5}\n{"step": 6}\n{"step": 2}\n[]\n{"a": 1}\nnonsense\n{"step": 3}')
    truncate_after(path, 5)
    assert read(path) == [{"step": 1}, {"step": 5}, {"step": 2}]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        first.write({"step": step, "return/mean": step / 2})
    first.close()
    resumed = TensorBoard(tmp_path, resumed_at=20)
    resumed.write({"step": 30, "return/mean": 99.0})
    resumed.close()
    resumed.close()

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["return/mean"]
    assert [(event.step, event.value) for event in events.Scalars("return/mean")] == [(10, 5), (20, 10), (30, 99)]


def test_what_tensorboard_was_told_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom pronghorn.telemetry.writers import TensorBoard\n"
        "TensorBoard(Path(sys.argv[1])).write({'step': 1, 'a': 2.0}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == -9
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("a")
    assert [(event.step, event.value) for event in shown] == [(1, 2.0)]


def test_tensorboard_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pronghorn.telemetry import writers\n"
        "assert 'tensorboard' not in sys.modules\n"
        "writer = writers.TensorBoard(Path(sys.argv[1])); writer.write({'step': 1, 'a': 2.0}); writer.close()\n"
        "assert 'torch' not in sys.modules and 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


def test_a_table_grows_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = Csv(path)
    assert path.read_text() == "step\n"
    writer.write({"step": np.int64(1), "a": 0.1})
    assert path.read_text() == "step,a\n1,0.1\n"
    writer.write({"step": 2, "b": np.float64(1 / 3)})
    writer.write({"c/d": np.float32(0.5), "step": 3, "a": 4})
    writer.write({"step": 3})
    assert path.read_text() == f"step,a,b,c/d\n1,0.1,,\n2,,{1 / 3!r},\n3,4,,0.5\n3,,,\n"
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]
    writer.close()
    writer.close()


def test_a_table_goes_on_after_the_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,a,b\n1,5,\n20,6,7\n20,8,\n21,9,\n300,1,\n2")
    writer = Csv(path, resumed_at=20)
    writer.write({"step": 21, "b": 10, "c": 11})
    writer.close()
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["step", "a", "b", "c"],
            ["1", "5", "", ""],
            ["20", "6", "7", ""],
            ["20", "8", "", ""],
            ["21", "", "10", "11"],
        ]


@pytest.mark.parametrize("text", [None, "", "st", "step,a\n", "step,a\n5,1\n"])
def test_a_table_with_nothing_to_go_on_from(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "metrics.csv"
    if text is not None:
        path.write_text(text)
    writer = Csv(path, resumed_at=4)
    writer.write({"step": 5, "a": 2})
    writer.close()
    assert path.read_text() == "step,a\n5,2\n"


def test_a_new_table_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,a\n5,1\n")
    Csv(path).close()
    assert path.read_text() == "step\n"
