"""Steps envs with random actions and no network, in the layout asked for. Counts only steps that an action caused."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import re
import time
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import work

BANK = 64
"""Batches of random actions, drawn before the clock starts and used over and over."""
WARM_UP = 50
"""Batches that are not timed."""
LOOK = 16
"""Batches between two looks at the clock."""

Batches: TypeAlias = Callable[[str, int], Generator[int, None, None]]
"""(env, number of envs) → steps in each batch."""


def pronghorn_layout(layout: str, workers: int = 1) -> Batches:
    """Pronghorn's serial, pool or native layout: steps in each batch."""

    def batches(env: str, num_envs: int) -> Generator[int, None, None]:
        import numpy as np

        from pronghorn import seeding, tree
        from pronghorn.envs.gymnasium import env_factory
        from pronghorn.vec.engines import make_native
        from pronghorn.vec.layout import make_vec, random_actions

        domain = seeding.Domain.PROBE_ENV
        if layout == "native":
            envs = make_native(env, {}, num_envs, 0, domain, threads=workers)
        else:
            envs = make_vec([env_factory(env, {})] * num_envs, layout, workers, 0, domain)
        random = np.random.default_rng(0)
        try:
            bank = [random_actions(envs.spec, (), num_envs, random) for _ in range(BANK)]
            envs.reset(np.zeros(num_envs, np.int64))
            for actions in itertools.cycle(bank):
                step = envs.recv()
                yield int(step.valid.sum())
                envs.send(tree.map(lambda array, rows=step.envs: array[rows], actions), step.envs)
        finally:
            envs.close()

    return batches


def single(env: str, num_envs: int) -> Generator[int, None, None]:
    """One env in a loop, as bare as can be."""
    import gymnasium

    one = gymnasium.make(env, disable_env_checker=True)
    one.action_space.seed(0)
    one.reset(seed=0)
    bank = [one.action_space.sample() for _ in range(BANK)]
    for action in itertools.cycle(bank):
        _, _, terminated, truncated, _ = one.step(action)
        if terminated or truncated:
            one.reset()
        yield 1


def bare_loops(workers: int) -> Batches:
    """As many processes as workers, each looping over its share of the envs and never waiting for anybody: no pool can
    be faster. The steps of all, about every tenth of a second."""

    def batches(env: str, num_envs: int) -> Generator[int, None, None]:
        context = multiprocessing.get_context("spawn")
        counts = [context.Value("q", 0, lock=False) for _ in range(workers)]
        shares = [num_envs // workers + (number < num_envs % workers) for number in range(workers)]
        loops = [
            context.Process(target=_loop, args=(env, share, count), daemon=True)
            for share, count in zip(shares, counts, strict=True)
        ]
        for loop in loops:
            loop.start()
        while not all(count.value for count in counts):
            time.sleep(0.1)
        before = sum(count.value for count in counts)
        try:
            while True:
                time.sleep(0.1 / LOOK)
                now = sum(count.value for count in counts)
                yield now - before
                before = now
        finally:
            for loop in loops:
                loop.kill()

    return batches


def _loop(env: str, num_envs: int, count: Any) -> None:
    import gymnasium

    envs = [gymnasium.make(env, disable_env_checker=True) for _ in range(num_envs)]
    for number, one in enumerate(envs):
        one.action_space.seed(number)
        one.reset(seed=number)
    banks = [[one.action_space.sample() for one in envs] for _ in range(BANK)]
    for actions in itertools.cycle(banks):
        for one, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = one.step(action)
            if terminated or truncated:
                one.reset()
        count.value += num_envs


def sb3_vector(kind: str) -> Batches:
    """stable-baselines3's DummyVecEnv or SubprocVecEnv: steps in each batch."""

    def batches(env: str, num_envs: int) -> Generator[int, None, None]:
        import gymnasium
        import numpy as np
        from stable_baselines3.common import vec_env

        def make() -> gymnasium.Env:
            return gymnasium.make(env, disable_env_checker=True)

        envs = getattr(vec_env, kind)([make] * num_envs)
        envs.action_space.seed(0)
        bank = [np.stack([envs.action_space.sample() for _ in range(num_envs)]) for _ in range(BANK)]
        envs.reset()
        try:
            for actions in itertools.cycle(bank):
                envs.step(actions)
                yield num_envs
        finally:
            envs.close()

    return batches


def bare_ale(threads: int) -> Batches:
    """ale-py's own vector env, played as Pronghorn plays it: steps in each batch."""

    def batches(env: str, num_envs: int) -> Generator[int, None, None]:
        import ale_py
        import numpy as np

        game = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", env.removeprefix("ALE/").partition("-")[0]).lower()
        envs = ale_py.AtariVectorEnv(
            game, num_envs, num_threads=threads, reward_clipping=False, use_fire_reset=False, noop_max=30
        )
        envs.reset(seed=np.arange(num_envs))
        random = np.random.default_rng(0)
        bank = [random.integers(0, envs.single_action_space.n, num_envs) for _ in range(BANK)]
        resetting = 0
        for actions in itertools.cycle(bank):
            _, _, terminated, truncated, _ = envs.step(actions)
            yield num_envs - resetting
            resetting = int((terminated | truncated).sum())

    return batches


def gymnasium_vector(mode: str) -> Batches:
    """gymnasium's SyncVectorEnv or AsyncVectorEnv (with its shared memory): steps in each batch."""

    def batches(env: str, num_envs: int) -> Generator[int, None, None]:
        import gymnasium

        envs = gymnasium.make_vec(env, num_envs, vectorization_mode=mode, disable_env_checker=True)
        envs.action_space.seed(0)
        bank = [envs.action_space.sample() for _ in range(BANK)]
        envs.reset(seed=0)
        resetting = 0
        try:
            for actions in itertools.cycle(bank):
                _, _, terminated, truncated, _ = envs.step(actions)
                yield num_envs - resetting
                resetting = int((terminated | truncated).sum())
        finally:
            envs.close()

    return batches


LAYOUTS: dict[str, Callable[[int], Batches]] = {
    "pronghorn-pool": lambda workers: pronghorn_layout("pool", workers),
    "pronghorn-serial": lambda workers: pronghorn_layout("serial"),
    "pronghorn-native": lambda workers: pronghorn_layout("native", workers),
    "single-env": lambda workers: single,
    "bare-loops": bare_loops,
    "gymnasium-sync": lambda workers: gymnasium_vector("sync"),
    "gymnasium-async": lambda workers: gymnasium_vector("async"),
    "sb3-dummy": lambda workers: sb3_vector("DummyVecEnv"),
    "sb3-subproc": lambda workers: sb3_vector("SubprocVecEnv"),
    "bare-ale": bare_ale,
}
"""By name; each takes the number of workers or threads."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    batches = LAYOUTS[options.layout](options.workers)(options.env, options.num_envs)
    for _ in range(WARM_UP):
        next(batches)
    steps, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < options.seconds:
        steps += sum(itertools.islice(batches, LOOK))
    batches.close()
    work.answer(steps, seconds)


if __name__ == "__main__":
    main()
