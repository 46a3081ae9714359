#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite as `make bench` runs it, its shortest part: real processes, real figures, files of the right shape.
How large the figures are is nobody's business here."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ["CLEAT_BIN_DIR"]).parent
BRIEF = ("--quick", "--rounds", "1", "--run-s", "0.05")


class Run(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = Path(directory.name)

    def bench(self, *arguments, build=BUILD):
        return subprocess.run([sys.executable, "-B", str(ROOT / "scripts/bench/run.py"), "--build", str(build), "--out",
                               str(self.out), *arguments], capture_output=True, text=True, timeout=200, check=False)

    def results(self):
        return json.loads((self.out / "results.json").read_text(encoding="utf-8"))

    def test_null_disks_are_measured(self):
        done = self.bench("--only", "null", *BRIEF)
        if len(os.sched_getaffinity(0)) < 2:
            self.assertEqual(done.returncode, 2)
            self.assertIn("need 2", done.stderr)
            return
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        figures = self.results()
        for name, unit in (("blk_null_qd32_ns", "ns"), ("scsi_null_qd32_ns", "ns"), ("blk_null_qd1_us", "us"),
                           ("scsi_null_qd1_us", "us"), ("ring_split_qd32_ns", "ns")):
            self.assertEqual(set(figures[name]), {"value", "unit", "spread", "runs"})
            self.assertEqual(figures[name]["unit"], unit)
            self.assertEqual(figures[name]["runs"], [figures[name]["value"]])
            self.assertGreater(figures[name]["value"], 0)
        raw = json.loads((self.out / "raw.json").read_text(encoding="utf-8"))
        self.assertEqual({run["measurement"] for run in raw["runs"]}, {"null"})
        self.check_compare()
        self.assertEqual(set(os.listdir(self.out)), {"results.json", "raw.json"})

    def check_compare(self):
        """Two result files as ratios."""
        path = str(self.out / "results.json")
        done = subprocess.run([str(BUILD / "bin/cleat-perf"), "compare", path, path], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        line = next(line for line in done.stdout.splitlines() if line.startswith("blk_null_qd32_ns"))
        self.assertIn("1.000", line)

    def test_what_cant_be_measured_is_said_and_is_no_success(self):
        if len(os.sched_getaffinity(0)) < 2:
            return
        done = self.bench("--only", "instructions,idle,restart_100", *BRIEF, build=self.out / "nothing")
        self.assertEqual(done.returncode, 2)
        for program in ("device_loop", "cleat-host-bench", "cleat-crash-bench"):
            self.assertIn(f"{program} is missing", done.stderr)
        self.assertEqual(self.results(), {})

    def test_wrong_command_lines_are_refused(self):
        for wrong in (["--only", "nothing"], ["--cores", "0,0"], ["--rounds", "0"]):
            done = self.bench(*wrong)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertIn("bench: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
