#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_promises.py

Checks the tables of promises in PAGE: those below HEADER; in SECTION there are no others. A row has three cells: the
promise; files, each with its tests (`Suite.Name` of GoogleTest, `Class.method` of Python's unittest; a script or fuzz target has
none); and what runs them. Fails if a file or test does not exist, and if what runs them is said wrongly:

- A test runs in `make test`, or in `make test-all` alone (IN_TEST_ALL), as a CMakeLists.txt says. The third cell begins with
  `make test` if that runs one of the row's files, and then names the other files: `(some_test, test_other.py: make test-all)`.
  Not looked at: labels and CMake's options that leave tests out of a build.
- Each other `make TARGET` there is one of the Makefile, each name in backquotes a test of the row. The rest is for people."""

import glob
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
PAGE = "docs/tests.md"
SECTION = "## Promises and their tests"
HEADER = "| promise | test | run by |"
DELIMITER = "|---|---|---|"
ENTRY = re.compile(r"((?:tests|scripts|modules)/[\w./-]+\.(?:cc|py))(?:: (`\w+\.\w+`(?:, `\w+\.\w+`)*))?")
NAME = re.compile(r"`(\w+)\.(\w+)`")
WITHOUT_TESTS = ("scripts/", "tests/fuzz/")
RUN_BY = re.compile(r"(make test(?:-all)?)(?: \((.+)\))?")

FOREACH = re.compile(r"^foreach\(name ([^)]+)\)(.*?)^endforeach\(\)", re.S | re.M)
DECLARATION = re.compile(r"^ *cleat_(\w*test|fuzz)\(\s*(\w+)([^()]*)\)", re.M)
# What is declared below it is there for `make test-all` alone.
ALL_BELOW = 'if(NOT CLEAT_TESTS STREQUAL "ALL")\n  return()'
FILE = re.compile(r"[\w./-]+_test\.cc|[\w./-]+\.py")
# Where a declaration names no file: what its function makes of its name.
FILE_OF = {"system_test": "{}_test.cc", "bench_test": "test_{}.py", "guest_test": "test_{}.py", "package_test": "test_{}.py",
           "fuzz": "fuzz_{}.cc"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def commands_of_tests():
    """The command that runs each file of tests."""
    found = {}
    for lists in sorted(glob.glob("tests/**/CMakeLists.txt", root_dir=ROOT, recursive=True)):
        text = FOREACH.sub(lambda loop: "".join(loop[2].replace("${name}", name) for name in loop[1].split()), read(lists))
        below = text.find(ALL_BELOW) if ALL_BELOW in text else len(text)
        for declaration in DECLARATION.finditer(text):
            function, name, arguments = declaration.groups()
            only_all = "IN_TEST_ALL" in arguments.split() or declaration.start() > below
            folder = os.path.dirname(lists)
            arguments = arguments.replace("${CMAKE_SOURCE_DIR}/", "/").replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
            for file in FILE.findall(arguments) or [FILE_OF.get(function, "").format(name)]:
                path = file[1:] if file.startswith("/") else f"{folder}/{file}"
                if not only_all or path not in found:
                    found[path] = "make test-all" if only_all else "make test"
    # Tests in a module's own folder are modules_test's (tests/unit/modules/CMakeLists.txt).
    return found | dict.fromkeys(glob.glob("modules/*/*_test.cc", root_dir=ROOT), "make test")


def has_test(text, path, suite, name):
    if path.endswith(".py"):
        return re.search(rf"^class {suite}\b", text, re.M) and re.search(rf"^    def {name}\(", text, re.M)
    return re.search(rf"^TEST(?:_F|_P)?\({suite},\s*{name}\)", text, re.M)


def check_tests(cell):
    """Findings, the files, and the names of their tests."""
    findings, files, tests = [], [], []
    for entry in cell.split("<br>"):
        match = ENTRY.fullmatch(entry.strip())
        if not match or not os.path.exists(os.path.join(ROOT, match[1])):
            findings.append(f"'{entry}': there is no such file, or what follows are not its tests")
            continue
        path, named = match[1], NAME.findall(match[2] or "")
        text = read(path)
        findings += [f"{path} has no test {suite}.{name}" for suite, name in named if not has_test(text, path, suite, name)]
        if not named and not path.startswith(WITHOUT_TESTS):
            findings.append(f"no test of {path} is named")
        files.append(path)
        tests += [name for _, name in named]
    return findings, files, tests


def check_run_by(cell, files, tests, commands, targets):
    """Findings."""
    match = RUN_BY.fullmatch(cell)
    if not match:
        return [f"'{cell}' is not `make test` or `make test-all`, with remarks in brackets or without"]
    command, remarks = match[1], match[2] or ""
    findings = [f"the Makefile has no target {target}" for target in re.findall(r"make ([\w-]+)", remarks)
                if target not in targets]
    findings += [f"'{name}' is none of the row's tests" for name in re.findall(r"`(\w+)(?:\.\.\.)?`", remarks)
                 if not any(test.startswith(name) for test in tests)]
    if unknown := [path for path in files if path not in commands]:
        return [*findings, f"no CMakeLists.txt has {', '.join(unknown)} as a test"]
    runs = "make test" if any(commands[path] == "make test" for path in files) else "make test-all"
    others = [os.path.basename(path).removesuffix(".cc") for path in files if commands[path] != runs]
    said = [name for remark in remarks.split("; ") for name in remark.removesuffix(": make test-all").split(", ")
            if remark.endswith(": make test-all")]
    if command != runs:
        findings.append(f"'{runs}' runs these, not '{command}'")
    if sorted(said) != sorted(others):
        findings.append(f"make test-all alone runs {', '.join(others) or 'none of these'}, and not {', '.join(said) or 'none'}")
    return findings


def rows(page):
    """Numbers and lines of what is a row of promises; with None in place of the line, of one without the header."""
    section = table = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("## "):
            section = line == SECTION
        if line == HEADER:
            table = True
        elif not line.strip():
            table = False
        elif table and line != DELIMITER:
            yield number, line
        elif section and line.startswith("|") and not table:
            yield number, None


def main():
    commands = commands_of_tests()
    targets = re.findall(r"^([a-z0-9-]+):", read("Makefile"), re.M)
    findings, count = [], 0
    for number, line in rows(read(PAGE)):
        # Between two bars each, the first and last of the line included.
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line or "")]
        if len(cells) != 5 or cells[0] or cells[4] or not all(cells[1:4]):
            found = ["this row has not three cells, or is below no header of promises"]
        else:
            found, files, tests = check_tests(cells[2])
            if files:
                found += check_run_by(cells[3], files, tests, commands, targets)
            count += len(tests)
        findings += [f"{PAGE}:{number}: {finding}" for finding in found]
    if count == 0:
        findings.append(f"{PAGE} names no test: check_promises.py no longer reads it")
    if findings:
        print("\n".join(findings))
    sys.exit(1 if findings else 0)


main()
