# SPDX-License-Identifier: Apache-2.0
"""cleat-perf on this host in place of QEMU and a virtual machine: writes, reads and verifies until it is told to end, whatever becomes of
the engine."""

import json
import os
import signal

from cleat_guest.process import BenchError, Process

SECONDS = 240  # for what can only hang


class HostLoad:
    """The front end of a controller of one blk disk, on that socket."""

    def __init__(self, bench, name, socket_path, options):
        self._json = bench.path(f"{name}.json")
        self._process = bench.keep(Process(f"the load {name}", [
            os.path.join(bench.bin_dir, "cleat-perf"), "run", "--listen", socket_path, "--reconnect", "--verify", "--wait", "call",
            "--timeout", str(SECONDS), "--time", "3600", "--no-progress", "--json", self._json, *options],
            os.path.join(bench.log_dir, f"{name}.log")))

    def end_well(self):
        """What cleat-perf found, as its JSON has it; BenchError where anything went wrong."""
        os.kill(self._process.pid, signal.SIGINT)
        self._process.wait(SECONDS)
        if not os.path.exists(self._json):
            raise BenchError(f"{self._process.name} has no result; its log is {self._process.log_path}")
        with open(self._json, encoding="utf-8") as file:
            result = json.load(file)["result"]
        if result["errors"] or result["faults"] or not result["verified_blocks"]:
            raise BenchError(f"{self._process.name}: {result['errors']} errors, {result['faults']} wrong blocks, "
                             f"{result['verified_blocks']} verified; {result['first_error']} {result['first_fault']}")
        return result
