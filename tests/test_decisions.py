"""What is chosen at the start of a run, and why."""

from __future__ import annotations

import dataclasses

import pytest
import rig

from pronghorn import api
from pronghorn.types import UserError


def test_an_unrolled_core_is_compiled_only_on_request():
    made = rig.config(core="lstm", core_size=4, compile=None, steps=10**8)
    chosen, reasons = api.decide(made)
    assert chosen.compile is False and "update not compiled: an LSTM or a GRU takes minutes to compile" in reasons


def test_what_reads_is_compiled_only_on_request():
    chosen, reasons = api.decide(rig.config("InstructionEnv", core="counting", compile=None, steps=10**8))
    assert chosen.compile is False and "update not compiled: an LSTM or a GRU takes minutes to compile" in reasons


def test_an_engine_that_is_chosen_by_rule_must_be_able_to_do_what_is_asked():
    made = dataclasses.replace(rig.config(layout="auto", frame_stack=2), env="ALE/Pong-v5")
    with pytest.raises(UserError, match="--frame-stack 2 is for envs that are stepped one by one"):
        api.decide(made)
