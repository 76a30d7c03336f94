"""``python -m pronghorn``, and the command ``pronghorn``. Its help costs no import but Python's own."""

from __future__ import annotations

import os
import sys

HELP = """\
usage: pronghorn COMMAND ...

Train reinforcement-learning agents as fast as the hardware allows.

commands:
  train ENV       train an agent; ENV is a Gymnasium id, package.module:Class, or ./file.py:Class
  resume RUN      continue a run where it stopped
  eval RUN        play episodes with the agent of a run
  plot RUN ...    learning curves: median and quartiles over seeds
  compare RUN ... final scores, and which differences are more than luck
  export RUN      write the policy of a run as ONNX, with all that it needs inside
  doctor ENV      check an environment before training on it
  bench ENV       how fast each part of training is, and how fast it could be
  list            environments, algorithms and presets

pronghorn COMMAND --help shows the options of a command.
pronghorn --version shows the version.

example: pronghorn train CartPole-v1 --seed 1 && pronghorn eval runs/CartPole-v1-ppo-seed1"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    A mistake of the user's is one line on stderr and code 2; an env that failed for good is code 1 with the traceback
    it left; any other exception leaves with its own. A signal where nothing is to be saved is a quiet 130 (SIGINT),
    143 (SIGTERM) or 129 (SIGHUP).
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"pronghorn {version('pronghorn')}")
        return 0
    from pronghorn.processes.signals import Interrupted, StopRequest

    stop = StopRequest()
    try:
        with stop, stop.immediately():
            return _run(arguments)
    except (Interrupted, KeyboardInterrupt):
        return stop.exit_code or 130
    finally:
        _flush()


def _run(arguments: list[str]) -> int:
    from pronghorn.processes.launch import thread_budget

    # Before anything loads NumPy or torch: one thread, which is best for acting; the learner asks for its own number.
    for name, value in thread_budget(1).items():
        os.environ.setdefault(name, value)  # what the user has set stays
    import atexit
    import gc
    import traceback

    from pronghorn import cli
    from pronghorn.types import UserError
    from pronghorn.vec.base import EnvError

    # The interpreter would look through every object of torch's and of its compiler's before it ends, for seconds.
    atexit.register(gc.freeze)
    try:
        return cli.run(arguments[0], arguments[1:])
    except UserError as error:
        print(f"pronghorn: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except EnvError as error:
        if error.cause is not None:
            traceback.print_exception(error.cause)
        print(f"pronghorn: {error}", file=sys.stderr)
        return 1


def _flush() -> None:
    """The terminal may be closed, or whoever read us gone: that does not decide how we exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is in the buffer goes there


if __name__ == "__main__":
    sys.exit(main())
