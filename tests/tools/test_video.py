"""Films: as many pictures as steps and one more, at the env's pace, of what happens; and what is said without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rig
from PIL import Image

from pronghorn import api, cli
from pronghorn.__main__ import main
from pronghorn.config import override
from pronghorn.tools import video
from pronghorn.types import UserError

ffmpeg = pytest.importorskip("imageio_ffmpeg")

SHORT = {"num_envs": 2, "steps": 64, "evaluation_episodes": 1, "unroll_length": 16, "layers": (8,), "layout": "serial"}


def trained(tmp_path, env, **options):
    """A run of hardly any training."""
    import pronghorn

    run = tmp_path / "run"
    pronghorn.train(env, run=str(run), quiet=True, **SHORT | {"threads": 1, "compile": False} | options)
    return run


def pictures(path):
    """(frames [n, height, width, 3], pictures a second) of an MP4."""
    reader = ffmpeg.read_frames(str(path))
    about = next(reader)
    width, height = about["size"]
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    return np.stack(frames), about["fps"]


def show(frame, name):
    """Kept where a person wants to look."""
    if folder := os.environ.get("PRONGHORN_LOOK"):
        Image.fromarray(frame).save(Path(folder) / f"{name}.png")


def check(paths, frames, fps, size, moving=True):
    """An MP4 of so many pictures and a GIF of its beginning."""
    movie, animation = map(Path, paths)
    found, pace = pictures(movie)
    assert (len(found), pace) == (frames, pytest.approx(fps, abs=0.02))
    assert found.shape[1:3] == size
    assert found.std(axis=(1, 2, 3)).min() > 1  # something is to be seen in each
    if moving:
        assert np.abs(found[0].astype(int) - found[-1]).mean() > 0.1
    with Image.open(animation) as gif:
        assert gif.width <= video.GIF_WIDTHS[0] and gif.width / gif.height == pytest.approx(size[1] / size[0], 0.02)
    assert animation.stat().st_size <= video.GIF_BYTES
    assert movie.with_suffix("") == animation.with_suffix("")
    show(found[len(found) // 2], f"{movie.parents[1].parent.name}-{movie.stem}")


def test_cart_pole_is_filmed_as_it_is_evaluated(tmp_path, capfd):
    run = trained(tmp_path, "CartPole-v1")
    expected = api.evaluate(run, 1)
    assert main(["eval", str(run), "--episodes", "3", "--video", "--video-episodes", "2", "--json"]) == 0
    output = capfd.readouterr()
    found = json.loads(output.out)
    assert output.out.count("\n") == 1 and output.err == "" and found["episodes"] == 3
    movies = [path for path in found["videos"] if path.endswith(".mp4")]
    assert sorted(map(str, (run / "videos").iterdir())) == sorted(found["videos"])
    for number, movie in enumerate(movies, 1):
        name = re.fullmatch(rf"step_\d+-episode_{number}-return_(\d+)", Path(movie).stem)
        check([movie, movie.replace(".mp4", ".gif")], int(name[1]) + 1, 50, (400, 600))
    # With the same seeds: evaluation's first episode.
    assert f"return_{expected['return_mean']:g}" in movies[0]


def test_a_plain_line_for_each_file_and_a_directory_of_ones_own(tmp_path, capsys):
    run = trained(tmp_path, "CartPole-v1")
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "1", "--sample", "--seed", "4", "--video", str(tmp_path / "a/b")]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("return ")
    assert rest == [f"wrote {path}" for path in sorted((tmp_path / "a/b").iterdir(), reverse=True)] and len(rest) == 2


def test_atari_is_filmed_in_colour_whatever_plays_it_in_training(tmp_path):
    pytest.importorskip("ale_py")
    run = trained(tmp_path, "ALE/Pong-v5", algorithm="impala", layout="native", env_args={"max_frames": 240})
    paths = video.film(run)
    check(paths, 61, 15, (420, 320))
    frames, _ = pictures(paths[0])
    colours = frames[30].reshape(-1, 3).astype(int)
    assert (colours.max(1) - colours.min(1)).max() > 60  # not grey


def test_mujoco_is_drawn_without_a_window(tmp_path, monkeypatch):
    gl = video.working_gl()
    if gl is None:
        pytest.skip("no OpenGL")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    run = trained(tmp_path, "HalfCheetah-v5", env_args={"max_episode_steps": 12})
    check(video.record(run), 13, 20, (480, 480))


@pytest.mark.parametrize(
    ("env", "env_args", "follows"),
    [
        ("HalfCheetah-v5", {}, "track"),
        ("Hopper-v5", {}, None),  # followed by Gymnasium
        ("Pusher-v5", {}, None),  # stands where it stands
        ("HalfCheetah-v5", {"default_camera_config": {"trackbodyid": 1}}, None),
        ("Hopper-v5", {"camera_name": "track"}, "track"),
    ],
)
def test_what_runs_is_followed(monkeypatch, env, env_args, follows):
    import mujoco

    monkeypatch.setenv("MUJOCO_GL", "egl")  # nothing is drawn
    filmed = video._drawable(override(rig.config(), env=env, env_args=env_args))
    renderer = filmed.simulator.unwrapped.mujoco_renderer
    expected = -1
    if follows is not None:
        expected = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, follows)
        assert expected >= 0
    assert renderer.camera_id == expected
    filmed.close()


@pytest.mark.parametrize(
    ("module", "env", "fps", "size", "env_args"),
    [
        ("Box2D", "LunarLander-v3", 50, (400, 600), {"max_episode_steps": 30}),
        ("vizdoom", "VizdoomBasic-v1", 35 / 4, (480, 640), {}),
        ("dm_control", "dm_control/cheetah-run", 100, (360, 480), {"time_limit": 0.3}),
    ],
)
def test_other_families(tmp_path, module, env, fps, size, env_args):
    pytest.importorskip(module)
    if module == "dm_control" and video.working_gl() is None:
        pytest.skip("no OpenGL")
    run = trained(tmp_path, env, env_args=env_args)
    paths = video.record(run) if module == "dm_control" else video.film(run)
    frames = len(pictures(paths[0])[0])
    assert 2 <= frames <= 100
    check(paths, frames, fps, size)


OWN = """
import gymnasium, numpy as np

