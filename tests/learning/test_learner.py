"""The one update: what it computes, what it refuses, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import itertools
import threading

import numpy as np
import pytest
import rig
import torch

from pronghorn import build, tree
from pronghorn.algorithms.ppo import PPO
from pronghorn.config import OptimiserConfig, PPOConfig
from pronghorn.learning import compiler
from pronghorn.learning.learner import Learner, NonFiniteError
from pronghorn.types import Trajectory

BATCHPPO = {"clip_ratio": None, "kl_penalty": 1.0, "minibatches": 1, "normalise_advantages": "batch"}


def snapshot(learner):
    """Everything that an update may change, copied."""
    tensors, numbers = learner.state()
    return {name: value.clone() for name, value in tensors.items()}, repr(numbers)


def same(one, other):
    return one[1] == other[1] and all(torch.equal(value, other[0][name]) for name, value in one[0].items())


def moved(before, after, prefix):
    """Names with ``prefix`` whose tensors differ."""
    return [name for name, value in before[0].items() if name.startswith(prefix) and not value.equal(after[0][name])]


def copied(batch):
    return batch.map(np.copy)


def half(batch, columns):
    values = {}
    for field in dataclasses.fields(Trajectory):
        once = field.name in ("core_state", "last_action", "last_reward", "env", "task", "replayed")
        values[field.name] = tree.map(
            lambda array, once=once: array[columns] if once else array[:, columns], getattr(batch, field.name)
        )
    return Trajectory(**values)


def make_learner(made, spec, **options):
    agent = build.agent(made, spec)
    algorithm = PPO(made.loss, agent.distribution, agent.recurrent)
    return Learner(agent, algorithm, made.optimiser, run_seed=made.seed, **options)


def collect(made, count, learn=True):
    """Batches as a run would make them, and the spec of the env."""
    with rig.parts(made) as (actor, learner):
        batches = []
        for _ in range(count):
            batches.append(actor.collect())
            if learn:
                learner.update(batches[-1], 0.0)
                rig.hand_over(learner, actor)
        return batches, actor.vec.spec


def test_two_learners_with_half_of_the_batch_take_the_step_of_one():
    # Means over halves with equally many valid rows average to the mean over all.
    made = rig.config(
        "BanditEnv",
        num_envs=6,
        minibatches=1,
        epochs=3,
        normalise_advantages="none",
        normalise_observations=False,
        reward_scaling="none",
        core="counting",
        env_args={"length": 3},
    )
    batches, spec = collect(made, 3)
    whole = make_learner(made, spec)
    for batch in batches:
        whole.update(batch, 0.0)

    slots, barrier, results = [None, None], threading.Barrier(2, timeout=30), [None, None]

    def work(index):
        def reduce(gradient):
            slots[index] = gradient
            barrier.wait()
            mean = (slots[0] + slots[1]) / 2
            barrier.wait()
            return mean

        learner = make_learner(made, spec, reduce=reduce)
        for batch in batches:
            part = half(batch, slice(0, 3) if index == 0 else slice(3, 6))
            assert part.valid.sum() * 2 == batch.valid.sum()
            learner.update(part, 0.0)
        results[index] = learner.state()[0]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    start = make_learner(made, spec).state()[0]
    for name, value in whole.state()[0].items():
        torch.testing.assert_close(results[0][name], value, rtol=2e-5, atol=1e-6)
        assert torch.equal(results[0][name], results[1][name])
        if name.endswith("weight"):
            assert (value - start[name]).abs().max() > 1e-4


@pytest.mark.parametrize(
    "options", [{}, BATCHPPO, {**BATCHPPO, "minibatches": 2}, {"minibatches": 3}, {"core": "counting"}]
)
def test_every_row_or_column_is_used_once_a_pass(options):
    made = rig.config("BanditEnv", **{"epochs": 2, **options})
    batches, spec = collect(made, 1)
    learner = make_learner(made, spec)
    count = 5 if learner.algorithm.walk.columns else 5 * 7
    for epoch in range(2):
        parts = [part for number, part in learner._indices(batches[0]) if number == epoch]
        assert len(parts) == made.loss.minibatches
        if made.loss.minibatches == 1:
            assert parts == [None]
        else:
            assert sorted(torch.cat(parts).tolist()) == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
    order = [None if part is None else part.tolist() for _, part in learner._indices(batches[0])]
    if made.loss.minibatches > 1:
        assert order[0] != order[made.loss.minibatches]
        learner.version += 1
        assert order != [part.tolist() for _, part in learner._indices(batches[0])]


@pytest.mark.parametrize("recompute", [True, False])
def test_targets_are_computed_with_the_newest_values_before_each_pass_or_once(recompute):
    made = rig.config("BanditEnv", epochs=3, minibatches=2, recompute_advantages=recompute)
    (batch,), spec = collect(made, 1)
    learner = make_learner(made, spec)
    compute, step, calls = learner._targets, learner._step, []

    def watched_targets(flat, *data):
        calls.append(("targets", flat))
        return compute(flat, *data)

    def watched_step(flat, *data):
        calls.append(("step", flat))
        return step(flat, *data)

    learner._targets, learner._step = watched_targets, watched_step
    learner.update(batch, 0.0)
    kinds = [kind for kind, _ in calls]
    assert kinds == (["targets", "step", "step"] * 3 if recompute else ["targets", *["step"] * 6])
    for (kind, flat), (_, following) in itertools.pairwise(calls):
        assert kind == "step" or flat is following  # those that the next step improves


def test_shuffled_rows_keep_their_fields_together():
    made = rig.config("CountingEnv")
    (batch,), spec = collect(made, 1)
    learner = make_learner(made, spec)
    on_device = learner._on_device(batch)
    targets = learner._fold(learner._targets(learner._flat, on_device, torch.ones(())))
    index = torch.randperm(35)
    rows, chosen = learner._select(learner._rows(on_device), targets, index)
    for name in ("action", "behaviour", "behaviour_log_prob", "valid"):
        assert np.array_equal(
            getattr(rows, name), getattr(batch, name).reshape(35, *getattr(rows, name).shape[1:])[index]
        )
    assert np.array_equal(rows.observation, batch.observation[:7].reshape(35, 3)[index])
    assert np.array_equal(rows.first, batch.first[:7].reshape(35)[index])
    assert np.array_equal(chosen.vs, targets.vs[index])
    columns = make_learner(rig.config("CountingEnv", core="counting"), spec)
    picked = torch.tensor([3, 1])
    on_device = dataclasses.replace(on_device, core_state=torch.arange(5))
    targets = columns._targets(columns._flat, on_device, torch.ones(()))
    rows, chosen = columns._select(columns._rows(on_device), targets, picked)
    assert np.array_equal(rows.action, batch.action[:, [3, 1]]) and rows.core_state.tolist() == [3, 1]
    assert np.array_equal(rows.observation, batch.observation[:7, [3, 1]])
    assert torch.equal(chosen.advantages, targets.advantages[:, picked])


@pytest.mark.parametrize("options", [{}, {"core": "counting"}], ids=["rows", "columns"])
def test_images_among_other_leaves_are_learnt_from(options):
    made = rig.config("rig:CameraBanditEnv", image_encoder="shallow", layers=(4,), **options)
    (batch,), spec = collect(made, 1, learn=False)
    assert batch.observation["camera"].dtype == np.uint8 and batch.observation["camera"].shape == (8, 5, 20, 25, 3)
    learner = make_learner(made, spec)
    index = torch.tensor([4, 0, 2])
    on_device = learner._on_device(batch)
    targets = learner._fold(learner._targets(learner._flat, on_device, torch.ones(())))
    rows, _ = learner._select(learner._rows(on_device), targets, index)
    images = batch.observation["camera"][:7]
    wanted = images[:, index] if options else images.reshape(35, 20, 25, 3)[index]
    assert np.array_equal(rows.observation["camera"], wanted)

    before = snapshot(learner)
    metrics = learner.update(batch, 0.0)
    assert metrics["check/log_prob_difference"] <= 1e-5
    changed = moved(before, snapshot(learner), "agent/")
    assert {name for name in changed if ".images." in name} == {
        f"agent/encoder.images.0.{layer}.{part}"
        for layer in ("convolutions.0", "convolutions.1", "linear")
        for part in ("weight", "bias")
    }
    assert "agent/encoder.normaliser.moments.count" in changed
    assert learner.agent.encoder.normaliser.moments.mean.shape == (5,)  # of the vector alone


NETWORKS = {
    "lstm": ("CountingEnv", {"core": "lstm"}),
    "gru": ("CountingEnv", {"core": "gru"}),
    "lstm, told": ("CountingEnv", {"core": "lstm", "last_action_and_reward": True, "torso": (6,)}),
    "rows, told": ("CountingEnv", {"last_action_and_reward": True}),
    "masked": ("MaskedBanditEnv", {"core": "gru", "last_action_and_reward": True}),
    "deep": ("rig:CameraBanditEnv", {"image_encoder": "deep", "core": "lstm", "last_action_and_reward": True}),
    "mixed": ("rig:MixedEnv", {"core": "lstm", "last_action_and_reward": True}),
    "episodes": ("rig:MixedEnv", {"core": "gru", "last_action_and_reward": True, "episodes_per_update": 4}),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_actor_and_learner_agree_whatever_the_network(network):
    env, options = NETWORKS[network]
    made = rig.config(env, core_size=8, init="lecun", unroll_length=8, **options)
    with rig.parts(made) as (actor, learner):
        actor.inference.mode, actor.inference.version = "random", -1
        learner.observe(actor.collect())
        actor.inference.mode = "sample"
        rig.hand_over(learner, actor)
        for _ in range(3):
            batch = actor.collect()
            learner._checked = False
            metrics = learner.update(batch, 0.0)
            assert metrics["check/log_prob_difference"] <= 1e-5
            rig.hand_over(learner, actor)
        assert batch.first[1:].any() or made.loss.episodes_per_update  # an episode begins inside
        # What it was told is part of it: another last action is another policy.
        if learner.agent.last_step is not None:
            batch = copied(actor.collect())
            for array in tree.leaves(batch.action)[:1]:
                array[...] = np.roll(array, 1, axis=0)
            before = learner._policy(learner._on_device(batch))
            for array in tree.leaves(batch.action)[:1]:
                array[...] = np.roll(array, -1, axis=0)
            assert not torch.equal(before, learner._policy(learner._on_device(batch)))


def test_threads_are_given_back():
    made = rig.config("BanditEnv", threads=2)
    (batch,), spec = collect(made, 1, learn=False)
    learner = make_learner(made, spec, threads=2)
    step, seen = learner._step, []
    learner._step = lambda *data: seen.append(torch.get_num_threads()) or step(*data)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        learner.update(batch, 0.0)
        assert set(seen) == {2} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_the_rate_follows_the_schedule(schedule):
    made = rig.config("BanditEnv", schedule=schedule, learning_rate=0.01)
    batches, spec = collect(made, 1)
    for fraction in (0.0, 0.5, 1.0):
        learner = make_learner(made, spec)
        before = snapshot(learner)
        metrics = learner.update(copied(batches[0]), fraction)
        rate = 0.01 * (1 - fraction if schedule == "linear" else 1)
        assert metrics["hyper/learning_rate"] == pytest.approx(rate)
        parameters = [f"agent/{name}" for name, _ in learner.agent.named_parameters()]
        assert bool(set(moved(before, snapshot(learner), "agent/")) & set(parameters)) == (rate > 0)


@pytest.mark.skipif(bool(compiler.obstacle()), reason=compiler.obstacle() or "can compile")
def test_a_compiled_update_is_the_eager_one_and_sees_changing_numbers():
    made = rig.config("BanditEnv", kl_penalty=1.0, minibatches=2, num_envs=4, unroll_length=6, layers=(4,))
    batches, spec = collect(made, 3)
    eager, compiled = make_learner(made, spec), make_learner(made, spec, compiled=True)
    for batch in batches[:2]:
        one, other = eager.update(batch, 0.25), compiled.update(batch, 0.25)
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5)
        for name, value in eager.state()[0].items():
            torch.testing.assert_close(compiled.state()[0][name], value, rtol=1e-5, atol=1e-5)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    tensors, numbers = compiled.state()

    def after(fraction=0.0, **state):
        compiled.restore(tensors, numbers)
        compiled.algorithm_state = {**compiled.algorithm_state, **state}
        compiled.update(batches[2], fraction)
        return compiled._flat

    start = torch.cat([tensors[f"agent/{name}"].flatten() for name, _ in compiled.agent.named_parameters()])
    assert torch.equal(after(fraction=1.0), start)
    whole, less, other_penalty = after(), after(fraction=0.5), after(kl_penalty=50.0)
    assert not torch.equal(whole, start)
    torch.testing.assert_close(less - start, (whole - start) / 2, rtol=0.2, atol=1e-5)
    assert (other_penalty - whole).abs().max() > 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # the numbers cost no compilation


@pytest.mark.parametrize(
    ("env", "options", "reduced"),
    [
        ("BanditEnv", {}, True),
        ("MaskedBanditEnv", {"minibatches": 3}, False),
        ("MaskedBanditEnv", {"core": "counting"}, False),
        ("MaskedBanditEnv", {"core": "lstm", "core_size": 4, "last_action_and_reward": True, "torso": (4,)}, False),
        ("BanditEnv", {"core": "gru", "core_size": 4, "env_args": {"length": 3}}, False),
        ("rig:CameraBanditEnv", {"image_encoder": "shallow"}, False),
        ("BanditEnv", {**BATCHPPO, "episodes_per_update": 4, "env_args": {"length": 5}}, False),
    ],
)
def test_every_kind_of_walk_is_one_graph(monkeypatch, env, options, reduced):
    # Traced, not translated: no C++ compiler is needed, and it raises where the graph would break.
    compile_graph = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compile_graph(function, **how, backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    made = rig.config(env, layers=(4,), **options)
    batches, spec = collect(made, 2)
    reduce = (lambda gradient: gradient) if reduced else None
    eager, compiled = make_learner(made, spec), make_learner(made, spec, compiled=True, reduce=reduce)
    for batch in batches:
        eager.update(batch, 0.0)
        compiled.update(batch, 0.0)
        for name, value in eager.state()[0].items():
            torch.testing.assert_close(compiled.state()[0][name], value, rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= (3 if reduced else 2)


def test_preparing_changes_nothing():
    made = rig.config("BanditEnv")
    batches, spec = collect(made, 1)
    learner = make_learner(made, spec)
    before = snapshot(learner)
    learner.prepare(build.example_batch(made, spec, made.columns_per_update))
    assert same(before, snapshot(learner)) and learner.version == 0
    example = build.example_batch(made, spec, made.columns_per_update)
    for name, array in tree.named(vars(example)).items():
        real = tree.named(vars(batches[0]))[name]
        assert array.shape == real.shape and array.dtype == real.dtype
        assert name == "env" or not np.any(array)


def test_what_is_not_finite_is_named_and_changes_nothing():
    made = rig.config("BanditEnv")
    batches, spec = collect(made, 3)
    learner = make_learner(made, spec)
    learner.update(batches[0], 0.0)
    before = snapshot(learner)

    bad = copied(batches[1])
    bad.observation[2, 3, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"observation of env 3 is not finite in row 2 .* update 2"):
        learner.update(bad, 0.0)
    assert same(before, snapshot(learner))

    bad = copied(batches[1])
    bad.env[4] = 17
    bad.reward[6, 4] = np.inf
    with pytest.raises(NonFiniteError, match="reward of env 17 is not finite in row 6"):
        learner.update(bad, 0.0)
    with pytest.raises(NonFiniteError, match="reward of env 17"):
        learner.observe(bad)
    assert same(before, snapshot(learner))

    bad = copied(batches[1])
    bad.behaviour_log_prob[:] = -200.0  # a ratio of e^199
    with pytest.raises(NonFiniteError, match="a gradient of update 2 is not finite"):
        learner.update(bad, 0.0)
    assert same(before, snapshot(learner)) and learner.version == 1

    undisturbed = make_learner(made, spec)
    for batch in batches:
        undisturbed.update(batch, 0.0)
    for batch in batches[1:]:
        learner.update(batch, 0.0)
    assert same(snapshot(learner), snapshot(undisturbed))


def test_a_key_of_a_nested_observation_is_named():
    made = rig.config("MaskedBanditEnv")
    batches, spec = collect(made, 1)
    batches[0].observation["context"][0, 2, 5] = -np.inf
    with pytest.raises(NonFiniteError, match="observation/context of env 2 is not finite in row 0"):
        make_learner(made, spec).update(batches[0], 0.0)


class AddingCore(torch.nn.Module):
    """Adds the number of steps so far to the inputs, so that a wrong state has consequences."""

    recurrent = True

    def initial_state(self, batch):
        return torch.zeros(batch, dtype=torch.int64)

    def forward(self, inputs, first, state):
        outputs = []
        for row in range(first.shape[0]):
            state = torch.where(first[row], 0, state)
            outputs.append(inputs[row] + state[:, None])
            state = state + 1
        return torch.stack(outputs), state


def agreeing(prepare=lambda learner, batch: None):
    """Updates a learner with the first batch of its actor, ``prepare`` having meddled with one of them."""
    made = rig.config("CountingEnv", core="counting", env_args={"lengths": [50]})
    with rig.parts(made) as (actor, learner):
        learner.agent.core = actor.inference.agent.core = AddingCore()
        learner.observe(actor.collect())
        rig.hand_over(learner, actor)
        batch = actor.collect()  # in the middle of an episode
        prepare(learner, batch)
        return learner.update(batch, 0.0)


def test_equal_weights_statistics_and_core_state_pass_the_check():
    assert 0.0 <= agreeing()["check/log_prob_difference"] <= 1e-5


@pytest.mark.parametrize("kind", ["weights", "statistics", "core_state", "actions"])
def test_actor_and_learner_that_differ_are_noticed(kind):
    def meddle(learner, batch):
        if kind == "weights":
            learner._flat = learner._flat * 1.05
        elif kind == "statistics":
            learner.agent.encoder.normaliser.shift.add_(1e8)
        elif kind == "core_state":
            batch.core_state += 1
        else:
            batch.action[:] = (batch.action + 1) % 5

    with pytest.raises(RuntimeError, match="actor and learner disagree"):
        agreeing(meddle)


def test_rows_of_another_version_or_without_effect_are_not_compared():
    def meddle(learner, batch):
        batch.policy_version[:3] = -1
        batch.valid[3] = False
        batch.behaviour_log_prob[:4] -= 1.0

    agreeing(meddle)


@pytest.mark.parametrize("scaling", ["returns", "rewards", "none"])
def test_statistics_are_those_of_all_valid_rows(scaling):
    made = rig.config("CountingEnv", reward_scaling=scaling)
    with rig.parts(made) as (actor, learner):
        actor.inference.mode = "random"
        seen, rewards = [], []
        for number in range(4):
            batch = actor.collect()
            seen.append(batch.observation[:-1][batch.valid])
            rewards.append(batch.reward[batch.valid])
            batch.observation[:-1][~batch.valid] += 1e6  # must not be looked at
            batch.reward[~batch.valid] = -1e6
            before = snapshot(learner)
            if number == 0:
                learner.observe(batch)
                assert learner.version == 0
                changed = moved(before, snapshot(learner), "")
                assert changed and all("normaliser" in name or "reward_scale" in name for name in changed)
                actor.inference.mode = "sample"
            else:
                held = learner.weights()
                copies = {name: value.clone() for name, value in held.items()}
                learner.update(batch, 0.0)
                assert learner.version == number
                assert all(torch.equal(value, copies[name]) for name, value in held.items())  # never changed afterwards
                assert moved(before, snapshot(learner), "agent/encoder.normaliser.shift")
            rig.hand_over(learner, actor)
            moments = learner.agent.encoder.normaliser.moments
            pooled = np.concatenate(seen)
            assert moments.count.item() == len(pooled)
            np.testing.assert_allclose(moments.mean, pooled.mean(0), rtol=1e-12)
            np.testing.assert_allclose(moments.m2 / len(pooled), pooled.var(0), rtol=1e-9)
            np.testing.assert_allclose(learner.agent.encoder.normaliser.scale, 1 / pooled.std(0), rtol=1e-5)
            expected = np.concatenate(rewards).std() if scaling == "rewards" else 1.0
            if scaling != "returns":
                assert learner.agent.reward_scale.scale.item() == pytest.approx(expected, rel=1e-6)


def test_the_first_scale_of_returns_is_the_spread_of_discounted_rewards():
    made = rig.config("CountingEnv", discount=0.9, gae_lambda=0.8)
    (batch,), spec = collect(made, 1, learn=False)
    learner = make_learner(made, spec)
    learner.observe(batch)
    found = []
    for column in range(5):
        following = 0.0
        for row in reversed(range(7)):
            if not batch.valid[row, column]:
                following = 0.0
                continue
            if batch.terminated[row, column] or batch.truncated[row, column]:
                following = 0.0
            following = batch.reward[row, column] + 0.9 * 0.8 * following
            found.append(following)
    assert learner.agent.reward_scale.moments.count.item() == len(found) == batch.valid.sum()
    assert learner.agent.reward_scale.scale.item() == pytest.approx(np.std(found), rel=1e-6)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_a_network_in_half_precision_takes_nearly_the_same_step_with_whole_weights(core):
    made = rig.config("rig:CameraBanditEnv", "impala", image_encoder="shallow", core=core, core_size=8)
    (batch,), spec = collect(made, 1, learn=False)
    whole, half = (build.learner(dataclasses.replace(made, precision=name), spec) for name in ("float32", "bfloat16"))
    start = torch.cat([value.flatten() for value in whole.weights().values()])
    numbers = {}
    for name, learner in (("whole", whole), ("half", half)):
        metrics = learner.update(copied(batch), 0.0)
        assert all(value.dtype == torch.float32 for key, value in learner.weights().items() if "moments" not in key)
        numbers[name] = metrics["loss/value"], metrics["check/log_prob_difference"]
    assert numbers["half"][0] == pytest.approx(numbers["whole"][0], rel=0.05)
    assert numbers["half"][0] != numbers["whole"][0]  # or nothing was computed in half precision
    moved = torch.cat([value.flatten() for value in half.weights().values()]) - start
    assert torch.isfinite(moved).all() and moved.abs().max() > 0


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_walk_of_one_step_learns_as_much_from_one_forward_pass(algorithm, core):
    one_pass = {"epochs": 1, "minibatches": 1} if algorithm == "ppo" else {}
    made = rig.config("BanditEnv", algorithm, core=core, core_size=6, reward_scaling="none", **one_pass)
    (first, batch), spec = collect(made, 2)
    learner = build.learner(made, spec)
    learner.update(first, 0.0)  # so that the second batch is not of this learner's newest weights
    on_device = learner.agent.seen(learner._on_device(batch))
    numbers = learner._tensors(learner.algorithm.hyperparameters({}, 0.0))
    targets = learner._compute_targets(learner._flat, on_device, torch.ones(()))
    apart, metrics = learner._gradient(learner._flat, learner._rows(on_device), learner._fold(targets), None, numbers)
    together, same_metrics, same_targets = learner._gradient_at_once(learner._flat, on_device, torch.ones(()), numbers)
    assert apart.abs().max() > 1e-3
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(same_metrics, metrics, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(same_targets, targets, rtol=1e-5, atol=1e-6)

    passes = []
    learner.agent.register_forward_hook(lambda _, given, output: passes.append(given[1].numel()))
    metrics = learner.update(batch, 0.0, diagnose=False)
    assert passes == [batch.first.size] and "policy/kl" not in metrics


def test_after_a_single_step_the_policy_is_looked_at_in_a_few_columns():
    made = rig.config("BanditEnv", "impala", num_envs=9, core="lstm", core_size=6)
    (batch,), spec = collect(made, 1)
    learner = build.learner(made, spec)
    passes = []
    learner.agent.register_forward_hook(lambda _, given, output: passes.append((given[1].shape, output.parameters)))
    metrics = learner.update(batch, 0.0)
    rows = batch.reward.shape[0]
    assert (rows + 1, 9) in [tuple(shape) for shape, _ in passes]
    shape, parameters = passes[-1]
    assert shape == (rows, 3)  # of 9 columns every third
    some = learner._on_device(batch)
    kl = learner.agent.distribution.kl(some.behaviour[:, ::3], parameters)[some.fresh[:, ::3]]
    assert metrics["policy/kl"] == pytest.approx(float(kl.mean()), rel=1e-5) and metrics["policy/kl"] > 0


def test_returns_are_scaled_by_the_spread_of_the_raw_targets():
    # Whatever the scale was, targets times scale are raw: a second learner that begins with another scale agrees.
    made = rig.config("CountingEnv", epochs=1, minibatches=1)
    (batch,), spec = collect(made, 1, learn=False)
    learner = make_learner(made, spec)
    with torch.no_grad():
        learner.agent.reward_scale.scale.fill_(4.0)
    scaled = learner._targets(learner._flat, learner._on_device(batch), learner.agent.reward_scale.scale)
    learner.update(batch, 0.0)
    expected = (scaled.vs.numpy() * 4.0)[batch.valid].std()
    assert learner.agent.reward_scale.scale.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", [{}, BATCHPPO])
def test_state_and_restore(options):
    made = rig.config("BanditEnv", **options)
    batches, spec = collect(made, 4)
    straight = make_learner(made, spec)
    for batch in batches:
        straight.update(batch, 0.0)
    first = make_learner(made, spec)
    for batch in batches[:2]:
        first.update(batch, 0.0)
    tensors, numbers = snapshot(first)[0], first.state()[1]
    other_seed = dataclasses.replace(made, seed=made.seed)
    resumed = make_learner(other_seed, spec)
    resumed.restore(tensors, numbers)
    assert same(snapshot(resumed), snapshot(first))
    for batch in batches[2:]:
        resumed.update(batch, 0.0)
    assert same(snapshot(resumed), snapshot(straight))
    assert {name.partition("/")[0] for name in tensors} == {"agent", "optimiser"}
    assert numbers["version"] == 2


def test_the_norm_of_the_gradient_is_clipped():
    made = rig.config("BanditEnv", epochs=1, minibatches=1)
    batches, spec = collect(made, 1)
    agent = build.agent(made, spec)
    flats = []
    for limit in (None, 1e-12):
        optimiser = OptimiserConfig(max_gradient_norm=limit, epsilon=1e-5)
        learner = Learner(
            build.agent(made, spec),
            PPO(PPOConfig(epochs=1, minibatches=1), agent.distribution, False),
            optimiser,
            run_seed=0,
        )
        learner.update(batches[0], 0.0)
        flats.append(learner._flat)
    start = torch.cat([value.flatten() for value in agent.parameters()])
    assert (flats[0] - start).abs().max() > 1e-5 > (flats[1] - start).abs().max()
