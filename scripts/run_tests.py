#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: run_tests.py [--tries N] BUILD_DIR [CTEST OPTION...]

Runs ctest over the tests that its options choose. With --tries 2 a test that has failed gets a second try, and is named at the
end: for a machine that others slow down, where one late second should not hide what all the other tests say. What looks for
lost or torn data (labels below) has one try always: lost once is lost. Exit status 1 when a test failed for good."""

import json
import re
import subprocess
import sys

ONE_TRY = {"data", "sim", "crash", "upgrade", "migration", "crypto"}
RESULT = re.compile(r"Test +#\d+: (\S+) \.+(.*)")


def ctest(build, options, **how):
    return subprocess.Popen(["ctest", "--test-dir", build, *options], **how)


def chosen(build, options):
    """Names of the tests, and the labels of each."""
    with ctest(build, ["--show-only=json-v1", *options], stdout=subprocess.PIPE, text=True) as process:
        tests = json.load(process.stdout)["tests"]
    return {test["name"]: {label for one in test.get("properties", []) if one["name"] == "LABELS" for label in one["value"]}
            for test in tests}


def run(build, options):
    """Whether all passed in the end, the names of those that failed at first and then passed, and of those that never did."""
    failed, passed = set(), set()
    with ctest(build, ["--output-on-failure", "--no-tests=error", *options], stdout=subprocess.PIPE, text=True,
               errors="replace") as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            match = RESULT.search(line)
            if match and "***Skipped" not in match[2]:
                (passed if "Passed" in match[2] else failed).add(match[1])
    return process.returncode == 0, failed & passed, failed - passed


def other_options(options):
    """Without those that choose tests: -L, -LE, -R, -E and their values."""
    kept, words = [], iter(options)
    for word in words:
        if word in ("-L", "-LE", "-R", "-E"):
            next(words)
        else:
            kept.append(word)
    return kept


def only(names):
    return ["-R", f"^({'|'.join(re.escape(name) for name in sorted(names))})$"]


def main():
    arguments = sys.argv[1:]
    tries = 1
    if arguments[:1] == ["--tries"]:
        tries, arguments = int(arguments[1]), arguments[2:]
    if not arguments or tries < 1:
        sys.exit(__doc__)
    build, *options = arguments
    labels = chosen(build, options)
    strict = {name for name in labels if tries == 1 or labels[name] & ONE_TRY}
    good, again, bad = True, set(), set()
    for names, repeat in ((strict, []), (set(labels) - strict, ["--repeat", f"until-pass:{tries}"])):
        if names:
            all_passed, late, never = run(build, [*other_options(options), *repeat, *only(names)])
            good, again, bad = good and all_passed, again | late, bad | never
    for name in sorted(again):
        print(f"run_tests.py: {name} failed at first and passed when it was repeated: its first output is above")
    for name in sorted(bad):
        print(f"run_tests.py: {name} failed: its output is above")
    sys.exit(0 if good and labels else f"run_tests.py: {len(labels)} tests were chosen, and not all of them passed")


main()
