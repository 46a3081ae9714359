#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: tidy_commands.py BUILD_DIR OUT_DIR FOLDER...

Writes OUT_DIR/compile_commands.json for clang-tidy: the build's own, without precompiled headers and without
generated files. Prints those of its files that lie in one of the folders."""

import json
import os
import re
import sys

OURS = ("src", "modules", "tests")
PRECOMPILED = re.compile(r"-Winvalid-pch|-include \S*cmake_pch\.hxx")


def main():
    build, out, *folders = sys.argv[1:]
    root = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    kept = {}
    for command in commands:
        path = os.path.relpath(os.path.realpath(command["file"]), root)
        if path.split(os.sep)[0] in OURS:
            command["command"] = PRECOMPILED.sub("", command["command"])
            kept[path] = command
    with open(os.path.join(out, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(list(kept.values()), file, indent=1)
    print("\n".join(sorted(path for path in kept if path.split(os.sep)[0] in folders)))


main()
