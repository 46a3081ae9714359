#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/run_tests.py makes of tests that pass, fail, pass when they are repeated, are skipped or crash."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/run_tests.py")

TESTS = {
    "good": ("true", "unit"),
    "bad": ("false", "unit"),
    "crashes": ("kill -SEGV $$", "unit"),
    "skipped": ("exit 77", "unit"),
    "flaky": ("test -e flaky || { touch flaky; exit 1; }", "unit"),
    "races": ("test -e races || { touch races; echo SUMMARY: ThreadSanitizer: data race; exit 1; }", "unit"),
    "part": ("echo '[  SKIPPED ] Suite.Name (0 ms)'; seq 3000", "unit"),
    "script": ("seq 3000; echo 'OK (skipped=1)'", "unit"),
    "lists": ("ctest -N", "unit"),
    "disorders": ("test -e disorders || { touch disorders; exit 1; }", "unit;ordering"),
    "loses": ("test -e loses || { touch loses; exit 1; }", "unit;crash"),
}


class RunTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_tests(self, names, *options, select=()):
        with open(os.path.join(self.folder, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            for name in names:
                command, labels = TESTS[name]
                file.write(f'add_test({name} "sh" "-c" "{command.replace("$", chr(92) + "$")}")\n')
                file.write(f'set_tests_properties({name} PROPERTIES LABELS "{labels}" SKIP_RETURN_CODE 77 '
                           f'WORKING_DIRECTORY "{self.folder}")\n')
        done = subprocess.run([sys.executable, "-B", SCRIPT, *options, self.folder, *select], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        said = [line.removeprefix("run_tests.py: ") for line in done.stdout.splitlines() if line.startswith("run_tests.py")]
        return done.returncode, "\n".join(said)

    def record(self):
        return os.path.join(self.folder, "repeated")

    def may_repeat_one(self):
        return ("--may-repeat-one", self.record())

    def repeated(self):
        if not os.path.exists(self.record()):
            return None
        with open(self.record(), encoding="utf-8") as file:
            return file.read().strip()

    def test_all_pass(self):
        self.assertEqual(self.run_tests(["good"]), (0, ""))
        self.assertEqual(self.run_tests(["good", "skipped"], *self.may_repeat_one()), (0, ""))
        self.assertIsNone(self.repeated())

    def test_what_fails_is_named(self):
        code, said = self.run_tests(["good", "bad", "crashes", "skipped"], *self.may_repeat_one())
        self.assertEqual(code, 1)
        self.assertIn("bad failed: ", said)
        self.assertIn("crashes failed: ", said)
        self.assertNotIn("good", said)
        self.assertNotIn("skipped", said)
        self.assertIsNone(self.repeated())

    def test_one_is_repeated_and_named_as_flaky(self):
        code, said = self.run_tests(["flaky", "good"], *self.may_repeat_one())
        self.assertEqual(code, 0)
        self.assertIn("flaky is FLAKY", said)
        self.assertEqual(self.repeated(), "flaky")

    def test_what_fails_twice_has_failed(self):
        code, said = self.run_tests(["bad", "good"], *self.may_repeat_one())
        self.assertEqual(code, 1)
        self.assertIn("bad failed: its output", said)

    def test_a_second_one_is_not_repeated(self):
        with open(self.record(), "w", encoding="utf-8") as file:
            file.write("another\n")
        code, said = self.run_tests(["flaky", "good"], *self.may_repeat_one())
        self.assertEqual(code, 1)
        self.assertIn("flaky failed: ", said)
        self.assertEqual(self.repeated(), "another")

    def test_two_that_fail_are_not_repeated(self):
        code, said = self.run_tests(["flaky", "bad"], *self.may_repeat_one())
        self.assertEqual(code, 1)
        self.assertIn("flaky failed: ", said)
        self.assertIsNone(self.repeated())

    def test_nothing_is_repeated_unless_it_is_asked_for(self):
        code, said = self.run_tests(["flaky"])
        self.assertEqual(code, 1)
        self.assertIn("flaky failed: ", said)

    def test_what_loses_data_once_has_failed(self):
        code, said = self.run_tests(["loses", "good"], *self.may_repeat_one())
        self.assertEqual(code, 1)
        self.assertIn("loses guards data", said)
        self.assertIn("loses failed: ", said)
        self.assertEqual(self.run_tests(["disorders", "good"], *self.may_repeat_one())[0], 1)

    def test_what_a_sanitizer_reports_is_not_repeated(self):
        code, said = self.run_tests(["races", "good"], *self.may_repeat_one())
        self.assertEqual(code, 1)
        self.assertIn("races failed: ", said)
        self.assertIsNone(self.repeated())

    def test_what_was_skipped_inside_is_named(self):
        self.assertEqual(self.run_tests(["part", "good"]), (0, "skipped: part: Suite.Name"))

    def test_what_was_skipped_has_failed_unless_a_file_allows_it(self):
        allowed = os.path.join(self.folder, "allowed")
        tree = os.path.basename(self.folder)
        for lines, code in (("# nothing", 1), ("*/part: Suite.Other\n*/other: *", 1), ("build-asan/part: *", 1),
                            (f"{tree}/part: Suite.*  # a reason", 0)):
            with open(allowed, "w", encoding="utf-8") as file:
                file.write(lines + "\n")
            self.assertEqual(self.run_tests(["part", "good"], "--may-skip", allowed)[0], code, lines)
            self.assertEqual(self.run_tests(["good"], "--may-skip", allowed)[0], 0, lines)
        with open(allowed, "w", encoding="utf-8") as file:
            file.write("*/part: *\n")
        self.assertEqual(self.run_tests(["part", "bad"], "--may-skip", allowed)[0], 1)

    def test_what_was_skipped_is_named_although_ctest_was_run_meanwhile(self):
        self.assertEqual(self.run_tests(["part", "script", "lists"], select=("--parallel", "1")),
                         (0, "skipped: part: Suite.Name\nskipped: script: OK (skipped=1)"))

    def test_no_tests_is_a_failure(self):
        self.assertNotEqual(self.run_tests(["good"], select=("-L", "nothing"))[0], 0)

    def test_a_choice_is_kept(self):
        self.assertEqual(self.run_tests(["good", "bad"], *self.may_repeat_one(), select=("-R", "good")), (0, ""))


unittest.main()
