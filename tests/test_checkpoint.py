import contextlib
import itertools
import multiprocessing
import os
import pickle
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pronghorn import checkpoint
from pronghorn.types import UserError


def save(run: Path, step: int, keep: int = 3) -> Path:
    return checkpoint.save(run, step, {"w": torch.full((4,), step), "n": np.array(step)}, {"step": step}, keep)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    tensors = {
        "float32": torch.tensor([[1.5, -0.0], [float("nan"), float("inf")]]),
        "bfloat16": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "shared": shared,
        "shared too": shared[2:],
        "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    arrays = {
        "random state": np.array([2**64 - 1, 0, 2**63], np.uint64),
        "bool": np.array([True, False]),
        "float64": np.array(0.1),
        "nothing": np.zeros((0, 2), np.int64),
        "reversed": np.arange(5)[::-1],
        "columns": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "numpy scalar": np.float64(2.5),
    }
    state = {"counter": 2**80, "name": "pong", "nested": {"a": [1, 2.5, None, True]}}
    path = checkpoint.save(tmp_path, 12, tensors | arrays, state, keep=1)

    for loaded in (checkpoint.load(path), checkpoint.load_latest(tmp_path)):
        assert (loaded.step, loaded.state, loaded.path, loaded.skipped) == (12, state, path, [])
        assert loaded.tensors.keys() == tensors.keys() | arrays.keys()
        for name, tensor in tensors.items():
            value = loaded.tensors[name]
            assert isinstance(value, torch.Tensor) and value.dtype == tensor.dtype, name
            torch.testing.assert_close(value, tensor.detach(), rtol=0, atol=0, equal_nan=True)
        for name, array in arrays.items():
            value = loaded.tensors[name]
            assert isinstance(value, np.ndarray) and value.dtype == array.dtype and value.shape == array.shape, name
            np.testing.assert_array_equal(value, array)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(
    hnp.arrays(
        st.sampled_from([np.uint64, np.bool_, np.int64, np.float64, np.float32, np.uint8]),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    )
)
def test_any_array_comes_back_bit_for_bit(tmp_path: Path, array: np.ndarray) -> None:
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, {"array": array}, {}, keep=1)).tensors["array"]
    assert (loaded.shape, loaded.dtype, loaded.tobytes()) == (array.shape, array.dtype, array.tobytes())


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 9_999, 1_000_000):
        path = save(tmp_path, step, keep=2)
        assert path == tmp_path / "checkpoints" / f"step_{step:012d}"
    assert names(tmp_path) == ["step_000000009999", "step_000001000000"]
    assert checkpoint.load_latest(tmp_path).step == 1_000_000


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    checkpoint.save(tmp_path, 2, {}, {"second": True}, keep=3)
    assert names(tmp_path) == ["step_000000000001", "step_000000000002"]
    assert checkpoint.load_latest(tmp_path).state == {"second": True}


