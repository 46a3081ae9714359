#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_unity.py

Sources of a library with HEAVY_HEADERS, and those of a test, are compiled several at a time, so that a call may silently
find the helper of a neighbour when that one's parameters fit better. Fails if two of a target's files have a function of
one name in their anonymous namespaces."""

import collections
import glob
import os
import re
import sys

LIBRARY = re.compile(r"cleat_library\(\s*(\w+)\s+HEAVY_HEADERS\s+SOURCES\s+([^()]*?)\s+DEPS", re.S)
TEST = re.compile(r"cleat_test\(\s*([\w${}]+)\s+LABELS\s[^()]*?SOURCES\s+([^()]*?)\s+DEPS\s([^()]*)\)", re.S)
ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.S | re.M)
FUNCTION = re.compile(r"^(?!using |return )[A-Za-z_][\w:<>,&*\[\] ]* [*&]*(\w+)\(", re.M)


def functions(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return {name for part in ANONYMOUS.findall(text) for name in FUNCTION.findall(part)}


def main():
    os.chdir(os.path.join(os.path.dirname(__file__), ".."))
    targets = {"library": 0, "test": 0}
    findings = []
    for lists in [path for top in ("src", "modules", "tests") for path in glob.glob(top + "/**/CMakeLists.txt", recursive=True)]:
        with open(lists, encoding="utf-8") as file:
            text = file.read()
        found = [("library", name, sources) for name, sources in LIBRARY.findall(text)]
        found += [("test", name, sources) for name, sources, rest in TEST.findall(text) if "SEPARATE" not in rest.split()]
        for kind, name, sources in found:
            targets[kind] += 1
            owners = collections.defaultdict(list)
            for source in [word for word in sources.split() if "$" not in word]:
                for helper in functions(os.path.join(os.path.dirname(lists), source)):
                    owners[helper].append(source)
            findings += [f"{name}: {helper}() is a helper of {' and of '.join(files)}: give them different names"
                         for helper, files in owners.items() if len(files) > 1]
    findings += [f"found no {kind} that is compiled together: check_unity.py no longer reads CMakeLists.txt"
                 for kind, count in targets.items() if count == 0]
    if findings:
        print("\n".join(findings))
    sys.exit(1 if findings else 0)


main()
