"""A directory is held by one process at a time, and let go however that ends."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from pronghorn.processes.claim import claimed
from pronghorn.types import UserError


def test_one_at_a_time(tmp_path):
    run = tmp_path / "runs" / "one"
    with claimed(run):
        with pytest.raises(UserError, match=f"{run} is in use: another process"), claimed(run):
            pass
        (run / "config.json").touch()
    with claimed(run):
        assert [path.name for path in run.iterdir()] == ["config.json"]  # nothing is written to hold it


def test_a_killed_process_lets_go(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom pronghorn.processes.claim import claimed\n"
        "with claimed(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="in use"), claimed(tmp_path):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        with claimed(tmp_path):
            pass
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_only_an_empty_directory_of_its_own_is_removed(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    theirs.mkdir()
    for directory in (mine, theirs):
        with contextlib.suppress(ValueError), claimed(directory):
            assert directory.is_dir()
            raise ValueError("the env cannot be made")
    assert not mine.exists() and theirs.is_dir()


def test_what_cannot_be_a_directory_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="cannot be used: Not a directory"),
        claimed(tmp_path / "file" / "run"),
    ):
        pass