def test_there_is_always_one_to_load_while_a_step_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks after every change of a name."""
    save(tmp_path, 2)
    seen = []

    def look(rename):
        def renamed(self: Path, target: Path) -> Path:
            result = rename(self, target)
            seen.append(checkpoint.load_latest(tmp_path).state)
            return result

        return renamed

    monkeypatch.setattr(Path, "rename", look(Path.rename))
    checkpoint.save(tmp_path, 2, {}, {"second": True}, keep=1)
    assert seen == [{"step": 2}, {"second": True}, {"second": True}]


def test_an_interrupted_replacement_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = save(tmp_path, 2)
    old.rename(old.with_name(old.name + ".replaced"))
    assert checkpoint.load_latest(tmp_path).step == 2
    save(tmp_path, 3)
    assert names(tmp_path) == ["step_000000000002", "step_000000000003"]


def test_what_an_interrupted_save_left_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    leftover = tmp_path / "checkpoints" / ".saving_step_000000000002"
    leftover.mkdir()
    (leftover / "state.json").write_text("{")
    assert checkpoint.load_latest(tmp_path).step == 1
    save(tmp_path, 3)
    assert names(tmp_path) == ["step_000000000001", "step_000000000003"]


def test_a_full_disk_leaves_the_earlier_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, keep=1)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 2, keep=1)
    assert names(tmp_path) == ["step_000000000001"]
    assert checkpoint.load_latest(tmp_path).skipped == []


def damage(path: Path, kind: str) -> None:
    tensors, state, manifest = path / checkpoint.TENSORS, path / checkpoint.STATE, path / checkpoint.MANIFEST
    if kind == "truncated":
        tensors.write_bytes(tensors.read_bytes()[:-1])
    elif kind == "emptied":
        state.write_bytes(b"")
    elif kind == "flipped":
        data = bytearray(tensors.read_bytes())
        data[-1] ^= 1
        tensors.write_bytes(data)
    elif kind == "no manifest":
        manifest.unlink()
    elif kind == "no file":
        state.unlink()
    elif kind == "manifest cut":
        manifest.write_bytes(manifest.read_bytes()[:-5])
    elif kind == "manifest not an object":
        manifest.write_text("[]")
    elif kind == "manifest changed":
        manifest.write_text(manifest.read_text().replace('"step": 3', '"step": 7'))


DAMAGE = {
    "truncated": r"tensors.safetensors has \d+ bytes instead of \d+",
    "emptied": "state.json has 0 bytes instead of 11",
    "flipped": "tensors.safetensors does not match its checksum",
    "no manifest": "manifest.json is missing",
    "no file": "state.json is missing",
    "manifest cut": "manifest.json is not readable",
    "manifest not an object": "manifest.json is not readable",
    "manifest changed": "manifest.json does not match its checksum",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_named_and_passed_over(tmp_path: Path, kind: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    newest = save(tmp_path, 3)
    damage(newest, kind)
    loaded = checkpoint.load_latest(tmp_path)
    assert (loaded.step, loaded.state, len(loaded.skipped)) == (2, {"step": 2}, 1)
    with pytest.raises(UserError, match=DAMAGE[kind]) as error:
        checkpoint.load(newest)
    assert loaded.skipped[0] == f"{newest.name}: {str(error.value).split(': ', 1)[1]}"

    save(tmp_path, 2, keep=2)  # the run goes on from step 1 or 2: the damaged one takes no place
    assert names(tmp_path) == ["step_000000000001", "step_000000000002"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(st.sampled_from([*checkpoint.FILES, checkpoint.MANIFEST]), st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, name: str, position: int, bit: int) -> None:
    path = save(tmp_path, 1)
    data = bytearray((path / name).read_bytes())
    data[position % len(data)] ^= 1 << bit
    (path / name).write_bytes(data)
    with pytest.raises(UserError, match="cannot be used"):
        checkpoint.load(path)


def test_no_usable_one_is_the_users_to_know(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no checkpoint"):
        checkpoint.load_latest(tmp_path)
    for step in (1, 2):
        damage(save(tmp_path, step), "flipped")
    with pytest.raises(UserError, match=r"step_000000000002: tensors.*step_000000000001: tensors") as error:
        checkpoint.load_latest(tmp_path)
    assert "\n" not in str(error.value)


def test_a_newer_format_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        save(tmp_path, 2)
    with pytest.raises(UserError, match=r"has format 2, .* Pronghorn, \S+, reads up to 1; use version"):
        checkpoint.load_latest(tmp_path)


def test_a_checkpoint_removed_while_reading_leads_to_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    listed = checkpoint._checkpoints

    def meanwhile(directory: Path) -> list[Path]:
        found = listed(directory)
        monkeypatch.setattr(checkpoint, "_checkpoints", listed)
        save(tmp_path, 2, keep=1)
        return found

    monkeypatch.setattr(checkpoint, "_checkpoints", meanwhile)
    loaded = checkpoint.load_latest(tmp_path)
    assert (loaded.step, loaded.skipped) == (2, [])


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("exploded",))


def test_a_pickle_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path, 1)
    for name in ("weights.pkl", "weights.pt", "state.pickle"):
        (path / name).write_bytes(pickle.dumps(Bomb()))
    opened: list[str] = []
    sys.addaudithook(lambda event, details: opened.append(str(details[0])) if event == "open" else None)
    assert checkpoint.load_latest(tmp_path).step == 1
    read = {Path(name).name for name in opened if name.startswith(str(path))}
    assert read == {*checkpoint.FILES, checkpoint.MANIFEST}

    (path / checkpoint.TENSORS).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError):
        checkpoint.load_latest(tmp_path)
    assert not (tmp_path / "exploded").exists()


def save_for_ever(run: Path, first: int, saved: Connection) -> None:
    for step in itertools.count(first):
        for _ in range(2):
            checkpoint.save(run, step, {"w": torch.full((20_000,), step)}, {"step": step}, keep=2)
            saved.send(step)


def test_killed_at_any_moment_there_is_one_to_load(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")  # a fresh interpreter would load torch anew each time
    newest = 0
    for microseconds in range(0, 10_000, 500):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=save_for_ever, args=(tmp_path, newest + 1, writer), daemon=True)
        process.start()
        writer.close()
        try:
            for _ in range(3):
                assert reader.poll(20)
                newest = reader.recv()
            process.join(microseconds / 1e6)
        finally:
            process.kill()
            process.join(20)
        with contextlib.suppress(EOFError):
            while True:
                newest = reader.recv()
        loaded = checkpoint.load_latest(tmp_path)
        assert loaded.step in (newest, newest + 1)
        assert loaded.skipped == []
        assert loaded.state == {"step": loaded.step}
        assert torch.equal(torch.as_tensor(loaded.tensors["w"]), torch.full((20_000,), loaded.step))
        newest = loaded.step
