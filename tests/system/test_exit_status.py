# SPDX-License-Identifier: Apache-2.0
"""usage: test_exit_status.py BIN_DIR

An operator's slips in the configuration: cleatd and cleat-engine end with the status that says whether another start may help, `--check`
finds the same beforehand, and a failure that may pass is delayed longer each time under a service manager."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = sys.argv.pop(1)
SECONDS = 60  # for what can only hang
USAGE, DAMAGED, BUSY, NO_PERMISSION, CONFIG = 64, 65, 69, 77, 78


class ExitStatusTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="cleat-")
        self.addCleanup(shutil.rmtree, self.dir)
        os.mkdir(self.path("state"))

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text, mode=0o600):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def argv(self, program, *options):
        if program == "cleatd":
            own = {"--state-dir": self.path("state"), "--listen": "unix:" + self.path("api.sock"),
                   "--engine-socket": self.path("engine.sock"), "--paths": self.path("paths.conf")}
        else:
            own = {"--runtime-dir": self.path("run"), "--paths": self.path("paths.conf")}
        given = [word for option in own.items() if option[0] not in options for word in option]
        return [os.path.join(BIN, program), *given, *options]

    def run_it(self, program, *options, **environment):
        done = subprocess.run(self.argv(program, *options), capture_output=True, text=True, timeout=SECONDS, check=False,
                              env={**os.environ, **environment})
        return done.returncode, done.stderr

    def refused(self, status, words, program, *options):
        """At its start, and by --check, which neither makes nor changes anything."""
        before = sorted(os.listdir(self.dir) + os.listdir(self.path("state")))
        for more in (("--check",), ()):
            found, said = self.run_it(program, *options, *more)
            self.assertEqual((found, words in said), (status, True), said)
            if more:
                self.assertEqual(sorted(os.listdir(self.dir) + os.listdir(self.path("state"))), before)

    def test_a_good_configuration(self):
        for program in ("cleatd", "cleat-engine"):
            self.assertEqual(self.run_it(program, "--check"), (0, ""))

    def test_the_command_line(self):
        for program in ("cleatd", "cleat-engine"):
            self.refused(USAGE, "--none", program, "--none")
            self.refused(USAGE, "log level", program, "--log-level", "loud")
        for option, value, words in (("--grant", "admin=uid:nobody-of-that-name", "nobody-of-that-name"),
                                     ("--grant", "king=uid:0", "king"), ("--listen", "/tmp/x", "unix:PATH"),
                                     ("--tls-listen", "localhost:0", "--tls-cert"), ("--keep-deleted-days", "-1", "keep-deleted")):
            self.refused(USAGE, words, "cleatd", option, value)
        self.refused(USAGE, "itself", "cleat-engine", "--name", "a", "--standby-for", "a")
        self.refused(USAGE, "reactors", "cleat-engine", "--reactors", "0")

    def test_files_that_options_name(self):
        pem = self.write("some.pem", "no certificate")
        self.refused(CONFIG, "some.pem", "cleatd", "--tls-listen", "localhost:0", "--tls-cert", pem, "--tls-key", pem,
                     "--tls-client-ca", pem)
        self.refused(CONFIG, "no group", "cleatd", "--group", "nobodys-group")
        for program in ("cleatd", "cleat-engine"):
            self.refused(CONFIG, "hex digits", program, "--kek-file", self.write("kek", "short\n"))
            self.refused(NO_PERMISSION, "chmod 600", program, "--kek-file", self.write("open", "0" * 64 + "\n", 0o644))
        self.refused(CONFIG, "none.kek", "cleatd", "--kek-file", self.path("none.kek"))
        self.write("paths.conf", "sockets relative\n")
        self.refused(CONFIG, "paths.conf", "cleatd")
        # An engine serves what is attached, whatever its lists say: that is --check's to find.
        found, said = self.run_it("cleat-engine", "--check")
        self.assertEqual((found, "paths.conf" in said), (CONFIG, True), said)

    def test_cores_that_are_not(self):
        self.refused(CONFIG, "core", "cleat-engine", "--cpus", "1000")

    def test_stores(self):
        self.write("state/cleat.db", "no database, but long enough to be taken for one" * 9)
        self.refused(DAMAGED, "cleat.db", "cleatd")
        os.remove(self.path("state/cleat.db"))
        self.write("state/lock", "there was one")
        self.refused(DAMAGED, "missing", "cleatd")

    def test_a_name_that_another_process_has(self):
        """It may end; a socket of its own that nobody listens on is in nobody's way."""
        with subprocess.Popen(self.argv("cleatd"), stderr=subprocess.PIPE, text=True) as first:
            try:
                for line in first.stderr:
                    if "serves on" in line:
                        break
                self.assertEqual(self.run_it("cleatd", "--check"), (0, ""), "beside one that serves")
                found, said = self.run_it("cleatd")
                self.assertEqual((found, "another cleatd" in said), (BUSY, True), said)
                os.mkdir(self.path("other"))
                found, said = self.run_it("cleatd", "--state-dir", self.path("other"), "--engine-socket", self.path("e.sock"))
                self.assertEqual((found, "somebody listens" in said), (BUSY, True), said)
                self.delays_grow()
            finally:
                first.kill()
        self.assertEqual(self.run_it("cleatd", "--check"), (0, ""))

    def delays_grow(self):
        """Under a service manager; what is final is not delayed."""
        delays = []
        for _ in range(3):
            found, said = self.run_it("cleatd", INVOCATION_ID="1")
            self.assertEqual(found, BUSY)
            delays.append(re.search(r": ends in ([0-9.]+) s, since", said).group(1))
        self.assertEqual(delays, ["0.1", "0.2", "0.4"])
        found, said = self.run_it("cleatd", "--group", "nobodys-group", "--state-dir", self.path("other"), "--listen",
                                  "unix:" + self.path("b.sock"), "--engine-socket", self.path("e.sock"), INVOCATION_ID="1")
        self.assertEqual((found, "ends in" in said), (CONFIG, False), said)


if __name__ == "__main__":
    unittest.main()
