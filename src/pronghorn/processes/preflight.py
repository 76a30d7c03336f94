"""What a run needs against what the machine has, in numbers, before anything is started or allocated."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pronghorn.processes.launch import available_cores
from pronghorn.types import UserError

WORKER_BYTES = 75_000_000
"""Of an env worker's own memory, an estimate: measured with NumPy, Gymnasium and MuJoCo."""

ACTOR_BYTES = 200_000_000
"""Of an actor process, an estimate: measured with torch, Gymnasium and MuJoCo."""

SPARE_DESCRIPTORS = 32
"""Left for what is open only for a moment: checkpoints, the start of a process, imports."""


@dataclass(frozen=True)
class Needs:
    """Of a run. ``workers`` are the processes that step at the same time, ``processes`` all env workers, ``actors``
    those of the asynchronous runner; ``rollouts`` are columns and batches, ``replay`` is what is kept to be learnt from
    again, ``own`` is an estimate of what else this process will take; ``growing`` is as much of the memory as is
    proportional to ``num_envs``. Memory is in bytes."""

    num_envs: int
    rollouts: int
    own: int
    growing: int
    replay: int = 0
    shared: int = 0
    workers: int = 0
    processes: int = 0
    actors: int = 0
    descriptors: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of memory by what they are for, in words; what is not needed is left out."""
        kinds = {
            "shared": self.shared,
            "of rollouts": self.rollouts,
            "of replay": self.replay,
            f"in {self.processes:,} env worker{'s' * (self.processes != 1)}": self.processes * WORKER_BYTES,
            f"in {self.actors:,} actor{'s' * (self.actors != 1)}": self.actors * ACTOR_BYTES,
            "more in this process": self.own,
        }
        return {kind: size for kind, size in kinds.items() if size}

    @property
    def memory(self) -> int:
        """Bytes in all."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Machine:
    """What is free now: bytes of ``memory``, file ``descriptors`` below ``descriptor_limit``; usable ``cores``."""

    memory: int
    descriptors: int
    descriptor_limit: int
    cores: int

    @classmethod
    def here(cls, root: Path = Path("/")) -> Machine:
        """This machine and what this process may use of it; ``proc`` and ``sys`` are looked for below ``root``."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = sys.maxsize if limit == resource.RLIM_INFINITY else limit
        used = len(list(Path("/dev/fd").iterdir())) - 1  # without the one that lists
        memory = min([_free_memory(root), *_free_in_cgroups(root)])
        return cls(max(0, memory), limit - used, limit, len(available_cores()))


def describe(needs: Needs) -> str:
    """One line for the start of a run."""
    parts = ", ".join(f"{size_of(size)} {kind}" for kind, size in needs.parts.items())
    return f"memory: about {size_of(needs.memory)} ({parts}); {needs.descriptors} file descriptors"


def check(needs: Needs, machine: Machine) -> list[str]:
    """A line for everything that will be slower than it need be.

    Raises:
        UserError: something does not fit: what is needed, what there is, what to change.
    """
    if needs.memory > machine.memory:
        parts = ", ".join(f"{size_of(size)} {kind}" for kind, size in needs.parts.items())
        raise UserError(
            f"the run needs about {size_of(needs.memory)} of memory ({parts}), of which {size_of(machine.memory)} are "
            f"available; {_way_out(needs, machine)}"
        )
    wanted = needs.descriptors + SPARE_DESCRIPTORS
    if wanted > machine.descriptors:
        used = machine.descriptor_limit - machine.descriptors
        raise UserError(
            f"the run needs {wanted:,} file descriptors ({SPARE_DESCRIPTORS} of them to spare), but {used:,} of "
            f"{machine.descriptor_limit:,} are in use; allow more with `ulimit -n {used + wanted}`"
            + (" or use fewer --workers" if needs.workers > 1 else "")
        )
    if needs.workers > machine.cores:
        return [f"{needs.workers} env workers share {_cores(machine)}; --workers {machine.cores} may be faster"]
    return []


def room_for_replay(needs: Needs, machine: Machine) -> int:
    """Bytes for it beside all else that is needed; a tenth is left, since not all of that is known exactly."""
    return max(0, machine.memory - (needs.memory - needs.replay)) * 9 // 10


def size_of(count: int) -> str:
    """Bytes for people: ``"1.2 MB"``."""
    size, units = float(count), iter(("B", "kB", "MB", "GB", "TB", "PB", "EB"))
    unit = next(units)
    while size >= 999.5 and (larger := next(units, "")):
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}" if size < 9.95 and unit != "B" else f"{size:,.0f} {unit}"


def _way_out(needs: Needs, machine: Machine) -> str:
    """What to change, by what takes the most."""
    of_workers, of_envs = needs.processes * WORKER_BYTES, needs.rollouts + needs.shared
    of_actors = needs.actors * ACTOR_BYTES
    left = machine.memory - needs.memory
    if needs.own > max(of_workers, of_envs, of_actors):
        return "free some, or use smaller --layers"
    if of_actors > max(of_workers, of_envs):
        fitting = (left + of_actors) // ACTOR_BYTES
        return f"use --actors {fitting} or fewer" if fitting > 0 else "use --runner sync"
    if of_workers > of_envs:
        fitting = (left + of_workers) // WORKER_BYTES
        # Evaluation has workers of its own: as many as now, or as many as training, whichever is less.
        most = max(fitting // 2, fitting - (needs.processes - needs.workers))
        return f"use --workers {most} or fewer" if most > 0 else "use --layout serial"
    most = needs.num_envs * (left + needs.growing) // needs.growing
    return (f"use --num-envs {most} or fewer, or " if most > 0 else "use ") + "a shorter --unroll-length"


def _cores(machine: Machine) -> str:
    return f"{machine.cores} core{'s' * (machine.cores != 1)}"


def _free_memory(root: Path) -> int:
    """Of the machine. Where there is no ``/proc``: all there is."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _free_in_cgroups(root: Path) -> Iterator[int]:
    """Bytes left below the limit of every memory cgroup around this process, of version 2 or 1."""
    own = root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.exists() else ():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount = root / "sys/fs/cgroup"
            files = "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            files = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        inner = mount / path.strip("/")
        for group in (inner, *(parent for parent in inner.parents if parent.is_relative_to(mount))):
            yield from _free_in(group, *files)


def _free_in(group: Path, limit: str, used: str, reclaimable: str) -> Iterator[int]:
    """Of one group, if it has a limit. Files in the cache count as used there, but give way."""
    try:
        most = (group / limit).read_text().strip()
        if most == "max":
            return
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield int(most) - int((group / used).read_text()) + int(statistics.get(reclaimable, 0))
    except FileNotFoundError:
        return  # the root has no limit; in a container the path may be that of the world outside
