#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_idioms.py [FOLDER...]

Checks what CONTRIBUTING ("Style") asks of C++ and what neither the compiler nor clang-tidy sees, in src and modules or in
FOLDERs:

- no braced aggregate within a co_await expression, which GCC 12 destroys twice (tests/unit/reactor/task_test.cc);
- errors are returned by CLEAT_TRY and CLEAT_ASSIGN; by hand only where something is to be done first, ERROR_RETURNS_MAX times;
- a line of a comment names its subject: PRONOUNS_MAX begin with a word of PRONOUN."""

import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
FOLDERS = ("src", "modules")
ERROR_RETURNS_MAX = 20
PRONOUNS_MAX = 10

COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
AWAIT = re.compile(r"\bco_await\b")
ERROR_RETURN = re.compile(r"\breturn\s+(?:std::move\(\w+\)|\w+)\.error\(\);")
PRONOUN = re.compile(
    r"^\s*// (?:It|They|Those|Who|Whoever|That one|One that|Nobody|Somebody|Likewise|Less)\b", re.M
)
# Where the macros are defined.
MACROS = "src/base/result.h"


def sources(folders):
    for folder in folders:
        for path, _, names in sorted(os.walk(os.path.join(ROOT, folder))):
            for name in sorted(names):
                if name.endswith((".cc", ".h")):
                    yield os.path.relpath(os.path.join(path, name), ROOT)


def code_of(text):
    """Comments and texts of the program become blanks, so that positions stay."""
    return COMMENT_OR_TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def braced_aggregate(code, start):
    """The position of one within the expression that begins there; None if there is none."""
    depth = 0
    for position in range(start, len(code)):
        letter = code[position]
        if letter in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif letter == ";" and depth == 0:
            return None
        elif letter == "{":
            # A lambda's body or a block has a blank before it, as clang-format writes them.
            before = code[position - 1]
            if before in "(,>" or before.isalnum() or before == "_" or code[:position].rstrip()[-1] in "(,":
                return position
            return None
        elif letter in "([":
            depth += 1
    return None


def line_of(code, position):
    return code.count("\n", 0, position) + 1


def too_many(places, most, what, instead):
    """The findings when more than `most` places are like that."""
    if len(places) <= most:
        return []
    return [f"{place}: {what}" for place in places] + [f"{len(places)} of them, {most} may be: {instead}"]


def main():
    findings, by_hand, pronouns = [], [], []
    for path in sources(sys.argv[1:] or FOLDERS):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        code = code_of(text)
        # The blanks that a match begins with may be empty lines before its own.
        pronouns += [f"{path}:{line_of(text, text.index('//', match.start()))}" for match in PRONOUN.finditer(text)]
        for match in AWAIT.finditer(code):
            position = braced_aggregate(code, match.end())
            if position is not None:
                findings.append(
                    f"{path}:{line_of(code, position)}: a braced aggregate within co_await, which GCC 12 destroys twice: "
                    "name the argument or the task first"
                )
        if path != MACROS:
            by_hand += [f"{path}:{line_of(code, match.start())}" for match in ERROR_RETURN.finditer(code)]
    findings += too_many(
        by_hand, ERROR_RETURNS_MAX, "an error is returned by hand", f"use CLEAT_TRY or CLEAT_ASSIGN of {MACROS}"
    )
    findings += too_many(pronouns, PRONOUNS_MAX, "a comment without a subject", "name what it is about")
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
