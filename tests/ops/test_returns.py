"""Returns, GAE and V-trace against sums written out in NumPy, and against each other."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pronghorn.ops.returns import discounted_returns, generalised_advantages, vtrace

CASES = json.loads(Path(__file__).with_name("vtrace_cases.json").read_text())["cases"]
NO_CAPS = {"rho_bar": None, "c_bar": None, "pg_rho_bar": None}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def threshold(value):
    return math.inf if value == "inf" else value


def plain(shape):
    """cuts, valid of rows that all count."""
    return torch.zeros(shape, dtype=torch.bool), torch.ones(shape, dtype=torch.bool)


def naive_gae(rewards, values, discounts, cuts, valid, lam):
    advantages = np.zeros_like(rewards)
    for b in range(rewards.shape[1]):
        for s in range(len(rewards)):
            weight = 1.0
            for t in range(s, len(rewards)):
                if not valid[t, b]:
                    break
                advantages[s, b] += weight * (rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b])
                if cuts[t, b]:
                    break
                weight *= discounts[t, b] * lam
    return advantages


def naive_vtrace(log_rhos, rewards, values, discounts, cuts, valid, rho_bar, c_bar, pg_rho_bar, lam):
    """The sum of the paper's equation 1, for each row over the rest of its own episode."""
    ratios = np.exp(log_rhos)
    vs = values.copy()
    for b in range(rewards.shape[1]):
        for s in range(len(rewards)):
            product = 1.0
            for t in range(s, len(rewards)):
                if not valid[t, b]:
                    break
                delta = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
                vs[s, b] += product * min(rho_bar, ratios[t, b]) * delta
                if cuts[t, b]:
                    break
                product *= discounts[t, b] * lam * min(c_bar, ratios[t, b])
    advantages = np.zeros_like(rewards)
    for t, b in np.argwhere(valid):
        next_target = values[t + 1, b] if cuts[t, b] else vs[t + 1, b]
        target = rewards[t, b] + discounts[t, b] * next_target
        advantages[t, b] = min(pg_rho_bar, ratios[t, b]) * (target - values[t, b])
    return vs[:-1], advantages


@st.composite
def batches(draw):
    """Rows with both kinds of end, lost lives, resets after ends, and holes, in float64."""
    steps, columns = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (steps, columns)
    terminated, truncated, valid = rng.random(shape) < 0.15, rng.random(shape) < 0.15, rng.random(shape) < 0.9
    for t in range(1, steps):
        reset = truncated[t - 1] | (terminated[t - 1] & (rng.random(columns) < 0.5))
        valid[t] &= ~reset
    terminated &= valid
    truncated &= valid
    discounts = rng.choice([0.9, 0.99, 1.0], size=shape) * (1 - terminated)
    return {
        "rewards": rng.normal(size=shape),
        "values": rng.normal(size=(steps + 1, columns)),
        "discounts": discounts,
        "cuts": terminated | truncated,
        "valid": valid,
        "log_rhos": rng.normal(size=shape),
    }


def rows(batch, *names):
    return {name: torch.from_numpy(batch[name]) for name in ("rewards", "values", "discounts", "cuts", "valid", *names)}


def test_discounted_returns():
    g = discounted_returns(tensor([[1.0], [2.0], [3.0]]), tensor([[0.5], [0.0], [0.5]]), tensor([8.0]))
    assert g.tolist() == [[2.0], [2.0], [7.0]]


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_is_its_sum(batch, lam):
    ours = generalised_advantages(**rows(batch), gae_lambda=lam)
    names = ("rewards", "values", "discounts", "cuts", "valid")
    np.testing.assert_allclose(ours, naive_gae(*(batch[name] for name in names), lam), rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from([0.0, 0.7, 1.0]))
