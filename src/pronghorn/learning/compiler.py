"""Compiling an update to one graph: when it is possible, and how it leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TORCH_NEEDED = 2, 13


def obstacle() -> str:
    """Why nothing can be compiled on this machine, in one line; empty if it can."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < TORCH_NEEDED:
        return f"torch {torch.__version__} cannot trace gradients, {'.'.join(map(str, TORCH_NEEDED))} can"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++")):
        return "there is no C++ compiler (install g++ or clang++)"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else "Python.h is missing (install python3-dev)"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as one graph, compiled at its first call for the shapes it sees."""
    # Imported here, since they take a second that an eager run need not pay.
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # Lets the tracer follow autograd.grad, so that eager and compiled updates are one code path.
    dynamo.trace_autograd_ops = True
    # In this process: a pool of compiling processes would outlive the compilation, and a signal.
    inductor.compile_threads = 1
    # Torch puts its default here when first asked, so that does not count as the user's choice.
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()) == default_cache_dir():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_cache_directory())
    options: dict[str, Any] = {
        # Modules never change once built; looking whether they did costs 0.1 ms a call, a tenth of a gradient step.
        "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
        # The calls between kernels in C++ too: small gradient steps take a tenth less.
        "cpp_wrapper": True,
    }
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)


def _cache_directory() -> Path:
    """The user's own: torch unpickles what it finds in its cache, and its default place is readable by all."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "pronghorn" / "inductor"
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory
