"""Run directories with the two files that plots and comparisons read, written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pronghorn.config import RunConfig, override, to_json


def make_run(directory: Path, config: RunConfig, reports: Sequence[dict[str, Any]], tail: str = "") -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"config": to_json(config), "versions": {"numpy": "2"}}))
    lines = [json.dumps(report) + "\n" for report in reports]
    (directory / "metrics.jsonl").write_text("".join(lines) + tail)
    return directory


def reports_of(values: dict[int, float], key: str = "eval/return") -> list[dict[str, Any]]:
    """With 4 frames a step and 100 steps a second."""
    return [{"step": step, "frames": 4 * step, "seconds": step / 100, key: value} for step, value in values.items()]


def make_seeds(
    directory: Path,
    curves: Sequence[dict[int, float]],
    env: str = "CartPole-v1",
    key: str = "eval/return",
    **options: Any,
) -> list[Path]:
    """A run per curve (step → value), with seeds from 0, as long as its last step says."""
    config = override(RunConfig(env=env), **options)
    return [
        make_run(
            directory / f"seed{seed}",
            override(config, seed=seed, steps=options.get("steps", max(curves[0]))),
            reports_of(curve, key),
        )
        for seed, curve in enumerate(curves)
    ]
