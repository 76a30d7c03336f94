"""Words as numbers: neither the row nor a network ever sees a string."""

from __future__ import annotations

import functools
import zlib

import numpy as np
from numpy.typing import NDArray

from pronghorn.types import Leaf

WORDS = 32
"""Of a text that are kept: a longer one is cut, a shorter one padded with 0."""

BUCKETS = 1000
"""Over which words are spread; two words may share one."""

_DTYPE = np.dtype(np.int16)


def text_leaf() -> Leaf:
    """The leaf of an observation that is text: the env answers a string, the row holds its ``word_numbers``."""
    return Leaf("text", (WORDS,), _DTYPE, categories=(BUCKETS + 1,))


@functools.lru_cache(256)  # an instruction is repeated at every step
def word_numbers(text: str) -> NDArray[np.int16]:
    """The buckets [WORDS] int16, from 1 on, of the words between blanks, then 0; read-only.

    A word has the same bucket in every process and run.
    """
    numbers = np.zeros(WORDS, _DTYPE)
    words = text.split()[:WORDS]
    numbers[: len(words)] = [1 + zlib.crc32(word.encode("utf-8", "surrogatepass")) % BUCKETS for word in words]
    numbers.flags.writeable = False
    return numbers
