# SPDX-License-Identifier: Apache-2.0
"""What is in the packages beside the programs: manual pages, the API's description, what Debian wants of each, debug symbols."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path

from unpacked import Unpacked

BIN_DIR = Path(os.environ["CLEAT_BIN_DIR"])


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commands_below(*command: str) -> list[str]:
    """cleatctl-disk, cleatctl-disk-create and so on, as completion knows them."""
    found = []
    for line in output_of(str(BIN_DIR / "cleatctl"), "__complete", *command[1:], "").splitlines():
        name = line.split("\t")[0]
        if "\t" in line and re.fullmatch(r"[a-z][a-z-]*", name):
            found.append("-".join([*command, name]))
    return found


class Contents(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.package = Unpacked()
        cls.addClassCleanup(cls.package.remove)
        cls.root = cls.package.root

    def page(self, name: str, section: int = 1) -> str:
        with gzip.open(self.root / f"usr/share/man/man{section}/{name}.{section}.gz", "rt", encoding="utf-8") as file:
            return file.read()

    def test_each_program_has_a_manual_page(self) -> None:
        for folder, section in (("usr/bin", 1), ("usr/sbin", 8)):
            programs = sorted(path.name for path in (self.root / folder).iterdir())
            self.assertGreaterEqual(len(programs), 2)
            for program in programs:
                name = program.replace("-", "\\-")
                self.assertIn(f"\n{name} \\- ", self.page(program, section))

    def test_each_command_of_cleatctl_has_one_with_its_options(self) -> None:
        pages = {path.name.removesuffix(".1.gz") for path in (self.root / "usr/share/man/man1").glob("cleatctl-*")}
        groups = commands_below("cleatctl")
        self.assertIn("cleatctl-disk", groups)
        self.assertEqual(set(groups) - pages, set())
        self.assertEqual([page for page in pages if not any(page == group or page.startswith(group + "-") for group in groups)], [])
        disk = {page for page in pages if page.startswith("cleatctl-disk-")}
        self.assertEqual(disk, set(commands_below("cleatctl", "disk")))
        create = self.page("cleatctl-disk-create")
        self.assertIn("\\-\\-encryption\\-key\\-file", create)
        self.assertRegex(create, r"\.nf\ncleatctl disk create root ")

    def test_the_api_can_be_used_without_the_sources(self) -> None:
        protos = self.root / "usr/share/cleat/proto"
        with tempfile.TemporaryDirectory() as folder:
            # Once from the sources, and once from the set alone, which has to have all that is imported.
            subprocess.run(["protoc", f"-I{protos}", f"--python_out={folder}", "cleat/v1/cleat.proto"], check=True)
            subprocess.run(["protoc", f"--descriptor_set_in={protos}/cleat.pb", f"--python_out={folder}", "cleat/v1/cleat.proto",
                            "cleat/v1/reason.proto"], check=True)
        text = subprocess.run(["protoc", f"--descriptor_set_in={protos}/cleat.pb", "--encode=cleat.v1.Disk", "cleat/v1/cleat.proto"],
                              input=b'name: "disks/a"', check=True, capture_output=True).stdout
        self.assertIn(b"disks/a", text)
        self.assertFalse((protos / "cleat/engine").exists(), "cleatd's protocol with engines is nobody else's")

    def test_debian_finds_what_it_wants(self) -> None:
        doc = self.root / "usr/share/doc/cleat"
        with gzip.open(doc / "changelog.gz", "rt", encoding="utf-8") as file:
            self.assertTrue(file.readline().startswith(f"cleat ({self.package.field('Version')}) "))
        self.assertIn("License: Apache-2.0", (doc / "copyright").read_text(encoding="utf-8"))
        self.assertTrue((doc / "SECURITY.md").exists())
        summed = 0
        for line in (self.package.control / "md5sums").read_text(encoding="utf-8").splitlines():
            digest, name = line.split("  ", 1)
            self.assertEqual(hashlib.md5((self.root / name).read_bytes()).hexdigest(), digest, name)
            summed += 1
        conffiles = (self.package.control / "conffiles").read_text(encoding="utf-8").split()
        files = [path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]
        self.assertIn(len(files), (summed, summed + len(conffiles)))
        for path in files:
            self.assertEqual(path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID), 0, path)

    def test_debug_symbols_are_found_by_build_id(self) -> None:
        debug = Unpacked("cleat-dbgsym_*.deb")
        self.addCleanup(debug.remove)
        self.assertEqual(debug.field("Depends"), f"cleat (= {self.package.field('Version')})")
        for program in ("usr/bin/cleatctl", "usr/sbin/cleatd", "usr/sbin/cleat-engine", "usr/bin/cleat-perf"):
            build_id = re.search(r"Build ID: ([0-9a-f]+)", output_of("readelf", "-n", str(self.root / program)))[1]
            symbols = debug.root / f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
            self.assertIn(".debug_line", output_of("readelf", "-SW", str(symbols)), program)
            self.assertNotIn(".debug_line", output_of("readelf", "-SW", str(self.root / program)), program)


if __name__ == "__main__":
    unittest.main()
