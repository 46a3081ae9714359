#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/repeat_test.py makes of tests that leave processes behind, are skipped, need fixtures or are sanitized."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/repeat_test.py")
SKIPS = r"printf '[ RUN      ] Suite.Name\n/a.cc:1: Skipped\nno root here\n\n[  SKIPPED ] Suite.Name (0 ms)\n'"


class RepeatTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.lists = ""

    def path(self, name):
        return os.path.join(self.folder, name)

    def add(self, name, script, **properties):
        with open(self.path(name + ".sh"), "w", encoding="utf-8") as file:
            file.write(script + "\n")
        given = " ".join(f'{key} "{value}"' for key, value in properties.items())
        self.lists += f'add_test({name} "bash" "{self.path(name)}.sh")\n'
        self.lists += f'set_tests_properties({name} PROPERTIES WORKING_DIRECTORY "{self.folder}" {given})\n'

    def repeat(self, *arguments):
        with open(self.path("CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            file.write(self.lists)
        done = subprocess.run([sys.executable, "-B", SCRIPT, "--times", "2", self.folder, *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def test_what_a_run_leaves_behind_ends_with_it(self):
        self.add("leaves", "for pid in $(cat left 2>/dev/null); do ! grep -qs ^State:.[RS] /proc/$pid/status || exit 1; done\n"
                 "sleep 60 & echo $! >>left")
        code, said = self.repeat("leaves")
        self.assertEqual(code, 0, said)
        self.assertIn("leaves: passed 2 of 2", said)

    def test_one_that_hangs_has_failed(self):
        self.add("hangs", "sleep 60 & echo $! >>left; wait", TIMEOUT=1)
        code, said = self.repeat("hangs")
        self.assertEqual(code, 1)
        self.assertIn("passed 0 of 2", said)
        self.assertIn("it FAILED", said)
        self.assertIn("did not end within", self.read("logs/repeat/hangs.log"))

    def test_skipped_is_not_passed(self):
        self.add("part", SKIPS)
        code, said = self.repeat("part")
        self.assertEqual(code, 1)
        self.assertIn("passed 0 of 2", said)
        self.assertIn("skipped: Suite.Name: no root here", said)
        code, said = self.repeat("--allow-skips", "part")
        self.assertEqual(code, 0, said)

    def test_pythons_too(self):
        self.add("python", "echo 'Ran 2 tests'; echo 'OK (skipped=1)'")
        code, said = self.repeat("python")
        self.assertEqual(code, 1)
        self.assertIn("skipped: OK (skipped=1)", said)

    def test_fixtures_are_made_once_before(self):
        self.add("make_it", "echo made >>made", FIXTURES_SETUP="thing", FIXTURES_REQUIRED="base")
        self.add("make_base", "echo base >>made", FIXTURES_SETUP="base")
        self.add("other", "echo other >>made", FIXTURES_SETUP="others")
        self.add("needs", "test -e made", FIXTURES_REQUIRED="thing")
        code, said = self.repeat("needs")
        self.assertEqual(code, 0, said)
        self.assertEqual(self.read("made"), "base\nmade\n")

    def test_without_its_fixture_nothing_is_repeated(self):
        self.add("make_it", "exit 1", FIXTURES_SETUP="thing")
        self.add("needs", "touch ran", FIXTURES_REQUIRED="thing")
        code, said = self.repeat("needs")
        self.assertEqual(code, 1)
        self.assertIn("make_it failed", said)
        self.assertFalse(os.path.exists(self.path("ran")))

    def test_sanitizers(self):
        self.add("says", "cat /proc/self/personality >said")
        for flavour, narrow in (("none", False), ("asan", True), ("tsan", True)):
            with open(self.path("CMakeCache.txt"), "w", encoding="utf-8") as file:
                file.write(f"CLEAT_SANITIZE:STRING={flavour}\n")
            self.assertEqual(self.repeat("says")[0], 0)
            self.assertEqual("00040000" in self.read("said"), narrow)


unittest.main()
