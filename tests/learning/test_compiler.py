"""When compiling is possible, and where its cache lies."""

import os
import stat

import pytest
import torch

from pronghorn.learning import compiler


def test_obstacles_are_named(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    assert "torch 2.9.1" in compiler.obstacle()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler" in compiler.obstacle()
    monkeypatch.undo()
    monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(compiler.sysconfig, "get_path", lambda name: "/nowhere")
    assert "Python.h is missing" in compiler.obstacle()


@pytest.mark.parametrize("given", [None, "/tmp/elsewhere"])
def test_the_cache_is_the_users_own(tmp_path, monkeypatch, given):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given or "")
    if given is None:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    compiler.compiled(torch.sin)
    if given is None:
        directory = tmp_path / "pronghorn" / "inductor"
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(directory)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    else:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == given
