#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Which sources scripts/tidy.py checks again: on a tree of its own, with a clang-tidy that is played."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/tidy.py")
# It finds the word BAD in what it is given, and does what is in the file `meanwhile`.
CLANG_TIDY = """#!/bin/sh
cd {root}
[ "$1" != --version ] || exec cat version
for path; do :; done
[ ! -e meanwhile ] || . ./meanwhile
awk '/BAD/ {{ print FILENAME ":" FNR ":1: error: it is BAD [bugprone-bad]"; bad = 1 }} END {{ exit bad }}' "$path"
"""
VERDICTS_MAX = 3


class Verdicts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        with open(SCRIPT, encoding="utf-8") as file:
            script, count = re.subn(r"^VERDICTS_MAX = \d+", f"VERDICTS_MAX = {VERDICTS_MAX}", file.read(), flags=re.M)
        self.assertEqual(count, 1)
        self.write("scripts/tidy.py", script)
        for name, text in (("clang-tidy", CLANG_TIDY.format(root=self.root)), ("clang++", '#!/bin/sh\nexec c++ "$@"')):
            self.write(name, text)
            os.chmod(self.path(name), 0o755)
        self.write("version", "16.0.6")
        self.write(".clang-tidy", "Checks: bugprone-*")
        self.write("src/inner.h", "int Inner();")
        self.write("src/outer.h", '#include "inner.h"')
        self.write("src/a.cc", '#include "outer.h"')
        self.write("src/b.cc", "")
        self.compile({"src/a.cc": "-O2 -DONE", "src/b.cc": "-O2 -DONE"})

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        """As it has been there for an hour."""
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text + "\n")
        self.age(self.path(name), 3600)

    @staticmethod
    def age(path, seconds):
        os.utime(path, (time.time() - seconds,) * 2)

    def compile(self, options):
        """`options`: of each source, and more than once of one that is compiled more than once."""
        pairs = options.items() if isinstance(options, dict) else options
        commands = [{"directory": self.path("build"), "file": self.path(name), "command": f"c++ {said} -o x.o -c x.cc"}
                    for name, said in pairs]
        self.write("build/compile_commands.json", json.dumps(commands))

    def tidy(self, *options, folder="src"):
        """How many sources were checked, how many were known to be clean, and whether something was found."""
        command = [sys.executable, "-B", self.path("scripts/tidy.py"), "--clang-tidy", self.path("clang-tidy"), *options,
                   self.path("build"), folder]
        done = subprocess.run(command, env={**os.environ, "XDG_CACHE_HOME": self.path("cache")}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        counts = re.search(r"(\d+) sources to check, (\d+) known to be clean", done.stderr)
        self.assertTrue(counts, done.stderr)
        return int(counts[1]), int(counts[2]), done.returncode != 0

    def verdicts(self):
        folder = self.path("cache/cleat/clang-tidy")
        return {os.path.join(folder, name) for name in os.listdir(folder)}

    def test_one_whose_text_header_or_options_change_is_checked_again(self):
        self.assertEqual(self.tidy(), (2, 0, False))
        self.assertEqual(self.tidy(), (0, 2, False))
        self.write("src/b.cc", "int b;")
        self.assertEqual(self.tidy(), (1, 1, False))
        self.write("src/inner.h", "int Changed();")
        self.assertEqual(self.tidy(), (1, 1, False), "a.cc includes it by way of outer.h")
        self.write("src/outer.h", "")
        os.unlink(self.path("src/inner.h"))
        self.assertEqual(self.tidy(), (1, 1, False))
        self.compile({"src/a.cc": "-O2 -DTWO", "src/b.cc": "-O1 -DONE"})
        self.assertEqual(self.tidy(), (1, 1, False), "clang-tidy sees nothing of -O")
        self.assertEqual(self.tidy(), (0, 2, False))

    def test_all_are_checked_again_by_another_clang_tidy_or_for_more(self):
        self.assertEqual(self.tidy(), (2, 0, False))
        self.write("version", "19.1.0")
        self.assertEqual(self.tidy(), (2, 0, False))
        self.write(".clang-tidy", "Checks: misc-*")
        self.assertEqual(self.tidy(), (2, 0, False))
        self.assertEqual(self.tidy(), (0, 2, False))
        self.assertEqual(self.tidy("--checks", "performance-*"), (2, 0, False))

    def commit(self):
        for command in ("init -q", "add src .clang-tidy", "-c user.name=a -c user.email=a@b commit -q -m a"):
            subprocess.run(["git", "-C", self.root, *command.split()], check=True)

    def test_what_has_changed_since_a_commit_and_all_when_the_checks_have(self):
        self.commit()
        self.write("src/b.cc", "int b;")
        self.assertEqual(self.tidy("--since", "HEAD"), (1, 0, False))
        self.write("src/inner.h", "int Changed();")
        self.assertEqual(self.tidy("--since", "HEAD"), (1, 1, False), "a.cc includes it by way of outer.h")
        self.write(".clang-tidy", "Checks: misc-*")
        self.assertEqual(self.tidy("--since", "HEAD"), (2, 0, False))

    def test_a_source_is_checked_as_the_product_has_it(self):
        self.compile([("src/a.cc", "-DONE"), ("src/b.cc", "-DONE")])
        self.assertEqual(self.tidy(), (2, 0, False))
        self.compile([("src/a.cc", "-DONE"), ("src/b.cc", "-DONE"), ("src/a.cc", "-DCLEAT_HOOK")])
        self.assertEqual(self.tidy(), (0, 2, False))

    def test_one_with_another_definition_of_ours_is_checked_by_itself(self):
        for said, together in (("-DTHEIRS", True), ("-DCLEAT_HOOK", False)):
            self.write("src/a.cc", f"BAD {said}")
            self.write("src/b.cc", f"int {'other' if together else 'one'};")
            self.compile({"src/a.cc": said, "src/b.cc": ""})
            self.assertEqual(self.tidy(), (2, 0, True))
            with open(self.path("build/lint/compile_commands.json"), encoding="utf-8") as file:
                self.assertEqual("/lint/" in file.read(), together)

    def test_findings_are_found_again(self):
        self.write("src/a.cc", "BAD")
        self.assertEqual(self.tidy(), (2, 0, True))
        self.assertEqual(len(self.verdicts()), 1, "b.cc, which was checked together with it")
        self.assertEqual(self.tidy(), (1, 1, True))

    def test_what_is_found_in_a_header_may_be_of_any_source(self):
        self.write("meanwhile", f"echo '{self.path('src/inner.h')}:1:1: error: it is bad [bugprone-bad]'; exit 1")
        self.assertEqual(self.tidy(), (2, 0, True))
        self.assertEqual(self.verdicts(), set())

    def test_sources_are_put_together_where_they_find_the_headers_beside_them(self):
        for folder, value in (("one", 1), ("two", 2)):
            self.write(f"src/{folder}/own.h", f"#pragma once\ninline int Own() {{ return {value}; }}")
            for name in "ab":
                self.write(f"src/{folder}/{name}.cc", '#include "own.h"\nstatic_assert(__LINE__ > 0);')
        self.compile({f"src/{folder}/{name}.cc": "" for folder in ("one", "two") for name in "ab"})
        self.assertEqual(self.tidy(), (4, 0, False))
        with open(self.path("build/lint/compile_commands.json"), encoding="utf-8") as file:
            commands = [command for command in json.load(file) if "/lint/" in command["file"]]
        self.assertEqual(len(commands), 2, "a folder's sources together, those of two apart")
        for command in commands:
            subprocess.run([*command["command"].split(), "-fsyntax-only"], check=True)

    def test_what_changed_meanwhile_is_checked_again(self):
        self.write("meanwhile", "echo >>src/b.cc; echo >>src/inner.h; rm meanwhile")
        self.assertEqual(self.tidy(), (2, 0, False))
        for name in ("src/b.cc", "src/inner.h"):
            self.age(self.path(name), 3600)
        self.assertEqual(self.tidy(), (2, 0, False))
        self.assertEqual(self.tidy(), (0, 2, False))

    def test_the_least_used_are_thrown_away(self):
        self.compile({"src/a.cc": ""})
        self.assertEqual(self.tidy(), (1, 0, False))
        used = self.verdicts()
        others = [self.path(f"cache/cleat/clang-tidy/{number}") for number in range(VERDICTS_MAX)]
        for number, path in enumerate(others):
            self.write(path, "{}")
            self.age(path, 1000 + number)
        self.age(*used, 2000)  # the oldest, but it is used now
        self.assertEqual(self.tidy(), (0, 1, False))
        self.assertEqual(self.verdicts(), used | set(others[:-1]))

    def test_of_a_folder_those_below_it(self):
        for name in ("tests/fuzz/fuzz_a.cc", "tests/fuzzy/b.cc"):
            self.write(name, "")
        self.compile({"src/a.cc": "", "tests/fuzz/fuzz_a.cc": "", "tests/fuzzy/b.cc": ""})
        self.assertEqual(self.tidy(folder="tests/fuzz"), (1, 0, False))
        self.assertEqual(self.tidy(folder="tests"), (1, 1, False))


unittest.main()
