"""What a run is said to wait for, and that what it is told to do can be done."""

from __future__ import annotations

import itertools
import re

import pytest

from pronghorn.config import LOSSES, RunConfig, option_names, override, validate
from pronghorn.telemetry.bottleneck import TimeSpent, bottleneck, stale_actors

NAN = float("nan")


def config(algorithm="ppo", **options):
    loss = LOSSES[algorithm]()
    return override(RunConfig(env="HalfCheetah-v5", algorithm=algorithm, loss=loss), **options)


def told(shares, made, queue=None, cores=4, gpu=False):
    record = {f"time/{name}": value for name, value in shares.items()}
    if queue is not None:
        record["queue/columns"] = queue
    return bottleneck(record, made, cores, gpu)


POOL = {"layout": "pool", "workers": 2, "num_envs": 8}
ASYNC = {"runner": "async", "layout": "serial", "num_envs": 8, "actors": 2}


@pytest.mark.parametrize(
    ("shares", "options", "what", "remedy"),
    [
        ({"env": 0.62, "learn": 0.3}, POOL, "environments, 62%", "more --workers or --runner async"),
        ({"env": 0.62}, POOL | {"workers": 4}, "environments, 62%", "--runner async"),
        ({"env": 0.62}, POOL | {"workers": 4, "groups": 2}, "environments, 62%", "more cores"),
        ({"env": 0.62}, {"layout": "serial"}, "environments, 62%", "--runner async"),
        (
            {"env": 0.62},
            {"layout": "serial", "env": "ALE/Pong-v5"},
            "environments",
            "--layout native or --runner async",
        ),
        ({"env": 0.62}, {"layout": "native", "workers": 4, "env": "ALE/Pong-v5"}, "environments", "--runner async"),
        ({"env": 0.3, "inference": 0.5}, POOL, "inference, 50%", "--groups 2 or more --num-envs"),
        ({"env": 0.3, "inference": 0.5}, {"layout": "serial"}, "inference, 50%", "more --num-envs"),
        (
            {"learn": 0.38, "publish": 0.02, "env": 0.39},
            POOL,
            "learning, 40%",
            "fewer --epochs or fewer --minibatches or --runner async",
        ),
        ({"wait": 0.6, "env": 0.4}, POOL, "what lies between the phases, 60%", "more --num-envs"),
        (
            {"evaluation": 0.21, "env": 0.6},
            POOL,
            "evaluation, 21%",
            "a larger --evaluate-every or fewer --evaluation-episodes",
        ),
        ({"evaluation": 0.2, "env": 0.6}, POOL, "environments, 60%", "more --workers or --runner async"),
    ],
)
def test_who_waits_for_whom_in_lock_step(shares, options, what, remedy):
    found = told(shares, config(**options))
    assert found[0].startswith(what) and found[1] == remedy


@pytest.mark.parametrize(
    ("shares", "queue", "options", "what", "remedy"),
    [
        ({"wait": 0.7, "learn": 0.3}, 0, {}, "the actors, for which the learner waits, 70%", "more --actors"),
        ({"wait": 0.7}, 7, {"actors": 4}, "the actors", "more --num-envs or more cores"),
        ({"wait": 0.7}, 0, {"max_policy_lag": 0}, "the actors", "--max-policy-lag 1 or more --actors"),
        ({"wait": 0.2, "learn": 0.79, "publish": 0.01}, 0, {}, "the learner, 80%", "fewer units in --layers"),
        ({"wait": 0.7, "learn": 0.3}, 8, {}, "the learner, 30%", "fewer units in --layers"),
        ({"wait": 0.7, "inference": 0.4}, 0, {"inference": "learner"}, "the actors", "more --actors"),
        (
            {"wait": 0.7, "inference": 0.6},
            0,
            {"inference": "learner"},
            "inference for the actors, 60%",
            "--inference actor or a larger --inference-minimum",
        ),
        ({"evaluation": 0.5, "wait": 0.4}, 0, {"evaluation_episodes": 1}, "evaluation", "a larger --evaluate-every"),
    ],
)
def test_who_waits_for_whom_with_actors(shares, queue, options, what, remedy):
    found = told(shares, config("impala", **ASYNC | options), queue)
    assert found[0].startswith(what) and found[1] == remedy


