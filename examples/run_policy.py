"""Plays a policy that `pronghorn export` has written, with NumPy, ONNX Runtime and Gymnasium alone.

    python run_policy.py runs/CartPole-v1-ppo-seed0/exports/policy.onnx --episodes 5

Copy `Policy` to wherever the policy is to act: it needs the two files of the export, neither Pronghorn nor PyTorch.
"""

import argparse
import json
import zlib
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime
from gymnasium import spaces


class Policy:
    """Acts in one environment. What it carries from step to step stays in here; `reset` begins an episode."""

    def __init__(self, path, action_space, seed=0):
        self.about = json.loads(Path(path).with_suffix(".json").read_text())
        self.action_space = action_space
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.random = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        """The next observation is the first of an episode: what was carried is ignored, whatever it is."""
        self.first = True
        self.carried = {
            port["name"]: np.zeros((1, *port["shape"][1:]), port["dtype"])
            for port in self.about["inputs"]
            if port["name"] in self.about["carry"]
        }

    def act(self, observation, reward=0.0):
        """The action for one observation; `reward` is what the last action brought."""
        given = {"observation": observation, "last_reward": reward, "first": self.first, "noise": self.noise()}
        feed = dict(self.carried)
        for port in self.about["inputs"]:
            role, *path = port["path"]
            if role in given:
                feed[port["name"]] = np.array([leaf(given[role], path, port["kind"])], port["dtype"])
        ports = self.about["outputs"]
        names = [port["name"] for port in ports]
        found = dict(zip(names, self.session.run(names, feed), strict=True))
        self.carried = {name: found[after] for name, after in self.about["carry"].items()}
        actions = {tuple(port["path"]): found[port["name"]][0] for port in ports if port["path"][0] == "action"}
        self.first = False
        return arranged(self.action_space, actions, ("action",))

    def noise(self):
        """What decides a sample: standard normal for Gaussians, Gumbel for choices."""
        draws = {"gaussian": self.random.standard_normal, "categorical": self.random.gumbel}
        parts = self.about["distribution"]
        return np.concatenate([draws[part["kind"]](size=np.diff(part["noise"])) for part in parts])


def leaf(value, path, kind):
    """What lies at the end of a path; of a text the numbers of its words."""
    for key in path:
        value = value[key]
    return word_numbers(value) if kind == "text" else value


def word_numbers(text, words=32, buckets=1000):
    """The first words between blanks as numbers from 1 on, then 0."""
    numbers = [1 + zlib.crc32(word.encode("utf-8", "surrogatepass")) % buckets for word in text.split()[:words]]
    return numbers + [0] * (words - len(numbers))


def arranged(space, found, path):
    """The action that a space wants, from the values of its leaves by their paths."""
    if isinstance(space, spaces.Dict):
        return {key: arranged(part, found, (*path, key)) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(arranged(part, found, (*path, index)) for index, part in enumerate(space))
    return int(found[path]) if isinstance(space, spaces.Discrete) else found[path]


def main():
    parser = argparse.ArgumentParser(description="Play an exported policy.")
    parser.add_argument("policy", type=Path, help="the .onnx file; its .json lies beside it")
    parser.add_argument("--env", help="Gymnasium id, if not that of the training")
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; the next have the numbers after it")
    options = parser.parse_args()
    about = json.loads(options.policy.with_suffix(".json").read_text())
    env = gymnasium.make(options.env or about["env"], **about["env_args"])
    policy = Policy(options.policy, env.action_space, options.seed)
    for seed in range(options.seed, options.seed + options.episodes):
        policy.reset()
        observation, _ = env.reset(seed=seed)
        total, steps, reward, over = 0.0, 0, 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation, reward))
            total, steps, over = total + reward, steps + 1, terminated or truncated
        print(f"seed {seed}: return {total:.6g} in {steps} steps")
    env.close()


if __name__ == "__main__":
    main()
