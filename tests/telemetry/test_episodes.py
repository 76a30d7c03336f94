import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pronghorn.telemetry.episodes import EpisodeStatistics


def test_nothing_is_averaged_before_the_first_episode_ends() -> None:
    assert EpisodeStatistics().report() == {"episodes": 0}
    assert EpisodeStatistics(tasks=["a", "b"]).report() == {"episodes": 0}


@given(
    st.lists(st.tuples(st.integers(-999, 999), st.integers(1, 99), st.integers(0, 2)), max_size=30),
    st.integers(0, 30),
    st.integers(1, 9),
)
def test_means_of_the_newest_also_across_a_resume(episodes: list[tuple[int, int, int]], cut: int, window: int) -> None:
    def add(statistics: EpisodeStatistics, part: list[tuple[int, int, int]]) -> None:
        table = np.array(part, np.int64).reshape(-1, 3)
        statistics.add(table[:, 0].astype(np.float32), table[:, 1], table[:, 2])

    tasks = ["pong", "breakout", "qbert"]
    before, after = (EpisodeStatistics(window, tasks) for _ in range(2))
    add(before, episodes[:cut])
    after.add([5.0], [5], [1])  # forgotten by the restore
    after.restore(json.loads(json.dumps(before.state())))
    add(after, episodes[cut:])

    expected: dict[str, float] = {"episodes": len(episodes)}
    if episodes:
        expected["return/mean"] = np.mean([episode[0] for episode in episodes[-window:]])
        expected["length/mean"] = np.mean([episode[1] for episode in episodes[-window:]])
    for index, name in enumerate(tasks):
        returns = [episode[0] for episode in episodes if episode[2] == index][-window:]
        if returns:
            expected[f"task/{name}/return"] = np.mean(returns)
    report = after.report()
    assert report.keys() == expected.keys()
    np.testing.assert_allclose([report[key] for key in expected], list(expected.values()), rtol=1e-12, atol=1e-12)


def test_one_task_is_not_reported_twice() -> None:
    statistics = EpisodeStatistics(tasks=["only"])
    statistics.add(np.array([1.0, 2.0]), np.array([3, 4]), np.array([0, 0]))
    assert statistics.report() == {"episodes": 2, "return/mean": 1.5, "length/mean": 3.5}