def test_a_gpu_is_named_where_there_is_one_that_does_nothing():
    assert told({"learn": 1.0}, config(**POOL), gpu=True)[1].startswith("--device cuda or fewer --epochs")
    assert "--device" not in told({"learn": 1.0}, config(**POOL, device="cuda"), gpu=True)[1]


def test_without_numbers_nothing_is_said():
    for shares in ({}, {"env": 0.0, "learn": 0.0}, {"env": NAN, "wait": NAN}):
        for made in (config(), config(**ASYNC)):
            assert told(shares, made) is None
    assert told({"env": NAN, "learn": 0.4, "wait": 0.1}, config(layout="serial"))[0] == "learning, 40% of the time"


PLANS = [
    *(POOL | {"workers": workers, "groups": groups} for workers in (2, 4) for groups in (1, 2)),
    *({"layout": layout, "env": env} for layout in ("serial", "native") for env in ("ALE/Pong-v5", "A-v0")),
    *(ASYNC | {"actors": actors, "max_policy_lag": lag} for actors in (1, 8) for lag in (0, 4)),
    *(ASYNC | {"inference": "learner", "inference_minimum": minimum} for minimum in (1, 8)),
]


@pytest.mark.parametrize("algorithm", ["ppo", "batchppo", "impala", "a2c"])
def test_what_is_advised_exists_and_fits(algorithm):
    seen = set()
    for options, phase, gpu in itertools.product(
        PLANS, ("env", "inference", "learn", "evaluation", "wait"), (False, True)
    ):
        made = config(algorithm, **options)
        validate(made)
        shares = {phase: 0.9} | ({"wait": 0.3} if phase == "inference" and made.runner == "async" else {})
        _, remedy = told(shares, made, 0 if made.runner == "async" else None, gpu=gpu)
        for name, value in re.findall(r"--([a-z-]+)(?: (?!or )([a-z0-9]+))?", remedy):
            seen.add(name)
            option = name.replace("-", "_")
            assert option in option_names(made)
            if value:
                # What was decided about the layout is no option that was given.
                others = {"layout": "auto"} if name == "runner" else {}
                validate(override(made, **{option: int(value) if value.isdigit() else value}, **others))
    assert {"num-envs", "evaluate-every"} <= seen
    assert ("epochs" in seen) == (algorithm in ("ppo", "batchppo"))


def test_shares_are_of_all_the_time_so_far():
    spent = TimeSpent(10.0)
    assert spent.add({"seconds": 12.0, "eval/return": 1.0}) == {}
    assert spent.add({"seconds": 12.0, "time/env": 0.5, "time/wait": 0.5, "queue/columns": 4}) == {
        "time/env": 0.5,
        "time/wait": 0.5,
        "queue/columns": 4.0,
    }
    found = spent.add({"seconds": 18.0, "time/env": 0.1, "time/evaluation": 0.8, "time/wait": 0.1, "queue/columns": 0})
    assert found == pytest.approx(
        {"time/env": 0.2, "time/evaluation": 0.6, "time/wait": 0.2, "queue/columns": 1.0}
    )  # 2 seconds of the one, 6 of the other
    assert TimeSpent(5.0).add({"seconds": 5.0, "time/wait": 1.0}) == {}


def test_stale_actors_are_counted():
    assert stale_actors({}) == stale_actors({"actors/stale": 0}) == []
    assert stale_actors({"actors/stale": 1})[0].startswith("1 actor too slow")
    who, *remedies = stale_actors({"actors/stale": 3})
    assert who.startswith("3 actors too slow")
    found = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", " ".join(remedies))}
    assert len(found) == 3 and found <= set(option_names(RunConfig("x")))
