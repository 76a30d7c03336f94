"""Gymnasium envs by id, and users' own classes by module or file. Gymnasium is imported when an env is made."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pronghorn.envs import own
from pronghorn.envs.ale import AtariEnv
from pronghorn.envs.base import Env, EnvFactory
from pronghorn.envs.dm_control import DmControlEnv
from pronghorn.envs.dmlab import LabEnv
from pronghorn.envs.spaces import leaf_of_space
from pronghorn.envs.stack import FrameStack
from pronghorn.envs.vizdoom import VizdoomEnv
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, UserError

WRONG_ARGUMENTS = re.compile(r"(unexpected keyword argument|missing \d+ required|takes no arguments).*")

EXTRAS = ("box2d", "mujoco")
"""Gymnasium's own families that need more packages, which our extras of the same name bring."""

FAMILIES: dict[str, Callable[..., Any]] = {
    "ALE/": lambda env, **env_args: AtariEnv(env, env_args),
    "dm_control/": DmControlEnv,
    "dmlab/": LabEnv,
    "Vizdoom": VizdoomEnv,
}
"""What makes an env whose name begins so, from the name and the arguments: an ``Env``, or what ``GymnasiumEnv`` takes.
"""


_BUILT_IN = (*FAMILIES, "envpool/")


def register_envs(prefix: str, make_one: Callable[..., Any]) -> None:
    """Adds a family of envs: a name that begins with ``prefix`` is made by ``make_one(name, **env_args)``, which
    returns what ``FAMILIES`` says. A prefix of one's own that was registered before is replaced.

    Raises:
        UserError: ``prefix`` would hide one of ours, or looks like ``module:Class``.
    """
    if not prefix or ":" in prefix or any(prefix.startswith(ours) or ours.startswith(prefix) for ours in _BUILT_IN):
        raise UserError(
            f"envs cannot be registered as {prefix!r}; use a prefix without a colon that is not one of ours "
            f"({', '.join(_BUILT_IN)})"
        )
    FAMILIES[prefix] = make_one


def env_factory(env: str, env_args: dict[str, Any], imports: Sequence[str] = (), frame_stack: int = 1) -> EnvFactory:
    """A picklable function that makes ``env`` anew; see ``make``. It shows ``frame_stack`` observations at once."""
    if frame_stack > 1:
        return functools.partial(_make_stacked, env, env_args, imports, frame_stack)
    return functools.partial(make, env, env_args, imports)


def _make_stacked(env: str, env_args: dict[str, Any], imports: Sequence[str], frames: int) -> Env:
    return FrameStack(make(env, env_args, imports), frames)


def make(env: str, env_args: dict[str, Any], imports: Sequence[str] = ()) -> Env:
    """Makes an env by Gymnasium id (``HalfCheetah-v5``), ``package.module:Class``, ``./file.py:Class``, or the name
    that one of ``FAMILIES`` has for it.

    A class has the interface of ``gymnasium.Env`` (inheriting or not), or that of our own ``Env``. Of the files that
    register a user's own parts, ``imports``, no more are read than it takes to know the env: those with networks need
    not be loaded where only envs live.

    Raises:
        UserError: there is no such env, it is not an env, or it does not take ``env_args``.
    """
    for place in imports:
        if _is_known(env):
            break
        own.read_part(place)
    target = _family(env) or (own_target(env) if ":" in env else None)
    if env.startswith("envpool/") or makes_vectors(target):
        raise UserError(f"{env} steps many environments at once; use --layout native")
    simulator = construct(env, target, env_args) if target is not None else _make_registered(env, env_args)
    if isinstance(getattr(simulator, "spec", None), EnvSpec):
        return simulator  # type: ignore[no-any-return]
    return GymnasiumEnv(env, simulator)


def _family(env: str) -> Callable[..., Any] | None:
    makers = (functools.partial(make_one, env) for prefix, make_one in FAMILIES.items() if env.startswith(prefix))
    return next(makers, None)


def _is_known(env: str) -> bool:
    if ":" in env or _family(env) is not None:
        return True
    import gymnasium

    return env in gymnasium.registry


def makes_vectors(target: Callable[..., Any] | None) -> bool:
    """Whether a user's class or function makes a ``gymnasium.vector.VectorEnv``: a subclass of it, or a function with a
    parameter ``num_envs``."""
    if inspect.isclass(target):
        from gymnasium.vector import VectorEnv

        return issubclass(target, VectorEnv)
    return inspect.isroutine(target) and "num_envs" in inspect.signature(target).parameters