class Ramp(gymnasium.Env):
    '''An episode of six steps, whose picture gets lighter.'''
    metadata = {{"render_modes": ["rgb_array"], "render_fps": 8}}
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self{parameter}): self.render_mode = {mode}

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.float32([0]), {{}}

    def step(self, action):
        self.at += 1
        return np.float32([self.at / 6]), 0.5, self.at == 6, False, {{}}

    def render(self):
        {render}
"""
SHADES = "return np.full((41, 31, 3), 20 + 30 * self.at, np.uint8) if self.render_mode == 'rgb_array' else None"


def own_run(tmp_path, render=SHADES, parameter=", render_mode=None", mode="render_mode", **options):
    file = tmp_path / "ramp.py"
    file.write_text(OWN.format(parameter=parameter, mode=mode, render=render))
    return trained(tmp_path, f"{file}:Ramp", **options)


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_each_picture_is_of_one_step(tmp_path, frame_stack):
    run = own_run(tmp_path, frame_stack=frame_stack)
    movie, animation = video.film(run)
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert movie.name == f"step_{int(checkpoint.name.removeprefix('step_'))}-episode_1-return_3.mp4"
    frames, fps = pictures(movie)
    assert fps == 8 and frames.shape == (7, 400, 300, 3)  # enlarged tenfold, without the odd row and column
    assert np.abs(frames.mean(axis=(1, 2, 3)) - (20 + 30 * np.arange(7))).max() < 4
    with Image.open(animation) as gif:
        assert gif.n_frames == 7 and gif.info["duration"] in (120, 125, 130)


def test_an_env_that_does_not_know_the_word_may_be_drawn(tmp_path):
    run = own_run(tmp_path, parameter="", mode="'rgb_array'")
    assert len(pictures(video.film(run)[0])[0]) == 7


@pytest.mark.parametrize(
    ("render", "message"),
    [
        ("return None", r"cannot be drawn: its render\(\) must return a picture, \[height, width, 3\] uint8"),
        ("raise NotImplementedError", r"its render\(\) must return a picture"),
        ("return np.zeros((4, 4))", r"its render\(\) must return a picture"),
        ("raise OSError('no such\\nlibrary')", "cannot be drawn: no such library"),
        ("return np.zeros((40, 40 + 2 * self.at, 3), np.uint8)", r"must be of one size, not \(400, 400, 3\) and"),
    ],
)
def test_what_cannot_be_drawn_is_told(tmp_path, render, message):
    run = own_run(tmp_path, render)
    with pytest.raises(UserError, match=message):
        video.film(run)
    assert not list((run / "videos").glob("*"))


def test_what_cannot_be_drawn_is_a_warning(tmp_path, capsys):
    run = own_run(tmp_path, "raise OSError('no such\\nlibrary')")
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "2", "--video"]) == 0
    output = capsys.readouterr()
    assert output.out == "return 3.00 ± 0.00 over 2 episodes (quartiles 3.00 … 3.00 … 3.00), length 6.0\n"
    assert output.err.startswith("pronghorn: warning: no video: ") and output.err.count("\n") == 1
    assert not (run / "videos").exists()


def test_without_an_encoder_the_remedy_is_named(tmp_path, monkeypatch):
    run = own_run(tmp_path)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"films need imageio-ffmpeg: pip install 'pronghorn\[video\]'"):
        video.film(run)


def test_without_opengl_mujoco_is_not_even_tried(tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    tried = []

    def fails(command, **options):
        tried.append((command[-1], options["env"]["MUJOCO_GL"]))
        return subprocess.CompletedProcess(command, -11)

    run = trained(tmp_path, "HalfCheetah-v5", env_args={"max_episode_steps": 10})
    monkeypatch.setattr(video.subprocess, "run", fails)
    with pytest.raises(UserError, match=r"MuJoCo finds no OpenGL; install libegl1 or libosmesa6"):
        video.film(run)
    assert tried == [(name, name) for name in ("egl", "osmesa", "glfw")]
    assert "MUJOCO_GL" not in os.environ


def test_a_graphics_library_that_ends_its_process_is_a_warning(tmp_path, capsys):
    run = own_run(tmp_path, "import os; os.abort()")
    assert main(["eval", str(run), "--episodes", "1", "--video"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("return ")
    assert "no video: the process that films died with signal 6" in output.err


def test_a_probe_that_hangs_is_no_way_to_draw(monkeypatch):
    monkeypatch.setattr(video, "GL_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(video, "GL_SECONDS", 0.1)
    assert video.working_gl() is None
    monkeypatch.setattr(video, "GL_PROBE", "import os, sys; os.kill(os.getpid(), 11) if sys.argv[1] == 'egl' else 0")
    monkeypatch.setattr(video, "GL_SECONDS", 30.0)
    assert video.working_gl() == "osmesa"


def test_engines_without_pictures_say_so():
    with pytest.raises(UserError, match=r"envpool/Pong-v5 cannot be drawn: its environments live in an engine"):
        video._drawable(override(rig.config(), env="envpool/Pong-v5"))


def test_a_failing_env_leaves_no_half_film(tmp_path):
    run = own_run(tmp_path)
    file = tmp_path / "ramp.py"
    file.write_text(file.read_text().replace("self.at += 1", "self.at += 1 if self.at < 3 else None"))
    with pytest.raises(UserError, match="env 0"):
        video.film(run, episodes=2)
    assert list((run / "videos").iterdir()) == []


def test_an_episode_that_is_cut_is_called_unfinished(tmp_path, monkeypatch):
    run = own_run(tmp_path)
    monkeypatch.setattr("pronghorn.evaluation.MOST_STEPS", 2)
    file = tmp_path / "ramp.py"
    file.write_text(file.read_text().replace("self.at == 6", "False").replace("20 + 30 * self.at", "60"))
    movie, _ = video.film(run)
    assert movie.name.endswith("-episode_1-unfinished.mp4")


def test_a_large_gif_is_made_narrower(tmp_path, monkeypatch):
    noise = [np.random.default_rng(seed).integers(0, 256, (300, 320, 3), np.uint8) for seed in range(3)]
    widths = []
    for most in (10**9, 260_000, 1):
        monkeypatch.setattr(video, "GIF_BYTES", most)
        video._write_gif(tmp_path / "a.gif", noise, 0.1)
        with Image.open(tmp_path / "a.gif") as gif:
            widths.append(gif.width)
    assert widths == [320, 240, 160]


def test_a_gif_holds_the_first_seconds_in_few_pictures(tmp_path):
    film = video.Film(tmp_path / "part.mp4", fps=25)
    for number in range(300):
        film.add(np.tile(np.arange(201) < number % 200, (201, 1))[..., None].repeat(3, 2).astype(np.uint8) * 255)
    movie, animation = film.finish("x")
    assert len(pictures(movie)[0]) == 300
    with Image.open(animation) as gif:
        assert gif.n_frames == 125 and gif.info["duration"] == 80  # every other one of the first ten seconds
        gif.seek(10)
        white = np.asarray(gif.convert("L"))[100] > 128
        assert white.sum() == pytest.approx(20 * 320 / 200, abs=2)  # picture 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["R", "--video-episodes", "0"], "--video-episodes must be positive, not 0"),
        (["R", "--video", "a", "b"], "--video takes one directory, not a b; name RUN before it"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        cli.evaluate(arguments)
