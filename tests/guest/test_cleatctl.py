# SPDX-License-Identifier: Apache-2.0
"""cleatctl on a real cleatd and engine: what it does, how it waits, and its manners in pipes and when something can't
be done - its exit status, and a message that names the object, the cause and the next step. No guest; both daemons run
without root. The API's own errors are tests/system's."""

import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import unittest

from cleat_guest import BenchTest, CtlError

NOBODY = 65534
SECONDS = 180  # for what can only hang

HOST = """
disks:
- name: disks/root
  labels: {vm: vm1}
  spec: {size_bytes: 64M, memory: {}}
- name: disks/data
  spec: {size_bytes: 1G, file: {path: "DIR/data.img", create: true}}
controllers:
- name: controllers/vm1
  spec: {type: SCSI, socket_path: "DIR/vm1.sock", queues: 2}
attachments:
- name: controllers/vm1/attachments/root
  spec: {disk: disks/root}
"""


class CtlTest(BenchTest):
    cleatd_options = ()

    def setUp(self):
        self.cleat = self.bench.cleat(user_id=NOBODY if os.geteuid() == 0 else None,
                                      cleatd_options=self.cleatd_options)
        self.environment = dict(os.environ, CLEAT_ADDRESS=self.cleat.address,
                                PATH=self.bench.bin_dir + ":" + os.environ["PATH"])

    def popen(self, *arguments, **options):
        """cleatctl as a shell would start it: SIGPIPE and SIGINT do what they do by default, also when this test runs in a
        shell's background, where SIGINT is ignored."""
        child = subprocess.Popen(["cleatctl", *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True, env=self.environment,
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options)
        self.addCleanup(self.end, child)
        return child

    @staticmethod
    def end(child):
        if child.poll() is None:
            child.kill()
        child.communicate()

    def refused(self, arguments, *words, status=1):
        """cleatctl fails with this status and says these words; afterwards cleatd and the engine still answer."""
        with self.assertRaises(CtlError) as caught:
            self.cleat.ctl_text(*arguments)
        self.assertEqual(caught.exception.status, status, caught.exception.message)
        for word in words:
            self.assertIn(word, caught.exception.message)
        self.cleat.engine.check_running()
        self.cleat.list("disk")


    def at_terminal(self, answer, *arguments):
        """(status, what it said) of cleatctl when somebody at a terminal answers its question."""
        ours, theirs = pty.openpty()
        with open(ours, "r+b", buffering=0) as terminal, open(theirs, "r+b", buffering=0) as its:
            child = subprocess.Popen(["cleatctl", *arguments], stdin=its, stdout=subprocess.DEVNULL, stderr=its, env=self.environment)
            self.addCleanup(self.end, child)
            said = b""
            while not said.endswith(b"[y/N] "):
                self.assertTrue(select.select([terminal], [], [], SECONDS)[0], said)
                said += terminal.read(4096)
            terminal.write(answer.encode() + b"\n")
            return child.wait(timeout=SECONDS), said.decode()


class RefusalTest(CtlTest):
    def test_file_missing(self):
        path = self.bench.path("none.img")
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", path], "disks/d0", path, "does not exist",
                     "--create", "reason: FILE_UNUSABLE (run cleatctl explain FILE_UNUSABLE)")
        self.assertEqual(self.cleat.list("disk"), [])
        self.assertFalse(os.path.exists(path))

    def test_file_of_another_user(self):
        path = self.bench.path("locked.img")
        with open(path, "wb") as file:
            file.truncate(64 << 20)
        os.chmod(path, 0o400)
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", path], "disks/d0", path, "Permission denied",
                     "runs as user", "FILE_ACCESS_DENIED")

    def test_socket_without_permission(self):
        path = self.bench.path("vm.sock")
        self.cleat.create_memory_disk("d0", "64M")
        self.cleat.create_controller("c0", path)
        with socket.socket(socket.AF_UNIX) as qemu:
            qemu.bind(path)
            os.chmod(path, 0)
            qemu.listen()
            self.refused(["attach", "d0", "c0", "--wait=120"], "controllers/c0", path, "permission", "write access",
                         "WAIT_FAILED")

    def test_unknown_names(self):
        self.cleat.create_memory_disk("d0", "64M")
        self.refused(["attach", "d0", "none"], "controllers/none", "not exist", "RESOURCE_NOT_FOUND")
        self.cleat.create_controller("c0", self.bench.path("c0.sock"))
        self.refused(["attach", "none", "c0"], "disks/none", "not exist")

    def test_wrong_command_line(self):
        for arguments in (["disk", "create", "d0"], ["disk", "create", "d0", "--size", "64M"], ["fly"]):
            self.refused(arguments, "--help", status=2)

    def test_cleatd_not_there(self):
        self.cleat.cleatd.kill()
        with self.assertRaises(CtlError) as caught:
            self.cleat.ctl_text("disk", "list")
        self.assertEqual(caught.exception.status, 3)
        self.assertIn("api.sock", caught.exception.message)