class GymnasiumEnv:
    """Adapts ``simulator``, which has the interface of ``gymnasium.Env``. Answers are passed on as they are.

    Raises:
        UserError: a method or a space is missing, ``reset`` takes no seed, or a space is of an unsupported kind.
    """

    step: Callable[[Tree], tuple[Tree, float, bool, bool, dict[str, Any]]]

    def __init__(self, name: str, simulator: Any) -> None:
        missing = [
            part for part in ("observation_space", "action_space", "reset", "step") if not hasattr(simulator, part)
        ]
        if missing:
            raise UserError(f"{name} is not an environment: it has no {', no '.join(missing)}")
        if not _takes(simulator.reset, "seed"):
            raise UserError(
                f"{name}: reset takes no seed, as in Gym before 0.26; write reset(self, *, seed=None, options=None), "
                "which returns (observation, info)"
            )
        self.simulator = simulator
        self.step = simulator.step  # as it is, without a call in between: it is made millions of times
        self.spec = EnvSpec(
            name,
            leaf_of_space(simulator.observation_space, f"observation space of {name}"),
            leaf_of_space(simulator.action_space, f"action space of {name}"),
            max_episode_steps=getattr(getattr(simulator, "spec", None), "max_episode_steps", None),
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts an episode."""
        given = {} if options is None else {"options": options}
        answer: tuple[Tree, dict[str, Any]] = self.simulator.reset(seed=seed, **given)
        return answer

    @property
    def render_fps(self) -> float:
        """As the simulator's metadata have it, else 30."""
        return float((getattr(self.simulator, "metadata", None) or {}).get("render_fps") or 30)

    def render(self) -> Any:
        """What the simulator draws, if it can: an array where it was made with ``render_mode="rgb_array"``."""
        return self.simulator.render()

    def close(self) -> None:
        """Closes the simulator, if it can be closed."""
        if hasattr(self.simulator, "close"):
            self.simulator.close()


def _takes(function: Callable[..., Any], argument: str) -> bool:
    """Whether it has such a parameter; where it does not tell: yes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(parameter.name == argument or parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)


def _make_registered(env: str, env_args: dict[str, Any]) -> Any:
    import gymnasium

    known = gymnasium.registry.get(env)
    if known is not None and "mujoco" in str(known.entry_point):
        _hear_mujoco()
    try:
        # The checker's work is done by EpisodeEnv, at a fraction of its cost.
        return construct(env, functools.partial(gymnasium.make, env, disable_env_checker=True), env_args)
    except gymnasium.error.DependencyNotInstalled as error:
        family = str(known.entry_point if known is not None else "").removeprefix("gymnasium.envs.").partition(".")[0]
        remedy = f"pip install 'pronghorn[{family}]'" if family in EXTRAS else own.line(error)
        raise UserError(f"{env} needs packages that are not installed: {remedy}") from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise UserError(f"there is no environment {env!r}{own.similar(env, gymnasium.registry)}") from error
    except gymnasium.error.Error as error:
        raise UserError(f"{env} cannot be made: {own.line(error)}") from error


def _hear_mujoco() -> None:
    """MuJoCo's warnings become Python's, once each, instead of lines on stderr and in a log file wherever one is."""
    with contextlib.suppress(ImportError):
        mujoco = importlib.import_module("mujoco")
        mujoco.set_mju_user_warning(lambda text: warnings.warn(text, RuntimeWarning, stacklevel=2))
        # About the model files that Gymnasium ships, which a user cannot change.
        warnings.filterwarnings("ignore", message="compiler attribute .* is deprecated")


def own_target(env: str) -> Callable[..., Any]:
    """What ``package.module:Name`` or ``./file.py:Name`` names: a class or a function that makes envs.

    Raises:
        UserError: it cannot be imported, is not there, or cannot be called.
    """
    place, _, name = env.rpartition(":")
    module = own.import_file(env, Path(place)) if place.endswith(".py") else own.import_module(env, place)
    target = getattr(module, name, None)
    if target is None:
        with contextlib.suppress(ImportError):
            import gymnasium

            if name in gymnasium.registry:  # gymnasium's own notation: importing the module registers the id
                return lambda **env_args: _make_registered(name, env_args)
        raise UserError(f"{place} has no {name!r}{own.similar(name, vars(module))}")
    if not callable(target):
        raise UserError(f"{env} is not a class or function but {type(target).__name__}")
    return target  # type: ignore[no-any-return]


def construct(env: str, target: Callable[..., Any], env_args: dict[str, Any]) -> Any:
    """``target(**env_args)``. Raises UserError where it does not take these arguments."""
    try:
        return target(**env_args)
    except TypeError as error:
        found = WRONG_ARGUMENTS.search(own.line(error).partition(" was raised from")[0])
        if found is None:
            raise
        raise UserError(f"{env} cannot be made with these --env-arg: {found.group()}") from error
