#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: run_tests.py [--may-repeat-one FILE] [--may-skip FILE] BUILD_DIR [CTEST OPTION...]

Runs ctest over the tests of a build tree, as many at a time as their needs allow (PROCESSORS of a test counts quarters of a core),
and names those that failed at the end. BUILD_DIR/logs/junit.xml has the times and outputs.

With --may-repeat-one, if a single test has failed and none had before (FILE does not exist), its name is written to FILE and it
gets a second try; if that passes, the run is good. A test that looks for lost or torn data, or for what races (labels below),
has one try always - lost once is lost -, and so has what hostile guests and callers do, and what a sanitizer or libFuzzer has
reported on.

What a test has skipped is named. With --may-skip it is a failure unless FILE names it: a line is the build tree's name, a slash,
and what is named here; * stands for anything, # begins a comment. Exit status 1 when a test failed for good."""

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

ONE_TRY = {"data", "ordering", "sim", "crash", "upgrade", "migration", "crypto", "hostile"}
SLOTS_A_CORE = 4
OUTPUT_BYTES_MAX = 100 << 20  # of a test that passes, in junit.xml; ctest would keep 1 KiB
# A report of a sanitizer's or of libFuzzer's is never repeated, whatever the test.
REPORT = re.compile(r"SUMMARY: \w+|ERROR: \w+Sanitizer|runtime error: ")
SKIPPED = re.compile(r"^\[  SKIPPED \] (\S+) \(\d+ ms\)$|^(OK \(skipped=\d+\))$", re.M)
RESULT = re.compile(r"Test +#\d+: (\S+) \.+(.*)")


def say(text):
    print(f"run_tests.py: {text}", flush=True)


def environment():
    """What sanitizers need to name lines: clang's own symbolizer where it is, else binutils'."""
    symbolizer = shutil.which("llvm-symbolizer-16") or shutil.which("llvm-symbolizer-19") or shutil.which("addr2line")
    more = {}
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        options = [f"external_symbolizer_path={symbolizer}"] if symbolizer else []
        more[name] = ":".join([*options, *filter(None, [os.environ.get(name)])])
    return {**os.environ, **more}


def ctest(build, options, **how):
    return subprocess.Popen(["ctest", "--test-dir", build, *options], **how)


def chosen(build, options):
    """Names of the tests, and the labels of each."""
    with ctest(build, ["--show-only=json-v1", *options], stdout=subprocess.PIPE, text=True) as process:
        tests = json.load(process.stdout)["tests"]
    return {test["name"]: {label for one in test.get("properties", []) if one["name"] == "LABELS" for label in one["value"]}
            for test in tests}


def run(build, options):
    """Whether ctest was content, the names of those that failed, and whether a sanitizer has reported something."""
    failed = set()
    reported = False
    slots = SLOTS_A_CORE * len(os.sched_getaffinity(0))
    with ctest(build, ["--output-on-failure", "--test-output-size-passed", str(OUTPUT_BYTES_MAX), "--no-tests=error",
                       "--parallel", str(slots), *options],
               stdout=subprocess.PIPE, text=True, errors="replace", env=environment()) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            reported |= REPORT.search(line) is not None
            match = RESULT.search(line)
            if match and "***Skipped" not in match[2] and "Passed" not in match[2]:
                failed.add(match[1])
    return process.returncode == 0, failed, reported


def skipped(output):
    """Names of the tests in a program's output that could not run here, of which ctest says nothing since the program had others; of
    Python's their number."""
    return sorted({name or script for name, script in SKIPPED.findall(output)})


def skipped_of(junit):
    """The same of all that ctest has run. Not of its LastTest.log, which each `ctest -N` that somebody runs meanwhile clears."""
    try:
        tests = xml.etree.ElementTree.parse(junit).getroot().iter("testcase")
    except FileNotFoundError:
        return []
    return sorted(f"{test.get('name')}: {name}" for test in tests for name in skipped(test.findtext("system-out") or ""))


def not_to_be_skipped(skips, build, path):
    """Those of this build tree that the file does not name."""
    with open(path, encoding="utf-8") as file:
        patterns = [line.split("#")[0].strip() for line in file]
    tree = os.path.basename(os.path.abspath(build))
    return [name for name in skips if not any(fnmatch.fnmatchcase(f"{tree}/{name}", pattern) for pattern in patterns)]


def second_try(build, labels, failed, record):
    """Whether the one test that failed has passed when it was repeated, as it may be once in a whole run of CI."""
    if len(failed) != 1 or os.path.exists(record):
        return False
    name = next(iter(failed))
    if labels[name] & ONE_TRY:
        say(f"{name} guards data: it is not repeated")
        return False
    say(f"{name} failed: it is repeated, once")
    with open(record, "w", encoding="utf-8") as file:
        file.write(name + "\n")
    return run(build, ["-R", f"^{re.escape(name)}$"])[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--may-repeat-one", metavar="FILE")
    parser.add_argument("--may-skip", metavar="FILE")
    parser.add_argument("build")
    arguments, options = parser.parse_known_args()
    labels = chosen(arguments.build, options)
    logs = os.path.join(arguments.build, "logs")
    os.makedirs(logs, exist_ok=True)
    junit = os.path.abspath(os.path.join(logs, "junit.xml"))
    good, failed, reported = run(arguments.build, [*options, "--output-junit", junit])
    skips = skipped_of(junit)
    for name in skips:
        say(f"skipped: {name}")
    if not good and arguments.may_repeat_one and not reported and second_try(arguments.build, labels, failed, arguments.may_repeat_one):
        say(f"{next(iter(failed))} is FLAKY: it passed when it was repeated; its first output is above")
        good = True
    elif not good:
        for name in sorted(failed):
            say(f"{name} failed: its output is above")
    lacking = not_to_be_skipped(skips, arguments.build, arguments.may_skip) if arguments.may_skip else []
    for name in lacking:
        say(f"{name} was skipped, and {arguments.may_skip} does not allow that: its reason is in {junit}")
    if not good or not labels:
        sys.exit(f"run_tests.py: {len(labels)} tests were chosen, and not all of them passed")
    if lacking:
        sys.exit(f"run_tests.py: the tests that ran have passed, but of what was skipped {len(lacking)} must not be")


if __name__ == "__main__":
    main()
