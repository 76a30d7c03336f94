"""IMPALA against the paper written out row by row, and what it learns on problems with a known answer."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import rig
import torch

from pronghorn.algorithms.base import Rows, Targets
from pronghorn.algorithms.impala import Impala
from pronghorn.algorithms.ppo import PPO
from pronghorn.config import ImpalaConfig, PPOConfig
from pronghorn.learning import compiler
from pronghorn.networks.agent import AgentOutput
from pronghorn.ops.distributions import ActionDistribution
from pronghorn.types import Leaf, Trajectory

T, B = 6, 7
SCALE = 0.5
ENTROPY_COST = 0.03
CONFIG = ImpalaConfig(
    discount=0.9, rho_bar=1.2, c_bar=0.9, pg_rho_bar=1.5, trace_lambda=0.8, value_cost=0.6, reduction="sum"
)
DISCRETE = Leaf("discrete", (), np.dtype(np.int64), categories=(4,))
REAL = Leaf("box", (2,), np.dtype(np.float32), low=np.full(2, -1.0), high=np.full(2, 1.0))
SPACES = {"discrete": DISCRETE, "gaussian": REAL, "masked": DISCRETE, "mixed": {"a": DISCRETE, "b": REAL}}
SIZES = {"discrete": 4, "gaussian": 4, "masked": 4, "mixed": 8}


class Case:
    """A batch in float64 with every kind of row, and an agent whose outputs are given numbers."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.kind = kind
        self.distribution = ActionDistribution(SPACES[kind])
        self.config = CONFIG
        self.parameters = rng.normal(size=(T + 1, B, SIZES[kind]))
        self.values = rng.normal(size=(T + 1, B))
        self.mask = rng.random((T + 1, B, 4)) < 0.5
        self.choice = rng.integers(4, size=(T, B))
        np.put_along_axis(self.mask[:T], self.choice[..., None], True, -1)
        self.mask[T, :, 0] = True
        self.real = rng.normal(size=(T, B, 2))
        self.lag = 0.7 * rng.normal(size=(T, B))
        self.reward = 2 * rng.normal(size=(T, B))
        self.terminated, self.truncated = rng.random((T, B)) < 0.2, rng.random((T, B)) < 0.2
        self.valid = rng.random((T, B)) < 0.8
        self.behaviour_log_prob = np.array([[self.log_prob(t, b) for b in range(B)] for t in range(T)]) - self.lag

    # The formulas, one row at a time.

    def log_prob(self, t: int, b: int) -> float:
        own, total = self.parameters[t, b], 0.0
        if self.kind != "gaussian":
            legal = self.mask[t, b] if self.kind == "masked" else np.full(4, True)
            total += own[self.choice[t, b]] - math.log(sum(math.exp(x) for x in own[:4][legal]))
        if self.kind in ("gaussian", "mixed"):
            means, deviations = own[-4:-2], np.exp(own[-2:])
            for x, mean, deviation in zip(self.real[t, b], means, deviations, strict=True):
                total -= 0.5 * ((x - mean) / deviation) ** 2 + math.log(deviation * math.sqrt(2 * math.pi))
        return float(total)

    def entropy(self, t: int, b: int) -> float:
        own, total = self.parameters[t, b], 0.0
        if self.kind != "gaussian":
            legal = self.mask[t, b] if self.kind == "masked" else np.full(4, True)
            weights = np.exp(own[:4][legal])
            total -= sum(p * math.log(p) for p in weights / weights.sum())
        if self.kind in ("gaussian", "mixed"):
            total += sum(0.5 * math.log(2 * math.pi * math.e) + own[-2:])
        return float(total)

    def reward_of(self, t: int, b: int) -> float:
        r = self.reward[t, b] / SCALE
        if self.config.reward_clip == "unit":
            return float(min(max(r, -1.0), 1.0))
        if self.config.reward_clip == "soft_asymmetric":
            return 5 * math.tanh(r / 5) * (0.3 if r < 0 else 1.0)
        return float(r)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """(vs, advantages): the sum of the paper, forwards from every row."""
        config, V = self.config, self.values
        vs, advantages = V[:T].copy(), np.zeros((T, B))
        ratios = np.exp([[self.log_prob(t, b) for b in range(B)] for t in range(T)] - self.behaviour_log_prob)
        caps = [math.inf if cap is None else cap for cap in (config.rho_bar, config.c_bar, config.pg_rho_bar)]
        rho, c, pg = (np.minimum(cap, ratios) for cap in caps)
        if config.corrections != "vtrace":
            rho = c = np.ones((T, B))
            if config.corrections != "one-step":
                pg = rho
        d = config.discount * ~self.terminated
        ends = self.terminated | self.truncated
        for b in range(B):
            for s in range(T):
                product = 1.0
                for t in range(s, T):
                    if not self.valid[t, b]:
                        break
                    error = self.reward_of(t, b) + d[t, b] * V[t + 1, b] - V[t, b]
                    vs[s, b] += product * rho[t, b] * error
                    if ends[t, b]:
                        break
                    product *= d[t, b] * config.trace_lambda * c[t, b]
            for s in np.nonzero(self.valid[:, b])[0]:
                following = V[s + 1, b] if s + 1 == T or ends[s, b] else vs[s + 1, b]
                if config.mix_bootstrap:
                    following = config.trace_lambda * following + (1 - config.trace_lambda) * V[s + 1, b]
                advantages[s, b] = pg[s, b] * (self.reward_of(s, b) + d[s, b] * following - V[s, b])
        return vs, advantages

    def expected_loss(self, vs: np.ndarray, advantages: np.ndarray) -> float:
        total = 0.0
        for t, b in zip(*np.nonzero(self.valid), strict=True):
            log_prob = self.log_prob(t, b)
            if self.config.corrections == "epsilon":
                log_prob = math.log(math.exp(log_prob) + 1e-6)
            total -= log_prob * advantages[t, b]
            total += self.config.value_cost * 0.5 * (vs[t, b] - self.values[t, b]) ** 2
            total -= ENTROPY_COST * self.entropy(t, b)
        return total / (self.valid.sum() if self.config.reduction == "mean" else 1)

    # The same of the algorithm.

    @property
    def action(self):
        choice, real = torch.from_numpy(self.choice), torch.from_numpy(self.real)
        return {"gaussian": real, "mixed": {"a": choice, "b": real}}.get(self.kind, choice)

    def legal(self, parameters):
        mask = torch.from_numpy(self.mask[: len(parameters)])
        return self.distribution.mask(parameters, mask) if self.kind == "masked" else parameters

    def batch(self) -> Trajectory:
        values = dict.fromkeys((field.name for field in dataclasses.fields(Trajectory)), torch.zeros(0))
        names = "reward", "terminated", "truncated", "valid", "behaviour_log_prob"
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in names}
        return Trajectory(**{**values, **tensors, "action": self.action, "core_state": ()})

    def targets(self, algorithm=None) -> Targets:
        output = AgentOutput(self.legal(torch.from_numpy(self.parameters)), torch.from_numpy(self.values), ())
        algorithm = algorithm or Impala(self.config, self.distribution)
        return algorithm.targets(lambda *_, **__: output, self.batch(), torch.tensor(SCALE, dtype=torch.float64))

    def loss(self, targets: Targets):
        """(loss, its gradients by parameters and values, metrics)."""
        parameters = torch.from_numpy(self.parameters[:-1]).requires_grad_()
        values = torch.from_numpy(self.values[:-1]).requires_grad_()
        batch = self.batch()
        none = torch.zeros(0)
        rows = Rows(none, none, batch.action, none, batch.behaviour_log_prob, batch.valid, ())
        total, metrics = Impala(self.config, self.distribution).loss(
            lambda *_: AgentOutput(self.legal(parameters), values, ()),
            rows,
            targets,
            {"entropy_cost": torch.tensor(ENTROPY_COST, dtype=torch.float64)},
        )
        gradients = torch.autograd.grad(total, (parameters, values))
        return total.item(), [gradient.numpy() for gradient in gradients], metrics


