#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/check_promises.py finds in a page of promises, on a tree of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/check_promises.py")
HEAD = "## Promises and their tests\n\n| promise | test | run by |\n|---|---|---|\n"
GOOD = "| It is so. | tests/system/a_test.cc: `A.One`, `A.Two`<br>tests/fuzz/fuzz_rings.cc | make test |"
TREE = {
    "Makefile": "test: setup\ntest-all: setup\nsoak:\n",
    "tests/system/CMakeLists.txt": "foreach(name a b)\n  cleat_system_test(${name} LABELS data)\nendforeach()\n"
                                   "cleat_system_test(crowd BUSY 2 IN_TEST_ALL\n  ENVIRONMENT A=b)\n",
    "tests/system/a_test.cc": "TEST(A, One) {\n}\nTEST_F(A, Two) {\n}\n",
    "tests/system/crowd_test.cc": "TEST(Crowd, One) {\n}\n",
    "tests/system/alone_test.cc": "TEST(Alone, One) {\n}\n",
    "tests/fuzz/CMakeLists.txt": "cleat_fuzz(rings DEPS cleat_virtio)\n",
    "tests/fuzz/fuzz_rings.cc": "",
    "tests/bench/CMakeLists.txt": 'cleat_script_test(parts COMMAND python3 "${CMAKE_CURRENT_SOURCE_DIR}/test_parts.py")\n'
                                  'if(NOT CLEAT_TESTS STREQUAL "ALL")\n  return()\nendif()\n'
                                  'cleat_script_test(run COMMAND python3 "${CMAKE_CURRENT_SOURCE_DIR}/test_run.py")\n',
    "tests/bench/test_parts.py": "class Parts(unittest.TestCase):\n    def test_it(self):\n",
    "tests/bench/test_run.py": "class Run(unittest.TestCase):\n    def test_it(self):\n",
}


class Promises(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name, text in TREE.items():
            self.write(name, text)
        os.makedirs(os.path.join(self.root, "scripts"))
        shutil.copy(SCRIPT, os.path.join(self.root, "scripts"))

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def found(self, *lines, head=HEAD):
        """What is said of these lines, which follow a good one."""
        self.write("docs/tests.md", head + "\n".join([GOOD, *lines]) + "\n")
        script = os.path.join(self.root, "scripts/check_promises.py")
        done = subprocess.run([sys.executable, "-B", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1 if done.stdout else 0)
        return done.stdout

    def assert_found(self, what, *lines, **more):
        self.assertIn(what, self.found(*lines, **more))

    def test_what_is_right(self):
        self.assertEqual(self.found(
            "| Of `a \\| b`. | tests/bench/test_parts.py: `Parts.test_it`<br>tests/bench/test_run.py: `Run.test_it`<br>"
            "tests/system/crowd_test.cc: `Crowd.One` "
            "| make test (`test_i...`: make soak; test_run.py, crowd_test: make test-all) |",
            "| Of a crowd. | tests/system/crowd_test.cc: `Crowd.One` | make test-all (skipped on one core) |",
            "", "## Another section", "", "| a | table |", "|---|---|"), "")

    def test_rows_that_are_none(self):
        for row in (GOOD.replace("so. |", "so."), GOOD.replace("so. |", "so. | or so |"), GOOD.replace("It is so.", ""),
                    GOOD.removesuffix(" |"), GOOD[1:], "and so on"):
            self.assert_found("docs/tests.md:6: this row has not three cells", row)
        self.assert_found("docs/tests.md:9: this row has not three cells",
                          "", "| promise | tests | run by |", "|---|---|---|", GOOD)

    def test_a_page_that_is_not_read_any_more(self):
        self.assert_found("names no test", head="## Promises\n\n| promise | tests | run by |\n|---|---|---|\n")

    def test_tests_that_are_not_there(self):
        for right, wrong in (("a_test.cc", "c_test.cc"), ("`A.Two`", "A.Two"), ("`, `", "` and `"), ("<br>", ", ")):
            self.assert_found("there is no such file, or what follows are not its tests", GOOD.replace(right, wrong))
        self.assert_found("a_test.cc has no test A.Three", GOOD.replace("Two", "Three"))
        self.assert_found("no test of tests/system/a_test.cc is named", GOOD.replace(": `A.One`, `A.Two`", ""))
        self.assert_found("no CMakeLists.txt has tests/system/alone_test.cc",
                          "| Alone. | tests/system/alone_test.cc: `Alone.One` | make test |")

    def test_what_runs_them(self):
        crowd = "| Of a crowd. | tests/system/crowd_test.cc: `Crowd.One` | make test-all |"
        both = "| Of both. | tests/bench/test_parts.py: `Parts.test_it`<br>tests/bench/test_run.py: `Run.test_it` | make test |"
        self.assert_found("'make test-all' runs these, not 'make test'", crowd.replace("-all", ""))
        self.assert_found("'make test' runs these, not 'make test-all'", GOOD.replace("make test", "make test-all"))
        self.assert_found("make test-all alone runs test_run.py, and not none", both)
        self.assert_found("make test-all alone runs none of these, and not a_test",
                          GOOD.replace("make test", "make test (a_test: make test-all)"))
        self.assert_found("is not `make test`", GOOD.replace("make test", "make tests"))
        self.assert_found("the Makefile has no target soap", GOOD.replace("make test", "make test (`One`: make soap)"))
        self.assert_found("'Three' is none of the row's tests", GOOD.replace("make test", "make test (`Three`: make soak)"))


unittest.main()
