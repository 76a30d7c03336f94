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
    config = from_json(RunConfig, asked.config)
    # The peers compute advantages once a batch; ours, by default, before each pass. Threads are as many as theirs.
    config = override(config, recompute_advantages=False, threads=config.threads or 1)
    config, _ = api.decide(override(config, steps=work.FOREVER))
    # Reports come every thousandth of a run: with these steps after every update.
    steps = REPORTS * asked.batch

    def listen(event: str, record: dict[str, Any]) -> str | None:
        if event == "report" and clock.lap(record["updates"], record["step"]):
            return "timed"
        return None

    with tempfile.TemporaryDirectory() as folder:
        never = {"evaluate_every": 2 * steps, "evaluation_episodes": 1, "checkpoint_every": 2 * steps}
        config = override(config, run=str(Path(folder) / "run"), steps=steps, **never)
        api.train(config, quiet=True, callbacks=[listen])
    clock.answer()


if __name__ == "__main__":
    main()
