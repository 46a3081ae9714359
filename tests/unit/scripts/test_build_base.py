#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/build_base.sh, in a clone of its own with a cmake that is played: which version it takes, what a second run does, and what
is said and left of one that can't be built."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/build_base.sh")

TIMEOUT_SECONDS = 60  # around what can only hang

# Configures the sources that it stands in, or builds what these are: a file `version`.
CMAKE = """#!/bin/bash
echo "$*" >>"$FOLDER/calls"
if [ "$1" = --build ]; then
  [ ! -e "$2/../does-not-compile" ] || { echo "error: what is a concept?"; exit 1; }
  build=$2
  mkdir -p "$build/bin"
  while [ "$1" != --target ]; do shift; done
  shift
  for program in "$@"; do cp "$build/../version" "$build/bin/$program"; done
else
  [ ! -e lacks-a-package ] || { echo "Could NOT find Frobnicate"; exit 1; }
  [ ! -e waits ] || touch "$FOLDER/configuring"
  while [ -e waits ] && [ ! -e "$FOLDER/go-on" ]; do sleep 0.01; done
  mkdir -p build
fi
"""


class BuildBase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("scripts", "tools"):
            os.mkdir(self.path(name))
        shutil.copy(SCRIPT, self.path("scripts"))
        self.write("tools/cmake", CMAKE)
        os.chmod(self.path("tools/cmake"), 0o755)
        self.write(".gitignore", "build/\ntools/\ncalls\n")
        self.write("CMakePresets.json", "{}")
        self.git("init", "--quiet")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def git(self, *arguments):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True, text=True, cwd=self.folder,
                              stdout=subprocess.PIPE).stdout.strip()

    def commit(self, version):
        """A version whose programs say so; its commit."""
        self.write("version", version)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", version)
        return self.git("rev-parse", "HEAD")

    def start(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.path('tools')}:{os.environ['PATH']}", "FOLDER": self.folder}
        return subprocess.Popen(["bash", self.path("scripts/build_base.sh"), *arguments], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=environment)

    def run_script(self, *arguments):
        """Its exit status, standard output and standard error."""
        with self.start(*arguments) as script:
            output, errors = script.communicate(timeout=TIMEOUT_SECONDS)
            return script.returncode, output, errors

    def built(self, *arguments):
        """The folder with the programs."""
        status, output, errors = self.run_script(*arguments)
        self.assertEqual(status, 0, errors)
        return output.rstrip("\n")

    def refused(self, *arguments):
        """What it says."""
        status, output, errors = self.run_script(*arguments)
        self.assertEqual((status, output), (1, ""), errors)
        self.assertIn("build_base: next: ", errors)
        return errors

    def version_of(self, bin_dir):
        return {self.read(os.path.join(bin_dir, name)) for name in ("cleatd", "cleat-engine", "cleatctl")}

    def calls(self):
        return self.read(self.path("calls")).count("\n")

    def test_it_builds_that_commit_and_the_second_time_nothing(self):
        first = self.commit("one")
        self.commit("two")
        bin_dir = self.built(first[:7])
        self.assertEqual(bin_dir, self.path(f"build/base/{first[:12]}/bin"))
        self.assertEqual(self.version_of(bin_dir), {"one"})
        calls = self.calls()
        self.assertEqual(self.built(first), bin_dir)
        self.assertEqual(self.calls(), calls)

    def test_it_leaves_no_work_tree_and_no_sources(self):
        first = self.commit("one")
        bin_dir = self.built(first)
        self.assertEqual(self.git("worktree", "list").count("\n"), 0)
        self.assertEqual(sorted(os.listdir(os.path.dirname(bin_dir))), ["bin", "build.log", "lock"])

    def test_without_a_commit_it_is_the_release_before_this_one(self):
        self.commit("one")
        self.git("tag", "v1.0.0")
        self.commit("between")
        self.git("tag", "other")
        self.commit("two")
        self.assertEqual(self.version_of(self.built()), {"one"})
        self.git("tag", "v2.0.0")
        self.assertEqual(self.version_of(self.built()), {"one"})
        self.commit("three")
        self.assertEqual(self.version_of(self.built()), {"two"})

    def test_without_a_release_it_is_what_the_changelog_names(self):
        first = self.commit("one")
        self.write("CHANGELOG.md", f"# Changelog\n\nUpgrade base: `{first[:7]}`, of before\n")
        self.commit("two")
        self.assertEqual(self.version_of(self.built()), {"one"})

    def test_without_both_it_says_what_to_name(self):
        self.commit("one")
        self.assertIn("make test-upgrade BASE=COMMIT", self.refused())

    def test_an_unknown_commit(self):
        self.commit("one")
        self.assertIn("this clone has no commit 'abcdef1'", self.refused("abcdef1"))

    def test_a_clone_without_older_commits(self):
        first = self.commit("one")
        self.commit("two")
        shallow = self.path("build/shallow")
        self.git("clone", "--quiet", "--depth", "1", f"file://{self.folder}", shallow)
        self.folder, whole = shallow, self.folder
        os.mkdir(self.path("tools"))
        shutil.copy(os.path.join(whole, "tools/cmake"), self.path("tools"))
        self.assertIn("git fetch --unshallow", self.refused(first))

    def test_an_option_is_no_commit(self):
        self.commit("one")
        self.assertIn("no commit '--all'", self.refused("--all"))

    def test_what_lacks_a_package(self):
        self.write("lacks-a-package", "")
        first = self.commit("one")
        said = self.refused(first)
        self.assertIn("can't be configured", said)
        self.assertIn("Could NOT find Frobnicate", said)

    def test_what_does_not_compile_is_tried_again_where_it_was(self):
        self.write("does-not-compile", "")
        first = self.commit("one")
        said = self.refused(first)
        self.assertIn("can't be built", said)
        self.assertIn("what is a concept?", said)
        source = self.path(f"build/base/{first[:12]}/source")
        self.assertTrue(os.path.isdir(os.path.join(source, "build")))
        os.unlink(os.path.join(source, "does-not-compile"))
        self.assertEqual(self.version_of(self.built(first)), {"one"})

    def test_one_without_presets(self):
        os.unlink(self.path("CMakePresets.json"))
        first = self.commit("one")
        self.assertIn("no CMakePresets.json", self.refused(first))

    def test_the_oldest_go(self):
        commits = [self.commit(str(number)) for number in range(5)]
        for commit in commits:
            self.built(commit)
        self.assertEqual(set(os.listdir(self.path("build/base"))), {commit[:12] for commit in commits[2:]})

    def test_one_that_is_there_is_had_while_another_one_is_built(self):
        first = self.commit("one")
        bin_dir = self.built(first)
        self.write("waits", "")
        second = self.commit("two")
        with self.start(second) as other:
            while not os.path.exists(self.path("configuring")):
                self.assertIsNone(other.poll())
                time.sleep(0.01)
            self.assertEqual(self.built(first), bin_dir)
            self.write("go-on", "")
            other.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(other.returncode, 0)
        self.assertEqual(self.version_of(self.built(second)), {"two"})


unittest.main()
