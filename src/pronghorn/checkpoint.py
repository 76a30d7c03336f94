"""Checkpoints that are complete or absent: written beside, synced, renamed, and checked by SHA-256 when read.

A checkpoint is a directory ``checkpoints/step_N`` with the files in ``FILES`` and ``manifest.json``, which holds the
format, the step, and size and checksum of each file. Data are safetensors and JSON; nothing is ever unpickled.
Entries of ``checkpoints`` whose names begin with ``.saving_`` or ``.discarded_`` are what an interrupted save left; the
next one removes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from pronghorn import tree
from pronghorn.types import EnvSpec, UserError

FORMAT = 1
"""Version of the layout of a checkpoint. Every version keeps ``manifest.json`` with ``format``, ``pronghorn`` (the
version that wrote it) and ``sha256``."""

TENSORS, ARRAYS, STATE = FILES = ("tensors.safetensors", "arrays.safetensors", "state.json")
MANIFEST = "manifest.json"
SAVING, DISCARDED = ".saving_", ".discarded_"
"""Begin the names of what an interrupted save leaves."""

Array = Tensor | NDArray[Any]


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint held: tensors on the CPU, arrays as arrays. ``skipped`` names newer, damaged ones."""

    step: int
    tensors: dict[str, Array]
    state: dict[str, Any]
    path: Path
    skipped: list[str] = field(default_factory=list)

    def check_spec(self, spec: EnvSpec) -> None:
        """Raises UserError where it was made for other spaces than ``spec``, or ``state`` does not say for which."""
        saved, now = self.state["spec"], spec.describe()
        for leaf in sorted(saved.keys() | now.keys()):
            if saved.get(leaf) != now.get(leaf):
                raise UserError(
                    f"the checkpoint was made for another env: {leaf} was {saved.get(leaf, 'absent')}, is "
                    f"{now.get(leaf, 'absent')}"
                )

    def check_tensors(self, wanted: dict[str, Tensor], below: str = "") -> None:
        """Raises UserError where it lacks a tensor of those names and shapes, ``below`` a prefix of their names."""
        for name, tensor in wanted.items():
            path = f"{below}/{name}" if below else name
            found = self.tensors.get(path)
            shapes = "absent" if found is None else list(found.shape), list(tensor.shape)
            if shapes[0] != shapes[1]:
                raise UserError(
                    f"checkpoint {self.path} was made for another network or optimiser than config.json has: {path} is "
                    f"{shapes[0]}, has to be {shapes[1]}"
                )

    def agent(self, wanted: dict[str, Tensor]) -> tuple[dict[str, Any], int]:
        """(state dict, version of the weights) of its agent. Raises UserError where it is not one of ``wanted``'s names
        and shapes."""
        self.check_tensors(wanted, "agent")
        return tree.below(self.tensors, "agent"), self.state["run"]["learner"]["version"]


class _Damaged(Exception):
    """A checkpoint that cannot be used; the message says what is wrong with it."""


_UNREADABLE = ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError
"""What reading files raises that are not what they should be."""


def save(run: Path, step: int, tensors: dict[str, Array], state: dict[str, Any], keep: int) -> Path:
    """Writes the checkpoint of ``step`` and keeps the newest ``keep`` (at least this one).

    ``state`` holds JSON values with string keys. A checkpoint of the same step is replaced; the old one can be loaded
    until the new one can. Checkpoints of later steps are removed: they were damaged, or the run has gone back behind
    them. One process saves at a time.

    Raises:
        OSError: the disk is full or not writable; the earlier checkpoints are as they were.
        TypeError: ``state`` is not JSON.
    """
    directory = run / "checkpoints"
    directory.mkdir(parents=True, exist_ok=True)
    _clean(directory)
    path = directory / f"step_{step:012d}"
    fresh = directory / f"{SAVING}{path.name}"
    contents = {
        TENSORS: safetensors.torch.save({name: _owned(x) for name, x in tensors.items() if isinstance(x, Tensor)}),
        ARRAYS: safetensors.numpy.save({name: _dense(x) for name, x in tensors.items() if not isinstance(x, Tensor)}),
        STATE: json.dumps(state).encode(),
    }
    manifest = {
        "format": FORMAT,
        "pronghorn": package_version("pronghorn"),
        "step": step,
        "files": {name: {"bytes": len(data), "sha256": _digest(data)} for name, data in contents.items()},
    }
    contents[MANIFEST] = json.dumps(manifest | {"sha256": _manifest_digest(manifest)}, indent=1).encode()
    try:
        fresh.mkdir()
        for name, data in contents.items():
            _write(fresh / name, data)
        _sync(fresh)
        if path.exists():
            path.rename(_replaced(path))
        fresh.rename(path)
        _sync(directory)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    others = [other for other in _checkpoints(directory) if other != path]
    earlier = [other for other in others if _step(other) < step]
    for other in others:
        if other not in earlier[: keep - 1]:
            _discard(other)
    return path


