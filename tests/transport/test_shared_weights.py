import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from pronghorn.transport import shared
from pronghorn.transport.shared import SharedWeights, weights_layout


def state(value, sizes=((300, 300), (7,), ())):
    return {f"part{number}": torch.full(size, float(value)) for number, size in enumerate(sizes)} | {
        "count": torch.tensor(int(value), dtype=torch.int64)
    }


def test_the_newest_comes_back_with_its_version_and_is_the_readers_own():
    weights = SharedWeights(weights_layout(state(0)))
    for value in range(11):
        weights.publish(state(value), value + 100)
        found, version = weights.fetch()
        assert version == value + 100 and weights.publications == value + 1
        assert all((tensor == value).all() for tensor in found.values())
        assert {name: tensor.dtype for name, tensor in found.items()} == {
            name: tensor.dtype for name, tensor in state(0).items()
        }
        found["part0"].zero_()
        assert (weights.fetch()[0]["part0"] == value).all()
    weights.close()
    weights.close()


def test_waiting_for_weights_ends(monkeypatch):
    monkeypatch.setattr(shared, "WAIT", 0.05)
    weights = SharedWeights(weights_layout(state(0)))
    with pytest.raises(TimeoutError):
        weights.fetch()
    weights.close()


READER = """
import sys, time
from tests_state import state
from pronghorn.transport.shared import SharedWeights, weights_layout
weights = SharedWeights(weights_layout(state(0)), int(sys.argv[1]))
seen, until = set(), time.monotonic() + 3
while time.monotonic() < until:
    found, version = weights.fetch()
    values = {float(tensor.flatten()[0]) for tensor in found.values()} | {float(t.max()) for t in found.values()}
    values |= {float(t.min()) for t in found.values()}
    assert values == {float(version)}, values
    seen.add(version)
print(len(seen))
"""


def test_no_reader_sees_a_mixture_of_a_writer_in_a_tight_loop(tmp_path):
    import inspect

    (tmp_path / "tests_state.py").write_text("import torch\n" + inspect.getsource(state))
    weights = SharedWeights(weights_layout(state(0)))
    weights.publish(state(0), 0)
    environment = {"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}", "OMP_NUM_THREADS": "1"}
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(weights.fd)],
        pass_fds=[weights.fd],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    version, until = 0, time.monotonic() + 60
    while reader.poll() is None and time.monotonic() < until:
        version += 1
        weights.publish(state(version), version)
    output, _ = reader.communicate(timeout=5)
    assert reader.returncode == 0 and int(output) > 20
    weights.close()


def test_a_half_written_buffer_is_not_handed_out(monkeypatch):
    monkeypatch.setattr(shared, "WAIT", 0.05)
    weights = SharedWeights(weights_layout(state(0)))
    weights.publish(state(1), 1)
    weights._marks[weights._head[0], shared.BEGUN] += shared.BUFFERS  # as if the writer were in it again
    with pytest.raises(TimeoutError, match="no whole weights"):
        weights.fetch()
    assert np.array_equal(weights._marks[:, shared.DONE] > 0, [False, True, False, False])
    weights.close()
