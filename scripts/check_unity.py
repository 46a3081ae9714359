#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_unity.py

Sources of a library with HEAVY_HEADERS are compiled several at a time, so that a call may silently find the helper of
a neighbour when that one's parameters fit better. Fails if two of a library's files have a function of one name in
their anonymous namespaces."""

import collections
import glob
import os
import re
import sys

LIBRARY = re.compile(r"cleat_library\(\s*(\w+)\s+HEAVY_HEADERS\s+SOURCES\s+(.*?)\s+DEPS", re.S)
ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.S | re.M)
FUNCTION = re.compile(r"^(?!using |return )[A-Za-z_][\w:<>,&*\[\] ]* [*&]*(\w+)\(", re.M)


def functions(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return {name for part in ANONYMOUS.findall(text) for name in FUNCTION.findall(part)}


def main():
    os.chdir(os.path.join(os.path.dirname(__file__), ".."))
    libraries = 0
    findings = []
    for lists in glob.glob("src/**/CMakeLists.txt", recursive=True):
        with open(lists, encoding="utf-8") as file:
            text = file.read()
        for library, sources in LIBRARY.findall(text):
            libraries += 1
            owners = collections.defaultdict(list)
            for source in sources.split():
                for name in functions(os.path.join(os.path.dirname(lists), source)):
                    owners[name].append(source)
            findings += [f"{library}: {name}() is a helper of {' and of '.join(files)}: give them different names"
                         for name, files in owners.items() if len(files) > 1]
    if libraries == 0:
        findings.append("found no library with HEAVY_HEADERS: check_unity.py no longer reads CMakeLists.txt")
    if findings:
        print("\n".join(findings))
    sys.exit(1 if findings else 0)


main()
