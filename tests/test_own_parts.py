"""A user's own parts: the examples of docs/own_parts.md, in every process that needs them, and what is refused."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rig

import pronghorn
from pronghorn import build, cli, config
from pronghorn.envs import own
from pronghorn.envs.gymnasium import env_factory, make, register_envs
from pronghorn.seeding import Domain
from pronghorn.types import UserError
from pronghorn.vec.layout import make_vec

DOCUMENT = Path(__file__).parents[1] / "docs" / "own_parts.md"
TINY = {"num_envs": 4, "unroll_length": 8, "workers": 1, "threads": 1, "compile": False, "quiet": True}


@pytest.fixture(autouse=True)
def as_before():
    with rig.parts_forgotten():
        yield


@pytest.fixture
def examples(tmp_path, monkeypatch):
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S):
        (tmp_path / re.match(r"# (\w+\.py)\n", block)[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_family_in_worker_processes(examples):
    factory = env_factory("maze/3", {"slippery": False}, ["./mazes.py"])
    vec = make_vec([factory] * 2, "pool", 2, 0, Domain.TRAINING_ENV)
    try:
        vec.reset(np.zeros(2, np.int64))
        rewards = []
        for _ in range(4):
            step = vec.recv()
            rewards.append(step.reward.tolist())
            vec.send(np.ones(2, np.int64), step.envs)
    finally:
        vec.close()
    assert rewards == [[0, 0], [0, 0], [0, 0], [1, 1]]
    assert "mazes" not in sys.modules  # it was read where the envs live
    with pytest.raises(
        UserError, match="maze/3 cannot be made with these --env-arg: unexpected keyword argument 'wet'"
    ):
        make("maze/3", {"wet": True}, ["./mazes.py"])


def test_workers_do_not_load_torch_for_other_parts(examples):
    code = "import sys; from pronghorn.envs.gymnasium import make; {}; assert ('torch' in sys.modules) is {}"
    for imports, torch_too in ((["./mazes.py", "./wide.py"], False), (["./wide.py", "./mazes.py"], True)):
        made = f"make('maze/2', {{}}, {imports}).reset(seed=0)"
        subprocess.run([sys.executable, "-c", code.format(made, torch_too)], check=True, timeout=60)


def test_a_family_and_a_network_through_a_whole_run(examples):
    imports = ["./mazes.py", "./wide.py"]
    result = pronghorn.train(
        "maze/2", imports=imports, image_encoder="wide", layers=(), normalise_images=True, steps=64, run="run", **TINY
    )
    made = json.loads((examples / "run" / "config.json").read_text())["config"]
    assert (made["imports"], made["network"]["image_encoder"]) == (imports, "wide")
    code = (
        "import pronghorn, numpy as np; policy = pronghorn.load('run'); print(policy.act(np.zeros((20, 24), np.uint8)))"
    )
    fresh = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert int(fresh.stdout) == pronghorn.load(result.run).act(np.zeros((20, 24), np.uint8))
    network = pronghorn.load(result.run).inference.agent.encoder.images[0]
    assert type(network).__name__ == "Wide" and network.normaliser is not None


def test_an_algorithm_with_actor_processes(examples):
    arguments = (
        "CartPole-v1 --import ./optimist.py --algorithm optimist --regret -0.25 --runner async --actors 1 --steps 64"
    )
    arguments += " --num-envs 4 --unroll-length 8 --threads 1 --compile false --evaluation-episodes 1 --run run --quiet"
    chosen, _ = cli.train_config(arguments.split())
    assert (chosen.imports, chosen.algorithm, chosen.loss.regret) == (("./optimist.py",), "optimist", -0.25)
    assert type(chosen.loss) is config.LOSSES["optimist"]
    assert cli.train(arguments.split()) == 0
    made = json.loads((examples / "run" / "config.json").read_text())["config"]
    assert made["loss"]["regret"] == -0.25
    del config.LOSSES["optimist"], build.ALGORITHMS["optimist"], sys.modules["optimist"]
    assert pronghorn.load("run").config.loss.regret == -0.25  # config.json says where it comes from


def test_the_commands_of_the_document(examples):
    commands = re.findall(r"pronghorn train (\S+) (--[^`\n]+)", DOCUMENT.read_text())
    chosen = [cli.train_config([env, *rest.split()])[0] for env, rest in commands]
    assert [(made.algorithm, made.network.image_encoder) for made in chosen] == [
        ("ppo", "wide"),
        ("optimist", "nature"),
    ]


def test_an_own_algorithm_decides_what_is_learnt(examples):
    pronghorn.train(
        "CartPole-v1", imports=["./optimist.py"], algorithm="optimist", regret=5.0, steps=32, run="r", **TINY
    )
    found = build.ALGORITHMS["optimist"]
    made = found(pronghorn.load("r").config, pronghorn.load("r").inference.agent)
    assert type(made).__name__ == "Optimist" and made.config.regret == 5.0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.py", None, "--import missing.py: there is no file missing.py"),
        ("./broken_part.py", "def f(:\n", "--import ./broken_part.py: .*broken_part.py, line 1: invalid syntax"),
        ("needy_part.py", "import surely_not_there\n", "cannot import needy_part: No module named 'surely_not_there'"),
        ("json.py", "", "--import json.py: another module is named 'json'; rename the file"),
        ("no_such_package", None, "--import no_such_package: cannot import no_such_package"),
    ],
)
def test_files_that_cannot_be_read(name, text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        own.read_part(name)
    assert "\n" not in str(caught.value)


def test_a_file_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counts.py").write_text("open('times', 'a').write('x')\n")
    own.read_parts(["./counts.py", "counts.py"])
    assert (tmp_path / "times").read_text() == "x"


@pytest.mark.parametrize("prefix", ["", "ALE/", "ALE/Mine", "A", "Vizdoom", "envpool/", "mine:"])
def test_families_that_cannot_be_registered(prefix):
    with pytest.raises(UserError, match="envs cannot be registered as"):
        register_envs(prefix, object)


def test_other_parts_that_cannot_be_registered():
    with pytest.raises(UserError, match="an image encoder cannot be registered as 'deep'"):
        pronghorn.register_image_encoder("deep", object)
    for name in ("ppo", "my-own", ""):
        with pytest.raises(UserError, match=f"an algorithm cannot be registered as '{name}'"):
            pronghorn.register_algorithm(name, config.PPOConfig, object)
    with pytest.raises(UserError, match="the options of mine must be derived from PPOConfig or ImpalaConfig"):
        pronghorn.register_algorithm("mine", dict, object)
