"""Pronghorn through its public ``train``; no evaluation and no checkpoint before the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import work

from pronghorn import api
from pronghorn.config import RunConfig, from_json, override
from pronghorn.runners.sync import REPORTS


def main() -> None:
    asked = work.read()
    clock = work.Clock(asked.seconds)
    # Reports come every thousandth of a run: with these steps, every second update.
    steps = 2 * REPORTS * asked.batch

    def listen(event: str, record: dict[str, Any]) -> str | None:
        if event == "report" and clock.lap(record["updates"], record["step"]):
            return "timed"
        return None

    with tempfile.TemporaryDirectory() as folder:
        config = override(
            from_json(RunConfig, asked.config),
            run=str(Path(folder) / "run"),
            steps=steps,
            # The peers compute advantages once a batch; ours, by default, before each pass.
            recompute_advantages=False,
            evaluate_every=2 * steps,
            evaluation_episodes=1,
            checkpoint_every=2 * steps,
        )
        api.train(config, quiet=True, callbacks=[listen])
    clock.answer()


if __name__ == "__main__":
    main()