def changed(case: Case, **options) -> Case:
    case.config = dataclasses.replace(case.config, **options)
    return case


VARIANTS = [
    {},
    {"corrections": "one-step"},
    {"corrections": "epsilon"},
    {"corrections": "none", "mix_bootstrap": True},
    {"mix_bootstrap": True, "rho_bar": None, "c_bar": None, "pg_rho_bar": None},
    {"reward_clip": "unit", "trace_lambda": 1.0},
    {"reward_clip": "soft_asymmetric", "trace_lambda": 0.0},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", SPACES)
def test_targets_are_those_of_the_paper(kind, options):
    for seed in range(3):
        case = changed(Case(kind, seed), **options)
        found, (vs, advantages) = case.targets(), case.expected()
        np.testing.assert_allclose(found.vs, vs, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.advantages, advantages, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(found.values, case.values[:T])


@pytest.mark.parametrize("options", [{}, {"reduction": "mean"}, {"corrections": "epsilon"}], ids=str)
@pytest.mark.parametrize("kind", SPACES)
def test_loss_and_gradient_are_those_of_the_formula(kind, options):
    case = changed(Case(kind, 3), **options)
    case.parameters *= 2  # so that some probabilities are near 1e-6
    targets = case.targets()
    vs, advantages = case.expected()
    total, gradients, _ = case.loss(targets)
    assert total == pytest.approx(case.expected_loss(vs, advantages), rel=1e-9)
    step = 1e-5
    for array, gradient in zip((case.parameters, case.values), gradients, strict=True):
        for index in np.ndindex(gradient.shape):
            ends, before = [], array[index]
            for moved in (before + step, before - step):
                array[index] = moved
                ends.append(case.expected_loss(vs, advantages))
            array[index] = before
            assert gradient[index] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-7)


def test_the_gradient_of_the_policy_is_weighted_by_advantages():
    # By hand: d(−log π(a)·A)/dlogits = A·(π − onehot(a)).
    case = changed(Case("discrete"), value_cost=0.0)
    targets = case.targets()
    _, (found, by_values), _ = case.loss(targets._replace(advantages=torch.ones(T, B, dtype=torch.float64)))
    _, (other, _), _ = case.loss(targets._replace(advantages=torch.full((T, B), 3.0, dtype=torch.float64)))
    weights = np.exp(case.parameters[:T])
    by_hand = weights / weights.sum(-1, keepdims=True) - np.eye(4)[case.choice]
    np.testing.assert_allclose(other - found, 2 * by_hand * case.valid[..., None], rtol=1e-9, atol=1e-12)
    assert not by_values.any()


def test_the_epsilon_damps_what_is_nearly_impossible():
    case = changed(Case("discrete"), corrections="epsilon", value_cost=0.0)
    case.parameters[...] = 0.0
    case.valid[...] = False
    case.valid[0, :2] = True
    case.choice[0, :2] = 0
    case.parameters[0, 0, 0] = math.log(3e-6)  # π = 1e-6: half of the gradient is left
    advantages = torch.full((T, B), 100.0, dtype=torch.float64)
    _, (damped, _), _ = case.loss(case.targets()._replace(advantages=advantages))
    changed(case, corrections="none")
    _, (full, _), _ = case.loss(case.targets()._replace(advantages=advantages))
    assert damped[0, 0, 0] / full[0, 0, 0] == pytest.approx(0.5, abs=1e-3)
    assert damped[0, 1, 0] / full[0, 1, 0] == pytest.approx(1.0, abs=1e-5)


def test_the_cases_lie_on_both_sides_of_every_cap():
    for kind in SPACES:
        seen = set()
        for seed in range(3):
            case = Case(kind, seed)
            ratios = np.exp(case.lag[case.valid])
            seen |= {(cap, bool(ratio > cap)) for cap in (0.9, 1.2, 1.5) for ratio in ratios}
            seen |= {("end", *pair) for pair in zip(case.terminated.flat, case.truncated.flat, strict=True)}
        assert len(seen) == 10


@pytest.mark.parametrize("options", VARIANTS[:3], ids=str)
@pytest.mark.parametrize("kind", SPACES)
def test_rows_that_do_not_count_contribute_nothing(kind, options):
    case = changed(Case(kind, 5), **options)
    case.valid[:, 4] = False  # a whole column of padding
    found = case.targets()
    total, gradients, metrics = case.loss(found)
    invalid = ~case.valid
    assert not gradients[0][invalid].any() and not gradients[1][invalid].any()
    assert not found.advantages[invalid].any()
    for garbage in (0.0, 1e6, math.nan):
        case.reward[invalid] = case.behaviour_log_prob[invalid] = garbage
        others = case.targets()
        np.testing.assert_array_equal(others.vs, found.vs)
        np.testing.assert_array_equal(others.advantages, found.advantages)
    case.parameters[:T][invalid] *= 9
    other, other_gradients, other_metrics = case.loss(found)
    assert other == total and other_metrics == metrics
    for one, two in zip(gradients, other_gradients, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_batch_without_a_valid_row_teaches_nothing():
    case = Case("mixed")
    case.valid[...] = False
    for reduction in ("sum", "mean"):
        total, gradients, _ = changed(case, reduction=reduction).loss(case.targets())
        assert total == 0.0 and not any(gradient.any() for gradient in gradients)


def test_sums_are_means_times_the_valid_rows():
    case = Case("mixed", 2)
    targets = case.targets()
    by_sum, sums, sum_metrics = case.loss(targets)
    by_mean, means, mean_metrics = changed(case, reduction="mean").loss(targets)
    count = case.valid.sum()
    assert 0 < count < T * B and by_sum == pytest.approx(count * by_mean)
    for one, two in zip(sums, means, strict=True):
        np.testing.assert_allclose(one, count * two, rtol=1e-12)
    assert sum_metrics["loss/value"] == mean_metrics["loss/value"]  # comparable, whatever is minimised
    assert sum_metrics["loss/total"].item() == by_sum


@pytest.mark.parametrize("trace_lambda", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("corrections", ["vtrace", "one-step", "epsilon", "none"])
def test_on_policy_they_are_those_of_gae(corrections, trace_lambda):
    case = Case("mixed", 1)
    case.behaviour_log_prob += case.lag
    options = {"rho_bar": None, "c_bar": None, "pg_rho_bar": None, "mix_bootstrap": True}
    found = changed(case, corrections=corrections, trace_lambda=trace_lambda, **options).targets()
    ppo = PPOConfig(discount=case.config.discount, gae_lambda=trace_lambda, normalise_advantages="none")
    expected = case.targets(PPO(ppo, case.distribution, recurrent=True))
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    # Without the mixture the values' targets are the same, and the advantages those of the targets of the next row.
    plain = changed(case, mix_bootstrap=False).targets()
    np.testing.assert_allclose(plain.vs, expected.vs, rtol=1e-9, atol=1e-12)
    assert np.allclose(plain.advantages, expected.advantages) == (trace_lambda == 1.0)


@pytest.mark.parametrize("ending", ["truncated", "terminated"])
def test_an_end_within_a_batch_is_the_end_of_a_trajectory(ending):
    """Row 2 ends an episode, row 3 shows its final observation, the next begins at row 4: as if learnt apart."""
    case = Case("mixed", 4)
    case.valid[...] = True
    case.terminated[...] = case.truncated[...] = False
    getattr(case, ending)[2] = True
    case.valid[3] = False
    together = case.targets()
    total, gradients, _ = case.loss(together)
    totals = []
    for rows in (slice(0, 3), slice(4, T)):
        part = Case("mixed", 4)
        for name in ("terminated", "truncated", "valid", "behaviour_log_prob", "reward", "choice", "real"):
            setattr(part, name, getattr(case, name)[rows].copy())
        for name in ("parameters", "values"):
            setattr(part, name, getattr(case, name)[rows.start : rows.stop + 1].copy())
        part.truncated[...] = False  # there is nothing after the last row to be cut off
        apart = part.targets()
        for one, two in zip(apart, together, strict=True):
            np.testing.assert_allclose(one, two[rows], rtol=1e-12, atol=1e-15)
        own, own_gradients, _ = part.loss(apart)
        totals.append(own)
        for one, two in zip(own_gradients, gradients, strict=True):
            np.testing.assert_allclose(one, two[rows], rtol=1e-12, atol=1e-15)
    assert sum(totals) == pytest.approx(total)


def test_a_batch_is_walked_over_once_and_nothing_adapts():
    algorithm = Impala(CONFIG, Case("discrete").distribution)
    assert algorithm.walk == (1, 1, True, False)
    assert algorithm.initial_state() == {} == algorithm.adapt({}, {"policy/kl": 9.0})
    assert algorithm.hyperparameters({}, 0.9) == {"entropy_cost": 0.01}


def test_the_entropy_cost_may_fall():
    algorithm = Impala(dataclasses.replace(CONFIG, entropy_schedule="linear"), Case("discrete").distribution)
    for fraction, cost in ((0.0, 0.01), (0.25, 0.0075), (1.0, 0.0), (1.1, 0.0)):
        assert algorithm.hyperparameters({}, fraction) == {"entropy_cost": pytest.approx(cost)}


@pytest.mark.parametrize(("scaling", "expected"), [("returns", "vs"), ("rewards", "reward"), ("none", None)])
def test_rewards_are_scaled_by_unscaled_numbers(scaling, expected):
    case = changed(Case("discrete"), reward_scaling=scaling)
    batch, targets = case.batch(), case.targets()
    found = Impala(case.config, case.distribution).reward_statistics(batch, targets, torch.tensor(SCALE))
    numbers = {"vs": targets.vs * SCALE, "reward": batch.reward, None: None}[expected]
    assert found is None if numbers is None else torch.equal(found, numbers)


@pytest.mark.parametrize("algorithm", ["impala", "a2c"])
@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("BanditEnv", {}),
        ("MaskedBanditEnv", {}),
        ("rig:CameraBanditEnv", {"image_encoder": "shallow", "layers": ()}),
        ("CountingEnv", {"core": "counting"}),
        ("gymnasium.envs.classic_control:PendulumEnv", {}),
    ],
)
def test_learner_and_actor_agree_on_the_first_batch(algorithm, env, options):
    made = rig.config(env, algorithm, entropy_cost=0.0, reward_scaling="none", trace_lambda=0.9, **options)
    with rig.parts(made) as (actor, learner):
        batch = actor.collect()
        metrics = learner.update(batch, 0.0)
        assert metrics["check/log_prob_difference"] <= 1e-5
        rig.hand_over(learner, actor)
        assert learner.version == 1 and "check/log_prob_difference" not in learner.update(actor.collect(), 0.5)


@pytest.mark.parametrize("compiled", [False, True])
def test_one_update_is_one_step_of_the_optimiser(compiled, monkeypatch):
    """Also as one graph. RMSProp's first step is −rate·g / √(0.99 + 0.01 g² + ε)."""
    if compiled:  # traced, but not translated to C++, which takes long
        monkeypatch.setattr(torch._dynamo.config, "trace_autograd_ops", True)
        monkeypatch.setattr(compiler, "compiled", lambda f: torch.compile(f, fullgraph=True, backend="eager"))
    options = {"optimiser_name": "rmsprop", "epsilon": 0.1, "schedule": "constant", "max_gradient_norm": None}
    made = rig.config("BanditEnv", "impala", reduction="sum", learning_rate=1e-2, compile=compiled, **options)
    with rig.parts(made) as (actor, learner):
        batch = actor.collect()
        before = learner._flat
        tensors = learner._on_device(batch)
        with torch.no_grad():
            targets = learner._compute_targets(before, tensors, learner.agent.reward_scale.scale)
        numbers = {"entropy_cost": torch.tensor(made.loss.entropy_cost)}
        gradient, _ = learner._gradient(before, learner._rows(tensors), targets, None, numbers)
        learner.update(batch, 0.0)
    assert gradient.abs().max() > 0.1
    expected = before - 1e-2 * gradient / (0.99 + 0.01 * gradient.square() + 0.1).sqrt()
    torch.testing.assert_close(learner._flat, expected, rtol=1e-5, atol=1e-7)


def train(made, updates, lag=0):
    """(learner, last batch, played with the mode) after training, closed; the actor gets weights every ``lag`` + 1."""
    with rig.parts(made) as (actor, learner):
        actor.inference.mode, actor.inference.version = "random", -1
        learner.observe(actor.collect())
        actor.inference.mode = "sample"
        for number in range(updates):
            if number % (lag + 1) == 0:
                rig.hand_over(learner, actor)
            learner.update(actor.collect(), number / updates)
        rig.hand_over(learner, actor)
        actor.inference.mode = "mode"
        return learner, actor.collect()


A2C = {"corrections": "none", "trace_lambda": 0.95, "mix_bootstrap": True}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("impala", {}),
        ("impala", {"corrections": "one-step"}),
        ("impala", {"corrections": "epsilon"}),
        ("a2c", A2C),
        (
            "impala",
            {"optimiser_name": "rmsprop", "reduction": "sum", "epsilon": 0.1, "learning_rate": 2e-3}
            | {"max_gradient_norm": 40.0},
        ),
    ],
)
def test_a_contextual_bandit_is_solved(algorithm, options):
    options = {"learning_rate": 0.02, "reward_scaling": "none", **options}
    _, batch = train(rig.config("BanditEnv", algorithm, num_envs=8, unroll_length=16, **options), 120)
    assert (batch.reward[batch.valid] == 1.0).mean() > 0.98


