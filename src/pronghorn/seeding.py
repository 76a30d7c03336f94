"""Every random number of a run comes from here: independent streams named by what they are for.

All streams are spread with ``SeedSequence`` over (run seed, domain, indices), so runs with seeds 0 and 1 share none,
an env keeps its stream whatever the number of workers, and no order of arrival can change a sample.
"""

from __future__ import annotations

import functools
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
"""Episodes whose seeds are drawn together."""


class Domain(IntEnum):
    """What a stream is for. The numbers are part of the checkpoint format: never reuse one."""

    TRAINING_ENV = 0
    EVALUATION_ENV = 1
    ACTION_NOISE = 2
    EVALUATION_NOISE = 3
    PARAMETERS = 4
    MINIBATCHES = 5
    PROBE_ENV = 6
    REPLAY = 7


def stream_seed(run_seed: int, domain: Domain, *indices: int) -> int:
    """A 31-bit seed for the stream (what every simulator accepts)."""
    sequence = np.random.SeedSequence(run_seed, spawn_key=(int(domain), *indices))
    return int(sequence.generate_state(1)[0] & 0x7FFFFFFF)


def episode_seed(run_seed: int, domain: Domain, env: int, episode: int) -> int:
    """A 31-bit seed for an episode. Drawn in blocks, so that short episodes do not pay for a stream each."""
    return int(_episode_seeds(run_seed, domain, env, episode // BLOCK)[episode % BLOCK])


@functools.lru_cache(4096)
def _episode_seeds(run_seed: int, domain: Domain, env: int, block: int) -> NDArray[np.int64]:
    return generator(run_seed, domain, env, block).integers(2**31, size=BLOCK)


def generator(run_seed: int, domain: Domain, *indices: int) -> np.random.Generator:
    """A NumPy generator for the stream."""
    sequence = np.random.SeedSequence(run_seed, spawn_key=(int(domain), *indices))
    return np.random.Generator(np.random.SFC64(sequence))
