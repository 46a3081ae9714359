# SPDX-License-Identifier: Apache-2.0
"""The one package that CLEAT_PACKAGE_DIR has, unpacked: its files below root, its control files in control."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class Unpacked:
    def __init__(self, pattern: str = "cleat_*.deb") -> None:
        found = sorted(Path(os.environ["CLEAT_PACKAGE_DIR"]).glob(pattern))
        assert len(found) == 1, f"one package {pattern} is to be tried (make deb): {found}"
        self.deb = found[0]
        self._folder = Path(tempfile.mkdtemp(prefix="cleat-package-"))
        self.root = self._folder / "root"
        self.control = self._folder / "control"
        subprocess.run(["dpkg-deb", "--extract", str(self.deb), str(self.root)], check=True)
        subprocess.run(["dpkg-deb", "--control", str(self.deb), str(self.control)], check=True)

    def architecture(self) -> str:
        return self.field("Architecture")

    def field(self, name: str) -> str:
        done = subprocess.run(["dpkg-deb", "--field", str(self.deb), name], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def remove(self) -> None:
        shutil.rmtree(self._folder)
