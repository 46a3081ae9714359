# SPDX-License-Identifier: Apache-2.0
"""deploy/upgrade.sh against a host that is played: systemctl and cleatctl are small scripts that keep units and engines in
files and note every call. What they really do, the test `systemd` shows in a guest."""

import os
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "deploy", "upgrade.sh")
SECONDS = 60

SYSTEMCTL = """#!/bin/sh
cd "$FAKE"
for unit; do :; done
engine=${unit#cleat-engine@}; engine=${engine%.service}
[ "$engine" != "$unit" ] || engine=
case "$1 $2" in
  "is-active --quiet") [ -e "active/$unit" ]; exit ;;
  "show --property") cat "active/$unit" 2>/dev/null || echo 0; exit ;;
esac
echo "systemctl $*" >>calls
[ ! -e "fail/$1 $unit" ] || exit 1
case $1 in
  start | restart)
    echo 0 >"active/$unit"
    [ -z "$engine" ] || [ -e "fail/connect $engine" ] || echo true >"connected/$engine" ;;
  stop) rm -f "active/$unit"; [ -z "$engine" ] || echo false >"connected/$engine" ;;
  --quiet) case $2 in enable) touch "enabled/$unit" ;; disable) rm -f "enabled/$unit" ;; esac ;;
esac
"""

CLEATCTL = """#!/bin/sh
cd "$FAKE"
case "$1 $2" in
  "engine list")
    [ -e active/cleatd.service ] || exit 3
    echo "engines:"
    for engine in $(ls connected); do
      echo "  - name: engines/$engine"; echo "    status:"; echo "      connected: $(cat connected/$engine)"
      echo "      controllers: $(cat controllers/$engine)"; echo "      controllers_max: 1000"
    done
    exit ;;
esac
echo "cleatctl $*" >>calls
case "$1 $2" in
  "wait "*) [ "$(cat "connected/${2#engines/}" 2>/dev/null)" = true ] || exit 4 ;;
  "engine upgrade")
    case "$*" in *--dry-run*) echo "would move"; exit ;; esac
    stay=$(cat "stay/$3" 2>/dev/null || echo 0)
    echo $(($(cat controllers/$5) + $(cat controllers/$3) - stay)) >controllers/$5
    echo "$stay" >controllers/$3
    [ "$stay" = 0 ] || { echo "controllers/vm1 stayed: it does not drain"; exit 1; } ;;
esac
"""


