#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: repeat_test.py [--times N] [--jobs N] BUILD_DIR TEST...

Runs each of these tests of ctest's again and again, the second half of the times beside a process on each core that does nothing
but compute: a verdict must not depend on how fast the machine is today. Says after each test how often it passed and how long
its runs took, and stops at the first that fails, whose output is then in BUILD_DIR/logs/repeat/TEST.log. Exit status 1 if one
did."""

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time


def tests_of(build):
    run = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], stdout=subprocess.PIPE, text=True, check=True)
    return {test["name"]: test for test in json.loads(run.stdout)["tests"]}


class Test:
    def __init__(self, test, folder):
        properties = {one["name"]: one["value"] for one in test.get("properties", [])}
        self.name = test["name"]
        self.command = test["command"]
        self.directory = properties.get("WORKING_DIRECTORY")
        self.environment = dict(os.environ, **dict(word.split("=", 1) for word in properties.get("ENVIRONMENT", [])))
        self.timeout_s = properties.get("TIMEOUT", 600)
        self.log = os.path.join(folder, f"{self.name}.log")

    def run(self, number):
        """Seconds that it took, or None when it failed."""
        log = f"{self.log}.{number}"
        begin = time.monotonic()
        with open(log, "wb") as file:
            # A group of its own, so that what it has started ends with it.
            process = subprocess.Popen(self.command, cwd=self.directory, env=self.environment, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                file.write(f"\nit did not end within {self.timeout_s} s\n".encode())
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
        if status == 0:
            os.unlink(log)
            return time.monotonic() - begin
        os.replace(log, self.log)
        return None

    def passes(self, times, jobs):
        """Seconds of each run, up to the first that failed, which is None."""
        seconds = []
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for took in pool.map(self.run, range(times)):
                seconds.append(took)
                if took is None:
                    pool.shutdown(cancel_futures=True)
                    break
        return seconds


class BusyCores:
    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]

    def __exit__(self, *unused):
        for process in self.processes:
            process.kill()
            process.wait()


def repeat(test, times, jobs):
    """Whether it passed every time."""
    calm = test.passes(times // 2, jobs)
    busy = []
    if None not in calm:
        with BusyCores():
            busy = test.passes(times - len(calm), jobs)
    good = None not in calm + busy
    took = [f"{min(part):.1f} to {max(part):.1f} s {how}" for part, how in ((calm, "calm"), (busy, "busy"))
            if part and None not in part]
    passed = sum(seconds is not None for seconds in calm + busy)
    print(f"{test.name}: passed {passed} of {times} ({', '.join(took)})" + ("" if good else f"; it FAILED: {test.log}"), flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=1, help="how many runs of a test at a time (default 1)")
    parser.add_argument("build")
    parser.add_argument("tests", nargs="+")
    arguments = parser.parse_args()
    known = tests_of(arguments.build)
    unknown = [name for name in arguments.tests if name not in known]
    if unknown:
        sys.exit(f"repeat_test.py: {arguments.build} has no test {', '.join(unknown)} (ctest -N lists them)")
    folder = os.path.join(arguments.build, "logs", "repeat")
    os.makedirs(folder, exist_ok=True)
    tests = [Test(known[name], folder) for name in arguments.tests]
    sys.exit(0 if all([repeat(test, arguments.times, arguments.jobs) for test in tests]) else 1)


main()
