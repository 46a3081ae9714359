#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Which QEMU scripts/setup.sh installs, on machines whose release, or backports, have one that is recent enough. apt and QEMU are
played; all other packages are installed."""

import os
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/setup.sh")
OLD, RECENT = "1:7.2+dfsg-7", "1:10.0.2+ds-2"

# A package is installed if there is a file of its name; in it stands its version.
PROGRAMS = {
    "dpkg-query": "echo installed",
    "sudo": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
    "apt-cache": 'echo "  Candidate: $(cat "$STATE/$2" 2>/dev/null || echo "$RELEASE")"',
    "apt-get": """
version=$RELEASE
while [[ $1 == -* ]]; do [[ $1 != -o ]] || shift; shift; done
case $1 in
  indextargets) . /etc/os-release; echo "$VERSION_CODENAME-backports" ;;
  install)
    for word in "${@:2}"; do
      case $word in
        -t) version=$BACKPORTS ;;
        qemu-*) echo "$version" >"$STATE/$word"; echo "$word" >>"$STATE/installed" ;;
      esac
    done ;;
esac""",
    "qemu-system-x86_64": 'read -r version <"$STATE/qemu-system-x86" && echo "QEMU emulator version ${version#1:}"',
    "qemu-storage-daemon": 'read -r version <"$STATE/qemu-utils" && echo "qemu-storage-daemon version ${version#1:}"',
}


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("scripts", "programs", "state"):
            os.mkdir(os.path.join(self.folder, name))
        shutil.copy(SCRIPT, os.path.join(self.folder, "scripts"))
        for name, text in PROGRAMS.items():
            path = os.path.join(self.folder, "programs", name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/bash\n{text}\n")
            os.chmod(path, 0o755)

    def setup_for(self, purpose, release):
        """The packages of QEMU that it installs."""
        installed = os.path.join(self.folder, "state/installed")
        with open(installed, "w", encoding="utf-8"):
            pass
        done = subprocess.run(
            ["bash", os.path.join(self.folder, "scripts/setup.sh"), "--for", purpose, "--packages-only"], check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={"PATH": f"{self.folder}/programs:{os.environ['PATH']}", "STATE": f"{self.folder}/state", "RELEASE": release,
                 "BACKPORTS": RECENT})
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(installed, encoding="utf-8") as file:
            return sorted(file.read().split())

    def test_from_backports_where_the_release_is_older(self):
        self.assertEqual(self.setup_for("test", OLD), ["qemu-system-x86", "qemu-utils"])
        self.assertEqual(self.setup_for("test", OLD), [])

    def test_what_is_wanted_later_comes_from_backports_too(self):
        self.assertEqual(self.setup_for("demo", OLD), ["qemu-system-x86"])
        self.assertIn("qemu-utils", self.setup_for("test", OLD))

    def test_from_the_release_where_it_is_recent(self):
        self.assertEqual(self.setup_for("demo", RECENT), ["qemu-system-x86"])
        self.assertIn("qemu-utils", self.setup_for("test", RECENT))

    def test_nothing_where_no_guest_runs(self):
        self.assertEqual(self.setup_for("build", OLD), [])


unittest.main()
