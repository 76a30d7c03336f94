import contextlib
import functools
import warnings

import numpy as np
import pytest
from vec.engine_stand_ins import FIRST_INDEX, RUN_SEED, CountingVector, FirstReadyEngine, Oracle, as_rows

from pronghorn import tree
from pronghorn.envs.probes import CountingEnv
from pronghorn.seeding import Domain
from pronghorn.types import Leaf, UserError
from pronghorn.vec.base import EnvError
from pronghorn.vec.gymnasium_vector import VectorEngine
from pronghorn.vec.native import ActionRows, NativeVec


def counting(num_envs=5, groups=1, watch=None, **arguments):
    make = vector(functools.partial(CountingVector, **arguments))
    return native(make, num_envs, groups=groups, **({} if watch is None else {"watch": watch}))


def vector(make):
    return lambda count, batch: VectorEngine("counting", make, count)


def native(make, num_envs, **options):
    return NativeVec(make, num_envs, RUN_SEED, Domain.TRAINING_ENV, first_index=FIRST_INDEX, **options)


def check(vec, episodes, rounds, knows_final=True, look=lambda step: None):
    """Every row against the oracle; actions go in shuffled pieces."""
    random = np.random.default_rng(0)
    oracles = [Oracle(env, int(episode), knows_final) for env, episode in enumerate(episodes)]
    sent = dict.fromkeys(range(vec.num_envs))
    vec.reset(np.array(episodes))
    ends = 0
    for _ in range(rounds):
        step = vec.recv()
        envs = step.envs.copy()
        expected = [oracles[env].answer(sent.pop(env)) for env in envs.tolist()]
        assert as_rows(step) == expected
        ends += int(step.over.sum())
        look(step)
        for piece in np.array_split(random.permutation(envs), min(3, len(envs))):
            actions = random.integers(0, 5, len(piece))
            sent.update(zip(piece.tolist(), actions.tolist(), strict=True))
            vec.send(actions, piece)
            actions[:], step.envs[:], step.reward[:] = -7, -7, -7  # the caller's own
    assert ends > 2 * vec.num_envs


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("groups", [1, 3])
def test_every_row_of_a_vector_env(mode, groups):
    with contextlib.closing(counting(7, groups, mode=mode)) as vec:
        check(vec, [0] * 7, 150)
        check(vec, range(40, 47), 150)  # again, with actions in flight


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_nested_observations(mode):
    def look(step):
        counted, (discrete, pair) = step.observation["a"], step.observation["b"]
        assert discrete.dtype == np.int64 and (discrete == counted[:, 1]).all()
        assert pair.dtype == np.float32 and (pair == np.stack([counted[:, 1], -counted[:, 1]], 1)).all()

    with contextlib.closing(counting(5, mode=mode, nested=True)) as vec:
        check(vec, [0] * 5, 100, look=look)


def test_a_new_episode_answers_the_ignored_action_alone():
    with contextlib.closing(counting(7, mode="SameStep")) as vec:
        sizes = []
        check(vec, [0] * 7, 80, look=lambda step: sizes.append((len(step.envs), bool(step.first.all()))))
    assert {size for size, first in sizes if not first} == {7}
    assert min(size for size, first in sizes if first) < 7


def test_without_final_observations_every_end_is_terminated():
    with contextlib.closing(counting(5, mode="SameStep", final=False)) as vec:
        with pytest.warns(UserWarning, match=r"counting gives no final observation .* terminated") as caught:
            check(vec, [0] * 5, 100, knows_final=False)
        assert len(caught) == 1


def test_an_undeclared_mode_is_next_step():
    with pytest.warns(UserWarning, match="taken for NEXT_STEP"):
        vec = counting(4, declares=False)
    with contextlib.closing(vec):
        check(vec, [0] * 4, 60)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "env 21: observation is not finite"),
        ("shape", r"env 20: observation has shape \(2,\), .* \(3,\)"),
        ("kind", "envs 20 to 21: observation is <U32, its space says float64"),
        ("reward", "env 21 in step: reward is not finite"),
        ("four", r"counting: step returned 4 values, as Gym did before 0\.26"),
        ("flags", "counting: terminated is object, not bool"),
        ("reset", r"counting: reset must return \(observation, info\)"),
    ],
)
def test_what_breaks_the_contract_is_refused(fault, message):
    with contextlib.closing(counting(2, mode="Disabled", fault=fault)) as vec, pytest.raises(UserError, match=message):
        check(vec, [0] * 2, 20)


def test_the_first_ready_answer():
    with contextlib.closing(native(FirstReadyEngine, 7, ready=3)) as vec:
        orders = []
        check(vec, [0] * 7, 200, look=lambda step: orders.append(tuple(step.envs.tolist())))
        check(vec, range(7), 100)
    assert all(len(order) == 3 for order in orders) and len(set(orders)) > 20
    with pytest.raises(UserError, match="groups"):
        native(FirstReadyEngine, 6, ready=2, groups=2)
    with pytest.raises(UserError, match="first 9 ready of 6"):
        native(FirstReadyEngine, 6, ready=9)


