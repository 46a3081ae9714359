#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_logs.py [--list]

Compares PAGE, the operators' page of log lines, with the lines that src and modules log, both ways. --list prints the latter.

A line of the code is the first text of a call `spdlog::LEVEL(...)`, or the one that follows `spdlog::level::LEVEL,` in the
arguments of a call (src/base/log.h). Its `{...}` are placeholders, as are the `<...>` of the page; debug and trace are left out.
Fails if

- a line has no row, or a row no line, or the levels differ;
- a line does not begin with an object and then says what happened (CONTRIBUTING, "Style"), in words of its own: `{}: {}` says
  nothing that can be searched for;
- the text of a line can't be seen here: it is a variable, or one of two texts."""

import os
import re
import sys
from typing import NamedTuple

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
FOLDERS = ("src", "modules")
PAGE = "docs/logs.md"
HEADER = "| line | level | what it means | what to do |"
DELIMITER = "|---|---|---|---|"
# Passes on lines that others have made.
WRITER = "src/base/log.cc"

LEVELS = {"info": "info", "warn": "warning", "err": "error", "error": "error", "critical": "critical"}
CALL = re.compile(r"\bspdlog::(info|warn|error|critical)\(|\bspdlog::level::(info|warn|err|critical)\s*,|\bspdlog::(log)\(")
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)
# Adjacent ones are one text, wherever the formatter has cut it.
TEXT = re.compile(r'\s*(?:fmt::format\(\s*)?((?:"(?:\\.|[^"\\\n])*"\s*)+)([,)]|$)')
PIECE = re.compile(r'"((?:\\.|[^"\\\n])*)"')
FIELD = re.compile(r"(?:\{[^{}]*\})+")
PLACEHOLDERS = re.compile(r"(?:<[^<>]*>)+")
# An object, and an event with at least one word of its own.
FORM = re.compile(r"[^:;]+[:;] .*")
WORD = re.compile(r"[a-z]{4}")


class Line(NamedTuple):
    """One that is logged, or a row of the page."""

    place: str
    level: str
    text: str

    def key(self):
        return PLACEHOLDERS.sub("<>", self.text)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def sources():
    for folder in FOLDERS:
        for path, _, names in sorted(os.walk(os.path.join(ROOT, folder))):
            for name in sorted(names):
                if name.endswith((".cc", ".h")) and not name.endswith("_test.cc"):
                    yield os.path.relpath(os.path.join(path, name), ROOT)


def without_comments(code):
    """Positions stay."""
    return COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0]), code)


def arguments_from(code, start):
    """The rest of the call's arguments."""
    depth, position = 0, start
    while position < len(code):
        if code[position] == '"':
            position = re.compile(r'"(?:\\.|[^"\\\n])*"').match(code, position).end()
            continue
        if code[position] in "([{":
            depth += 1
        elif code[position] in ")]}":
            depth -= 1
            if depth < 0:
                break
        position += 1
    return code[start:position]


def text_in(arguments, first):
    """The line; None if it can't be seen. `first`: nothing may come before it."""
    match = TEXT.match(arguments) if first else None
    if not first:
        start = arguments.find('"')
        made = arguments.rfind("fmt::format(", 0, max(start, 0))
        match = TEXT.match(arguments, made if made >= 0 else max(start, 0)) if start >= 0 else None
    return "".join(PIECE.findall(match[1])).replace('\\"', '"') if match else None


def lines_of(path):
    """Findings, and lines."""
    findings, lines = [], []
    code = without_comments(read(path))
    for match in CALL.finditer(code):
        place = f"{path}:{code.count(chr(10), 0, match.start()) + 1}"
        if match[3]:
            if path != WRITER:
                findings.append(f"{place}: use spdlog::LEVEL, or log::Write for a line that somebody else has made")
            continue
        text = text_in(arguments_from(code, match.end()), first=bool(match[1]))
        if text is None:
            findings.append(f"{place}: the line's text can't be seen here: begin with one text, in place")
            continue
        shown = FIELD.sub("<>", text)
        words = shown.replace("<>", "")
        if not FORM.fullmatch(shown) or not WORD.search(words):
            findings.append(f"{place}: '{text}' is not 'object: event: reason; next step' with words to search for")
        lines.append(Line(place, LEVELS[match[1] or match[2]], shown))
    return findings, lines


def rows():
    """Findings, and lines of the page."""
    findings, lines, table = [], [], False
    for number, row in enumerate(read(PAGE).splitlines(), 1):
        if row == HEADER:
            table = True
        elif not row.startswith("|"):
            table = False
        elif table and row != DELIMITER:
            place = f"{PAGE}:{number}"
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
            if len(cells) != 6 or not all(cells[1:5]) or not re.fullmatch(r"`[^`]+`", cells[1]):
                findings.append(f"{place}: this row has not four cells, or its line is not in backquotes")
            else:
                lines.append(Line(place, cells[2], cells[1].strip("`").replace("\\|", "|")))
    return findings, lines


def compare(logged, written):
    """Findings."""
    findings = []
    levels_of, levels_on_page, texts = {}, {}, set()
    for line in logged:
        levels_of.setdefault(line.key(), set()).add(line.level)
    for row in written:
        levels_on_page.setdefault(row.key(), set()).add(row.level)
        if (row.text, row.level) in texts:
            findings.append(f"{row.place}: there is such a row already: '{row.text}'")
        texts.add((row.text, row.level))
        if row.key() not in levels_of:
            findings.append(f"{row.place}: nothing logs '{row.text}'")
        elif row.level not in levels_of[row.key()]:
            findings.append(f"{row.place}: '{row.text}' is logged as {', '.join(sorted(levels_of[row.key()]))}")
    for line in logged:
        if line.level not in levels_on_page.get(line.key(), ()):
            findings.append(f"{line.place}: {PAGE} has no row of '{line.text}' as {line.level}")
    return findings


def main():
    findings, logged = [], []
    for path in sources():
        found, lines = lines_of(path)
        findings += found
        logged += lines
    if sys.argv[1:] == ["--list"]:
        print("\n".join(f"{line.place} {line.level} {line.text}" for line in logged))
        return 0
    found, written = rows()
    findings += found + compare(logged, written)
    if not written:
        findings.append(f"{PAGE} has no row: check_logs.py no longer reads it")
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
