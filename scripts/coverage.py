#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: coverage.py [--keep] [--update]

Builds the product and all tests with GCC's --coverage into build-coverage, runs them - but for benchmarks and the package -, and
prints how much of each folder of src and modules they reach, in lines and functions. The functions that none reaches are listed
in build-coverage/unreached.txt. A process that is killed leaves no counts, so what runs only there counts as not reached.

--keep counts what the last run left, without a build or test; --update writes the table into docs/tests.md."""

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
BUILD = os.path.join(ROOT, "build-coverage")
PAGE = os.path.join(ROOT, "docs/tests.md")
MARKS = ("<!-- coverage begins -->\n", "<!-- coverage ends -->\n")
FLAGS = "-O0 -g1 -DNDEBUG"


def run(*command, **how):
    return subprocess.run(command, cwd=ROOT, check=True, **how)


def build_and_test():
    run("cmake", "-S", ".", "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCLEAT_COVERAGE=ON",
        "-DCLEAT_TESTS=ALL", f"-DCMAKE_CXX_FLAGS_RELWITHDEBINFO={FLAGS}", f"-DCMAKE_C_FLAGS_RELWITHDEBINFO={FLAGS}",
        stdout=subprocess.DEVNULL)
    run("cmake", "--build", BUILD, "--parallel", str(len(os.sched_getaffinity(0))), "--target", "product", "tests")
    run("ninja", "-C", BUILD, "-t", "cleandead", stdout=subprocess.DEVNULL)  # what earlier trees had
    for folder, _, files in os.walk(BUILD):
        os.chmod(folder, 0o777)  # tests run daemons as nobody, too, which leave their counts
        for name in files:
            stale = name.endswith(".gcno") and name.removesuffix(".gcno") + ".o" not in files
            if stale or name.endswith(".gcda"):
                os.unlink(os.path.join(folder, name))
    tests = subprocess.run([sys.executable, "-B", "scripts/run_tests.py", BUILD, "-LE", "bench|systemd"], cwd=ROOT, check=False)
    if tests.returncode != 0:
        sys.exit("coverage.py: tests failed, see above")


def measure():
    """gcovr's report: of each file its lines and functions."""
    run("chmod", "-R", "a+rwX", BUILD)
    output = run("gcovr", "--root", ".", "--filter", "src/", "--filter", "modules/", "--exclude", r".*_test\.cc", "--json",
                 "--gcov-ignore-parse-errors", "--exclude-unreachable-branches", BUILD, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)["files"]


def folder_of(path):
    return os.path.dirname(path) if path.startswith("modules/") else "/".join(path.split("/")[:2])


def summary(files):
    """Folder -> [lines reached, lines, functions reached, functions]; and the functions that are not reached."""
    folders = collections.defaultdict(lambda: [0, 0, 0, 0])
    unreached = []
    for file in files:
        row = folders[folder_of(file["file"])]
        # gcovr lists comments, too, as lines that are no code.
        lines = [line for line in file["lines"] if not line.get("gcovr/noncode") and not line.get("gcovr/excluded")]
        row[0] += sum(line["count"] > 0 for line in lines)
        row[1] += len(lines)
        # By line: a template, or a lambda, is one function however often it is instantiated.
        counts = collections.Counter()
        names = {}
        for function in file.get("functions", []):
            counts[function["lineno"]] += function["execution_count"]
            names[function["lineno"]] = function["name"]
        row[2] += sum(count > 0 for count in counts.values())
        row[3] += len(counts)
        unreached += [f"{file['file']}:{line}: {names[line]}" for line in sorted(counts) if counts[line] == 0]
    return folders, unreached


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def table(folders):
    rows = sorted(folders.items())
    rows.append(("all", [sum(column) for column in zip(*folders.values())]))
    lines = ["| folder | lines | reached | functions | reached |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {row[1]} | {percent(row[0], row[1])} | {row[3]} | {percent(row[2], row[3])} |" for name, row in rows]
    return "\n".join(lines) + "\n"


def update(text):
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    pattern = re.compile(re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1]), re.S)
    if not pattern.search(page):
        sys.exit(f"coverage.py: {PAGE} has no place for the table")
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(pattern.sub(lambda _: MARKS[0] + text + MARKS[1], page))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("gcovr") is None:
        sys.exit("coverage.py: gcovr is missing: run 'make setup'")
    if not arguments.keep:
        build_and_test()
    folders, unreached = summary(measure())
    text = table(folders)
    print(text, end="")
    with open(os.path.join(BUILD, "unreached.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(unreached) + "\n")
    print(f"{len(unreached)} functions that no test reaches: {os.path.relpath(BUILD, ROOT)}/unreached.txt")
    if arguments.update:
        update(text)


main()