class CommandTest(CtlTest):
    def test_labels(self):
        self.cleat.create_memory_disk("d0", "64M", "--label", "vm=a", "--label", "note=x")
        disk = self.cleat.ctl("disk", "update", "d0", "--label", "vm=b", "--remove-label", "note")
        self.assertEqual(disk["labels"], {"vm": "b"})
        self.refused(["disk", "update", "d0", "--label", "vm=c", "--etag", "old"], "ETAG_MISMATCH")
        self.assertEqual(self.cleat.ctl("disk", "get", "d0")["labels"], {"vm": "b"})
        self.assertIn("vm=b", self.cleat.ctl_text("disk", "list"))
        self.cleat.create_controller("c0", self.bench.path("c0.sock"))
        controller = self.cleat.ctl("controller", "update", "c0", "--label", "a=b=c")
        self.assertEqual(controller["labels"], {"a": "b=c"})

    def test_resize(self):
        self.cleat.create_file_disk("d0", "64M", self.bench.path("d0.img"))
        self.cleat.create_controller("c0", self.bench.path("c0.sock"), kind="scsi")
        self.cleat.attach_scsi("d0", "c0")
        disk = self.cleat.ctl("disk", "resize", "d0", "128M", "--wait")
        self.assertEqual(disk["status"]["size_bytes"], str(128 << 20))
        self.assertEqual(os.path.getsize(self.bench.path("d0.img")), 128 << 20)
        self.refused(["disk", "resize", "d0", "64M"], "DISK_CANNOT_SHRINK")
        self.refused(["disk", "resize", "d0", "64MB"], "powers of 1000", status=2)

    def test_targets(self):
        self.cleat.create_controller("c0", self.bench.path("c0.sock"), kind="scsi")
        for disk, more in (("d0", ["--target", "3"]), ("d1", []), ("d2", ["--id", "third"])):
            self.cleat.create_memory_disk(disk, "64M")
            self.cleat.ctl("attach", disk, "c0", "--wait", *more)
        table = self.cleat.ctl_text("attachment", "list", "c0")
        self.assertEqual([line.split()[:4] for line in table.splitlines()[1:]],
                         [["c0", "3", "d0", "d0"], ["c0", "0", "d1", "d1"], ["c0", "1", "third", "d2"]])
        self.assertEqual(self.cleat.ctl("attachment", "get", "c0", "1")["spec"]["disk"], "disks/d2")
        self.assertEqual(self.cleat.ctl("attachment", "get", "controllers/c0/attachments/d1")["spec"]["target"], 0)
        self.refused(["detach", "c0"], "several disks", status=2)
        self.refused(["controller", "delete", "c0"], "CONTROLLER_IN_USE")
        for which in ("3", "d1", "third"):
            self.cleat.ctl("detach", "c0", which, "--wait")
        self.assertIn("nothing to do", self.cleat.ctl_text("detach", "c0"))
        self.cleat.ctl("controller", "delete", "c0", "--wait")
        self.assertEqual(self.cleat.list("controller"), [])

    def test_wait(self):
        self.cleat.create_memory_disk("d0", "64M")
        self.cleat.create_controller("c0", self.bench.path("c0.sock"))
        self.cleat.ctl("attach", "d0", "c0")
        name = "controllers/c0/attachments/d0"
        self.assertEqual(self.cleat.ctl("wait", name)["status"]["state"], "ATTACHMENT_STATE_READY")
        self.assertEqual(self.cleat.ctl("wait", "engines/engine-0")["status"]["connected"], True)
        self.refused(["wait", name, "--for", "in-use", "--timeout", "1"], name, "CONNECTING", "WAIT_TIMED_OUT",
                     status=4)
        self.refused(["wait", "disks/none"], "RESOURCE_NOT_FOUND")
        gone = self.popen("wait", name, "--for", "gone", "--output", "json", stdout=subprocess.PIPE)
        self.cleat.ctl("detach", "c0")
        out, err = gone.communicate(timeout=SECONDS)
        self.assertEqual((gone.returncode, json.loads(out), err), (0, {"gone": name}, ""))

    def test_wait_ends_early_when_it_has_failed(self):
        path = self.bench.path("d0.img")
        self.cleat.create_file_disk("d0", "64M", path)
        os.unlink(path)
        self.cleat.create_controller("c0", self.bench.path("c0.sock"))
        # Far below the time given: the test's own limit would end it.
        self.refused(["attach", "d0", "c0", "--wait=3600"], path, "WAIT_FAILED")

    def test_apply(self):
        path = self.bench.path("host.yaml")

        def write(text):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("DIR", self.bench.dir))

        def actions(*more):
            report = self.cleat.ctl("apply", "-f", path, *more)
            return {result["name"]: result["action"].removeprefix("APPLY_ACTION_") for result in report["results"]}

        names = ["disks/root", "disks/data", "controllers/vm1", "controllers/vm1/attachments/root"]
        write(HOST)
        self.assertEqual(actions("--dry-run"), dict.fromkeys(names, "CREATED"))
        self.assertEqual(self.cleat.list("disk"), [])
        self.assertEqual(actions(), dict.fromkeys(names, "CREATED"))
        self.assertEqual(actions(), dict.fromkeys(names, "UNCHANGED"))

        write(HOST.replace("1G", "2G"))
        self.assertEqual(actions()["disks/data"], "UPDATED")
        write(HOST)
        self.refused(["apply", "-f", path], "disks/data", "DISK_CANNOT_SHRINK", "1 of 4 objects failed")
        write(HOST.replace("queues: 2", "queues: two"))
        self.refused(["apply", "-f", path], path, "queues: 'two' is not a whole number", status=2)

        write("disks: []\n")
        self.assertEqual(actions(), {})
        exact = ("--mode", "exact", "--allow-empty")
        self.assertEqual(actions(*exact, "--dry-run"), dict.fromkeys(names, "DELETED"))
        self.refused(["apply", "-f", path, "--mode", "exact", "--yes"], "HOST_EMPTIED", "--allow-empty")
        self.refused(["apply", "-f", path, *exact], "4 objects", "disks/data", "--yes", status=2)
        for answer in ("n", "", "no"):
            status, said = self.at_terminal(answer, "apply", "-f", path, *exact)
            self.assertEqual(status, 1)
            self.assertIn("controllers/vm1/attachments/root", said)
        write(HOST.replace("1G", "2G"))
        self.assertEqual(actions(), dict.fromkeys(names, "UNCHANGED"))
        write("disks: []\n")
        self.assertEqual(self.at_terminal("y", "apply", "-f", path, *exact)[0], 0)
        self.assertEqual(self.cleat.list("attachment") + self.cleat.list("disk"), [])
        # A slip is taken back.
        self.cleat.ctl("disk", "undelete", "data")
        self.assertEqual([disk["name"] for disk in self.cleat.list("disk")], ["disks/data"])

    def test_what_is_listed_can_be_applied_again(self):
        self.cleat.create_memory_disk("d0", "64M", "--label", "a=b")
        yaml = self.cleat.ctl_text("disk", "list", "--output", "yaml")
        self.cleat.ctl("disk", "delete", "d0", "--wait")
        done = subprocess.run(["cleatctl", "apply", "-f", "-"], input=yaml, env=self.environment, timeout=SECONDS,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("CREATED  disks/d0", done.stdout)
        self.assertEqual(self.cleat.ctl("disk", "get", "d0")["labels"], {"a": "b"})

    def test_yaml_says_what_json_says(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        self.cleat.create_memory_disk("d0", "64M", "--label", "a=yes", "--label", "b=1e3", "--label", "c=")
        for arguments in (["disk", "get", "d0"], ["engine", "list"], ["explain"]):
            text = self.cleat.ctl_text("--output", "yaml", *arguments)
            self.assertEqual(yaml.safe_load(text), self.cleat.ctl(*arguments))


class ObjectTest(CtlTest):
    """The commands of groups and clusters, of which neither daemon needs more than to know them, and what is counted."""

    def names(self, kind):
        return [one["name"] for one in self.cleat.list(kind)]

    def test_groups(self):
        self.cleat.ctl("group", "create", "vm", "--limit", "iops=600,burst=1200/30s", "--label", "owner=ann", "--wait")
        self.cleat.ctl("controller", "create", "c0", "--socket", self.bench.path("c0.sock"), "--group", "vm")
        group = self.cleat.ctl("group", "update", "vm", "--label", "site=b", "--remove-label", "owner")
        self.assertEqual(group["labels"], {"site": "b"})
        self.assertEqual(group["spec"]["limits"]["iops"]["per_second"], "600")
        self.cleat.ctl("group", "limit", "vm", "bytes=100M", "--wait")
        limits = self.cleat.ctl("group", "get", "vm")["spec"]["limits"]
        self.assertEqual((list(limits), limits["bytes"]["per_second"]), (["bytes"], str(100 << 20)))
        self.assertIn("vm", self.cleat.ctl_text("group", "list"))
        self.refused(["group", "delete", "vm"], "groups/vm", "controllers/c0", "GROUP_IN_USE")
        self.refused(["group", "get", "none"], "groups/none", "RESOURCE_NOT_FOUND")
        self.cleat.ctl("controller", "delete", "c0", "--wait")
        self.cleat.ctl("group", "delete", "vm")
        self.assertEqual(self.names("group"), [])

    def test_groups_and_labels_are_applied(self):
        host = """
groups:
- name: groups/vm
  spec: {limits: {iops: {per_second: 600}}}
controllers:
- name: controllers/c0
  labels: {owner: ann}
  spec: {socket_path: "DIR/c0.sock", group: groups/vm}
""".replace("DIR", self.bench.dir)
        path = self.bench.path("host.yaml")

        def actions(text, *more):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            report = self.cleat.ctl("apply", "-f", path, *more)
            return [(result["name"], result["action"].removeprefix("APPLY_ACTION_")) for result in report["results"]]

        def both(action):
            return [("groups/vm", action), ("controllers/c0", action)]

        self.assertEqual(actions(host, "--dry-run"), both("CREATED"))
        self.assertEqual((self.names("group"), self.names("controller")), ([], []))
        self.assertEqual(actions(host), both("CREATED"))
        self.assertEqual(actions(host), both("UNCHANGED"))
        other = host.replace("600", "700").replace("ann", "bob")
        self.assertEqual(actions(other, "--dry-run"), both("UPDATED"))
        self.assertEqual(self.cleat.ctl("group", "get", "vm")["spec"]["limits"]["iops"]["per_second"], "600")
        self.assertEqual(actions(other), both("UPDATED"))
        self.assertEqual(self.cleat.ctl("group", "get", "vm")["spec"]["limits"]["iops"]["per_second"], "700")
        self.assertEqual(self.cleat.ctl("controller", "get", "c0")["labels"], {"owner": "bob"})
        with open(path, "w", encoding="utf-8") as file:
            file.write(host.replace("groups/vm}", "groups/none}"))
        self.refused(["apply", "-f", path], "controllers/c0", "groups/none", "1 of 2 objects failed")
        self.assertEqual(actions("groups: []\n", "--mode", "exact", "--allow-empty", "--yes"), [("controllers/c0", "DELETED"), ("groups/vm", "DELETED")])

    def test_clusters(self):
        keyring = self.bench.path("keyring")
        key = "AQBSdFhcAAAAABAAVCIrmMKWVC9pGZ1BBaBT3A=="  # nobody's
        for text in (key, f"[client.other]\n\tkey = {key}\n"):
            with open(keyring, "w", encoding="utf-8") as file:
                file.write(text)
            self.cleat.ctl("cluster", "create", "ceph", "--monitors", "127.0.0.1", "--user", "other", "--key-file", keyring)
            self.assertEqual(self.names("cluster"), ["clusters/ceph"])
            self.assertIn("other", self.cleat.ctl_text("cluster", "list"))
            cluster = self.cleat.ctl("cluster", "update", "ceph", "--monitors", "127.0.0.2", "--connect-timeout", "5s",
                                     "--label", "site=b")
            self.assertEqual((cluster["labels"], cluster["spec"]["monitors"]), ({"site": "b"}, "127.0.0.2"))
            self.assertEqual(self.cleat.ctl("cluster", "get", "ceph")["spec"]["connect_timeout"], "5s")
            self.assertNotIn(key, self.cleat.ctl_text("cluster", "get", "ceph"))
            self.cleat.ctl("cluster", "delete", "ceph", "--yes")
            self.assertEqual(self.names("cluster"), [])
        with open(keyring, "w", encoding="utf-8") as file:
            file.write("[client.other]\n")
        self.refused(["cluster", "create", "ceph", "--monitors", "127.0.0.1", "--user", "other", "--key-file", keyring],
                     keyring, status=2)

    def test_limits_and_counters(self):
        self.cleat.create_memory_disk("d0", "64M")
        self.cleat.create_controller("c0", self.bench.path("c0.sock"), kind="scsi")
        self.cleat.attach_scsi("d0", "c0")
        self.assertEqual(self.cleat.ctl("disk", "limit", "d0", "iops=600", "--wait")["spec"]["limits"]["iops"]["per_second"], "600")
        self.assertNotIn("limits", self.cleat.ctl("disk", "limit", "d0", "none", "--wait")["spec"])
        self.assertEqual(self.cleat.ctl("controller", "get", "c0")["spec"]["type"], "CONTROLLER_TYPE_SCSI")
        self.assertIn("d0", self.cleat.ctl_text("stats", "d0"))
        self.cleat.ctl_text("stats", "d0", "--histograms")
        self.cleat.ctl_text("slow", "d0")
        self.refused(["stats", "none"], "none")


class PipeTest(CtlTest):
    def test_watch(self):
        self.cleat.create_memory_disk("d0", "64M")
        watch = self.popen("watch", "--output", "json", stdout=subprocess.PIPE)
        events = []
        while not events or "synced" not in events[-1]:
            events.append(json.loads(watch.stdout.readline()))
        self.assertIn("disks/d0", [event.get("disk", {}).get("name") for event in events])
        self.cleat.create_memory_disk("d1", "64M")
        event = json.loads(watch.stdout.readline())
        self.assertEqual(event["disk"]["name"], "disks/d1")
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=SECONDS)
        self.assertEqual((watch.returncode, err), (-signal.SIGINT, ""))

        since = self.popen("watch", "--output", "json", "--since", str(events[-1]["revision"]), stdout=subprocess.PIPE)
        self.assertEqual(json.loads(since.stdout.readline())["disk"]["name"], "disks/d1")
        self.assertIn("synced", json.loads(since.stdout.readline()))
        self.cleat.cleatd.kill()
        _, err = since.communicate(timeout=SECONDS)
        self.assertEqual(since.returncode, 3)
        self.assertIn("can't be reached", err)

    def test_watch_from_a_revision_that_is_forgotten(self):
        self.cleat.create_memory_disk("d0", "64M")
        self.cleat.restart_cleatd()
        self.refused(["watch", "--since", "1"], "WATCH_REVISION_GONE")

    def test_watch_ends_with_its_reader(self):
        watch = self.popen("watch", stdout=subprocess.PIPE)
        watch.stdout.readline()
        watch.stdout.close()
        self.assertEqual(watch.wait(SECONDS), -signal.SIGPIPE)
        self.assertEqual(watch.stderr.read(), "")

    def test_a_reader_that_is_gone(self):
        for ignored in (False, True):  # as a service manager starts it
            reader, writer = os.pipe()
            os.close(reader)
            child = self.popen("explain", stdout=writer, restore_signals=not ignored)
            os.close(writer)
            self.assertEqual(child.wait(SECONDS), -signal.SIGPIPE)
            self.assertEqual(child.stderr.read(), "")

    def test_a_full_disk(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            child = self.popen("engine", "list", stdout=full)
            _, err = child.communicate(timeout=SECONDS)
        self.assertEqual((child.returncode, err),
                         (1, "cleatctl: the output can't be written: No space left on device\n"))


class CompletionTest(CtlTest):
    def setUp(self):
        super().setUp()
        self.cleat.create_memory_disk("d0", "64M")
        self.cleat.create_memory_disk("d1", "64M")
        self.cleat.create_controller("c0", self.bench.path("c0.sock"))
        self.cleat.ctl("attach", "d1", "c0")

    def shell(self, *argv):
        done = subprocess.run(argv, env=self.environment, cwd=self.bench.dir, capture_output=True, text=True,
                              timeout=SECONDS, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def bash(self, *words):
        """What bash offers for the last of the words as it splits them."""
        script = ('source <(cleatctl completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cleatctl; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        return self.shell("bash", "-c", script, "bash", "cleatctl", *words)

    def test_bash(self):
        self.assertEqual(self.bash("disk", "get", ""), ["d0", "d1"])
        self.assertEqual(self.bash("attach", "d1", ""), ["c0"])
        self.assertEqual(self.bash("detach", "c0", ""), ["d1"])
        self.assertEqual(self.bash("controller", "create", "c", "--engine", "e"), ["engine-0"])
        self.assertIn("controllers/c0/attachments/d1", self.bash("wait", ""))
        self.assertEqual(self.bash("disk", "res"), ["resize"])
        self.assertEqual(self.bash("disk", "list", "--output", "=", "j"), ["json"])
        self.assertEqual(self.bash("disk", "list", "--output", "="), ["table", "json", "yaml"])
        self.assertEqual(self.bash("apply", "-f", "api.s"), ["api.sock"])
        self.assertEqual(self.bash("--address", "unix", ":", "/nowhere", "disk", "get", ""), [])

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("zsh is not installed")
        script = ('compdef() { :; }; compset() { :; }; _describe() { print -rl -- "${(P@)2%%:*}"; }; _files() { print FILES; }; '
                  'source <(cleatctl completion zsh); words=("$@"); CURRENT=$#; _cleatctl')
        zsh = ["zsh", "-fc", script, "zsh", "cleatctl"]
        self.assertEqual(self.shell(*zsh, "disk", "get", ""), ["d0", "d1"])
        self.assertEqual(self.shell(*zsh, "disk", "re"), ["resize"])
        self.assertEqual(self.shell(*zsh, "apply", "-f", ""), ["FILES"])


class TlsTest(CtlTest):
    """Over TCP both sides show a certificate."""

    def setUp(self):
        for name in ("ca", "other"):
            self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                         "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        for name, ca in (("cleatd", "ca"), ("caller", "ca"), ("stranger", "other")):
            with open(self.bench.path("names"), "w", encoding="utf-8") as file:
                file.write(f"subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:{name}\n")
            self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                         f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
                         "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")
        os.chmod(self.bench.path("cleatd.key"), 0o644)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.cleatd_options = ("--tls-listen", self.address, "--tls-cert", self.bench.path("cleatd.pem"), "--tls-key",
                               self.bench.path("cleatd.key"), "--tls-client-ca", self.bench.path("ca.pem"),
                               "--grant", "read=cert:caller")
        super().setUp()

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.bench.dir, check=True, timeout=SECONDS, capture_output=True)

    def over_tcp(self, caller, ca, *arguments):
        done = subprocess.run(
            ["cleatctl", "--address", self.address, "--ca", f"{ca}.pem", "--cert", f"{caller}.pem", "--key",
             f"{caller}.key", *arguments],
            env=self.environment, cwd=self.bench.dir, capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_certificates(self):
        status, out, err = self.over_tcp("caller", "ca", "engine", "list")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("engine-0", out)
        status, _, err = self.over_tcp("caller", "ca", "disk", "create", "d0", "--size", "1M", "--null")
        self.assertEqual(status, 1)
        self.assertIn("reason: ROLE_MISSING", err)
        for caller, ca in (("stranger", "ca"), ("caller", "other")):
            status, out, err = self.over_tcp(caller, ca, "engine", "list")
            self.assertEqual((status, out), (3, ""), err)
            self.assertIn(self.address, err)
            self.assertIn("--ca, --cert and --key", err)
        status, _, err = self.over_tcp("caller", "none", "engine", "list")
        self.assertEqual(status, 2)
        self.assertIn("--ca 'none.pem' can't be read", err)
        self.refused(["--address=" + self.address, "disk", "list"], "--ca is missing", status=2)


if __name__ == "__main__":
    unittest.main()