def test_vtrace_is_its_sum(batch, lam):
    caps = {"rho_bar": 1.7, "c_bar": 0.8, "pg_rho_bar": 1.3}
    ours = vtrace(**rows(batch, "log_rhos"), **caps, trace_lambda=lam)
    names = ("log_rhos", "rewards", "values", "discounts", "cuts", "valid")
    vs, advantages = naive_vtrace(*(batch[name] for name in names), *caps.values(), lam)
    np.testing.assert_allclose(ours.vs, vs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.pg_advantages, advantages, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from([0.0, 0.7, 1.0]))
def test_gae_is_vtrace_at_ratio_one(batch, lam):
    batch["log_rhos"] = np.zeros_like(batch["log_rhos"])
    inputs = rows(batch, "log_rhos")
    ours = vtrace(**inputs, rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0, trace_lambda=lam, bootstrap_mix=True)
    advantages = generalised_advantages(**rows(batch), gae_lambda=lam)
    torch.testing.assert_close(ours.vs - inputs["values"][:-1], advantages, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.pg_advantages, advantages, rtol=1e-10, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_invalid_rows_leave_no_trace(batch):
    inputs = rows(batch, "log_rhos")
    spoiled = dict(inputs)
    for name in ("rewards", "discounts", "log_rhos"):
        spoiled[name] = torch.where(inputs["valid"], inputs[name], math.nan)
    caps = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0}
    clean, result = vtrace(**inputs, **caps), vtrace(**spoiled, **caps)
    assert torch.equal(clean.vs, result.vs) and torch.equal(clean.pg_advantages, result.pg_advantages)
    assert torch.equal(result.vs[~inputs["valid"]], inputs["values"][:-1][~inputs["valid"]])
    assert not result.pg_advantages[~inputs["valid"]].any()
    for batch_rows in (inputs, spoiled):
        del batch_rows["log_rhos"]
    advantages = generalised_advantages(**spoiled, gae_lambda=0.9)
    assert torch.equal(advantages, generalised_advantages(**inputs, gae_lambda=0.9))
    assert not advantages[~inputs["valid"]].any()


@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_an_end_inside_the_unroll_equals_two_trajectories_apart(end):
    rng = np.random.default_rng(0)
    first, second = 4, 3  # rows 0-3, the ignored action on the final observation, rows 5-7
    steps = first + 1 + second
    values, rewards, log_rhos = (tensor(rng.normal(size=(n, 1))) for n in (steps + 1, steps, steps))
    discounts, (cuts, valid) = torch.full((steps, 1), 0.9, dtype=torch.float64), plain((steps, 1))
    cuts[first - 1], valid[first] = True, False
    if end == "terminated":
        discounts[first - 1] = 0.0

    def compute(here, there, flags):
        arguments = (rewards[here:there], values[here : there + 1], discounts[here:there], *flags)
        caps = {"rho_bar": 1.5, "c_bar": 1.0, "pg_rho_bar": 2.0}
        targets = vtrace(log_rhos[here:there], *arguments, **caps, trace_lambda=0.9)
        return torch.stack((*targets, generalised_advantages(*arguments, 0.95)))

    together = compute(0, steps, (cuts, valid))
    torch.testing.assert_close(together[:, :first], compute(0, first, plain((first, 1))))
    torch.testing.assert_close(together[:, first + 1 :], compute(first + 1, steps, plain((second, 1))))
    assert together[:, first].flatten().tolist() == [values[first].item(), 0.0, 0.0, 0.0]


def test_a_lost_life_stops_the_credit_though_the_next_row_counts():
    rewards, values = tensor([[1.0], [100.0]]), tensor([[0.0], [7.0], [9.0]])
    discounts = tensor([[0.0], [0.5]])
    cuts, valid = torch.tensor([[True], [False]]), torch.tensor([[True], [True]])
    advantages = generalised_advantages(rewards, values, discounts, cuts, valid, 1.0)
    assert advantages.tolist() == [[1.0], [97.5]]
    vs, pg_advantages, _ = vtrace(torch.zeros(2, 1).double(), rewards, values, discounts, cuts, valid, **NO_CAPS)
    assert vs.tolist() == [[1.0], [104.5]] and pg_advantages.tolist() == [[1.0], [97.5]]


