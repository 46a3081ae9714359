#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: ci_report.py FOLDER

Where a run of CI spent its time: the stages of FOLDER/stages.tsv (name, wall, user and system seconds), the dearest objects by the
build trees' ninja logs, and the dearest tests by ctest's JUnit files. The same is left in FOLDER/report.txt."""

import glob
import os
import sys
import xml.etree.ElementTree

ROWS = 20


def stages(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if line.count("\t") == 3]
    found = [(name, float(wall), float(user) + float(system)) for name, wall, user, system in rows]
    return [*found, ("all", sum(row[1] for row in found), sum(row[2] for row in found))]


def objects(build):
    """Seconds and name of what ninja made there, most first."""
    made = {}
    with open(os.path.join(build, ".ninja_log"), encoding="utf-8") as file:
        for line in file:
            parts = line.rstrip("\n").split("\t")
            if len(parts) == 5:
                made[parts[4]] = (int(parts[1]) - int(parts[0])) / 1000, os.path.relpath(os.path.join(build, parts[3]))
    return list(made.values())


def tests(build):
    path = os.path.join(build, "logs/junit.xml")
    if not os.path.exists(path):
        return []
    cases = xml.etree.ElementTree.parse(path).getroot().iter("testcase")
    return [(float(case.get("time")), f"{build}: {case.get('name')}") for case in cases]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = sys.argv[1]
    builds = [os.path.dirname(path) for path in sorted(glob.glob("build*/.ninja_log"))]
    lines = [f"{'stage':<16}{'wall min':>10}{'CPU min':>10}"]
    lines += [f"{name:<16}{wall / 60:>10.1f}{cpu / 60:>10.1f}" for name, wall, cpu in stages(os.path.join(folder, "stages.tsv"))]
    for title, of in (("objects", objects), ("tests", tests)):
        rows = sorted((row for build in builds for row in of(build)), reverse=True)
        lines += ["", f"the dearest {title} (seconds), of {len(rows)} that took {sum(row[0] for row in rows) / 60:.1f} min"]
        lines += [f"{seconds:>8.1f}  {name}" for seconds, name in rows[:ROWS]]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    with open(os.path.join(folder, "report.txt"), "w", encoding="utf-8") as file:
        file.write(text)


main()
