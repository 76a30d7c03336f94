"""Films of a trained agent's episodes: MP4 to watch, GIF to show. Nothing here needs a display."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pronghorn import api, checkpoint
from pronghorn.config import RunConfig
from pronghorn.envs.base import Env
from pronghorn.envs.gymnasium import make
from pronghorn.envs.own import line
from pronghorn.envs.stack import FrameStack
from pronghorn.processes.launch import enter, launch
from pronghorn.processes.supervise import Supervisor
from pronghorn.seeding import Domain
from pronghorn.tree import Tree
from pronghorn.types import UserError
from pronghorn.vec.base import BatchedEnv, EnvError
from pronghorn.vec.engines import native_rule
from pronghorn.vec.serial import SerialVec

HEIGHT = 400
"""To about which smaller pictures are enlarged, by a whole factor."""

GIF_SECONDS, GIF_FPS, GIF_BYTES = 10.0, 12.5, 5_000_000
GIF_WIDTHS = (320, 240, 160)
"""The widest with which a GIF is small enough is taken."""

GIF_SAMPLE = 8
"""Of so many pictures, or a few more, the colours of a GIF are chosen."""

MOST_SECONDS = 3600.0
"""When filming ends, whatever is still played: drawing without a GPU takes a tenth of a second a step and more."""

GL_SECONDS = 30.0
GL_PROBE = """
import importlib, sys, mujoco
context = importlib.import_module(f"mujoco.{sys.argv[1]}").GLContext(64, 64)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
"""


def record(
    run: Path, directory: Path | None = None, episodes: int = 1, sample: bool = False, seed: int | None = None
) -> list[Path]:
    """``film`` in a process of its own: a graphics library that was set up otherwise here, or that fails, ends the
    process it is used in.

    Raises:
        UserError: why there is no film, and the remedy.
    """
    child = launch("pronghorn.tools.video", threads=1)
    try:
        child.send((run, directory, episodes, sample, seed))
        if not child.control.poll(2 * MOST_SECONDS):
            raise UserError(f"filming has said nothing for {2 * MOST_SECONDS:g} s")
        paths, mistake = child.control.recv()
    except (EOFError, ConnectionResetError):
        raise UserError(f"the process that films {child.fate()}; is its graphics library sound?") from None
    finally:
        child.end(0.0)
    if mistake:
        raise UserError(mistake)
    found: list[Path] = paths
    return found


def main(arguments: Sequence[str]) -> None:
    """The life of a process that films."""
    control = enter(arguments)
    try:
        control.send((film(*control.recv()), ""))
    except UserError as error:
        control.send(([], str(error)))


def film(
    run: Path, directory: Path | None = None, episodes: int = 1, sample: bool = False, seed: int | None = None
) -> list[Path]:
    """Films the first ``episodes`` that evaluation's env 0 plays with the newest good checkpoint of ``run``, in an env
    of its own that is seen and acted in as in training.

    Returns the files written to ``directory`` (``run``/videos): an MP4 and a GIF of each episode.

    Raises:
        UserError: why there is no film, and the remedy.
    """
    config, loaded = api.load_config(run), checkpoint.load_latest(run)
    if seed is not None:
        config = dataclasses.replace(config, seed=seed)
    target = Path(run) / "videos" if directory is None else directory
    films: list[Film] = []

    def filmed() -> Env:
        camera = Camera(_drawable(config), target, episodes, films)
        return FrameStack(camera, config.frame_stack) if config.frame_stack > 1 else camera

    def stage() -> BatchedEnv:
        return SerialVec(
            [filmed],
            config.seed,
            Domain.EVALUATION_ENV,
            supervisor=Supervisor("fail"),  # one that was started again would have left half a film
        )

    try:
        played = api.play(config, loaded, stage, episodes, sample, MOST_SECONDS)
        ends = [f"return_{value:.6g}" for value in played.returns] + ["unfinished"] * played.capped
        names = [f"step_{loaded.step}-episode_{number}-{end}" for number, end in enumerate(ends, 1)]
        return [path for film, name in zip(films, names, strict=False) for path in film.finish(name)]
    except (EnvError, OSError) as error:
        raise UserError(line(error)) from error
    finally:
        for film in films:
            film.discard()


class Camera:
    """An ``Env`` around another, of which it films the first ``episodes`` episodes: their first observation and every
    step. ``films`` gets a film when its episode begins; the next reset ends it.

    Raises:
        UserError: ``env`` cannot be drawn.
    """

    def __init__(self, env: Env, directory: Path, episodes: int, films: list[Film]) -> None:
        self.spec = env.spec
        self._env, self._directory, self._episodes = env, directory, episodes
        self._films = films
        self._film: Film | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """See ``Env``."""
        answer = self._env.reset(seed=seed)
        self._film = None
        if len(self._films) < self._episodes:
            part = self._directory / f".episode_{len(self._films)}.{os.getpid()}.mp4"
            self._film = Film(part, getattr(self._env, "render_fps", 30.0))
            self._films.append(self._film)
            self._shoot(self._film)
        return answer

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """See ``Env``."""
        answer = self._env.step(action)
        if self._film is not None:
            self._shoot(self._film)
        return answer

    def close(self) -> None:
        """See ``Env``."""
        self._env.close()

    def _shoot(self, film: Film) -> None:
        draw: Any = getattr(self._env, "render", lambda: None)
        try:
            picture = draw()
        except (NotImplementedError, AttributeError):
            picture = None
        except Exception as error:
            raise UserError(f"{self.spec.name} cannot be drawn: {line(error)}") from error
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            raise UserError(
                f"{self.spec.name} cannot be drawn: its render() must return a picture, [height, width, 3] uint8, "
                "where it is made with render_mode='rgb_array'"
            )
        film.add(picture)


class Film:
    """One episode: goes to the file ``part`` while it is filmed, and gets its name when it is finished.

    Args:
        part: an MP4.
        fps: pictures a second.
    """

    def __init__(self, part: Path, fps: float) -> None:
        self._part, self._animation, self._fps = part, part.with_suffix(".gif"), fps
        self._encoder: Any = None
        self._shape: tuple[int, ...] = ()
        self._count = 0
        self._kept: list[NDArray[np.uint8]] = []
        self._every = max(1, round(fps / GIF_FPS))

    def add(self, picture: NDArray[np.uint8]) -> None:
        """The next picture, [height, width, 3]. Raises UserError if it cannot be written."""
        picture = _enlarged(picture)
        if self._encoder is None:
            self._encoder, self._shape = _encoder(self._part, picture, self._fps), picture.shape
        if picture.shape != self._shape:
            raise UserError(f"the pictures of a film must be of one size, not {self._shape} and {picture.shape}")
        self._encoder.send(picture)
        if self._count % self._every == 0 and self._count < GIF_SECONDS * self._fps:
            self._kept.append(_narrowed(picture, GIF_WIDTHS[0]))
        self._count += 1

    def finish(self, name: str) -> list[Path]:
        """Writes ``name``.mp4 and ``name``.gif beside the part; the two."""
        self._encoder.close()
        _write_gif(self._animation, self._kept, self._every / self._fps)
        movie, animation = (self._part.with_name(f"{name}{suffix}") for suffix in (".mp4", ".gif"))
        self._part.replace(movie)
        self._animation.replace(animation)
        return [movie, animation]

    def discard(self) -> None:
        """Removes what was not finished."""
        if self._encoder is not None:
            self._encoder.close()
        for part in (self._part, self._animation):
            part.unlink(missing_ok=True)


def working_gl() -> str | None:
    """The first of MuJoCo's ways to draw without a window that works, each tried in a process that may die of it."""
    for name in ("egl", "osmesa", "glfw"):
        try:
            tried = subprocess.run(
                [sys.executable, "-c", GL_PROBE, name],
                env={**os.environ, "MUJOCO_GL": name},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=GL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        if tried.returncode == 0:
            return name
    return None


def _drawable(config: RunConfig) -> Env:
    """One of the config's envs, made to be drawn where it takes such a request."""
    for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # pygame draws, but shows and plays nothing
        os.environ.setdefault(name, "dummy")
    engine = native_rule(config.env)
    if engine not in (None, "ale-py"):
        raise UserError(f"{config.env} cannot be drawn: its environments live in an engine ({engine}) without pictures")
    if config.env.startswith("dm_control/"):  # which asks when it is imported
        _choose_gl(config.env)
    try:
        env = make(config.env, {**config.env_args, "render_mode": "rgb_array"}, config.imports)
    except UserError:  # it does not know the word, and may be drawn nevertheless
        env = make(config.env, config.env_args, config.imports)
    simulator = getattr(env, "simulator", env)
    simulator = getattr(simulator, "unwrapped", simulator)
    if not _is_mujoco(simulator):
        return env
    _follow(simulator)
    try:
        _choose_gl(config.env)  # read when the first picture is drawn
    except UserError:
        env.close()
        raise
    return env


def _choose_gl(env: str) -> None:
    """Says in ``MUJOCO_GL`` how to draw without a window, unless somebody has. Raises UserError: there is no way."""
    if "MUJOCO_GL" in os.environ or sys.platform != "linux":
        return
    gl = working_gl()
    if gl is None:
        raise UserError(
            f"{env} cannot be drawn: MuJoCo finds no OpenGL; install libegl1 or libosmesa6 (apt install libegl1), or "
            "set MUJOCO_GL"
        )
    os.environ["MUJOCO_GL"] = gl


def _is_mujoco(simulator: Any) -> bool:
    """Whether it is one of Gymnasium's MuJoCo envs, or derived from them."""
    return any("mujoco" in f"{kind.__module__}.{kind.__qualname__}".lower() for kind in type(simulator).__mro__)


def _follow(simulator: Any) -> None:
    """Looks through the camera that the model has for following its body, where Gymnasium's own would see it leave and
    no other was asked for."""
    renderer = getattr(simulator, "mujoco_renderer", None)
    if renderer is not None and renderer.camera_id == -1 and "trackbodyid" not in (renderer.default_cam_config or {}):
        mujoco = importlib.import_module("mujoco")
        renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")  # -1: it has none


def _enlarged(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Small pictures by a whole factor; both sides even, as the codec wants them."""
    height, width = (size - size % 2 for size in picture.shape[:2])
    factor = max(1, round(HEIGHT / max(picture.shape[0], 1)))
    return np.ascontiguousarray(picture[:height, :width].repeat(factor, 0).repeat(factor, 1))


def _encoder(path: Path, picture: NDArray[np.uint8], fps: float) -> Any:
    """Takes pictures like this one with ``send``, and ends the file, whose directory is made, with ``close``."""
    try:
        ffmpeg = importlib.import_module("imageio_ffmpeg")
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = picture.shape[:2]
        encoder = ffmpeg.write_frames(str(path), (width, height), fps=fps, quality=7, macro_block_size=2)
        encoder.send(None)
    except ImportError as error:
        raise UserError("films need imageio-ffmpeg: pip install 'pronghorn[video]'") from error
    except RuntimeError as error:
        raise UserError(f"films need ffmpeg: {line(error)}") from error
    return encoder


def _write_gif(path: Path, pictures: list[NDArray[np.uint8]], seconds: float) -> None:
    """Each picture for so many seconds, all in the same colours; narrower where it would become too large."""
    from PIL import Image

    some = pictures[:: max(1, len(pictures) // GIF_SAMPLE)]
    colours = Image.fromarray(np.concatenate(some)).quantize(256)
    for width in GIF_WIDTHS:
        narrow = [Image.fromarray(_narrowed(picture, width)) for picture in pictures]
        first, *rest = [picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in narrow]
        first.save(path, save_all=True, append_images=rest, duration=round(1000 * seconds), loop=0)
        if path.stat().st_size <= GIF_BYTES:
            return


def _narrowed(picture: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """No wider than ``width``."""
    from PIL import Image

    scale = width / picture.shape[1]
    if scale >= 1:
        return picture
    return np.asarray(Image.fromarray(picture).resize((width, round(picture.shape[0] * scale)), Image.Resampling.BOX))


if __name__ == "__main__":
    main(sys.argv[1:])
