#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: repeat_test.py [--times N] [--jobs N] [--allow-skips] BUILD_DIR TEST...

Runs each of these tests of ctest's again and again, the second half of the times beside a process on each core that does nothing
but compute: a verdict must not depend on how fast the machine is today. Says after each test how often it passed and how long
its runs took, and stops at the first run that fails or skips something, whose output is then in BUILD_DIR/logs/repeat/TEST.log.
Exit status 1 if one did. What the tests need (ctest's fixtures) is made once before; sanitizers get their options."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

from run_tests import environment, skipped

WHY = re.compile(r": Skipped\n(.+)")  # GoogleTest's


def address_space(build):
    """What a sanitizer's programs are started with, which lose their way in a widely randomised one; as in the Makefile."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            sanitized = re.search(r"^CLEAT_SANITIZE:STRING=(asan|tsan)$", file.read(), re.M)
    except FileNotFoundError:
        sanitized = None
    narrow = ["setarch", "-R"]
    allowed = sanitized and subprocess.run([*narrow, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return narrow if allowed else []


def tests_of(build):
    run = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], stdout=subprocess.PIPE, text=True, check=True)
    return {test["name"]: test for test in json.loads(run.stdout)["tests"]}


def properties_of(test):
    return {one["name"]: one["value"] for one in test.get("properties", [])}


def make_fixtures(build, names, known, prefix):
    """Runs the tests that make what these need, as ctest would before each of them."""
    needed = {fixture for name in names for fixture in properties_of(known[name]).get("FIXTURES_REQUIRED", [])}
    makers = [name for name, test in known.items() if needed.intersection(properties_of(test).get("FIXTURES_SETUP", []))]
    if not makers:
        return
    print(f"first, since these tests need it: {', '.join(makers)}", flush=True)
    command = [*prefix, "ctest", "--test-dir", build, "--output-on-failure", "-R", f"^({'|'.join(map(re.escape, makers))})$"]
    if subprocess.run(command, env=environment(), check=False).returncode != 0:
        sys.exit(f"repeat_test.py: {' or '.join(makers)} failed: nothing was repeated")


class Test:
    def __init__(self, test, folder, prefix, may_skip):
        properties = properties_of(test)
        self.name = test["name"]
        self.command = prefix + test["command"]
        self.directory = properties.get("WORKING_DIRECTORY")
        self.environment = dict(environment(), **dict(word.split("=", 1) for word in properties.get("ENVIRONMENT", [])))
        self.timeout_s = properties.get("TIMEOUT", 600)
        self.log = os.path.join(folder, f"{self.name}.log")
        self.may_skip = may_skip
        self.trouble = None

    def run(self, number):
        """Seconds that it took; None when it failed or skipped something, and then `trouble` says so."""
        log = f"{self.log}.{number}"
        begin = time.monotonic()
        with open(log, "wb") as file:
            # A group of its own, so that what it has started ends with it and is in no later run's way.
            process = subprocess.Popen(self.command, cwd=self.directory, env=self.environment, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                file.write(f"\nit did not end within {self.timeout_s} s\n".encode())
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        with open(log, encoding="utf-8", errors="replace") as file:
            left_out = skipped(file.read())
        if status == 0 and (self.may_skip or not left_out):
            os.unlink(log)
            return time.monotonic() - begin
        self.trouble = f"skipped: {', '.join(left_out)}: {reasons(log)}" if status == 0 else "it FAILED"
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
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(len(os.sched_getaffinity(0)))]

    def __exit__(self, *unused):
        for process in self.processes:
            process.kill()
            process.wait()


def reasons(log):
    with open(log, encoding="utf-8", errors="replace") as file:
        return "; ".join(dict.fromkeys(WHY.findall(file.read()))) or "the test does not say why"


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
    trouble = "" if good else f"; {test.trouble}: {test.log}"
    print(f"{test.name}: passed {passed} of {times} ({', '.join(took)}){trouble}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=1, help="how many runs of a test at a time (default 1)")
    parser.add_argument("--allow-skips", action="store_true", help="go on where part of a test can't run here")
    parser.add_argument("build")
    parser.add_argument("tests", nargs="+")
    arguments = parser.parse_args()
    known = tests_of(arguments.build)
    unknown = [name for name in arguments.tests if name not in known]
    if unknown:
        sys.exit(f"repeat_test.py: {arguments.build} has no test {', '.join(unknown)} (ctest -N lists them)")
    folder = os.path.join(arguments.build, "logs", "repeat")
    os.makedirs(folder, exist_ok=True)
    prefix = address_space(arguments.build)
    make_fixtures(arguments.build, arguments.tests, known, prefix)
    tests = [Test(known[name], folder, prefix, arguments.allow_skips) for name in arguments.tests]
    sys.exit(0 if all([repeat(test, arguments.times, arguments.jobs) for test in tests]) else 1)


main()
