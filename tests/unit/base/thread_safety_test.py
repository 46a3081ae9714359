#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: thread_safety_test.py BUILD_DIR [unittest's arguments]

A build with clang refuses each misuse in mutex_misuse.cc, compiled as BUILD_DIR compiles src/base, and nothing else of it."""

import json
import os
import re
import shlex
import subprocess
import sys
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "mutex_misuse.cc")
LIKE = "src/base/clock.cc"  # a source of ours like any other
REFUSED = re.compile(r"// refused: (.+)$")
DIAGNOSTIC = re.compile(re.escape(SOURCE) + r":(\d+):\d+: error: (.+) \[-Werror,-Wthread-safety-\w+\]$", re.M)


def compile_command(build_dir):
    """How that build compiles LIKE, but for what makes the object."""
    with open(os.path.join(build_dir, "compile_commands.json"), encoding="utf-8") as file:
        entry = next(entry for entry in json.load(file) if entry["file"].endswith("/" + LIKE))
    words = shlex.split(entry["command"])
    first = next(i for i, word in enumerate(words) if "clang" in os.path.basename(word))  # behind ccache
    command = words[first:]
    for option in ("-o", "-c"):
        at = command.index(option)
        del command[at:at + 2]
    return [*(word for word in command if not word.startswith("-ffile-prefix-map")), "-fsyntax-only"]


class ThreadSafety(unittest.TestCase):
    command: list = []

    def compile(self, *options):
        return subprocess.run([*self.command, *options, SOURCE], capture_output=True, text=True, check=False)

    def test_right_use_compiles(self):
        done = self.compile()
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_misuse_is_refused(self):
        with open(SOURCE, encoding="utf-8") as file:
            lines = enumerate(file.read().splitlines(), 1)
        wanted = {number: match[1] for number, line in lines if (match := REFUSED.search(line))}
        self.assertGreater(len(wanted), 5)
        done = self.compile("-DMISUSE")
        self.assertNotEqual(done.returncode, 0)
        found = {int(number): text for number, text in DIAGNOSTIC.findall(done.stderr)}
        self.assertEqual(sorted(found), sorted(wanted), done.stderr)
        for number, text in wanted.items():
            self.assertIn(text, found[number])


if __name__ == "__main__":
    ThreadSafety.command = compile_command(sys.argv.pop(1))
    unittest.main(verbosity=2)
