"""A child for the tests (``python -m processes.processes_child``): does what it is told over the control pipe."""

import os
import signal
import sys
import time

from pronghorn.processes import launch
from pronghorn.processes.shared import SharedArrays
from pronghorn.processes.wake import Waiter, Wake

if __name__ == "__main__":
    control = launch.enter(sys.argv[1:])
    while True:
        try:
            command, *arguments = control.recv()
        except EOFError:
            sys.exit(0)
        if command == "call":
            control.send(arguments[0]())
        elif command == "double":
            block = SharedArrays(*arguments)
            block.arrays["numbers"][:] *= 2
            control.send(block.arrays["flag"].tolist())
        elif command == "echo":
            request, answer = Wake(arguments[0]), Wake(arguments[1])
            waiter = Waiter([request.fds[0]])
            for _ in range(arguments[2]):
                assert waiter.wait(5)
                request.take()
                answer.notify()
        elif command == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            time.sleep(600)
        elif command == "exit":
            os._exit(arguments[0])
