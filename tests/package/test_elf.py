# SPDX-License-Identifier: Apache-2.0
"""What the package's programs have against exploits, read from the files that are installed, not from the flags that made them."""

from __future__ import annotations

import bisect
import os
import re
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from unpacked import Unpacked

PROGRAMS = ("usr/bin/cleatctl", "usr/bin/cleat-perf", "usr/sbin/cleatd", "usr/sbin/cleat-engine")
ENDBR64 = b"\xf3\x0f\x1e\xfa"
# Functions without a mark: what the compiler moves out of the way, what is only called directly, and in the engine all of the
# data path. Without the option there are next to none with one.
MARKED_MIN = {"usr/sbin/cleat-engine": 0.5}
MARKED_ELSEWHERE_MIN = 0.7


def readelf(path: Path, *options: str) -> str:
    done = subprocess.run(["readelf", "-W", *options, str(path)], capture_output=True, text=True, check=True,
                          env=os.environ | {"LC_ALL": "C"})
    return done.stdout


def marked_share(path: Path) -> float:
    """How many of the functions of .text begin with a mark for indirect branches; .eh_frame_hdr has where functions begin."""
    sections = {}
    for found in re.finditer(r"^\s*\[ *\d+\] (\S+)\s+\S+\s+([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", readelf(path, "-S"), re.MULTILINE):
        sections[found[1]] = tuple(int(number, 16) for number in found.groups()[1:])
    data = path.read_bytes()
    address, offset, _ = sections[".eh_frame_hdr"]
    version, frame, count_form, table_form = data[offset:offset + 4]
    assert (version, frame & 0x0f, count_form, table_form) == (1, 0x0b, 0x03, 0x3b), "another form of .eh_frame_hdr"
    count = struct.unpack_from("<I", data, offset + 8)[0]
    text_address, text_offset, text_size = sections[".text"]
    starts = [address + struct.unpack_from("<i", data, offset + 12 + 8 * i)[0] for i in range(count)]
    starts = starts[bisect.bisect_left(starts, text_address):bisect.bisect_left(starts, text_address + text_size)]
    marked = sum(data[start - text_address + text_offset:][:4] == ENDBR64 for start in starts)
    return marked / max(1, len(starts))


def lacks(path: Path, marked_min: float | None) -> list[str]:
    """What a program lacks, by name."""
    segments = readelf(path, "-l")
    dynamic = readelf(path, "-d")
    symbols = readelf(path, "--dyn-syms")
    stack = re.search(r"GNU_STACK\s+(?:0x[0-9a-f]+\s+){5}(\S+)", segments)
    wanted = {
        "PIE": "DYN (" in readelf(path, "-h") and re.search(r"FLAGS_1\).*\bPIE\b", dynamic),
        "RELRO": "GNU_RELRO" in segments,
        "BIND_NOW": re.search(r"FLAGS\).*\bBIND_NOW\b", dynamic) and re.search(r"FLAGS_1\).*\bNOW\b", dynamic),
        "a stack that is not executable": stack and "E" not in stack[1],
        "no RPATH": "(RPATH)" not in dynamic and "(RUNPATH)" not in dynamic,
        "no relocations of text": "TEXTREL" not in dynamic,
        "a stack protector": "__stack_chk_fail" in symbols,
        "checked calls of the C library": re.search(r" __(?!stack_)\w+_chk@", symbols),
    }
    if marked_min is not None:
        wanted["marks for indirect branches"] = marked_share(path) >= marked_min
    return [name for name, there in wanted.items() if not there]


class Elf(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.package = Unpacked()
        cls.addClassCleanup(cls.package.remove)

    def marked_min(self, program: str) -> float | None:
        if self.package.architecture() != "amd64":
            return None
        return MARKED_MIN.get(program, MARKED_ELSEWHERE_MIN)

    def test_every_program_is_hardened(self) -> None:
        for program in PROGRAMS:
            path = self.package.root / program
            self.assertEqual(lacks(path, self.marked_min(program)), [], f"{program} lacks these")

    def test_there_are_no_other_programs(self) -> None:
        found = []
        for path in self.package.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    if file.read(4) == b"\x7fELF":
                        found.append(str(path.relative_to(self.package.root)))
        self.assertEqual(sorted(found), sorted(PROGRAMS))

    def test_a_program_without_any_of_it_is_found(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "bare.c"
            source.write_text("#include <stdio.h>\nint main(int n, char** v) { char b[64]; sprintf(b, \"%s\", v[n - 1]); return b[0]; }\n",
                              encoding="utf-8")
            bare = Path(folder) / "bare"
            subprocess.run(["cc", "-O2", "-U_FORTIFY_SOURCE", "-fno-stack-protector", "-fcf-protection=none", "-no-pie", "-z", "lazy",
                            "-z", "norelro", "-z", "execstack", "-Wl,-rpath,/tmp", "-o", str(bare), str(source)], check=True,
                           capture_output=True)
            self.assertEqual(lacks(bare, MARKED_ELSEWHERE_MIN),
                             ["PIE", "RELRO", "BIND_NOW", "a stack that is not executable", "no RPATH", "a stack protector",
                              "checked calls of the C library", "marks for indirect branches"])


if __name__ == "__main__":
    unittest.main()