def test_a_contextual_bandit_is_solved_by_weights_that_lag_behind():
    made = rig.config("BanditEnv", "impala", num_envs=8, unroll_length=16, learning_rate=0.01, reward_scaling="none")
    learner, batch = train(made, 160, lag=9)
    assert learner.version == 160 and (batch.reward[batch.valid] == 1.0).mean() > 0.98


@pytest.mark.parametrize(("algorithm", "options"), [("impala", {}), ("a2c", A2C)])
def test_a_masked_bandit_is_solved_without_an_illegal_action(algorithm, options):
    # The env raises where an illegal action is taken.
    options = {"learning_rate": 0.02, "layers": (32,), "reward_scaling": "none", **options}
    _, batch = train(rig.config("MaskedBanditEnv", algorithm, num_envs=8, unroll_length=40, **options), 80)
    assert (batch.reward[batch.valid] == 1.0).mean() > 0.98


@pytest.mark.parametrize(("algorithm", "options"), [("impala", {}), ("a2c", A2C)])
@pytest.mark.parametrize("terminates", [False, True])
def test_a_time_limit_is_not_the_end(terminates, algorithm, options):
    made = rig.config(
        "ConstantRewardEnv",
        algorithm,
        env_args={"terminates": terminates},
        unroll_length=11,  # ten steps and the row that shows the final observation: a column is an episode
        num_envs=4,
        discount=0.9,
        reward_scaling="none",
        learning_rate=0.04,
        max_gradient_norm=None,
        **options,
    )
    learner, batch = train(made, 200)
    tensors = batch.map(torch.from_numpy)
    agent = learner._bind(learner._views(learner._flat))
    values = agent(tensors.observation, tensors.first, tensors.core_state, policy=False).values
    # The step taken is not seen, so a terminated episode has the mean of its ten returns, or near it with λ < 1,
    # whose fixed point weighs the returns within an episode otherwise.
    if not terminates:
        np.testing.assert_allclose(values, 10.0, atol=0.3)
    else:
        mean_return = np.mean([(1 - 0.9**left) / 0.1 for left in range(1, 11)])
        np.testing.assert_allclose(values, mean_return, atol=0.3 if algorithm == "impala" else 0.8)
