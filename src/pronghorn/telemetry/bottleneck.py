"""What a run waits for, and the options that would help: from where its time went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pronghorn.config import RunConfig

WAITING = 0.2
"""Share of the time from which a learner that waits for actors, or an evaluation, is the bottleneck."""

BUSY = 0.5
"""Share of the time from which the learner's inference for its actors is."""


class TimeSpent:
    """Where the time of a run went since ``seconds``, over all of its reports: what happens rarely, as evaluation does,
    is most of one report and nothing of the next."""

    def __init__(self, seconds: float) -> None:
        self._begun = self._then = seconds
        self._sums: dict[str, float] = {}

    def add(self, record: Mapping[str, Any]) -> dict[str, float]:
        """``time/*`` and ``queue/*`` of all records so far, each weighted by the time it reports on.

        ``record`` is one of ``metrics.jsonl``; for one without such numbers, an evaluation's, there is nothing to say.
        """
        if "time/wait" not in record:
            return {}
        elapsed, self._then = record["seconds"] - self._then, record["seconds"]
        for key, value in record.items():
            if key.startswith(("time/", "queue/")):
                self._sums[key] = self._sums.get(key, 0.0) + value * elapsed
        total = self._then - self._begun
        return {key: value / total for key, value in self._sums.items()} if total > 0 else {}


def bottleneck(record: Mapping[str, Any], config: RunConfig, cores: int, gpu: bool) -> tuple[str, str] | None:
    """("environments, 62% of the time", "more --workers or --runner async"), or None where the record does not tell.

    Args:
        record: ``time/*`` and ``queue/columns`` as in ``metrics.jsonl``.
        config: of the run, as decided at its start.
        cores, gpu: what the machine has.
    """
    shares: dict[str, float] = {
        key: value for key, value in record.items() if key.startswith("time/") and math.isfinite(value)
    }
    if not any(share > 0 for share in shares.values()):
        return None

    def share(*phases: str) -> float:
        return sum(shares.get(f"time/{phase}", 0.0) for phase in phases)

    learning = share("learn", "publish")
    if share("evaluation") > WAITING:
        found = "evaluation", share("evaluation"), _evaluation(config)
    elif config.runner == "async":
        starved = share("wait") > WAITING and record.get("queue/columns", 0) < config.columns_per_update
        if not starved:
            found = "the learner", learning, _learning(config, cores, gpu)
        elif share("inference") > BUSY:
            found = "inference for the actors", share("inference"), _serving(config, gpu)
        else:
            found = "the actors, for which the learner waits", share("wait"), _actors(config, cores)
    else:
        parts = [
            ("environments", share("env"), _environments(config, cores)),
            ("inference", share("inference"), _inference(config)),
            ("learning", learning, _learning(config, cores, gpu)),
            ("what lies between the phases", share("wait"), ["more --num-envs"]),
        ]
        found = max(parts, key=lambda part: part[1])
    what, part, remedies = found
    return f"{what}, {part:.0%} of the time", " or ".join(remedies)


def stale_actors(record: Mapping[str, Any]) -> list[str]:
    """What to say of actors whose unrolls come too late again and again, in parts; nothing where there are none."""
    stale = record.get("actors/stale", 0)
    if not stale:
        return []
    return [
        f"{stale} {'actor' if stale == 1 else 'actors'} too slow: unrolls come too late to be learnt from",
        "fewer --num-envs,",
        "a shorter --unroll-length",
        "or a larger --max-policy-lag",
    ]


def _evaluation(config: RunConfig) -> list[str]:
    return ["a larger --evaluate-every", *(["fewer --evaluation-episodes"] if config.evaluation_episodes > 1 else [])]


def _environments(config: RunConfig, cores: int) -> list[str]:
    return [*_faster_layouts(config, cores), *_other_runner(config, cores)] or ["more cores"]


def _faster_layouts(config: RunConfig, cores: int) -> Iterator[str]:
    vec = config.vec
    if vec.layout != "serial" and (vec.workers or 1) < min(cores, vec.num_envs):
        yield "more --workers"
    if vec.layout != "native" and config.env.startswith("ALE/"):
        yield "--layout native"


def _inference(config: RunConfig) -> list[str]:
    vec = config.vec
    overlap = vec.layout != "serial" and vec.groups == 1 and vec.ready_envs is None and vec.num_envs > 1
    return ["--groups 2"] * overlap + ["more --num-envs"]


def _learning(config: RunConfig, cores: int, gpu: bool) -> list[str]:
    loss, remedies = config.loss, []
    if gpu and config.device == "cpu":
        remedies.append("--device cuda")
    if loss.epochs > 1:
        remedies.append("fewer --epochs")
    if loss.minibatches > 1:
        remedies.append("fewer --minibatches")
    if loss.replay_share > 0:
        remedies.append("a smaller --replay-share")
    return [*remedies, *_other_runner(config, cores)] or ["fewer units in --layers"]


def _other_runner(config: RunConfig, cores: int) -> list[str]:
    """Acting and learning at the same time, where it is possible."""
    vec = config.vec
    fits = config.loss.episodes_per_update is None and vec.groups == 1 and vec.ready_envs is None
    return ["--runner async"] * (config.runner == "sync" and fits and cores > 1)


def _actors(config: RunConfig, cores: int) -> list[str]:
    remedies = ["--max-policy-lag 1"] * (config.max_policy_lag == 0)
    if (config.actors or 1) < min(cores, config.vec.num_envs):
        remedies.append("more --actors")
    return remedies or ["more --num-envs", "more cores"]


def _serving(config: RunConfig, gpu: bool) -> list[str]:
    faster = ["--device cuda"] * (gpu and config.device == "cpu")
    larger = config.inference_minimum < min(config.inference_maximum, config.vec.num_envs)
    return [*faster, "--inference actor", *["a larger --inference-minimum"] * larger]