def exists(run: Path) -> bool:
    """Whether a checkpoint was ever saved, good or damaged: a run may have been killed before its first."""
    return bool(_checkpoints(run / "checkpoints"))


def load(path: Path) -> Loaded:
    """The checkpoint in directory ``path``. Raises UserError, saying what is wrong, if it cannot be used."""
    try:
        return _read(path)
    except _Damaged as error:
        raise UserError(f"checkpoint {path} cannot be used: {error}") from error


def load_latest(run: Path) -> Loaded:
    """The newest complete checkpoint of ``run`` whose checksums are right; ``skipped`` names newer, damaged ones.

    Another process may save meanwhile.

    Raises:
        UserError: there is none, or a newer version of Pronghorn wrote it.
    """
    skipped: list[str] = []
    for path in _checkpoints(run / "checkpoints"):
        try:
            loaded = _read(path)
        except _Damaged as error:
            if not path.exists():  # removed since it was listed, so there is a newer one now
                return load_latest(run)
            skipped.append(f"{path.name}: {error}")
        else:
            return Loaded(loaded.step, loaded.tensors, loaded.state, loaded.path, skipped)
    if skipped:
        raise UserError(f"no checkpoint in {run} can be used: {'; '.join(skipped)}")
    raise UserError(f"{run} holds no checkpoint to continue from")


def _read(path: Path) -> Loaded:
    """Raises _Damaged, or UserError where the format is newer than this version of Pronghorn."""
    try:
        manifest = json.loads(_file(path / MANIFEST))
        stated = manifest.pop("sha256")
    except _UNREADABLE as error:
        raise _Damaged(f"{MANIFEST} is not readable") from error
    if stated != _manifest_digest(manifest):
        raise _Damaged(f"{MANIFEST} does not match its checksum")
    try:
        if manifest["format"] > FORMAT:
            raise UserError(
                f"checkpoint {path} has format {manifest['format']}, and this version of Pronghorn, "
                f"{package_version('pronghorn')}, reads up to {FORMAT}; use version {manifest['pronghorn']}, which "
                "wrote it, or a later one"
            )
        contents = {name: _checked(path / name, manifest["files"][name]) for name in FILES}
        return Loaded(
            step=manifest["step"],
            tensors=safetensors.torch.load(contents[TENSORS]) | safetensors.numpy.load(contents[ARRAYS]),
            state=json.loads(contents[STATE]),
            path=path,
        )
    except _UNREADABLE as error:  # with the right checksums, so not one of ours
        raise _Damaged(f"its files are not what Pronghorn writes ({type(error).__name__})") from error


def _checked(path: Path, expected: dict[str, Any]) -> bytes:
    data = _file(path, expected["bytes"])
    if _digest(data) != expected["sha256"]:
        raise _Damaged(f"{path.name} does not match its checksum")
    return data


def _file(path: Path, size: int | None = None) -> bytes:
    """Its contents. Only a file is opened (a pipe or a device could go on for ever), and only if it has ``size``."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _Damaged(f"{path.name} is not a file")
        if size is not None and found.st_size != size:
            raise _Damaged(f"{path.name} has {found.st_size} bytes instead of {size}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise _Damaged(f"{path.name} is missing") from error
    except OSError as error:
        raise _Damaged(f"{path.name} cannot be read ({error.strerror})") from error


def _checkpoints(directory: Path) -> list[Path]:
    """Newest first. The replaced one of a step comes after the new one."""
    found = [path for path in directory.glob("step_*") if re.fullmatch(r"step_\d+(\.replaced)?", path.name)]
    return sorted(found, key=lambda path: (-_step(path), path.name))


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def _replaced(path: Path) -> Path:
    return path.with_name(f"{path.name}.replaced")


def _clean(directory: Path) -> None:
    """Removes what interrupted saves left; one that stopped while replacing a checkpoint is undone."""
    for prefix in (SAVING, DISCARDED):
        for path in directory.glob(f"{prefix}*"):
            _remove(path)
    for path in directory.glob("step_*.replaced"):
        original = path.with_suffix("")
        if original.exists():
            _discard(path)
        else:
            path.rename(original)


def _discard(path: Path) -> None:
    """Removes a checkpoint; whoever looks sees all of it or nothing."""
    hidden = path.with_name(f"{DISCARDED}{path.name}")
    path.rename(hidden)
    _remove(hidden)


def _remove(path: Path) -> None:
    """A directory; or what somebody else has put where one should be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Makes the names in ``directory`` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _manifest_digest(manifest: dict[str, Any]) -> str:
    return _digest(json.dumps(manifest, sort_keys=True).encode())


def _owned(tensor: Tensor) -> Tensor:
    """A dense copy: safetensors refuses tensors that share memory or are not contiguous."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _dense(array: NDArray[Any]) -> NDArray[Any]:
    """``array`` in C order: safetensors writes the memory as it lies. Keeps 0-d arrays 0-d."""
    return np.asarray(array, order="C")
