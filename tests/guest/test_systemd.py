# SPDX-License-Identifier: Apache-2.0
"""The package on a small Debian whose first process is systemd: what the units promise, and what the operator's script does.
cleat-perf plays QEMU and a guest there, in user space. The root has what the package depends on, and no more."""

import glob
import json
import os
import subprocess
import tarfile
import time
import unittest

from cleat_guest import BenchError, BenchTest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
EXPOSURE_MAX = 25  # in tenths, as systemd-analyze takes it
LOAD_SECONDS = 3600  # ended by a signal
SECONDS = 240  # for what can only hang


class PackageTest(BenchTest):
    """A guest with the package, not yet installed, in /root."""

    packages = {}  # more of them: name in /root -> path

    def setUp(self):
        found = glob.glob(os.path.join(os.environ["CLEAT_PACKAGE_DIR"], "cleat_*.deb"))
        self.assertEqual(len(found), 1, "one package is to be tried (make deb): " + " ".join(found))
        root = os.path.join(self.bench.image_dir, "systemd-root.tar")
        subprocess.run([os.path.join(ROOT, "scripts/guest/make_root.sh"), found[0], root], check=True, timeout=SECONDS)
        self.make_certificates()
        payload = self.bench.path("payload.tar")
        with tarfile.open(payload, "w") as tar:
            tar.add(found[0], "root/cleat.deb")
            for name, path in self.packages.items():
                tar.add(path, f"root/{name}")
            for name in ("ca.pem", "cleatd.pem", "cleatd.key", "caller.pem", "caller.key"):
                tar.add(self.bench.path(name), f"root/{name}")
        with open(self.bench.path("volume.img"), "wb") as volume:
            volume.truncate(64 << 20)
        self.guest = self.bench.guest(
            tools="systemd", memory_mb=1024,
            files={"root": root, "payload": payload, "volume": self.bench.path("volume.img")})

    def make_certificates(self):
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=self.bench.dir, check=True, timeout=SECONDS, capture_output=True)

        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
        for name in ("cleatd", "caller"):
            with open(self.bench.path("names"), "w", encoding="utf-8") as file:
                file.write(f"subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:{name}\n")
            openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                    "-keyout", f"{name}.key", "-out", f"{name}.csr")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days",
                    "2", "-extfile", "names", "-out", f"{name}.pem")

    # The guest

    def run_in_guest(self, command, timeout_s=SECONDS):
        return self.guest.run(command, timeout_s)

    def until(self, condition, timeout_s=SECONDS):
        """Until that command succeeds."""
        try:
            self.run_in_guest(f"until {condition}; do sleep 0.2; done", timeout_s)
        except BenchError as error:
            raise BenchError(f"{error}\n{self.journal()}") from None

    def journal(self, lines=60):
        return self.guest.execute(f"journalctl --no-pager -o short-monotonic -u 'cleat*' | tail -n {lines}", SECONDS)[1]

    def property(self, unit, name):
        return self.run_in_guest(f"systemctl show --property {name} --value {unit}").strip()

    def pid(self, unit):
        return int(self.property(unit, "MainPID"))

    def write(self, path, text):
        self.run_in_guest(f"mkdir -p {os.path.dirname(path)}; cat >{path} <<'END'\n{text}\nEND")

    def exchange(self, unit, change):
        """Runs the command, and waits until the unit's process is another one that serves."""
        before = self.pid(unit)
        self.run_in_guest(change)
        self.until(f'pid=$(systemctl show --property MainPID --value {unit}); [ "$pid" -gt 0 ] && [ "$pid" != {before} ] '
                   f"&& systemctl is-active --quiet {unit}")
        self.assertNotEqual(self.pid(unit), before)

    def take(self, *steps):
        """In an order in which each builds upon the one before."""
        self.guest.wait_ready()
        self.begun = time.monotonic()
        self.run_in_guest("tar -xf /dev/vdb -C /; umask 022; chown root:root /root/*")
        for step in steps:
            try:
                step()
            except (BenchError, AssertionError):
                print(self.journal())
                raise
            print(f"{step.__name__}: ok after {time.monotonic() - self.begun:.0f} s", flush=True)

    def install_package(self, name):
        self.run_in_guest(f"dpkg -i /root/{name} </dev/null >/run/dpkg.log 2>&1 || {{ cat /run/dpkg.log; exit 1; }}", SECONDS)
        self.until("cleatctl wait engines/blue --timeout 1 >/dev/null 2>&1")

    def begin_load(self, devices):
        """cleat-perf plays the guests of that many controllers, c0 and on; what it writes is verified until end_load."""
        # QEMU's umask under libvirt.
        self.load = self.guest.background(
            "umask 0002; cleat-perf run --listen '/run/cleat-guests/c{}.sock' "
            f"--devices 0-{devices - 1} --reconnect --verify --wait call "
            f"--mix read=50,write=50 --rate 50 --depth 16 --timeout 120 --time {LOAD_SECONDS} --no-progress --json /run/load.json")
        for number in range(devices):
            self.until(f"[ -S /run/cleat-guests/c{number}.sock ]")

    def attach_disk(self, number, path, *options):
        self.run_in_guest(f"cleatctl disk create d{number} --file {path} --size 64M {' '.join(options)}")
        self.run_in_guest(f"cleatctl controller create c{number} --socket /run/cleat-guests/c{number}.sock")
        self.run_in_guest(f"cleatctl attach d{number} c{number} --wait=120")

    def in_use(self, devices=2):
        for number in range(devices):
            self.run_in_guest(f"cleatctl wait controllers/c{number}/attachments/d{number} --for in-use --timeout 200s")
        self.assertFalse(self.load.done(), self.guest.execute("cat /run/load.json /run/job.*.output")[1])

    def end_load(self):
        """What it counted: nothing was lost, torn or misplaced."""
        self.run_in_guest("pkill -INT -x cleat-perf")
        self.load.wait(SECONDS)
        result = json.loads(self.run_in_guest("cat /run/load.json"))["result"]
        self.assertEqual((result["errors"], result["faults"]), (0, 0), result)
        self.assertGreater(result["verified_blocks"], 0)
        return result