class Host:
    """Played: blue serves three controllers, and runs a program that has been replaced."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="cleat-upgrade-")
        for folder in ("active", "enabled", "connected", "controllers", "fail", "stay", "bin", "run", "store"):
            os.mkdir(self.path(folder))
        for name, text in (("systemctl", SYSTEMCTL), ("cleatctl", CLEATCTL), ("id", "#!/bin/sh\necho 0\n")):
            self.write(f"bin/{name}", text)
            os.chmod(self.path(f"bin/{name}"), 0o755)
        self.write("store/cleat.db", "before")
        self._old = self._process_of_a_removed_program()
        self.write("active/cleatd.service", "0")
        self.serve("blue", 3)

    def serve(self, engine, controllers, replaced=True):
        for other in ("blue", "green"):
            self.write(f"connected/{other}", "true" if other == engine else "false")
            self.write(f"controllers/{other}", str(controllers if other == engine else 0))
            self.remove(f"active/cleat-engine@{other}.service", f"enabled/cleat-engine@{other}.service")
        self.write(f"active/cleat-engine@{engine}.service", str(self._old.pid if replaced else 0))
        self.write(f"enabled/cleat-engine@{engine}.service", "")

    def replace_cleatd(self):
        self.write("active/cleatd.service", str(self._old.pid))

    def _process_of_a_removed_program(self):
        program = shutil.copy("/bin/sleep", self.path("program"))
        process = subprocess.Popen([program, "1000"])
        # Until it is that program: before, it is this one.
        while os.readlink(f"/proc/{process.pid}/exe") != os.path.realpath(program):
            pass
        os.unlink(program)
        return process

    def end(self):
        self._old.kill()
        self._old.wait()
        shutil.rmtree(self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read().strip()

    def has(self, name):
        return os.path.exists(self.path(name))

    def remove(self, *names):
        for name in names:
            if self.has(name):
                os.unlink(self.path(name))

    def upgrade(self, *arguments):
        """(exit status, what it said, the calls that change something)"""
        self.remove("calls")
        environment = dict(os.environ, FAKE=self.dir, PATH=f"{self.path('bin')}:{os.environ['PATH']}",
                           CLEAT_UPGRADE_RUN_DIR=self.path("run"), CLEAT_UPGRADE_STORE_DIR=self.path("store"))
        done = subprocess.run([SCRIPT, *arguments], env=environment, timeout=SECONDS, check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout, self.read("calls").splitlines() if self.has("calls") else []

    def state(self):
        return {engine: (self.has(f"active/cleat-engine@{engine}.service"), int(self.read(f"controllers/{engine}")),
                         self.has(f"enabled/cleat-engine@{engine}.service")) for engine in ("blue", "green")}


SERVES = (True, 3, True)  # active, its controllers, enabled
STOPPED = (False, 0, False)


class UpgradeTest(unittest.TestCase):
    def setUp(self):
        self.host = Host()
        self.addCleanup(self.host.end)

    def upgrade(self, *arguments, status=0, says=()):
        found, text, calls = self.host.upgrade(*arguments)
        self.assertEqual(found, status, text)
        for words in says:
            self.assertIn(words, text)
        return calls

    def check(self, blue, green):
        self.assertEqual(self.host.state(), {"blue": blue, "green": green})

    def test_steps(self):
        calls = self.upgrade("--drain-seconds", "7", says=["blue serves; green takes over", "done: green serves"])
        self.assertEqual(calls, [
            "systemctl start cleat-engine@green.service",
            "cleatctl wait engines/green --timeout 60",
            "cleatctl engine upgrade blue --to green --drain-seconds 7",
            "systemctl --quiet enable --no-reload cleat-engine@green.service",
            "systemctl --quiet disable --no-reload cleat-engine@blue.service",
            "systemctl stop cleat-engine@blue.service",
        ])
        self.check(STOPPED, SERVES)

    def test_a_second_run_does_nothing(self):
        self.upgrade()
        calls = self.upgrade(says=["green serves, and runs the installed program: nothing to move"])
        self.assertEqual(calls, [])
        self.upgrade("--from", "blue", "--to", "green", says=["blue has no controllers"])
        self.check(STOPPED, SERVES)

    def test_it_finds_out_which_one_serves(self):
        self.host.serve("green", 3)
        self.upgrade("--dry-run", says=["would move 3 controller(s) from green to blue"])
        self.upgrade()
        self.check(SERVES, STOPPED)
        self.host.serve("green", 0)  # nothing is attached yet
        self.upgrade(says=["green serves; blue takes over"])

    def test_a_dry_run_changes_nothing(self):
        self.host.replace_cleatd()
        calls = self.upgrade("--dry-run", says=["would restart cleatd", "would run: systemctl start cleat-engine@green",
                                                "would run: systemctl stop cleat-engine@blue", "nothing was changed"])
        self.assertEqual(calls, [])
        self.check(SERVES, STOPPED)
        self.assertEqual(os.listdir(self.host.path("store")), ["cleat.db"])
        self.assertEqual(os.listdir(self.host.path("run")), ["cleat-upgrade.lock"])

    def test_what_stays(self):
        self.host.write("stay/blue", "1")
        self.upgrade(status=1, says=["1 controller(s) stayed on blue", "2 are on green", "tries these again", "--roll-back"])
        self.check((True, 1, True), (True, 2, False))
        with self.subTest("again"):
            self.host.remove("stay/blue")
            self.upgrade(says=["has not come to its end", "done: green serves"])
            self.check(STOPPED, SERVES)
        self.assertEqual(os.listdir(self.host.path("run")), ["cleat-upgrade.lock"])

    def test_rolling_back(self):
        self.upgrade("--roll-back", status=1, says=["nothing to roll back"])
        self.host.write("stay/blue", "1")
        self.upgrade(status=1)
        self.host.write("stay/green", "1")
        self.upgrade("--roll-back", status=1, says=["1 controller(s) stayed on green", "--roll-back tries these again"])
        self.host.remove("stay/green")
        calls = self.upgrade("--roll-back", says=["rolled back: blue serves"])
        self.assertIn("cleatctl engine upgrade green --to blue", calls)
        self.check(SERVES, STOPPED)
        self.upgrade("--roll-back", status=1, says=["nothing to roll back"])

    def test_keeping_the_former_engine(self):
        self.upgrade("--keep", says=["blue is left running"])
        self.check((True, 0, False), SERVES)
        self.upgrade("--roll-back")
        self.check(SERVES, STOPPED)
        self.host.serve("blue", 3)
        self.upgrade("--keep")
        self.host.remove("active/cleat-engine@blue.service")
        calls = self.upgrade("--roll-back", status=1, says=["blue does not run any more"])
        self.assertEqual(calls, [])

    def test_an_engine_that_does_not_come(self):
        for failure, says in (("fail/start cleat-engine@green.service", "green does not start; blue serves on"),
                              ("fail/connect green", "cleatd does not have it; blue serves on")):
            with self.subTest(failure):
                self.host.serve("blue", 3)
                self.host.write(failure, "")
                calls = self.upgrade(status=1, says=[says, "next: journalctl"])
                self.assertNotIn("cleatctl engine upgrade blue --to green", calls)
                self.assertEqual(self.host.state()["blue"], SERVES)
                self.host.remove(failure)

    def test_cleatd_is_restarted_over_a_copy_of_its_store(self):
        self.host.replace_cleatd()
        calls = self.upgrade()
        self.assertEqual(calls[:3], ["systemctl stop cleatd.service", "systemctl start cleatd.service",
                                     "cleatctl wait engines/blue --timeout 60"])
        self.assertEqual(self.host.read("store/before-upgrade/cleat.db"), "before")

    def test_a_cleatd_that_does_not_start(self):
        self.host.replace_cleatd()
        self.host.write("fail/start cleatd.service", "")
        self.upgrade(status=1, says=["cleatd does not start; the engines serve on", "put the store's copy in place"])
        self.assertEqual(self.host.state()["blue"], SERVES)
        self.upgrade(status=1, says=["cleatd does not run", "next: systemctl start cleatd.service"])

    def test_two_that_serve(self):
        self.host.write("controllers/green", "1")
        self.upgrade(status=1, says=["more than one engine serves: blue, green", "--from ENGINE --to ENGINE"])

    def test_wrong_usage(self):
        for arguments in (["--from", "blue"], ["--from", "blue", "--to", "blue"], ["--drain-seconds", "soon"], ["--fly"],
                          ["--roll-back", "--keep"], ["--to"]):
            self.assertEqual(self.upgrade(*arguments, status=2), [])
        self.upgrade("--help", says=["--roll-back"])


if __name__ == "__main__":
    unittest.main()
