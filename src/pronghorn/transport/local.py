"""Weights within one process."""

from __future__ import annotations

from typing import Any


class LocalWeights:
    """Both ends: holds the newest published state dict."""

    def __init__(self) -> None:
        self._newest: tuple[dict[str, Any], int] | None = None

    def publish(self, state: dict[str, Any], version: int) -> None:
        self._newest = state, version

    def fetch(self) -> tuple[dict[str, Any], int]:
        """Raises TimeoutError where nothing was published yet: in one process waiting would be for ever."""
        if self._newest is None:
            raise TimeoutError("no weights were published yet")
        return self._newest
