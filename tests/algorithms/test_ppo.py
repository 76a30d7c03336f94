"""PPO's loss against NumPy on both sides of every threshold, and what it learns on problems with a known answer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import rig
import torch

from pronghorn.algorithms.base import Rows, Targets
from pronghorn.algorithms.ppo import PPO
from pronghorn.config import PPOConfig
from pronghorn.networks.agent import AgentOutput
from pronghorn.ops.distributions import ActionDistribution
from pronghorn.types import Leaf, Trajectory

T, B, A = 4, 5, 3
CATEGORICAL = ActionDistribution(Leaf("discrete", (), np.dtype(np.int64), categories=(A,)))
COEFFICIENTS = {"clip_ratio": 0.2, "entropy_cost": 0.03, "kl_penalty": 0.7}
CLIP = PPOConfig(clip_ratio=0.2, kl_penalty=None, value_cost=0.6, normalise_advantages="none")
PENALTY = PPOConfig(
    clip_ratio=None,
    kl_penalty=1.0,
    kl_target=0.05,
    kl_cutoff_factor=3.0,
    kl_cutoff_coefficient=20.0,
    value_cost=0.6,
    normalise_advantages="none",
)
CONFIGS = {
    "clip": CLIP,
    "penalty": PENALTY,
    "both": dataclasses.replace(PENALTY, clip_ratio=0.2),
    "standardised": dataclasses.replace(CLIP, normalise_advantages="minibatch"),
}


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def make_case(seed=0):
    """Arrays of a loss; columns 0 and 1 keep near the old policy, the others go far from it."""
    rng = np.random.default_rng(seed)
    behaviour = rng.normal(size=(T, B, A))
    spread = np.array([0.05, 0.1, 0.8, 1.2, 1.6])[:, None]
    case = {
        "behaviour": behaviour,
        "logits": behaviour + spread * rng.normal(size=(T, B, A)),
        "values": rng.normal(size=(T, B)),
        "action": rng.integers(A, size=(T, B)),
        "vs": rng.normal(size=(T, B)),
        "advantages": rng.normal(size=(T, B)) + 0.5,
        "valid": rng.random((T, B)) < 0.75,
    }
    case["behaviour_log_prob"] = np.log(np.take_along_axis(softmax(behaviour), case["action"][..., None], -1)[..., 0])
    return case


def oracle(case, config, coefficients=COEFFICIENTS):
    """The loss, row by row."""
    valid = case["valid"]
    advantages = case["advantages"]
    if config.normalise_advantages == "minibatch":
        advantages = (advantages - advantages[valid].mean()) / advantages[valid].std()
    policy = value = entropy = 0.0
    kls = np.zeros((T, B))
    for t, b in zip(*np.nonzero(valid), strict=True):
        old, new = softmax(case["behaviour"][t, b]), softmax(case["logits"][t, b])
        ratio = np.exp(np.log(new[case["action"][t, b]]) - case["behaviour_log_prob"][t, b])
        gain = ratio * advantages[t, b]
        if config.clip_ratio is not None:
            epsilon = coefficients["clip_ratio"]
            gain = min(gain, min(max(ratio, 1 - epsilon), 1 + epsilon) * advantages[t, b])
        policy -= gain
        value += 0.5 * (case["vs"][t, b] - case["values"][t, b]) ** 2
        entropy -= (new * np.log(new)).sum()
        kls[t, b] = (old * np.log(old / new)).sum()
    n = valid.sum()
    total = policy / n + config.value_cost * value / n - coefficients["entropy_cost"] * entropy / n
    if config.kl_penalty is None:
        return total
    penalties = []
    for b in range(B):
        if valid[:, b].any():
            kl = kls[valid[:, b], b].mean()
            excess = max(0.0, kl - config.kl_cutoff_factor * config.kl_target)
            penalties.append(coefficients["kl_penalty"] * kl + config.kl_cutoff_coefficient * excess**2)
    return total + np.mean(penalties)


def loss_of(case, config, distribution=CATEGORICAL):
    """(loss, gradients by logits and values, metrics) of the algorithm, in float64."""
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in case.items()}
    logits, values = tensors["logits"].requires_grad_(), tensors["values"].requires_grad_()
    rows = Rows(
        observation=torch.zeros(T, B),
        first=torch.zeros(T, B, dtype=torch.bool),
        action=tensors["action"],
        behaviour=tensors["behaviour"],
        behaviour_log_prob=tensors["behaviour_log_prob"],
        valid=tensors["valid"],
        core_state=(),
    )
    targets = Targets(tensors["vs"], tensors["advantages"], tensors["vs"])
    hyperparameters = {name: torch.tensor(number, dtype=torch.float64) for name, number in COEFFICIENTS.items()}
    algorithm = PPO(config, distribution, recurrent=False)
    total, metrics = algorithm.loss(lambda *_: AgentOutput(logits, values, ()), rows, targets, hyperparameters)
    gradients = torch.autograd.grad(total, (logits, values))
    return total.item(), [gradient.numpy() for gradient in gradients], metrics


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_those_of_the_formula(name, seed):
    case, config = make_case(seed), CONFIGS[name]
    total, (by_logits, by_values), _ = loss_of(case, config)
    assert total == pytest.approx(oracle(case, config), rel=1e-6, abs=1e-9)
    step = 1e-5
    for key, gradient in (("logits", by_logits), ("values", by_values)):
        for index in np.ndindex(case[key].shape):
            ends = []
            for sign in (1, -1):
                moved = {**case, key: case[key].copy()}
                moved[key][index] += sign * step
                ends.append(oracle(moved, config))
            assert gradient[index] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-7)


def test_the_cases_lie_on_both_sides_of_every_threshold():
    seen = set()
    for seed in range(3):
        case = make_case(seed)
        new = np.take_along_axis(softmax(case["logits"]), case["action"][..., None], -1)[..., 0]
        ratio = new / np.exp(case["behaviour_log_prob"])
        for r, advantage in zip(ratio[case["valid"]], case["advantages"][case["valid"]], strict=True):
            seen.add((int(r > 0.8) + int(r > 1.2), advantage > 0))
        old = softmax(case["behaviour"])
        kl = (old * np.log(old / softmax(case["logits"]))).sum(-1)
        for b in range(B):
            if case["valid"][:, b].any():
                seen.add(kl[case["valid"][:, b], b].mean() > PENALTY.kl_cutoff_factor * PENALTY.kl_target)
        assert 0 < case["valid"].sum() < T * B
    assert seen == {(side, sign) for side in range(3) for sign in (True, False)} | {True, False}


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_that_do_not_count_contribute_nothing(name):
    case, config = make_case(4), CONFIGS[name]
    case["valid"][:, 4] = False  # a whole column of padding
    total, gradients, metrics = loss_of(case, config)
    assert total == pytest.approx(oracle(case, config), rel=1e-6)
    invalid = ~case["valid"]
    assert not gradients[0][invalid].any() and not gradients[1][invalid].any()
    for garbage in (0.0, 50.0, -1e4):
        other = {key: array.copy() for key, array in case.items()}
        for key in ("behaviour", "values", "vs", "advantages", "behaviour_log_prob"):
            other[key][invalid] = garbage
        other["logits"][invalid] *= garbage
        other["action"][invalid] = 0
        found, others, other_metrics = loss_of(other, config)
        assert found == pytest.approx(total, rel=1e-12)
        for one, two in zip(gradients, others, strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-12, atol=1e-15)
        assert {key: value.item() for key, value in other_metrics.items()} == pytest.approx(
            {key: value.item() for key, value in metrics.items()}
        )


def test_a_gaussian_policy_is_penalised_by_its_divergence():
    leaf = Leaf("box", (1,), np.dtype(np.float32), low=np.array([-1.0]), high=np.array([1.0]))
    rng = np.random.default_rng(0)
    mean, log_std = np.zeros((T, B, 1)), np.full((T, B, 1), -0.5)
    shift = np.array([0.05, 0.1, 0.5, 0.6, 0.7])[:, None] * np.ones((T, 1, 1))
    case = {
        "behaviour": np.concatenate([mean, log_std], -1),
        "logits": np.concatenate([mean + shift, log_std], -1),
        "values": np.zeros((T, B)),
        "action": rng.normal(size=(T, B, 1)),
        "vs": np.zeros((T, B)),
        "advantages": np.zeros((T, B)),
        "valid": np.ones((T, B), bool),
        "behaviour_log_prob": np.zeros((T, B)),
    }
    config = dataclasses.replace(PENALTY, entropy_cost=0.0)
    _, _, metrics = loss_of(case, config, ActionDistribution(leaf))
    kl = shift[0, :, 0] ** 2 / (2 * np.exp(-1.0))  # of equal deviations
    expected = 0.7 * kl + 20.0 * np.maximum(0.0, kl - 0.15) ** 2
    assert ((kl > 0.15) != (kl < 0.15)).all() and 0 < (kl > 0.15).sum() < B
    assert metrics["loss/kl_penalty"].item() == pytest.approx(expected.mean(), rel=1e-9)


def batch_of(case, rewards, terminated, truncated):
    names = {field.name: np.zeros(0) for field in dataclasses.fields(Trajectory)}
    return Trajectory(
        **{
            **names,
            "observation": torch.zeros(T + 1, B),
            "first": torch.zeros(T + 1, B, dtype=torch.bool),
            "reward": torch.from_numpy(rewards),
            "terminated": torch.from_numpy(terminated),
            "truncated": torch.from_numpy(truncated),
            "valid": torch.from_numpy(case["valid"]),
            "core_state": (),
        }
    )


@pytest.mark.parametrize("normalise", ["none", "minibatch", "batch"])
@pytest.mark.parametrize("clip", [None, 0.9])
def test_targets_are_those_of_the_recursion(normalise, clip):
    rng = np.random.default_rng(1)
    case = make_case(1)
    rewards, values = rng.normal(size=(T, B)), rng.normal(size=(T + 1, B))
    terminated, truncated = rng.random((T, B)) < 0.2, rng.random((T, B)) < 0.2
    config = dataclasses.replace(CLIP, discount=0.9, gae_lambda=0.7, normalise_advantages=normalise, reward_clip=clip)
    agent = lambda *_, **options: AgentOutput(torch.zeros(0), torch.from_numpy(values), ())  # noqa: E731
    found = PPO(config, CATEGORICAL, False).targets(
        agent, batch_of(case, rewards, terminated, truncated), torch.tensor(0.5, dtype=torch.float64)
    )
    advantages = np.zeros((T, B))
    for b in range(B):
        following = 0.0
        for t in reversed(range(T)):
            if not case["valid"][t, b]:
                following = 0.0
                continue
            reward = rewards[t, b] / 0.5
            if clip is not None:
                reward = min(max(reward, -clip), clip)
            discount = 0.0 if terminated[t, b] else 0.9
            error = reward + discount * values[t + 1, b] - values[t, b]
            cut = terminated[t, b] or truncated[t, b]
            following = advantages[t, b] = error + (0.0 if cut else 0.7 * discount * following)
    valid = case["valid"]
    np.testing.assert_allclose(found.vs, values[:-1] + advantages, rtol=1e-9)
    np.testing.assert_allclose(found.values, values[:-1])
    if normalise == "batch":  # over the rows that count only; "minibatch" is left to the loss
        advantages = (advantages - advantages[valid].mean()) / advantages[valid].std()
    np.testing.assert_allclose(found.advantages[valid], advantages[valid], rtol=1e-6)


def test_where_it_lags_the_recursion_is_that_of_vtrace_and_on_policy_that_of_gae():
    rng = np.random.default_rng(2)
    case = make_case(2)
    rewards, values = rng.normal(size=(T, B)), rng.normal(size=(T + 1, B))
    terminated, truncated = rng.random((T, B)) < 0.2, rng.random((T, B)) < 0.2
    config = dataclasses.replace(CLIP, discount=0.9, gae_lambda=0.7, normalise_advantages="none")
    parameters = torch.from_numpy(rng.normal(size=(T + 1, B, CATEGORICAL.parameter_size)))
    actions = torch.from_numpy(rng.integers(0, CATEGORICAL.parameter_size, (T, B)))
    own = CATEGORICAL.log_prob(parameters[:-1], actions)
    agent = lambda *_, **options: AgentOutput(parameters, torch.from_numpy(values), ())  # noqa: E731
    one = torch.ones((), dtype=torch.float64)

    def targets(corrected, log_ratios):
        batch = dataclasses.replace(
            batch_of(case, rewards, terminated, truncated), action=actions, behaviour_log_prob=own - log_ratios
        )
        return PPO(config, CATEGORICAL, False, corrected).targets(agent, batch, one)

    plain, on_policy = targets(False, 0.0), targets(True, 0.0)
    torch.testing.assert_close(on_policy.vs, plain.vs)
    torch.testing.assert_close(on_policy.advantages, plain.advantages)

    log_ratios = torch.from_numpy(rng.normal(size=(T, B)))
    found, valid = targets(True, log_ratios), case["valid"]
    weights = np.minimum(1.0, np.exp(log_ratios.numpy()))
    vs, advantages = np.array(values[:-1]), np.zeros((T, B))
    for b in range(B):
        correction = 0.0  # vs − V of the row after
        for t in reversed(range(T)):
            if not valid[t, b]:
                correction = 0.0
                continue
            discount = 0.0 if terminated[t, b] else 0.9
            carried = 0.0 if terminated[t, b] or truncated[t, b] else 0.7 * discount * correction
            error = rewards[t, b] + discount * values[t + 1, b] - values[t, b]
            advantages[t, b] = error + carried
            correction = weights[t, b] * (error + carried)
            vs[t, b] += correction
    np.testing.assert_allclose(found.vs, vs, rtol=1e-9)
    np.testing.assert_allclose(found.advantages[valid], advantages[valid], rtol=1e-9)
    assert not np.allclose(found.vs, plain.vs)


def test_the_penalty_adapts_to_the_divergence():
    algorithm = PPO(dataclasses.replace(PENALTY, kl_target=0.1, kl_penalty=2.0), CATEGORICAL, False)
    state = algorithm.initial_state()
    assert state == {"kl_penalty": 2.0}
    for kl, factor in ((0.131, 1.5), (0.129, 1.0), (0.1, 1.0), (0.071, 1.0), (0.069, 1 / 1.5), (0.0, 1 / 1.5)):
        assert algorithm.adapt(state, {"policy/kl": kl})["kl_penalty"] == pytest.approx(2.0 * factor)
    assert state == {"kl_penalty": 2.0}  # pure
    assert algorithm.hyperparameters({"kl_penalty": 5.0}, 0.5) == {"entropy_cost": 0.0, "kl_penalty": 5.0}
    clipped = PPO(CLIP, CATEGORICAL, False)
    assert clipped.initial_state() == {} and clipped.adapt({}, {"policy/kl": 9.0}) == {}
    assert clipped.hyperparameters({}, 0.5) == {"entropy_cost": 0.0, "clip_ratio": 0.2}
    falling = PPO(dataclasses.replace(CLIP, entropy_cost=0.02, entropy_schedule="linear"), CATEGORICAL, False)
    assert falling.hyperparameters({}, 0.5) == {"entropy_cost": 0.01, "clip_ratio": 0.2}


@pytest.mark.parametrize(
    ("config", "recurrent", "columns"), [(CLIP, False, False), (CLIP, True, True), (PENALTY, False, True)]
)
def test_columns_stay_whole_where_a_term_needs_them(config, recurrent, columns):
    walk = PPO(config, CATEGORICAL, recurrent).walk
    assert walk == (config.epochs, config.minibatches, columns, config.recompute_advantages)


def train(made, updates):
    """(actor, learner) after training, closed."""
    with rig.parts(made) as (actor, learner):
        actor.inference.mode, actor.inference.version = "random", -1
        learner.observe(actor.collect())
        actor.inference.mode = "sample"
        for number in range(updates):
            rig.hand_over(learner, actor)
            learner.update(actor.collect(), number / updates)
        rig.hand_over(learner, actor)
        actor.inference.mode = "mode"
        return learner, actor.collect()


@pytest.mark.parametrize("terminates", [False, True])
def test_a_time_limit_is_not_the_end(terminates):
    # Eleven rows: ten steps and the one that shows the final observation. So a column is an episode.
    made = rig.config(
        "ConstantRewardEnv",
        env_args={"terminates": terminates},
        unroll_length=11,
        num_envs=4,
        discount=0.9,
        gae_lambda=1.0,
        reward_scaling="none",
        epochs=10,
        minibatches=1,
        learning_rate=0.03,
        max_gradient_norm=5.0,
    )
    learner, batch = train(made, 60)
    tensors = batch.map(torch.from_numpy)
    values = learner._bind(learner._views(learner._flat))(
        tensors.observation, tensors.first, tensors.core_state, policy=False
    ).values
    # The step taken is not seen, so a terminated episode has the mean of its ten returns.
    expected = np.mean([(1 - 0.9**left) / 0.1 for left in range(1, 11)]) if terminates else 10.0
    assert expected == pytest.approx(4.138 if terminates else 10.0, abs=1e-3)
    np.testing.assert_allclose(values, expected, atol=0.3)


def test_a_contextual_bandit_is_solved():
    made = rig.config(
        "BanditEnv", num_envs=8, unroll_length=32, learning_rate=0.02, epochs=4, minibatches=2, reward_scaling="none"
    )
    _, batch = train(made, 25)
    assert (batch.reward[batch.valid] == 1.0).mean() > 0.98
    assert np.array_equal(batch.action[batch.valid], (batch.observation[:-1].argmax(-1) + 1)[batch.valid] % 4)


def test_a_masked_bandit_is_solved_without_an_illegal_action():
    # The env raises where an illegal action is taken; it is asked by sampling, random and greedy actions here.
    made = rig.config(
        "MaskedBanditEnv",
        num_envs=8,
        unroll_length=40,
        learning_rate=0.02,
        epochs=4,
        minibatches=2,
        layers=(32,),
        reward_scaling="none",
    )
    _, batch = train(made, 60)
    assert (batch.reward[batch.valid] == 1.0).mean() > 0.98


def test_batchppo_solves_the_bandit_from_whole_episodes():
    made = rig.config(
        "BanditEnv",
        env_args={"length": 5},
        num_envs=6,
        unroll_length=8,
        episodes_per_update=20,
        clip_ratio=None,
        kl_penalty=1.0,
        kl_target=0.02,
        epochs=10,
        minibatches=1,
        normalise_advantages="batch",
        recompute_advantages=False,
        learning_rate=0.01,
    )
    _, batch = train(made, 50)
    assert (batch.reward[batch.valid] == 1.0).mean() > 0.9
