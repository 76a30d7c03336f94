import numpy as np
import pytest

from pronghorn.envs.probes import (
    BanditEnv,
    ConstantRewardEnv,
    CountingEnv,
    CueRecallEnv,
    ImageBanditEnv,
    InstructionEnv,
    MaskedBanditEnv,
    TwoLengthEnv,
)
from pronghorn.envs.text import word_numbers
from pronghorn.envs.wrappers import conformer


def play(env, seed, policy, limit=2000):
    """Rewards, and the flags of the last step."""
    conform = conformer(env.spec.observation)
    observation = conform(env.reset(seed=seed)[0])
    rewards, over = [], (False, False)
    while not any(over) and len(rewards) < limit:
        answer, reward, *over, _ = env.step(policy(observation))
        observation = conform(answer)
        rewards.append(reward)
    return rewards, tuple(over)


def test_two_lengths_at_even_odds():
    lengths = [len(play(TwoLengthEnv(), seed, lambda _: 0)[0]) for seed in range(200)]
    assert set(lengths) == {20, 1000}
    assert 70 < lengths.count(20) < 130


@pytest.mark.parametrize("terminates", [False, True])
def test_constant_reward(terminates):
    assert play(ConstantRewardEnv(10, terminates), 0, lambda _: 0) == ([1.0] * 10, (terminates, not terminates))


def test_bandit_optimum():
    best = [np.mean(play(BanditEnv(4, 10), seed, lambda o: (int(o.argmax()) + 1) % 4)[0]) for seed in range(10)]
    fixed = [np.mean(play(BanditEnv(4, 10), seed, lambda o: 0)[0]) for seed in range(100)]
    assert best == [1.0] * 10
    assert np.mean(fixed) == pytest.approx(0.25, abs=0.05)


def test_masked_bandit_optimum():
    rewards, over = play(MaskedBanditEnv(), 3, lambda o: int(o["context"].argmax()))
    assert (rewards, over) == ([1.0] * 4, (True, False))
    random = [
        play(MaskedBanditEnv(), seed, lambda o: int(np.flatnonzero(o["action_mask"])[0]))[0] for seed in range(200)
    ]
    assert np.mean(random) == pytest.approx(1 / 3, abs=0.06)


def test_only_the_first_observation_of_cue_recall_tells_the_answer():
    seen, returns = set(), []
    for seed in range(100):
        env, rows = CueRecallEnv(cues=3, delay=2), []
        rewards, over = play(env, seed, lambda o, rows=rows: rows.append(o) or int(rows[0].argmax()))
        assert (rewards, over) == ([0.0, 0.0, 1.0], (True, False))
        assert sum(rows[0]) == 1 and np.array_equal(rows[1:], [[0, 0, 0, 0], [0, 0, 0, 1]])
        seen.add(int(rows[0].argmax()))
        returns.append(sum(play(env, seed, lambda _: 2)[0]))
    assert seen == {0, 1, 2} and np.mean(returns) == pytest.approx(1 / 3, abs=0.1)


def brightest(image):
    """The number of the quadrant that holds the brightest pixel."""
    _, row, column = np.unravel_index(image.argmax(), image.shape)
    return 2 * (row >= image.shape[1] // 2) + (column >= image.shape[2] // 2)


@pytest.mark.parametrize("channels", [1, 4])
def test_of_the_image_bandit_nothing_but_pixels_decides(channels):
    env = ImageBanditEnv(channels, 6, length=10)
    assert [play(env, seed, brightest)[0] for seed in range(5)] == [[1.0] * 10] * 5
    fixed = [np.mean(play(env, seed, lambda _: 3)[0]) for seed in range(100)]
    assert np.mean(fixed) == pytest.approx(0.25, abs=0.05)
    contexts = set()
    for seed in range(40):
        shown = []
        for action in range(4):
            image = env.reset(seed=seed)[0]
            shown.append([image, env.step(action)[0]])
        assert all(np.array_equal(images, shown[0]) for images in shown)  # actions change nothing
        assert image.shape == (channels, 6, 6) and image.dtype == np.uint8
        bright = image > 155
        assert not ((image >= 100) & ~bright).any() and bright.sum() == channels * 9
        contexts.add(brightest(image))
    assert contexts == {0, 1, 2, 3}


def test_of_instructions_nothing_but_the_words_decides():
    wanted = {tuple(word_numbers(text)): action for text, action in InstructionEnv.ORDERS}
    assert len(wanted) == len(InstructionEnv.ORDERS) == 6 and sum(wanted.values()) == 3
    (one, left), (other, right) = InstructionEnv.ORDERS[-2:]
    assert sorted(one.split()) == sorted(other.split()) and left != right  # their order tells
    env = InstructionEnv(length=10)
    seen = set()
    for seed in range(10):
        assert play(env, seed, lambda o: wanted[tuple(o["instruction"])])[0] == [1.0] * 10
        assert play(env, seed, lambda o: seen.add(tuple(o["instruction"])) or 0)[1] == (True, False)
    assert seen == set(wanted)
    assert np.mean([play(env, seed, lambda _: 1)[0] for seed in range(100)]) == pytest.approx(0.5, abs=0.05)
    silent = InstructionEnv(told=False, length=10)
    assert [play(silent, seed, lambda o: int(o["instruction"].any()))[0] for seed in range(5)] == [
        play(env, seed, lambda _: 0)[0] for seed in range(5)
    ]


def test_counting_env_checks_actions_on_request():
    env = CountingEnv((3,), expect_actions=True)
    assert play(env, 0, lambda o: int(o[1]) % 5) == ([1.0, 2.0, 3.0], (True, False))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 2 where 0 was due"):
        env.step(2)
