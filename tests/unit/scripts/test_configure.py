#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/configure.sh, in a folder of its own with a cmake that is played: when a tree is configured again, and what is left of
one that can't be."""

import os
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/configure.sh")

# Keeps CLEAT_TESTS as CMake does: the cache is written before what fails, since only tests need it, is looked for.
CMAKE = """#!/bin/bash
tree=build
[ "$2" = release ] || tree=build-$2
cache=$tree/CMakeCache.txt
[ -e "$cache" ] || echo CLEAT_TESTS:STRING=OFF >"$cache"
[ -z "$3" ] || echo "CLEAT_TESTS:STRING=${3#*=}" >"$cache"
touch "$cache"
[ ! -e fails ] || grep -q OFF "$cache" || { echo "GTest is not there"; exit 1; }
[ ! -e lacks ] || echo "tests/ceph is LEFT OUT"
echo configured >>"$tree/times"
touch "$tree/build.ninja"
sleep 0.01
echo "Build files have been written"
"""


class Configure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.path("scripts"))
        shutil.copy(SCRIPT, self.path("scripts"))
        os.mkdir(self.path("bin"))
        self.write("bin/cmake", CMAKE)
        os.chmod(self.path("bin/cmake"), 0o755)
        self.write("CMakePresets.json", "")
        os.utime(self.path("CMakePresets.json"), (0, 0))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def configure(self, *arguments):
        return subprocess.run(["bash", self.path("scripts/configure.sh"), *arguments], check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={"PATH": f"{self.path('bin')}:{os.environ['PATH']}"})

    def configured(self, *arguments):
        """How often that tree has been configured, after this too."""
        done = self.configure(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout)
        return self.read("build/times").count("configured")

    def kept_tests(self):
        return self.read("build/CMakeCache.txt").strip().removeprefix("CLEAT_TESTS:STRING=")

    def test_once_and_again_for_other_tests(self):
        self.assertEqual(self.configured("release", "ON"), 1)
        self.assertEqual(self.configured("release", "ON"), 1)
        self.assertEqual(self.configured("release"), 1)
        self.assertEqual(self.kept_tests(), "ON")
        self.assertEqual(self.configured("release", "ALL"), 2)
        self.assertEqual(self.kept_tests(), "ALL")

    def test_again_for_other_presets(self):
        self.assertEqual(self.configured("release"), 1)
        os.utime(self.path("build/build.ninja"), (1, 1))
        os.utime(self.path("CMakePresets.json"), (2, 2))
        self.assertEqual(self.configured("release"), 2)

    def test_again_while_something_is_left_out_and_says_so(self):
        self.write("lacks", "")
        self.assertIn("tests/ceph is LEFT OUT", self.configure("release").stdout)
        os.unlink(self.path("lacks"))
        self.assertEqual(self.configured("release"), 2)
        self.assertEqual(self.configured("release"), 2)

    def test_again_after_somebody_called_cmake(self):
        """Who may have seen that something is left out, which the log here does not say."""
        self.assertEqual(self.configured("release"), 1)
        later = os.stat(self.path("build/logs/configure.log")).st_mtime + 1
        os.utime(self.path("build/CMakeCache.txt"), (later, later))
        self.assertEqual(self.configured("release"), 2)

    def test_what_fails_leaves_the_tests_that_were(self):
        self.assertEqual(self.configured("release"), 1)
        self.write("fails", "")
        failed = self.configure("release", "ON")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("GTest is not there", failed.stdout)
        self.assertIn("make setup", failed.stdout)
        self.assertEqual(self.kept_tests(), "OFF")
        self.assertEqual(self.configured("release"), 2)

    def test_what_fails_at_first_leaves_a_tree_without_tests(self):
        self.write("fails", "")
        self.assertEqual(self.configure("release", "ON").returncode, 1)
        self.assertEqual(self.kept_tests(), "OFF")

    def test_trees_of_other_presets_are_left_alone(self):
        self.assertEqual(self.configured("release"), 1)
        os.mkdir(self.path("build-asan"))
        self.assertEqual(self.configure("asan", "ON").returncode, 0)
        self.assertEqual(self.read("build-asan/CMakeCache.txt").strip(), "CLEAT_TESTS:STRING=ON")
        self.assertEqual(self.kept_tests(), "OFF")


unittest.main()
