#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/check_logs.py finds in a page of log lines and in code, on a tree of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/check_logs.py")
HEAD = "# Log lines\n\n| line | level | what it means | what to do |\n|---|---|---|---|\n"
OPENED = "| `<disk>: opened: target <number>` | info | The guest has it. | - |"
CODE = 'void F() {\n  spdlog::info("{}: opened: target {}", name, number);\n}\n'


def row(line, level="info"):
    return f"| `{line}` | {level} | As it says. | - |"


class Logs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("scripts", "docs", "src/base", "modules"):
            os.makedirs(os.path.join(self.root, name))
        shutil.copy(SCRIPT, os.path.join(self.root, "scripts"))
        self.write("src/source.cc", CODE)

    def write(self, name, text):
        with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
            file.write(text)

    def found(self, *rows, code=CODE):
        """What is said of this code, and a page of these rows."""
        self.write("src/source.cc", code)
        self.write("docs/logs.md", HEAD + "\n".join(rows) + "\n")
        done = subprocess.run([sys.executable, "-B", os.path.join(self.root, "scripts/check_logs.py")], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(done.returncode, 1 if done.stdout else 0)
        return done.stdout

    def found_of(self, call, *rows):
        """What is said of this call, in a function that logs nothing else."""
        return self.found(*rows, code=f"void F() {{\n  {call};\n}}\n")

    def test_what_agrees(self):
        self.assertEqual(self.found(OPENED, "", "## Another table", "", "| a | b |", "|---|---|", "| `<disk>: gone` | b |"), "")

    def test_a_line_without_a_row(self):
        self.assertEqual(self.found(OPENED, code=CODE + '\n\nvoid G() { spdlog::warn("{}: lost", name); }\n'),
                         "src/source.cc:6: docs/logs.md has no row of '<>: lost' as warning\n")

    def test_a_row_without_a_line(self):
        self.assertEqual(self.found(OPENED, row("<disk>: lost", "warning")), "docs/logs.md:6: nothing logs '<disk>: lost'\n")

    def test_a_line_whose_words_have_changed(self):
        said = self.found(OPENED, code=CODE.replace("opened", "open"))
        self.assertIn("docs/logs.md:5: nothing logs '<disk>: opened: target <number>'", said)
        self.assertIn("src/source.cc:2: docs/logs.md has no row of '<>: open: target <>' as info", said)

    def test_another_level(self):
        said = self.found(OPENED.replace("info", "warning"))
        self.assertIn("docs/logs.md:5: '<disk>: opened: target <number>' is logged as info", said)
        self.assertIn("src/source.cc:2: docs/logs.md has no row of", said)

    def test_levels_as_the_log_has_them(self):
        for call, level in (("warn", "warning"), ("error", "error"), ("critical", "critical")):
            self.assertEqual(self.found_of(f'spdlog::{call}("{{}}: lost", name)', row("<disk>: lost", level)), "")

    def test_lines_for_developers_are_left_out(self):
        self.assertEqual(self.found(OPENED, code=CODE + 'void G() { spdlog::debug("{}", x); spdlog::trace("y"); }\n'), "")

    def test_comments_and_texts_are_no_calls(self):
        self.assertEqual(self.found(OPENED, code=CODE + '// spdlog::info("{}: lost")\n/* spdlog::warn("x: y") */\n'), "")

    def test_texts_over_several_lines(self):
        call = 'spdlog::info(\n      "{}: not opened: {} (a \\"bad\\" one); "\n      // Why.\n      "try "\n      "again", name, F("x"))'
        self.assertEqual(self.found_of(call, row('<disk>: not opened: <reason> (a "bad" one); try again')), "")

    def test_formats_and_neighbours(self):
        self.assertEqual(self.found_of('spdlog::info("{}: took {:.3g} s{}{}", a, b, c, d)', row("<disk>: took <time> s<how>")), "")

    def test_lines_that_are_made_for_another_function(self):
        for call in ('say(spdlog::level::warn, fmt::format("{}: lost {}", name, x))',
                     'Tell(budget, spdlog::level::warn, kWhat, now_ns,\n       fmt::format("{}: lost {}", name, x))'):
            self.assertEqual(self.found_of(call, row("<disk>: lost <bytes>", "warning")), "")
        self.assertEqual(self.found_of('logger->flush_on(spdlog::level::info)', OPENED),
                         "docs/logs.md:5: nothing logs '<disk>: opened: target <number>'\n")

    def test_texts_that_cannot_be_seen(self):
        for call in ("spdlog::info(text)", 'spdlog::warn(late ? "{}: late" : "{}: lost", name)',
                     "say(spdlog::level::warn, line)"):
            self.assertIn("src/source.cc:2: the line's text can't be seen here", self.found_of(call, OPENED))
        self.assertIn("src/source.cc:2: use spdlog::LEVEL", self.found_of('spdlog::log(level, "{}: lost", name)', OPENED))

    def test_the_writer_of_lines_that_are_made_elsewhere(self):
        self.write("src/base/log.cc", 'void Write() {\n  spdlog::log(level, "{}", line);\n}\n')
        self.assertEqual(self.found(OPENED), "")

    def test_lines_without_words_of_their_own(self):
        for text in ("{}", "{}: {}", "{} on {}: {}", "lost", "{} is lost"):
            self.assertIn("is not 'object: event: reason; next step'", self.found_of(f'spdlog::info("{text}", x)', OPENED))

    def test_modules_log_too(self):
        self.write("modules/source.cc", 'void F() { spdlog::info("{}: lost", name); }\n')
        self.assertIn("modules/source.cc:1: docs/logs.md has no row", self.found(OPENED))

    def test_rows_that_are_none(self):
        for bad in (OPENED.replace("The guest has it.", ""), OPENED.replace("`", ""), OPENED.removesuffix(" |")):
            self.assertIn("docs/logs.md:5: this row has not four cells", self.found(bad))

    def test_rows_of_one_line_for_two_objects(self):
        rows = (row("<disk>: deleted"), row("<group>: deleted"))
        self.assertEqual(self.found_of('spdlog::info("{}: deleted", name)', *rows), "")
        self.assertIn("docs/logs.md:6: there is such a row already", self.found_of('spdlog::info("{}: deleted", name)', rows[0],
                                                                                   rows[0]))

    def test_a_page_that_is_not_read_any_more(self):
        self.assertIn("docs/logs.md has no row", self.found(code="void F() {}\n"))


if __name__ == "__main__":
    unittest.main()
