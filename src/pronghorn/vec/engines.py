"""Which envs have an engine, and the engine by name."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from pronghorn import seeding
from pronghorn.envs.gymnasium import construct, makes_vectors, own_target
from pronghorn.processes.launch import available_cores
from pronghorn.types import EnvSpec, UserError
from pronghorn.vec.ale import AleEngine
from pronghorn.vec.envpool import PREFIX, EnvPoolEngine
from pronghorn.vec.gymnasium_vector import VectorEngine
from pronghorn.vec.native import Engine, EngineFactory, NativeVec, Watch, unwatched


def native_rule(env: str) -> str | None:
    """The engine that ``env`` gets without being asked for: a rule, not a measurement, since its episodes differ.

    Raises:
        UserError: ``env`` names a class or function that cannot be imported.
    """
    if env.startswith("ALE/"):
        return "ale-py"
    if env.startswith(PREFIX):
        return "EnvPool"
    if ":" in env and makes_vectors(own_target(env)):
        return "gymnasium vector"
    return None


def has_native(env: str) -> bool:
    """Whether ``env`` has an engine, by rule or as a Gymnasium id with a ``vector_entry_point``."""
    return native_rule(env) is not None or (":" not in env and _has_vector_entry_point(env))


def make_native(
    env: str,
    env_args: dict[str, Any],
    num_envs: int,
    run_seed: int,
    domain: seeding.Domain,
    groups: int = 1,
    ready: int | None = None,
    first_index: int = 0,
    watch: Watch = unwatched,
    threads: int | None = None,
) -> NativeVec:
    """``num_envs`` of ``env`` on its engine, with ``threads`` threads per group (None: one per core).

    Raises:
        UserError: ``env`` has no engine, the engine cannot do what is asked, or see the engines.
    """
    name = native_rule(env) or ("gymnasium vector" if has_native(env) else None)
    if name is None:
        raise UserError(f"{env} has no native engine; use --layout serial or pool")
    if name == "gymnasium vector" and ready not in (None, num_envs):
        raise UserError(f"{env} answers with all its envs at once: it cannot hand over the first {ready} ready")
    make = _factory(name, env, env_args, threads or len(available_cores()))
    return NativeVec(make, num_envs, run_seed, domain, groups, ready, first_index, watch)


def native_spec(env: str, env_args: dict[str, Any], watch: Watch = unwatched) -> EnvSpec:
    """What one of ``env`` looks like, on its engine."""
    with contextlib.closing(make_native(env, env_args, 1, 0, seeding.Domain.PROBE_ENV, watch=watch)) as vec:
        return vec.spec


def _factory(name: str, env: str, env_args: dict[str, Any], threads: int) -> EngineFactory:
    if name == "ale-py":
        return lambda num_envs, batch: AleEngine(env, env_args, num_envs, batch, threads)
    if name == "EnvPool":
        return lambda num_envs, batch: EnvPoolEngine(env, env_args, num_envs, batch, threads)
    make = own_target(env) if ":" in env else functools.partial(_make_registered, env)

    def vector(num_envs: int, batch: int) -> Engine:
        return VectorEngine(env, lambda count: construct(env, make, {"num_envs": count, **env_args}), num_envs)

    return vector


def _make_registered(env: str, **arguments: Any) -> Any:
    import gymnasium

    return gymnasium.make_vec(env, vectorization_mode="vector_entry_point", **arguments)


def _has_vector_entry_point(env: str) -> bool:
    import gymnasium

    known = gymnasium.registry.get(env)
    return known is not None and known.vector_entry_point is not None
