"""What a run waits for, and the options that would help: from where its time went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pronghorn.config import RunConfig
from pronghorn.telemetry import remedies

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
        found = "evaluation", share("evaluation"), remedies.evaluation(config)
    elif config.runner == "async":
        starved = share("wait") > WAITING and record.get("queue/columns", 0) < config.columns_per_update
        if not starved:
            found = "the learner", learning, remedies.learning(config, cores, gpu)
        elif share("inference") > BUSY:
            found = "inference for the actors", share("inference"), remedies.serving(config, gpu)
        else:
            found = "the actors, for which the learner waits", share("wait"), remedies.actors(config, cores)
    else:
        parts = [
            ("environments", share("env"), remedies.environments(config, cores)),
            ("inference", share("inference"), remedies.inference(config)),
            ("learning", learning, remedies.learning(config, cores, gpu)),
            ("what lies between the phases", share("wait"), remedies.larger_calls()),
        ]
        found = max(parts, key=lambda part: part[1])
    what, part, helpful = found
    return f"{what}, {part:.0%} of the time", " or ".join(helpful)


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
