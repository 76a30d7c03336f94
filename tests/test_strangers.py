"""Runs that were damaged, or come from somebody else: nothing in them is executed, waited for, or believed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rig
import torch

from pronghorn import api, checkpoint
from pronghorn.types import UserError


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._canary),)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run with two checkpoints."""
    run = tmp_path_factory.mktemp("strangers") / "run"
    made = rig.config(run=str(run), steps=200, checkpoint_every=100, evaluation_episodes=1, keep_checkpoints=2)
    api.train(made, quiet=True)
    assert len(list((run / "checkpoints").iterdir())) == 2
    return run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of it, somewhere else."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def checkpoints(run: Path) -> list[Path]:
    """Oldest first."""
    return sorted((run / "checkpoints").iterdir())


def pickled(canary: Path) -> bytes:
    return pickle.dumps(Bomb(canary))


def zipped(canary: Path) -> bytes:
    path = canary.with_suffix(".pt")
    torch.save({"weights": Bomb(canary)}, path)
    return path.read_bytes()


def replace(path: Path, change: Callable[[bytes], bytes | None]) -> None:
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": lambda path: replace(path, lambda data: data[: len(data) // 2]),
    "flipped": lambda path: replace(path, lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]),
    "emptied": lambda path: replace(path, lambda data: b""),
    "longer": lambda path: replace(path, lambda data: data + b"}"),
    "missing": lambda path: replace(path, lambda data: None),
    "zeroed": lambda path: replace(path, lambda data: bytes(len(data))),
    "deep": lambda path: replace(path, lambda data: b"[" * 200_000),
    "a pipe": to_pipe,
    "a directory": to_directory,
    "endless": to_endless,
}


@pytest.mark.parametrize("name", [*checkpoint.FILES, checkpoint.MANIFEST])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named_and_the_checkpoint_before_it_used(kind, name, run):
    older, newest = checkpoints(run)
    DAMAGE[kind](newest / name)
    loaded = checkpoint.load_latest(run)
    assert loaded.path == older and len(loaded.skipped) == 1
    assert loaded.skipped[0].startswith(f"{newest.name}: {name} ")
    DAMAGE[kind](older / name)
    with pytest.raises(UserError, match=rf"no checkpoint in .* can be used: {newest.name}.*{older.name}") as error:
        checkpoint.load_latest(run)
    assert "\n" not in str(error.value)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(run):
    older, newest = checkpoints(run)
    step = checkpoint.load(older).step
    DAMAGE["flipped"](newest / checkpoint.TENSORS)
    assert api.resume(run, quiet=True).exit_code == 0
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    warning, resumed = [event for event in events if event["event"] in ("warning", "resume")]
    assert f"damaged checkpoint skipped: {newest.name}: {checkpoint.TENSORS}" in warning["message"]
    assert resumed["checkpoint"] == older.name and resumed["step"] == step
    assert checkpoint.load_latest(run).skipped == []


@pytest.mark.parametrize("name", [*checkpoint.FILES, checkpoint.MANIFEST])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("make", [pickled, zipped])
def test_a_pickle_is_never_opened(make, signed, name, run, tmp_path):
    canary = tmp_path / "canary"
    bomb = make(canary)
    for path in checkpoints(run):
        (path / name).write_bytes(bomb)
        if signed and name != checkpoint.MANIFEST:
            sign(path, name, bomb)
    for attempt in (lambda: api.resume(run, 900), lambda: api.evaluate(run), lambda: api.load(run)):
        with pytest.raises(UserError, match=r"no checkpoint in .* can be used"):
            attempt()
    assert not canary.exists()
    pickle.loads(bomb) if make is pickled else torch.load(canary.with_suffix(".pt"), weights_only=False)
    assert canary.exists()  # it would have


def test_a_pickle_beside_the_files_is_never_opened(run, tmp_path):
    canary = tmp_path / "canary"
    for directory in (run, run / "checkpoints", *checkpoints(run)):
        for name in ("weights.pkl", "weights.pt", "optimizer.pth", "state.pickle", "config.pkl", "data.pkl", ".cache"):
            (directory / name).write_bytes(pickled(canary))
        for name in ("__init__.py", "sitecustomize.py", "conftest.py", "torch.py"):
            (directory / name).write_text(f"import os; os.mkdir({str(canary)!r})")
    assert api.resume(run, 300, quiet=True).exit_code == 0
    assert api.evaluate(run, 1)["episodes"] == 1 and api.load(run).act(np.zeros(3)) in range(5)
    assert not canary.exists()


