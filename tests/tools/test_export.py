"""Exported policies are the networks they came from: step by step, with everything inside, and read without us."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import rig
import torch
from tools.exported import Shown

import pronghorn
from pronghorn import build, checkpoint, tree
from pronghorn.__main__ import main
from pronghorn.envs.base import to_env_actions
from pronghorn.networks.agent import Agent
from pronghorn.ops.running import Normaliser
from pronghorn.seeding import Domain, generator
from pronghorn.session import write_config
from pronghorn.tools import export
from pronghorn.types import UserError

EXAMPLE = Path(__file__).parents[2] / "examples" / "run_policy.py"

MEMORY = {"core_size": 6, "last_action_and_reward": True}


def a_run(path: Path, env: str, step: int = 70, **options: Any) -> Path:
    """A run whose network has random weights and has seen random observations."""
    if ":" not in env:
        options["env_args"], env = {"spaces": env}, "tools.exported:Shown"
    made = rig.config(env, run=str(path), **options)
    spec = build.env_spec(made)
    agent = build.agent(made, spec)
    draw = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for layer in agent.policy.linears:
            layer.weight += 3 * torch.randn(layer.weight.shape, generator=draw) / layer.in_features**0.5
        for module in agent.modules():
            if isinstance(module, Normaliser):
                shape = module.shift.shape
                mean, spread = torch.randn(shape, generator=draw), 5 + 100 * torch.rand(shape, generator=draw)
                module.update((torch.tensor(50.0), mean.double(), spread.double()))
    path.mkdir(exist_ok=True)
    write_config(path, made)
    weights = {f"agent/{name}": tensor for name, tensor in agent.state_dict().items()}
    checkpoint.save(path, step, weights, {"run": {"learner": {"version": 1}}, "spec": spec.describe()}, keep=2)
    return path


def example() -> Any:
    """The standalone example as a module."""
    found = importlib.util.spec_from_file_location("run_policy", EXAMPLE)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def assert_equal_actions(ours: Any, theirs: Any, space: Any) -> None:
    assert space.contains(theirs), (space, theirs)
    for mine, other in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        if np.asarray(mine).dtype.kind == "f":
            np.testing.assert_allclose(other, mine, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(other, mine)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("vector", {}),
        ("unbounded", {"core": "lstm", **MEMORY, "sample": True}),
        ("choice", {"core": "gru", **MEMORY, "torso": (5,)}),
        ("image", {"image_encoder": "shallow", "normalise_images": True}),
        ("grey", {"image_encoder": "deep"}),
        ("masked", {"core": "counting", "sample": True}),
        pytest.param("told", {}, marks=pytest.mark.learning),  # the reader of texts is slow to export
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_acts_as_the_network_does(tmp_path: Path, env: str, options: dict[str, Any]) -> None:
    sample = options.get("sample", False)
    run = a_run(tmp_path / "run", env, **{name: value for name, value in options.items() if name != "sample"})
    path = pronghorn.export(run, sample=sample).path
    assert path == run / "exports" / "policy.onnx"
    assert sorted(file.name for file in path.parent.iterdir()) == ["policy.json", "policy.onnx"]
    assert str(Path(pronghorn.__file__).parent).encode() not in path.read_bytes()  # nothing of this machine
    assert_acts_alike(run, path, env, sample)


def assert_acts_alike(run: Path, path: Path, env: str, sample: bool) -> None:
    """Three episodes through the example and through ``policy.Policy``, with the same noise."""
    ours, simulator = pronghorn.load(run, sample), Shown(env)
    theirs = example().Policy(path, simulator.action_space)
    rng = generator(ours.config.seed, Domain.EVALUATION_NOISE, 0)
    theirs.noise = lambda: ours.inference.agent.distribution.draw_noise(rng, (1,))[0]
    distinct = set()
    for episode in range(3):
        ours.reset()
        theirs.reset()
        for name, value in theirs.carried.items():  # which the network must not look at now
            theirs.carried[name] = np.full_like(value, 3)
        (observation, _), reward, over = simulator.reset(seed=episode), 0.0, False
        while not over:
            expected, action = ours.act(observation, reward), theirs.act(observation, reward)
            assert_equal_actions(expected, action, simulator.action_space)
            distinct.add(str(action))
            observation, reward, over, _, _ = simulator.step(action)
    assert len(distinct) > 1


def test_the_example_needs_nothing_of_ours(tmp_path: Path) -> None:
    """And plays the same episodes, to the last step."""
    run = a_run(tmp_path / "run", "gymnasium:CartPole-v1")
    config = json.loads((run / "config.json").read_text())
    config["config"]["env"] = "CartPole-v1"
    (run / "config.json").write_text(json.dumps(config))
    path = pronghorn.export(run).path
    code = """
import runpy, sys
for name in ("pronghorn", "torch", "onnx", "onnxscript"):
    sys.modules[name] = None  # so importing it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    command = [sys.executable, "-c", code, str(EXAMPLE), str(path), "--episodes", "4", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    policy, env, expected = pronghorn.load(run), gymnasium.make("CartPole-v1"), []
    for seed in range(5, 9):
        policy.reset()
        (observation, _), steps, over = env.reset(seed=seed), 0, False
        while not over:
            observation, _, terminated, truncated, _ = env.step(policy.act(observation))
            steps, over = steps + 1, terminated or truncated
        expected.append(f"seed {seed}: return {steps} in {steps} steps")
    assert done.stdout.splitlines() == expected