class SystemdTest(PackageTest):
    def test_a_host(self):
        self.take(self.install, self.harden, self.options_and_certificates, self.attach, self.peer_stops, self.engine_dies,
                  self.cleatd_restarts, self.engine_hangs, self.package_upgrade, self.upgrade_script, self.stop_drains,
                  self.load_ends, self.remove)

    def install(self):
        """dpkg alone: users, folders, a key, both running. No credential was given."""
        self.install_package("cleat.deb")
        self.run_in_guest("systemctl is-active cleatd cleat-engine@blue && systemctl is-enabled cleatd cleat-engine@blue")
        self.assertEqual(self.run_in_guest("stat -c '%U %a' /var/lib/cleat/kek /var/lib/cleat /run/cleat/engine.sock").split("\n")[:-1],
                         ["cleat 600", "cleat 700", "cleat 600"])

    def harden(self):
        """What the units ask for is what the kernel holds the processes to."""
        for unit in ("cleatd.service", "cleat-engine@blue.service"):
            exposure = self.run_in_guest(f"systemd-analyze security --no-pager --threshold={EXPOSURE_MAX} {unit}")
            print(exposure.splitlines()[-1])
            status = self.run_in_guest(f"cat /proc/{self.pid(unit)}/status")
            fields = dict(line.split(":", 1) for line in status.splitlines())
            user = self.run_in_guest("id -u cleat").strip()
            self.assertEqual(fields["Uid"].split(), [user] * 4)
            self.assertEqual(int(fields["NoNewPrivs"]), 1)
            self.assertEqual(int(fields["Seccomp"]), 2)
            for capabilities in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
                self.assertEqual(int(fields[capabilities], 16), 0, capabilities)
        limits = self.run_in_guest(f"cat /proc/{self.pid('cleat-engine@blue')}/limits")
        self.assertRegex(limits, r"Max open files +1048576 +1048576")
        self.assertRegex(limits, r"Max locked memory +67108864 +67108864")

    def options_and_certificates(self):
        """cleatd's options from /etc/cleat, its certificates from /etc/credstore. The engine's cores."""
        self.run_in_guest("cd /root; install -d -m 700 /etc/credstore; install -m 600 cleatd.pem /etc/credstore/cleat-tls-cert; "
                          "install -m 600 cleatd.key /etc/credstore/cleat-tls-key; install -m 600 ca.pem /etc/credstore/cleat-tls-client-ca; "
                          "install -m 600 /var/lib/cleat/kek /etc/credstore/cleat-kek")
        credentials = "/run/credentials/cleatd.service/cleat-tls"
        self.write("/etc/cleat/cleatd.conf",
                   "CLEATD_OPTIONS=--metrics-address 127.0.0.1:9464 --audit-log /var/log/cleat/audit.log --group kvm "
                   "--tls-listen 127.0.0.1:8443 "
                   f"--tls-cert {credentials}-cert --tls-key {credentials}-key --tls-client-ca {credentials}-client-ca "
                   "--grant read=cert:caller")
        self.write("/etc/cleat/engine-blue.conf", "CLEAT_ENGINE_OPTIONS=--reactors 2 --cpus 0,1")
        self.run_in_guest("systemctl restart cleatd cleat-engine@blue", SECONDS)
        self.until("cleatctl wait engines/blue --timeout 1 >/dev/null 2>&1")
        self.assertIn("/run/credentials/cleatd.service/cleat-kek", self.journal())
        self.assertEqual(json.loads(self.run_in_guest("cleatctl engine get blue -o json"))["status"]["reactors"], 2)
        self.run_in_guest("cd /root && cleatctl --address localhost:8443 --ca ca.pem --cert caller.pem --key caller.key engine list")
        self.assertEqual(self.run_in_guest("stat -c %G /run/cleat/cleatd.sock").strip(), "kvm")
        metrics = self.run_in_guest(
            r'''bash -c 'exec 3<>/dev/tcp/127.0.0.1/9464; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; cat <&3' ''')
        self.assertIn('cleat_engine_connected{engine="blue"} 1', metrics)
        for reactor in ("reactor-0", "reactor-1"):
            allowed = self.run_in_guest(f"cd /proc/{self.pid('cleat-engine@blue')}/task; grep -l '^{reactor}$' */comm | "
                                        "cut -d/ -f1 | while read task; do grep Cpus_allowed_list $task/status; done")
            self.assertEqual(allowed.split(), ["Cpus_allowed_list:", reactor[-1]])

    def attach(self):
        """An encrypted file and a block device, under load that is verified until load_ends."""
        self.begin_load(2)
        self.run_in_guest("echo devices /dev/vdc >>/etc/cleat/paths.conf; systemctl restart cleatd")
        self.run_in_guest("chown cleat /dev/vdc && chmod 600 /dev/vdc; head -c 64 /dev/urandom >/root/disk.key")
        self.attach_disk(0, "/var/lib/cleat/disks/d0.img", "--create", "--encryption-key-file /root/disk.key")
        self.attach_disk(1, "/dev/vdc")
        self.in_use()
        # Elsewhere is closed, and the services can't go there if it is listed.
        create = "cleatctl disk create d2 --file /srv/d2.img --create --size 64M"
        status, text = self.guest.execute(create)
        self.assertEqual((status, "PATH_NOT_ALLOWED" in text), (1, True), text)
        self.run_in_guest("echo files / >>/etc/cleat/paths.conf; systemctl reload cleatd")
        self.until(f"{create} 2>&1 | grep FILE_UNUSABLE")  # a read-only file system to them
        self.run_in_guest("sed -i '/^files/d' /etc/cleat/paths.conf; systemctl reload cleatd")

    def peer_stops(self):
        """A listener of another user, stopped before it has accepted: the engine can't look, and says so."""
        self.guest.background("umask 0002; echo $$ >/run/stopped.pid; "
                              "exec systemd-socket-activate -l /run/cleat-guests/stopped.sock sleep 1000")
        self.until("grep -q ' 00010000 .*/run/cleat-guests/stopped.sock' /proc/net/unix")  # it listens
        self.run_in_guest("chmod 666 /run/cleat-guests/stopped.sock; kill -STOP $(cat /run/stopped.pid); "
                          "cleatctl controller create stopped --type scsi --socket /run/cleat-guests/stopped.sock")
        self.until("cleatctl controller get stopped -o json | grep 'may be stopped, which is hidden from this one'")
        self.run_in_guest("cleatctl controller delete stopped; kill -KILL $(cat /run/stopped.pid); "
                          "rm /run/cleat-guests/stopped.sock")

    def engine_dies(self):
        """SIGKILL: systemd starts another, requests in flight are run again."""
        self.exchange("cleat-engine@blue", "systemctl kill --signal=KILL cleat-engine@blue")
        self.assertEqual(self.property("cleat-engine@blue", "NRestarts"), "1")
        self.in_use()

    def cleatd_restarts(self):
        """The engine is not touched."""
        engine = self.pid("cleat-engine@blue")
        self.exchange("cleatd", "systemctl restart cleatd")
        self.until("cleatctl wait engines/blue --timeout 1 >/dev/null 2>&1")
        self.exchange("cleatd", "systemctl kill --signal=KILL cleatd")
        self.until("cleatctl wait engines/blue --timeout 1 >/dev/null 2>&1")
        self.assertEqual(self.pid("cleat-engine@blue"), engine)
        self.in_use()

    def engine_hangs(self):
        """It stops telling systemd that it works, and is replaced after the unit's half minute. (Less would be an engine's end on a
        busy machine.) cleatd hangs at the same time, and is replaced as well."""
        cleatd = self.pid("cleatd")
        self.exchange("cleat-engine@blue", "systemctl kill --signal=STOP cleatd && systemctl kill --signal=STOP cleat-engine@blue")
        self.until(f'pid=$(systemctl show --property MainPID --value cleatd); [ "$pid" -gt 0 ] && [ "$pid" != {cleatd} ] '
                   "&& systemctl is-active --quiet cleatd")
        # Some seconds lie between the two ends, and a line for each thread that is killed.
        journal = self.journal(lines=1000)
        for unit in ("cleatd", "cleat-engine@blue"):
            self.assertIn(f"{unit}.service: Watchdog timeout", journal)
        # At once, and not after half a minute more for a signal that a stopped process does not take.
        self.assertIn("with signal SIGKILL", journal)
        self.assertNotIn("with signal SIGABRT", journal)
        self.in_use()

    def load_ends(self):
        """Nothing was lost, torn or misplaced."""
        result = self.end_load()
        # Each of two devices, for each death of its engine, each move and the stop.
        self.assertGreaterEqual(result["reconnects"], 2 * (2 + 3 + 1))

    def package_upgrade(self):
        """Installing over it starts and stops nothing."""
        before = [self.pid("cleatd"), self.pid("cleat-engine@blue")]
        text = self.run_in_guest("dpkg -i /root/cleat.deb 2>&1")
        self.assertIn("cleat-upgrade", text)
        self.assertEqual([self.pid("cleatd"), self.pid("cleat-engine@blue")], before)
        self.assertIn("--group kvm", self.run_in_guest("cat /etc/cleat/cleatd.conf"))

    def upgrade_script(self):
        """Under load: to green, rolled back, and to green for good. The dry run names the steps and does none."""
        text = self.run_in_guest("cleat-upgrade --dry-run 2>&1")
        for words in ("would restart cleatd", "would run: systemctl start cleat-engine@green.service",
                      "would move 2 controller(s) from blue to green", "would run: systemctl stop cleat-engine@blue.service"):
            self.assertIn(words, text)
        self.assertEqual(self.property("cleat-engine@green", "ActiveState"), "inactive")
        for options, engine, other, kept in (("--keep", "green", "blue", True), ("--roll-back", "blue", "green", False),
                                             ("", "green", "blue", False)):
            print(self.run_in_guest(f"cleat-upgrade {options} 2>&1", SECONDS))
            self.run_in_guest(f"systemctl is-active cleatd cleat-engine@{engine} && systemctl is-enabled cleat-engine@{engine} && "
                              f"! systemctl is-enabled cleat-engine@{other}")
            self.assertEqual(self.property(f"cleat-engine@{other}", "ActiveState"), "active" if kept else "inactive")
            self.served_by(engine)
        self.run_in_guest("test -s /var/lib/cleat/before-upgrade/cleat.db")
        self.assertIn("nothing to move", self.run_in_guest("cleat-upgrade 2>&1"))

    def served_by(self, engine):
        """Both controllers are there, and their load goes on."""
        listed = json.loads(self.run_in_guest("cleatctl controller list -o json"))["controllers"]
        self.assertEqual([controller["status"]["engine"] for controller in listed], [f"engines/{engine}"] * 2)
        self.in_use()

    def stop_drains(self):
        """Under load, which waits for the engine to be started again."""
        self.run_in_guest("systemctl stop cleat-engine@green")
        self.assertEqual(self.property("cleat-engine@green", "Result"), "success")
        self.assertIn("cleat-engine: drained", self.journal())
        self.run_in_guest("systemctl start cleat-engine@green")
        self.in_use()

    def remove(self):
        """The state stays."""
        self.run_in_guest("dpkg -r cleat 2>&1; ! pgrep -x cleatd && ! systemctl is-active cleatd && test -s /var/lib/cleat/kek && "
                          "dpkg -P cleat 2>&1 && test -s /var/lib/cleat/kek && test -s /var/lib/cleat/cleat.db")


if __name__ == "__main__":
    unittest.main()
