#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_promises.py

Fails if the table of promises in docs/tests.md names a test that does not exist: in its second column stand files, each with
its tests (`Suite.Name` of GoogleTest, `Class.method` of Python's unittest; a script or fuzz target has none)."""

import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
PAGE = "docs/tests.md"
ENTRY = re.compile(r"^((?:tests|scripts)/[\w./-]+\.(?:cc|py))(?:: (.*))?$")
NAME = re.compile(r"`(\w+)\.(\w+)`")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def has_test(text, path, suite, name):
    if path.endswith(".py"):
        return re.search(rf"^class {suite}\b", text, re.M) and re.search(rf"^    def {name}\(", text, re.M)
    return re.search(rf"^TEST(?:_F|_P)?\({suite},\s*{name}\)", text, re.M)


def main():
    findings, tests = [], 0
    for number, line in enumerate(read(PAGE).splitlines(), 1):
        cells = line.strip("|").split(" | ")
        if not line.startswith("|") or len(cells) != 3 or not cells[1].lstrip().startswith(("tests/", "scripts/")):
            continue
        for entry in cells[1].strip().split("<br>"):
            match = ENTRY.match(entry.strip())
            if not match or not os.path.exists(os.path.join(ROOT, match[1])):
                findings.append(f"{PAGE}:{number}: there is no file as in '{entry}'")
                continue
            text = read(match[1])
            for suite, name in NAME.findall(match[2] or ""):
                tests += 1
                if not has_test(text, match[1], suite, name):
                    findings.append(f"{PAGE}:{number}: {match[1]} has no test {suite}.{name}")
    if tests == 0:
        findings.append(f"{PAGE} names no test: check_promises.py no longer reads it")
    if findings:
        print("\n".join(findings))
    sys.exit(1 if findings else 0)


main()