def test_nested_spaces_and_their_description(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "nested", image_encoder="shallow", core="lstm", core_size=6)
    found = export.export(run, tmp_path / "far" / "off.onnx", sample=True)
    assert_acts_alike(run, found.path, "nested", sample=True)
    written = json.loads((tmp_path / "far" / "off.json").read_text())
    assert written == json.loads(json.dumps(found.description)) and written["step"] == 70
    ports = {port["name"]: port for port in written["inputs"] + written["outputs"]}
    assert ports["observation/camera/left/wide"]["path"] == ["observation", "camera", "left/wide"]
    assert ports["observation/joints/1"]["shape"] == ["batch", 2, 2]
    dtypes = {name: ports[name]["dtype"] for name in ("observation/touch", "observation/joints/2", "first", "noise")}
    assert list(dtypes.values()) == ["int8", "int16", "bool", "float32"]
    assert ports["action/grip"]["space"] == "discrete () int64 of [2] from 1" and ports["action/arm/0"]["path"][-1] == 0
    assert written["carry"] == {f"core_state/{part}": f"next_core_state/{part}" for part in (0, 1)}
    kinds = [(part["kind"], part["action"], *part["noise"]) for part in written["distribution"]]
    assert kinds == [
        ("gaussian", "arm/0", 0, 4),
        ("categorical", "arm/1", 4, 6),
        ("categorical", "arm/1", 6, 12),
        ("categorical", "grip", 12, 14),
    ]
    assert max(written["verified"]["differences"].values()) < written["verified"]["tolerance"] == 1e-3
    assert written["sha256"] == hashlib.sha256(found.path.read_bytes()).hexdigest()
    policy = example().Policy(found.path, Shown("nested").action_space)
    noise = np.stack([policy.noise() for _ in range(4000)])
    means = np.where(np.arange(14) < 4, 0.0, 0.5772)  # of a standard normal, and of Gumbel's
    np.testing.assert_allclose(noise.mean(0), means, atol=0.1)
    np.testing.assert_allclose(noise.var(0), np.where(means > 0, np.pi**2 / 6, 1.0), atol=0.3)


def without_reset(agent: Agent, observation: Any, first: Any, core_state: Any) -> Any:
    return STEP(agent, observation, torch.zeros_like(first), core_state)


def without_statistics(normaliser: Normaliser, x: torch.Tensor) -> torch.Tensor:
    return x.float().clamp(-normaliser.clip, normaliser.clip)


def scaled_otherwise(spec: Any, actions: Any) -> Any:
    return to_env_actions(spec, tree.map(lambda action: 0.9 * action, actions))


STEP = Agent.step


def test_what_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is not the file's any more stands for a file that is not the network."""
    run = a_run(tmp_path / "run", "vector", core="gru", **MEMORY)
    policy = pronghorn.load(run)
    deployed = export.Deployed(policy.inference.agent, sample=False)
    model = export.to_onnx(deployed)
    monkeypatch.setattr(export, "to_onnx", lambda deployed: model)
    for target, name, fault, differs in [
        (Agent, "step", without_reset, "next_core_state/0|parameters"),
        (Normaliser, "forward", without_statistics, "next_core_state/0|parameters"),
        (export, "to_env_actions", scaled_otherwise, "action"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(target, name, fault)
            message = rf"is not the network: ({differs}) differs by .* in a batch of 1, more than 0.001; nothing"
            with pytest.raises(UserError, match=message):
                pronghorn.export(run)
        assert not (run / "exports").exists()
    assert pronghorn.export(run).path.read_bytes() == model


def test_a_network_that_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "run", "vector")
    monkeypatch.setattr(Agent, "step", lambda agent, observation, *rest: (torch.zeros(int(observation.sum()), 4), ()))
    with pytest.raises(UserError, match=r"the network cannot be exported: \w"):
        pronghorn.export(run)
    assert not (run / "exports").exists()


def without_effort(patch: pytest.MonkeyPatch) -> None:
    """Where it does not matter what is exported."""
    patch.setattr(export, "to_onnx", lambda deployed: b"a policy")
    patch.setattr(export, "verify", lambda *of: {"action": 2e-7})


def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(message: str, *arguments: str) -> None:
        assert main(["export", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and re.search(message, said), said

    run = a_run(tmp_path / "run", "vector")
    says("is not a run: it has no config.json", tmp_path / "none")
    says(r"--out must end in \.onnx, not 'policy\.pt'", run, "--out", "policy.pt")
    with monkeypatch.context() as patch:
        without_effort(patch)
        says("cannot be written: .*; --out names another place", run, "--out", run / "config.json" / "policy.onnx")
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"vector"', '"unbounded"'))
    says("made for another env: action was box", run)
    (run / "config.json").write_text(text)
    for weights in run.glob("checkpoints/*/tensors.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    says("no checkpoint in .* can be used: .*tensors.safetensors does not match its checksum", run)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    says(r"export needs onnxruntime: pip install 'pronghorn\[export\]'", run)
    assert not (run / "exports").exists()


def test_the_newest_good_checkpoint_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", "vector")
    a_run(run, "vector", step=90)
    (run / "checkpoints" / "step_000000000090" / "tensors.safetensors").write_bytes(b"")
    without_effort(monkeypatch)
    assert main(["export", str(run), "--out", str(tmp_path / "p.onnx"), "--sample"]) == 0
    assert capsys.readouterr().out == (
        f"wrote {tmp_path / 'p.onnx'} and p.json: the policy of step 70, actions sampled; equal to the network within "
        "2e-07 in batches of 1 and 64\n"
    )
    assert (tmp_path / "p.onnx").read_bytes() == b"a policy"
