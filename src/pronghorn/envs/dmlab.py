"""DeepMind Lab's levels (``dmlab/rooms_watermaze``), seen and played as in the paper of IMPALA."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from pronghorn.envs.text import text_leaf
from pronghorn.tree import Tree
from pronghorn.types import EnvSpec, Leaf, UserError

PREFIX = "dmlab/"

REMEDY = (
    "build DeepMind Lab's Python module from https://github.com/google-deepmind/lab (there is no package of it; its "
    "python/pip_package says how) and install the wheel"
)

ACTIONS = np.array(
    [
        # look left or right (pixels), look up or down, strafe, move, fire, jump, crouch
        [0, 0, 0, 1, 0, 0, 0],  # forward
        [0, 0, 0, -1, 0, 0, 0],  # backward
        [0, 0, -1, 0, 0, 0, 0],  # strafe left
        [0, 0, 1, 0, 0, 0, 0],  # strafe right
        [-20, 0, 0, 0, 0, 0, 0],  # look left
        [20, 0, 0, 0, 0, 0, 0],  # look right
        [-20, 0, 0, 1, 0, 0, 0],  # look left and forward
        [20, 0, 0, 1, 0, 0, 0],  # look right and forward
        [0, 0, 0, 0, 1, 0, 0],  # fire
    ],
    dtype=np.intc,
)

IMAGE, TEXT = "RGB_INTERLEAVED", "INSTR"

TEST_SETTINGS = {"allowHoldOutLevels": "true", "mixerSeed": str(0x600D5EED)}
"""With which the ``_test`` levels of DMLab-30 are played."""


class LabEnv:
    """A level: {"image": [height, width, 3] uint8, "instruction": text}, nine actions, raw rewards.

    The engine shows nothing once an episode has ended, so the final observation is the last one seen, and does not say
    whether the level was over or its clock ran out: every end is ``terminated``, as in the paper. ``info["frames"]``
    are those played in the episode.

    Args:
        env: dmlab/LEVEL: of DMLab-30, or a path of the engine's (``dmlab/tests/empty_room_test``).
        height, width: of the image, in pixels.
        frame_skip: frames an action is held for, 60 to a second.
        renderer: "software" or "hardware".
        level_cache: a directory in which compiled maps are kept for all envs, or an object with
            ``fetch(key, pk3_path) -> bool`` and ``write(key, pk3_path)``; compiling takes most of the time otherwise.
        settings: of the level, passed to the engine as text.

    Raises:
        UserError: the engine is missing.
    """

    def __init__(
        self,
        env: str,
        *,
        height: int = 72,
        width: int = 96,
        frame_skip: int = 4,
        renderer: str = "software",
        level_cache: Any = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        try:
            engine = importlib.import_module("deepmind_lab")
        except ImportError as error:
            raise UserError(f"{env} needs {error.name or 'deepmind_lab'}: {REMEDY}") from error
        level = env.removeprefix(PREFIX)
        given = {"width": width, "height": height, **(settings or {})}
        config = {name: str(value) for name, value in given.items()}
        if "/" not in level:
            config = (TEST_SETTINGS if level.endswith("_test") else {}) | config
            level = f"contributed/dmlab30/{level}"
        cache = LevelCache(level_cache) if isinstance(level_cache, str | os.PathLike) else level_cache
        self._lab = engine.Lab(level, [IMAGE, TEXT], config=config, renderer=renderer, level_cache=cache)
        self._frame_skip = frame_skip
        self.render_fps = 60 / frame_skip
        shape = (height, width, 3)
        image = Leaf("box", shape, np.dtype(np.uint8), low=np.zeros(shape), high=np.full(shape, 255.0))
        self.spec = EnvSpec(
            env,
            {"image": image, "instruction": text_leaf()},
            Leaf("discrete", (), np.dtype(np.int64), categories=(len(ACTIONS),)),
            action_repeat=frame_skip,
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Starts an episode."""
        self._lab.reset(seed=seed)
        self._seen = self._look()
        return self._seen, {"frames": 0}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """Holds the action, for fewer frames where the episode ends before."""
        reward = self._lab.step(ACTIONS[action], num_steps=self._frame_skip)
        over = not self._lab.is_running()
        frames = self._lab.num_steps()
        if not over:
            self._seen = self._look()
        return self._seen, float(reward), over, False, {"frames": frames}

    def render(self) -> Any:
        """What the agent sees."""
        return self._seen["image"]

    def close(self) -> None:
        """Frees the engine."""
        self._lab.close()

    def _look(self) -> Tree:
        seen = self._lab.observations()
        return {"image": seen[IMAGE], "instruction": seen[TEXT]}


class LevelCache:
    """Compiled maps as files in ``directory``, shared by all processes that are given the same one."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copies the map of ``key`` to ``pk3_path``; False where there is none."""
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self._directory / key, pk3_path)
            return True
        return False

    def write(self, key: str, pk3_path: str) -> None:
        """Keeps the map at ``pk3_path`` as that of ``key``."""
        target = self._directory / key
        if not target.is_file():
            fresh = target.with_name(f".{key}.{os.getpid()}")
            shutil.copyfile(pk3_path, fresh)
            fresh.replace(target)  # at once: others may be fetching it
