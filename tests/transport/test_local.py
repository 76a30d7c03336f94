"""The newest weights, or an error; never a wait."""

import pytest

from pronghorn.transport.local import LocalWeights


def test_the_newest_is_fetched_again_and_again():
    weights = LocalWeights()
    with pytest.raises(TimeoutError, match="no weights"):
        weights.fetch()
    for version in range(3):
        state = {"w": version}
        weights.publish(state, version)
        assert weights.fetch() == weights.fetch() == (state, version)