def sign(path: Path, name: str, data: bytes) -> None:
    """Makes the manifest say that this is what belongs there."""
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_manifest(path, manifest)


def write_manifest(path: Path, manifest: dict) -> None:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest | {"sha256": digest}))


@pytest.mark.parametrize("manifest", [{}, {"format": 1}, {"format": "1"}, {"format": 1, "step": 3, "files": []}])
def test_a_signed_manifest_that_says_nothing_is_no_checkpoint(manifest, run):
    older, newest = checkpoints(run)
    write_manifest(newest, manifest)
    loaded = checkpoint.load_latest(run)
    assert loaded.path == older and "not what Pronghorn writes" in loaded.skipped[0]


def test_a_newer_format_says_which_version_reads_it(run):
    newest = checkpoints(run)[-1]
    write_manifest(newest, {"format": 7, "pronghorn": "3.1.4"})
    words = "has format 7, and this version of Pronghorn, .*, reads up to 1; use version 3.1.4"
    for attempt in (lambda: api.resume(run, 900), lambda: api.evaluate(run)):
        with pytest.raises(UserError, match=words):
            attempt()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": [9]}, r"another network .*: agent/\S+ is \[8.*\], has to be \[9"),
        ({"layers": [8, 8]}, r"another network .*: agent/\S+ is \[5, 8\], has to be \[8, 8\]"),
        ({"core": "gru", "core_size": 4}, r"another network .*: agent/\S+ is "),
    ],
)
def test_another_network_than_the_checkpoint_has_is_named(change, words, run):
    edit_config(run, lambda config: config["network"].update(change))
    for attempt in (lambda: api.resume(run, 900, quiet=True), lambda: api.evaluate(run), lambda: api.load(run)):
        with pytest.raises(UserError, match=words) as error:
            attempt()
        assert "\n" not in str(error.value)
    assert checkpoint.load_latest(run).skipped == []


def edit_config(run: Path, change: Callable[[dict], object]) -> None:
    contents = json.loads((run / "config.json").read_text())
    change(contents["config"])
    (run / "config.json").write_text(json.dumps(contents))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        ("{}", "'config'"),
        ('{"config": 5}', "int"),
        ('{"config": null}', "NoneType"),
        ('{"config": []}', "list"),
        ('{"config": {"env": "X", "stepz": 5}}', "unknown option 'stepz' in RunConfig; did you mean steps?"),
        ('{"config": {"env": "X", "network": 3}}', "NetworkConfig must be an object with options, not 3"),
        ('{"config": {"env": "X", "vec": {"num_envs": -2}}}', "num-envs"),
        ('{"config": {"env": "X", "steps": "many"}}', "--steps must be int, not 'many'"),
        ("[" * 200_000, "recursion"),
        ("\ud800", "utf-8"),
    ],
)
def test_a_config_that_is_none_is_one_line(text, words, run):
    (run / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    for attempt in (lambda: api.resume(run), lambda: api.evaluate(run), lambda: api.load(run)):
        with pytest.raises(UserError, match=r"config\.json cannot be read: ") as error:
            attempt()
        assert words in str(error.value) and "\n" not in str(error.value)


def test_what_others_put_beside_checkpoints_is_in_nobodys_way(run):
    directory = run / "checkpoints"
    for name in (".DS_Store", ".nfs0001", "notes.txt"):
        (directory / name).touch()
    (directory / "step_000000009999").touch()
    (directory / ".saving_step_1").touch()
    (directory / ".gitkeep").mkdir()
    loaded = checkpoint.load_latest(run)
    assert loaded.path == checkpoints(run)[-2] and "manifest.json cannot be read" in loaded.skipped[0]
    assert api.resume(run, 300, quiet=True).exit_code == 0
    assert {path.name for path in directory.iterdir()} >= {".DS_Store", ".nfs0001", "notes.txt", ".gitkeep"}
    assert not (directory / ".saving_step_1").exists() and checkpoint.load_latest(run).skipped == []
