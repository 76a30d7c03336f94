import dataclasses
import os
import resource
import sys

import pytest

from pronghorn.processes.launch import available_cores
from pronghorn.processes.preflight import SPARE_DESCRIPTORS, WORKER_BYTES, Machine, Needs, check, describe, size_of
from pronghorn.types import UserError

GB = 10**9
ROOMY = Machine(memory=100 * GB, descriptors=1000, descriptor_limit=1024, cores=8)
SMALL = Needs(num_envs=16, rollouts=24_000_000, own=50_000_000, growing=20_000_000)
POOL = dataclasses.replace(SMALL, shared=1_200_000, workers=2, processes=4, descriptors=22)


@pytest.mark.parametrize("needs", [SMALL, POOL])
def test_nothing_is_said_where_all_fits(needs):
    assert check(needs, ROOMY) == []
    exactly = Machine(needs.memory, needs.descriptors + SPARE_DESCRIPTORS, 1024, max(needs.workers, 1))
    assert check(needs, exactly) == []


def test_memory_is_the_sum_of_its_parts():
    assert SMALL.memory == 74_000_000
    assert POOL.memory == 75_200_000 + 4 * WORKER_BYTES


def test_description():
    assert describe(POOL) == (
        "memory: about 375 MB (1.2 MB shared, 24 MB of rollouts, 300 MB in 4 env workers, 50 MB more in this process); "
        "22 file descriptors"
    )
    assert "worker" not in describe(SMALL) and "shared" not in describe(SMALL)


@pytest.mark.parametrize(
    ("needs", "machine", "parts"),
    [
        (
            Needs(num_envs=1000, rollouts=30 * GB, own=50_000_000, growing=30 * GB),
            {"memory": 15 * GB},
            ["about 30 GB of memory", "30 GB of rollouts", "15 GB are available", "--num-envs 498 or", "--unroll-len"],
        ),
        (
            Needs(num_envs=1, rollouts=30 * GB, own=50_000_000, growing=30 * GB),
            {"memory": 15 * GB},
            ["30 GB of rollouts", "; use a shorter --unroll-length"],
        ),
        (
            dataclasses.replace(POOL, workers=400, processes=410),
            {"memory": 3 * GB + 75_200_000},
            ["31 GB in 410 env workers", "3.1 GB are available", "; use --workers 30 or fewer"],
        ),
        (
            dataclasses.replace(POOL, workers=400, processes=410),
            {"memory": GB // 10},
            ["100 MB are available", "; use --layout serial"],
        ),
        (
            Needs(num_envs=1, rollouts=1000, own=30 * GB, growing=1000),
            {"memory": 15 * GB},
            ["30 GB more in this process", "15 GB are available", "--layers"],
        ),
        (
            dataclasses.replace(POOL, workers=300, processes=310, descriptors=940),
            {"descriptors": 971},
            ["needs 972 file descriptors", "53 of 1,024 are in use", "`ulimit -n 1025`", "--workers"],
        ),
    ],
)
def test_refusals_are_one_line_with_numbers_and_the_option(needs, machine, parts):
    with pytest.raises(UserError) as refused:
        check(needs, dataclasses.replace(ROOMY, **machine))
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("fixed", [0, 5 * GB])
def test_as_many_envs_as_it_says_fit_and_no_more(fixed):
    """With ``fixed`` bytes of rollouts that fewer envs do not save."""

    def needs(num_envs):
        growing = 3_000_017 * num_envs
        return Needs(num_envs, rollouts=fixed + growing, own=50_000_000, growing=growing)

    machine = dataclasses.replace(ROOMY, memory=9 * GB)
    with pytest.raises(UserError) as refused:
        check(needs(123_456), machine)
    most = int(str(refused.value).split("--num-envs ")[1].split()[0])
    assert check(needs(most), machine) == []
    with pytest.raises(UserError):
        check(needs(most + 1), machine)


@pytest.mark.parametrize("evaluated", [1, 10, 500])
def test_as_many_workers_as_it_says_fit(evaluated):
    def needs(workers):
        return dataclasses.replace(POOL, workers=workers, processes=workers + min(workers, evaluated))

    machine = dataclasses.replace(ROOMY, memory=4 * GB, cores=1000)
    with pytest.raises(UserError) as refused:
        check(needs(1000), machine)
    most = int(str(refused.value).split("--workers ")[1].split()[0])
    assert check(needs(most), machine) == []


def test_more_workers_than_cores_are_a_warning():
    assert check(POOL, dataclasses.replace(ROOMY, cores=1)) == ["2 env workers share 1 core; --workers 1 may be faster"]
    assert check(POOL, dataclasses.replace(ROOMY, cores=2)) == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (9_960, "10 kB"), (999_600, "1.0 MB"), (3 * 10**24, "3,000,000 EB")],
)
def test_sizes(size, text):
    assert size_of(size) == text


def test_this_machine():
    machine = Machine.here()
    assert machine.cores == len(available_cores())
    assert machine.descriptor_limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 50_000_000 < machine.memory <= total
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    try:
        assert Machine.here().descriptors == machine.descriptors - 7
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_an_unlimited_number_of_descriptors(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert Machine.here().descriptors > sys.maxsize // 2


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def make_group(directory, names, limit, used, reclaimable):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / names[0]).write_text(f"{limit}\n")
    (directory / names[1]).write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 5\n{names[2]} {reclaimable}\n")


@pytest.mark.parametrize(
    ("own", "groups", "expected"),
    [
        ("0::/job/step", [], 8192),
        ("0::/job/step", [("job/step", V2, 5000, 2000, 500)], 3500),
        ("0::/job/step", [("job/step", V2, "max", 2000, 500)], 8192),
        ("0::/job/step", [("job", V2, 4000, 2000, 500), ("job/step", V2, 9000, 100, 0)], 2500),
        ("0::/outside/only", [("", V2, 5000, 2000, 0)], 3000),
        ("4:cpu,memory:/job", [("memory/job", V1, 5000, 4000, 100)], 1100),
        ("4:memory:/job", [("memory/job", V1, 5000, 6000, 100)], 0),
        ("4:memory:/job", [("memory/job", V1, 2**63 - 4096, 6000, 100)], 8192),
        ("3:cpu:/job\n0::/", [("memory/job", V1, 5000, 4000, 100)], 8192),
    ],
)
def test_the_smallest_limit_around_this_process_counts(tmp_path, own, groups, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:  16 kB\nMemFree:  1 kB\nMemAvailable:   8 kB\nHugePages_Free: 0\n"
    )
    (tmp_path / "proc/self/cgroup").write_text(f"{own}\n")
    for path, *group in groups:
        make_group(tmp_path / "sys/fs/cgroup" / path, *group)
    assert Machine.here(tmp_path).memory == expected
