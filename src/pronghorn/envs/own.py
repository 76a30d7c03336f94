"""A user's own code: modules and files that hold envs, and files that register parts (``--import``)."""

from __future__ import annotations

import difflib
import heapq
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pronghorn.types import UserError


def read_parts(places: Iterable[str]) -> None:
    """``read_part`` for each."""
    for place in places:
        read_part(place)


def read_part(place: str) -> None:
    """Imports ``package.module`` or ``./file.py``, which registers parts; once in a process.

    A file becomes the module of its name, so that child processes find what it defines when they are sent it.

    Raises:
        UserError: it cannot be imported, or another module has the name of the file.
    """
    who = f"--import {place}"
    if not place.endswith(".py"):
        import_module(who, place)
        return
    path = _existing(who, Path(place))
    module = import_module(who, path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UserError(f"{who}: another module is named {path.stem!r}; rename the file")


def import_module(who: str, name: str) -> Any:
    """The module ``name``. Raises UserError, which begins with ``who`` wants it, where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{who}: cannot import {name}: {line(error)}") from error
    except SyntaxError as error:
        raise UserError(f"{who}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise UserError(
            f"{who}: {name!r} is not a module's name; write package.module:Class or ./file.py:Class"
        ) from error


def import_file(who: str, path: Path) -> Any:
    """The module in the file ``path``, executed anew. Raises UserError where it cannot be imported."""
    path = _existing(who, path)
    module_spec = importlib.util.spec_from_file_location(f"pronghorn_user_{path.stem}", path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses and the like look their module up
    try:
        module_spec.loader.exec_module(module)
    except ImportError as error:
        raise UserError(f"{who}: cannot import {path}: {line(error)}") from error
    except SyntaxError as error:
        raise UserError(f"{who}: {path}, line {error.lineno}: {error.msg}") from error
    return module


def _existing(who: str, path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{who}: there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # its neighbours are importable, as if it had been run as a script
    return path


def similar(name: str, known: Any) -> str:
    """ "; did you mean …?" with the known name that is most like ``name``, or nothing."""
    scored = ((difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio(), other) for other in known)
    best = heapq.nlargest(1, scored)  # of equally near versions the newest
    return f"; did you mean {best[0][1]}?" if best and best[0][0] > 0.6 else ""


def line(error: BaseException) -> str:
    """What it says, on one line."""
    return " ".join(str(error).split())