def test_a_time_limit_bootstraps_from_the_final_observation():
    rewards, values = tensor([[1.0], [0.0], [50.0]]), tensor([[0.0], [8.0], [20.0], [30.0]])
    discounts = tensor([[0.5], [0.5], [0.5]])
    cuts, valid = torch.tensor([[True], [False], [False]]), torch.tensor([[True], [False], [True]])
    assert generalised_advantages(rewards, values, discounts, cuts, valid, 1.0).tolist() == [[5.0], [0.0], [45.0]]
    vs, pg_advantages, _ = vtrace(torch.zeros(3, 1).double(), rewards, values, discounts, cuts, valid, **NO_CAPS)
    assert vs.tolist() == [[5.0], [8.0], [65.0]] and pg_advantages.tolist() == [[5.0], [0.0], [45.0]]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_published_cases(case):
    inputs, expected, params = case["inputs"], case["expected"], case["params"]
    log_rhos = tensor(inputs["log_rhos"] if "log_rhos" in inputs else expected["log_rhos"])
    values = torch.cat((tensor(inputs["values"]), tensor(inputs["bootstrap_value"])[None]))
    caps = {
        "rho_bar": threshold(params["clip_rho_threshold"]),
        "c_bar": threshold(params["clip_c_threshold"]),
        "pg_rho_bar": threshold(params["clip_pg_rho_threshold"]),
    }
    forms = {"pg_advantages": False}
    if "pg_advantages_rlax_lambda_mix" in expected:
        forms["pg_advantages_rlax_lambda_mix"] = True
    for form, mix in forms.items():
        ours = vtrace(
            log_rhos,
            tensor(inputs["rewards"]),
            values,
            tensor(inputs["discounts"]),
            *plain(log_rhos.shape),
            **caps,
            trace_lambda=params["lambda"],
            bootstrap_mix=mix,
        )
        torch.testing.assert_close(ours.vs, tensor(expected["vs"]), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours.pg_advantages, tensor(expected[form]), rtol=1e-9, atol=1e-9)


def test_capped_ratios_stay_finite_in_float32():
    log_rhos = torch.tensor([[200.0, -200.0], [-60.0, 60.0], [1e30, -1e30]])
    rewards, values, discounts = torch.ones(3, 2), torch.ones(4, 2), torch.full((3, 2), 0.9)
    caps = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0}
    ours = vtrace(log_rhos, rewards, values, discounts, *plain((3, 2)), **caps)
    assert torch.isfinite(torch.stack(ours)).all()
    same = vtrace(log_rhos.clamp(-200, 0), rewards, values, discounts, *plain((3, 2)), **caps)
    assert torch.equal(torch.stack(ours), torch.stack(same))


def test_gradients_of_the_targets():
    rng = np.random.default_rng(3)
    inputs = [tensor(rng.normal(size=(n, 2))).requires_grad_() for n in (5, 5, 6)]
    discounts, (cuts, valid) = torch.full((5, 2), 0.9, dtype=torch.float64), plain((5, 2))
    cuts[2, 0] = True
    valid[3, 0] = False

    def targets(log_rhos, rewards, values):
        traces = vtrace(log_rhos, rewards, values, discounts, cuts, valid, rho_bar=1.5, c_bar=1.0, pg_rho_bar=2.0)
        return *traces, generalised_advantages(rewards, values, discounts, cuts, valid, 0.95)

    assert torch.autograd.gradcheck(targets, inputs)


def test_compiles_to_one_graph():
    inputs = [torch.randn(6, 2), torch.randn(6, 2), torch.randn(7, 2), torch.full((6, 2), 0.9), *plain((6, 2))]

    def both(log_rhos, *rest):
        traces = vtrace(log_rhos, *rest, rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0)
        return *traces, generalised_advantages(*rest, 0.95)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), both(*inputs))