def test_nothing_to_receive_is_said_and_not_waited_for():
    with contextlib.closing(counting(4, groups=2)) as vec:
        vec.reset(np.zeros(4, np.int64))
        assert vec.recv().envs.tolist() == [0, 1]
        assert vec.recv().envs.tolist() == [2, 3]
        vec.send(np.zeros(3, np.int64), np.array([3, 0, 2]))
        with pytest.raises(ValueError, match="in flight"):
            vec.send(np.zeros(1, np.int64), np.array([3]))
        assert vec.recv().envs.tolist() == [2, 3]
        with pytest.raises(ValueError, match=r"envs \[1, 2, 3\] have no action"):
            vec.recv()


def test_histories_cannot_be_replayed():
    with contextlib.closing(counting(2)) as vec:
        vec.reset(np.zeros(2, np.int64), [np.zeros(0, np.int64)] * 2)
        with pytest.raises(ValueError, match="replay"):
            vec.reset(np.zeros(2, np.int64), [np.zeros(0, np.int64), np.zeros(1, np.int64)])


@pytest.mark.parametrize("action", [-1, 5])
def test_an_action_outside_its_space_reaches_no_engine(action):
    with contextlib.closing(counting(3)) as vec:
        vec.reset(np.zeros(3, np.int64))
        vec.recv()
        with pytest.raises(EnvError, match=rf"env 22: action is {action}, which is not below \[5\]"):
            vec.send(np.array([0, action]), np.array([1, 2]))
        vec.send(np.zeros(3, np.int64), np.arange(3))  # nothing was taken
        assert vec.recv().valid.all()


def test_an_action_that_is_not_a_number_reaches_no_engine():
    class Engine(FirstReadyEngine):
        def __init__(self, num_envs, batch):
            super().__init__(num_envs, batch)
            shape = (2,)
            leaf = Leaf("box", shape, np.dtype(np.float32), low=np.full(shape, -1.0), high=np.full(shape, 1.0))
            self.spec = type(self.spec)("boxes", self.spec.observation, {"a": leaf})

    with contextlib.closing(native(Engine, 2)) as vec:
        vec.reset(np.zeros(2, np.int64))
        vec.recv()
        with pytest.raises(EnvError, match=r"env 21: action 'a' is \[0.0, nan\], which is not finite"):
            vec.send({"a": np.array([[0, 1], [0, np.nan]], np.float32)}, np.arange(2))


def test_who_failed_and_where():
    class Breaks(CountingVector):
        def step(self, actions):
            if self.num_envs == 2:
                raise ZeroDivisionError("of zero")
            return super().step(actions)

    with contextlib.closing(native(vector(Breaks), 5, groups=2)) as vec:  # groups of 3 and 2
        vec.reset(np.zeros(5, np.int64))
        for _ in range(2):
            step = vec.recv()
            vec.send(np.zeros(len(step.envs), np.int64), step.envs)
        assert len(vec.recv().envs) == 3
        with pytest.raises(EnvError, match="envs 23 to 24: ZeroDivisionError in step: of zero"):
            vec.recv()


def test_every_call_is_watched():
    phases = []

    @contextlib.contextmanager
    def watch(phase):
        phases.append(phase)
        yield

    with contextlib.closing(counting(2, watch=watch)) as vec:
        vec.reset(np.zeros(2, np.int64))
        vec.recv()
        vec.send(np.zeros(2, np.int64), np.arange(2))
        vec.recv()
    assert phases == ["construct", "reset", "step", "step", "step"]


def test_closed_once_even_if_asked_twice_or_half_made():
    made = []

    def make(count):
        if len(made) == 2:
            raise RuntimeError("no more")
        made.append(CountingVector(count))
        return made[-1]

    vec = native(vector(make), 2)
    vec.close()
    vec.close()
    with pytest.raises(EnvError, match="envs 22 to 23: RuntimeError in construct: no more"):
        native(vector(make), 4, groups=2)
    assert [inner.closed_times for inner in made] == [1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: object(), "x is not a vector environment: it has no num_envs"),
        (lambda n: CountingVector(n + 1), "x was asked for 2 envs and has 3"),
    ],
)
def test_what_is_no_vector_env(make, message):
    with pytest.raises(UserError, match=message):
        VectorEngine("x", make, 2)


def test_a_library_that_takes_one_seed_gets_one():
    class OneSeed(CountingVector):
        def reset(self, *, seed=None, options=None):
            assert seed is None or isinstance(seed, int)
            return super().reset(seed=None if seed is None else [seed] * self.num_envs, options=options)

    engine = VectorEngine("one", OneSeed, 2)
    engine.reset(np.array([41, 7]))
    assert engine.recv().observation[:, 0].tolist() == [41, 41]
    engine.close()


def test_action_rows_are_copies_in_the_order_asked_for():
    rows = ActionRows(CountingEnv().spec.action, 4, 2)
    rows.put(np.array([7]), np.array([3]))
    assert not rows.complete
    rows.put(np.array([8]), np.array([1]))
    assert rows.complete
    taken = rows.take(np.array([3, 1]))
    rows.put(np.array([0, 0]), np.array([1, 3]))
    assert taken.tolist() == [7, 8] and rows.complete
    rows.clear()
    assert not rows.complete


def test_no_warning_where_all_is_said():
    with warnings.catch_warnings(), contextlib.closing(counting(3, mode="SameStep")) as vec:
        warnings.simplefilter("error")
        check(vec, [0] * 3, 60)
    assert tree.leaves(vec.spec.observation)[0].shape == (3,)
