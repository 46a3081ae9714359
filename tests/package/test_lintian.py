# SPDX-License-Identifier: Apache-2.0
"""Debian's own checks of both packages: nothing of error or warning is left, and each override has its reason."""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# A package with debug symbols can't have overrides of its own; this one is overridden for the product.
OF_SYMBOLS = "E: cleat-dbgsym: bogus-mail-host Maintainer "
OVERRIDES = ROOT / "deploy" / "debian" / "lintian-overrides"


def lintian(*arguments: str) -> list[str]:
    """Its findings, a line each."""
    done = subprocess.run(["lintian", "--allow-root", "--no-cfg", *arguments], capture_output=True, text=True, check=False, timeout=100)
    return [line for line in done.stdout.splitlines() if re.match(r"[EWIPOXC]: ", line)]


class Lintian(unittest.TestCase):
    def packages(self) -> list[str]:
        found = sorted(Path(os.environ["CLEAT_PACKAGE_DIR"]).glob("*.deb"))
        self.assertEqual(len(found), 2, found)
        return [str(path) for path in found]

    def test_it_finds_nothing(self) -> None:
        self.assertEqual([line for line in lintian(*self.packages()) if not line.startswith(OF_SYMBOLS)], [])

    def test_what_is_overridden_is_there_and_has_its_reason(self) -> None:
        overridden = {line.split()[2] for line in lintian("--show-overrides", *self.packages()) if line.startswith("O: ")}
        lines = OVERRIDES.read_text(encoding="utf-8").splitlines()[1:]
        said = {line.split()[1] for line in lines if not line.startswith("#")}
        self.assertEqual(overridden, said)
        for before, line in zip(lines, lines[1:]):
            if not line.startswith("#"):
                self.assertTrue(before.startswith("#"), f"no reason is given for '{line}'")


if __name__ == "__main__":
    unittest.main()
