#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make unit` runs what a folder's list in the build tree names: every folder of tests/unit has a list, and what ctest runs of its
sources is in it. Begun in the build tree."""

import glob
import json
import os
import subprocess
import unittest

SOURCES = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))


def folders_with_tests():
    return {os.path.basename(os.path.dirname(path)) for path in glob.glob(SOURCES + "/*/*_test.cc")}


def programs_of(folder):
    """Its list: a line is what env is given, variables and then the program."""
    with open(f"tests/unit_{folder}.txt", encoding="utf-8") as file:
        return [line.split()[-1] for line in file]


def unit_tests_of_ctest():
    """Their commands: a program, and `--of FILES`. What is not built has none."""
    shown = subprocess.run(["ctest", "--show-only=json-v1", "-L", "^unit$"], check=True, stdout=subprocess.PIPE)
    return [test.get("command") for test in json.loads(shown.stdout)["tests"]]


class MakeUnit(unittest.TestCase):
    def test_each_folder_has_a_list_without_repeats(self):
        self.assertTrue(folders_with_tests())
        for folder in folders_with_tests():
            programs = programs_of(folder)
            self.assertTrue(programs, folder)
            self.assertEqual(len(programs), len(set(programs)), folder)

    def test_what_ctest_runs_is_in_its_folders_list(self):
        commands = unit_tests_of_ctest()
        self.assertTrue(commands)
        self.assertNotIn(None, commands, "there are unit tests that are not built: 'make build-tests'")
        for program, _, files in commands:
            for file in files.split(","):
                folders = {os.path.basename(os.path.dirname(path)) for path in glob.glob(f"{SOURCES}/*/{file}")}
                # Unit tests in other folders, tests/ceph, have no list.
                self.assertTrue(not folders or any(program in programs_of(folder) for folder in folders),
                                f"{file} of {folders}: {program}")


unittest.main()
