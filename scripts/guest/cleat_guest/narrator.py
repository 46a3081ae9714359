# SPDX-License-Identifier: Apache-2.0
"""Demonstrations: each step in a line, and at the end whether all went well."""

import sys
import time

from cleat_guest.bench import Bench, exit_on_sigterm
from cleat_guest.process import BenchError


class Narrator:
    """Says each step of a demonstration in a line, with the time since its start."""

    def __init__(self):
        self._start = time.monotonic()
        self.step = "setting up"

    def __call__(self, step):
        self.step = step
        print(f"[{time.monotonic() - self._start:5.1f} s] {step}", flush=True)

    @staticmethod
    def show(text):
        for line in text.strip().splitlines():
            print(f"          {line.rstrip()}", flush=True)


def narrate(name, demonstration):
    """Runs demonstration(bench, say); the exit status. The failed step, the reason and where the logs are go to stderr."""
    exit_on_sigterm()
    say = Narrator()
    bench = Bench(name)
    try:
        with bench:
            demonstration(bench, say)
    except BenchError as error:
        print(f"{name}: failed at: {say.step}\n{error}\n{name}: logs are in {bench.log_dir}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    print(f"{name}: ok")
    return 0
