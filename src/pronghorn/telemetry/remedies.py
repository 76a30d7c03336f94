"""Which options help against what a run waits for, as far as they can be had in it: in words to join by "or"."""

from __future__ import annotations

from collections.abc import Iterator

from pronghorn.config import RunConfig


def evaluation(config: RunConfig) -> list[str]:
    """Where evaluations take long."""
    return ["a larger --evaluate-every", *(["fewer --evaluation-episodes"] if config.evaluation_episodes > 1 else [])]


def environments(config: RunConfig, cores: int) -> list[str]:
    """Where a learner in lock-step waits for envs."""
    return [*_faster_layouts(config, cores), *(overlap(config) if cores > 1 else [])] or ["more cores"]


def _faster_layouts(config: RunConfig, cores: int) -> Iterator[str]:
    vec = config.vec
    if vec.layout != "serial" and (vec.workers or 1) < min(cores, vec.num_envs):
        yield "more --workers"
    if vec.layout != "native" and config.env.startswith("ALE/"):
        yield "--layout native"


def overlap(config: RunConfig) -> list[str]:
    """Acting and learning at the same time; nothing where that is done or cannot be."""
    vec = config.vec
    fits = config.loss.episodes_per_update is None and vec.groups == 1 and vec.ready_envs is None
    return ["--runner async"] * (config.runner == "sync" and fits)


def groups(config: RunConfig) -> list[str]:
    """Stepping one half of the envs while actions are chosen for the other; nothing where it cannot be."""
    vec = config.vec
    fits = vec.layout != "serial" and vec.groups == 1 and vec.ready_envs is None and vec.num_envs > 1
    return ["--groups 2"] * fits


def inference(config: RunConfig) -> list[str]:
    """Where choosing actions takes long."""
    return [*groups(config), *larger_calls()]


def larger_calls() -> list[str]:
    """Where time is lost with every call."""
    return ["more --num-envs"]


def learning(config: RunConfig, cores: int, gpu: bool) -> list[str]:
    """Where learning takes long."""
    device = ["--device cuda"] * (gpu and config.device == "cpu")
    return [*device, *lighter_updates(config), *(overlap(config) if cores > 1 else [])] or ["fewer units in --layers"]


def lighter_updates(config: RunConfig) -> list[str]:
    """Less work with every batch; nothing where it is walked over once."""
    options = {
        "fewer --epochs": config.loss.epochs > 1,
        "fewer --minibatches": config.loss.minibatches > 1,
        "a smaller --replay-share": config.loss.replay_share > 0,
    }
    return [option for option, fits in options.items() if fits]


def actors(config: RunConfig, cores: int) -> list[str]:
    """Where a learner waits for its actor processes."""
    found = ["--max-policy-lag 1"] * (config.max_policy_lag == 0)
    if (config.actors or 1) < min(cores, config.vec.num_envs):
        found.append("more --actors")
    return found or [*larger_calls(), "more cores"]


def serving(config: RunConfig, gpu: bool) -> list[str]:
    """Where actor processes wait for inference by the learner."""
    faster = ["--device cuda"] * (gpu and config.device == "cpu")
    larger = config.inference_minimum < min(config.inference_maximum, config.vec.num_envs)
    return [*faster, "--inference actor", *["a larger --inference-minimum"] * larger]
