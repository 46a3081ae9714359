#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_unity.py

Sources of a library with HEAVY_HEADERS, and those of a test program, are compiled several at a time, so that a call may silently
find the helper of a neighbour when that one's parameters fit better. Fails if two such files of a folder have a function of one
name in their anonymous namespaces, and if the tests of a file *_test.cc are not in a namespace of the file's name, or their suite is
another file's as well: a test program runs files by the names of their suites."""

import collections
import glob
import os
import re
import sys

LIBRARY = re.compile(r"cleat_(?:library|module)\(\s*(\w+)\s+HEAVY_HEADERS\s+SOURCES\s+([^()]*?)\s+DEPS", re.S)
PROGRAM = re.compile(r"cleat_test_program\(")
ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.S | re.M)
SUITE = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),", re.M)
FUNCTION = re.compile(r"^(?!using |return )[A-Za-z_][\w:<>,&*\[\] ]* [*&]*(\w+)\(", re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def functions(path):
    return {name for part in ANONYMOUS.findall(read(path)) for name in FUNCTION.findall(part)}


def clashes(what, paths):
    owners = collections.defaultdict(list)
    for path in paths:
        for helper in functions(path):
            owners[helper].append(os.path.basename(path))
    return [f"{what}: {helper}() is a helper of {' and of '.join(files)}: give them different names"
            for helper, files in owners.items() if len(files) > 1]


def without_namespace(path):
    stem = os.path.basename(path).removesuffix(".cc")
    if re.search(rf"^namespace (?:[\w:]+::)?{stem} \{{$", read(path), re.M):
        return []
    return [f"{path}: its tests belong into a namespace {stem}, apart from those that are compiled with it"]


def shared_suites(paths):
    owners = collections.defaultdict(list)
    for path in paths:
        for suite in set(SUITE.findall(read(path))):
            owners[suite].append(path)
    return [f"the suite {suite} is in {' and in '.join(files)}: each needs one of its own" for suite, files in owners.items() if len(files) > 1]


def main():
    os.chdir(os.path.join(os.path.dirname(__file__), ".."))
    libraries = programs = 0
    findings = []
    for lists in [path for top in ("src", "modules", "tests") for path in glob.glob(top + "/**/CMakeLists.txt", recursive=True)]:
        folder, text = os.path.dirname(lists), read(lists)
        for name, sources in LIBRARY.findall(text):
            libraries += 1
            findings += clashes(name, [os.path.join(folder, word) for word in sources.split() if "$" not in word])
        if PROGRAM.search(text):
            programs += 1
            tests = sorted(glob.glob(folder + "/*_test.cc"))
            findings += shared_suites(tests)
            for test in tests:
                findings += without_namespace(test)
    for test in sorted(glob.glob("modules/*/*_test.cc")):
        findings += without_namespace(test)
    if libraries == 0 or programs == 0:
        findings.append(f"found {libraries} libraries and {programs} test programs: check_unity.py no longer reads CMakeLists.txt")
    if findings:
        print("\n".join(findings))
    sys.exit(1 if findings else 0)


main()
