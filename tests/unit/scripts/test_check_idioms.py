#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/check_idioms.py finds, and what it lets stand."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/check_idioms.py")


class Idioms(unittest.TestCase):
    def check(self, code):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "source.cc"), "w", encoding="utf-8") as file:
                file.write(code)
            run = subprocess.run(
                [sys.executable, "-B", SCRIPT, folder], capture_output=True, text=True, timeout=60, check=False
            )
        self.assertEqual(run.stderr, "")
        return run.returncode, [int(line) for line in re.findall(r"source\.cc:(\d+):", run.stdout)]

    def test_aggregates_within_co_await_are_found(self):
        for bad in (
            "co_await Open({.name = x});",
            "co_await Open(Options{.name = x});",
            "co_await Open(\n    {.name = x});",
            "co_return co_await Open(first, {x, y});",
            "auto opened = co_await disks.Open(block::Options{});",
        ):
            with self.subTest(bad):
                self.assertEqual(self.check(f"// One line.\nTask<void> F() {{ {bad} }}\n")[0], 1)

    def test_its_line_is_named(self):
        self.assertEqual(self.check("\n\nvoid F() {\n  co_await Open({1});\n}\n"), (1, [4]))

    def test_other_braces_are_let_stand(self):
        for good in (
            "co_await Open(std::move(options));",
            "auto open = Open({.name = x});\nco_await std::move(open);",
            "if (co_await Open(x)) {\n  Close();\n}",
            "co_await Run([this] { Close(); });",
            "co_await Run([](int x) { return Pair{x, x}; });",
            "// co_await Open({1});",
            'Log("co_await Open({1})");',
        ):
            with self.subTest(good):
                self.assertEqual(self.check(f"Task<void> F() {{ {good} }}\n"), (0, []))

    def test_a_few_errors_may_be_returned_by_hand(self):
        one = "  if (!read.ok()) return std::move(read).error();\n"
        self.assertEqual(self.check(one * 20), (0, []))
        self.assertEqual(self.check(one * 21), (1, list(range(1, 22))))

    def test_a_few_comments_may_begin_with_a_pronoun(self):
        one = "  // It has grown.\n"
        self.assertEqual(self.check(one * 10), (0, []))
        self.assertEqual(self.check(one * 11), (1, list(range(1, 12))))
        for word in ("They", "Those", "Who", "Whoever", "That one", "One that", "Nobody", "Somebody", "Likewise", "Less"):
            with self.subTest(word):
                self.assertEqual(self.check(f"\n\n// {word} waits.\n" * 11), (1, list(range(3, 34, 3))))
        for good in ("// The disk has grown.\n", "int x = 1;  // It has grown.\n", "// Thosewords\n", '"// It"\n'):
            with self.subTest(good):
                self.assertEqual(self.check(good * 11), (0, []))


if __name__ == "__main__":
    unittest.main()
