"""From the words of a text to one vector of features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pronghorn.envs.text import BUCKETS, WORDS
from pronghorn.networks.cores import LSTM, GatedCore

EMBEDDED = 20
UNITS = 64


class TextEncoder(nn.Module):
    """IMPALA's encoder of instructions: embedded words, an LSTM over them, its output after the last one.

    Every text is read from its first word on, whatever was read before. Embeddings start as a truncated normal with
    σ = 1/√``BUCKETS``, the LSTM as any other.
    """

    size = UNITS

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        sigma = 1 / math.sqrt(BUCKETS)
        self.embedding = nn.Parameter(torch.empty(BUCKETS, EMBEDDED))
        nn.init.trunc_normal_(self.embedding, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)
        self.core = GatedCore(LSTM, EMBEDDED, UNITS, generator)

    def forward(self, words: Tensor) -> Tensor:
        """``word_numbers`` [..., WORDS] → [..., UNITS] float32, zero where there is no word."""
        texts = words.reshape(-1, WORDS)
        if torch.compiler.is_compiling():  # how many differ is known only when the graph runs
            read = self._read(texts.to(torch.int64))
        else:
            longest = max(int((texts != 0).sum(-1).max()), 1)
            distinct, place = torch.unique(texts[:, :longest], dim=0, return_inverse=True)
            # Looked up rather than indexed: so its gradient is summed in the same order every time.
            read = functional.embedding(place, self._read(distinct.to(torch.int64)))
        return read.reshape(*words.shape[:-1], UNITS)

    def _read(self, texts: Tensor) -> Tensor:
        """[N, words] → [N, UNITS]."""
        count, longest = texts.shape
        lengths = (texts != 0).sum(-1)
        embedded = functional.embedding((texts.t() - 1).clamp(min=0), self.embedding)
        never = torch.zeros(longest, count, dtype=torch.bool, device=texts.device)
        outputs: Tensor = self.core(embedded, never, self.core.initial_state(count))[0]
        last = (lengths - 1).clamp(min=0).expand(UNITS, -1).t().unsqueeze(0)
        return outputs.gather(0, last).squeeze(0).masked_fill((lengths == 0).unsqueeze(-1), 0.0)
