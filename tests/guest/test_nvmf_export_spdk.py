# SPDX-License-Identifier: Apache-2.0
"""Disks that Cleat exports over NVMe/TCP, and hosts in user space on this machine: SPDK's programs (`PEER_SPDK`: the folder that SPDK was built
in), also with secrets, and Cleat itself, another host's."""

import json
import os
import subprocess
import unittest

from cleat_guest import BenchTest
from cleat_guest.bare_host import BareHost, new_host_id
from cleat_guest.export import Export
from cleat_guest.host_load import HostLoad
from cleat_guest.nvmf_events import RemoteDisk, wait_for
from cleat_guest.nvmf_guest import HOST_ID, HOST_NQN, OTHER_NQN, free_ports
from cleat_guest.nvmf_secrets import HOST, SECRET_HASHES, SUBSYSTEM, TLS, dhchap_secret, tls_psk, write_secret
from cleat_guest.spdk_target import built_in, reserve_pages

MIB = 1 << 20
NQN = "nqn.2026-11.example:exported"
DISK_MIB = 64
KEEP_ALIVE_MS = 10000
SECONDS = 240  # for what can only hang
MEMORY_MB = 512
DIGESTS = ("sha256", "sha384", "sha512")
GROUPS = ("null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192")


class SpdkHostTest(BenchTest):
    """Each of its programs is one host after another."""

    hosts = ()  # that are let in without secrets

    def setUp(self):
        if built_in() is None:
            self.skipTest("PEER_SPDK names no folder that SPDK was built in")
        if os.geteuid() != 0:
            self.skipTest("SPDK wants huge pages, and so root")
        reserve_pages(MEMORY_MB)
        self.cleat = self.bench.cleat(engine_options=("--kek-file", self.bench.path("state/kek")))  # which cleatd makes
        self.cleat.create_file_disk("one", f"{DISK_MIB}M", self.bench.path("one.img"))
        self.ports = free_ports()
        self.export = Export(self.cleat, "exported", nqn=NQN, ports=self.ports, hosts=self.hosts)
        self.export.attach("one")

    def run_spdk(self, program, *arguments):
        """Its exit status and its output."""
        done = subprocess.run([os.path.join(built_in(), program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=SECONDS, check=False, cwd=self.bench.dir)
        with open(os.path.join(self.bench.log_dir, f"{os.path.basename(program)}.log"), "a", encoding="utf-8") as log:
            log.write(f"$ {program} {' '.join(arguments)}\n{done.stdout}")
        return done.returncode, done.stdout

    def spdk(self, program, *arguments):
        """Its output; as a failed test where it fails."""
        status, output = self.run_spdk(program, *arguments)
        self.assertEqual(status, 0, f"{program} {' '.join(arguments)}\n{output[-4000:]}")
        return output

    def perf(self, *arguments, host_nqn=HOST_NQN):
        where = f"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{self.ports[0]} subnqn:{NQN} hostnqn:{host_nqn}"
        return self.spdk("build/bin/spdk_nvme_perf", "-r", where, "-t", "1", "-s", str(MEMORY_MB), "-c", "0x1", *arguments)

    def bdevperf(self, name, controller, keys=None, options=None):
        """The arguments of bdevperf with a controller of those parameters. `keys`: secrets by the names that the parameters have for them;
        `options`: of all its controllers."""
        params = {"name": "Nvme0", "trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": str(self.ports[0]), "subnqn": NQN,
                  "hostnqn": HOST_NQN, **controller}
        files = {key: write_secret(self.bench.path(f"{name}-{key}"), secret) for key, secret in (keys or {}).items()}
        calls = [{"method": "bdev_nvme_set_options", "params": options}] if options else []
        config = [{"subsystem": "keyring", "config": [{"method": "keyring_file_add_key", "params": {"name": key, "path": path}}
                                                      for key, path in files.items()]},
                  {"subsystem": "bdev", "config": [*calls, {"method": "bdev_nvme_attach_controller", "params": params}]}]
        path = self.bench.path(f"bdevperf-{name}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"subsystems": config}, file)
        return ["build/examples/bdevperf", "--json", path, "-w", "verify", "-s", str(MEMORY_MB), "-m", "0x1"]


class SpdkTest(SpdkHostTest):

    hosts = (HOST_NQN,)

    def test_its_load_ends_without_an_error(self):
        for digests in ((), ("--enable-tcp-hdgst", "--enable-tcp-ddgst")):
            for size in (512, 4096, 128 << 10, 1 << 20):
                for mix in (("-w", "read"), ("-w", "randwrite"), ("-w", "randrw", "-M", "50")):
                    output = self.perf("-q", "16", "-o", str(size), *mix, *digests)
                    self.assertRegex(output, r"\nTotal +: +[1-9]", "requests have ended")
                    self.assertNotIn("completed with error", output)

    def test_it_reads_back_what_it_wrote(self):
        """bdevperf's verify: each request is written, read and compared."""
        for number, digests in enumerate(({}, {"hdgst": True}, {"ddgst": True}, {"hdgst": True, "ddgst": True})):
            command = self.bdevperf(str(number), digests)
            for size in (512, 4096, 65536, 1 << 20):
                output = self.spdk(*command, "-q", "32" if size <= 65536 else "4", "-o", str(size), "-t", "2")
                self.assertNotIn("buffer mismatch", output.lower())

    def test_a_host_that_is_not_let_in_gets_nothing(self):
        self.assertIn("Attached to", self.perf("-q", "1", "-o", "4096", "-w", "read"))
        self.assertNotIn("Attached to", self.perf("-q", "1", "-o", "4096", "-w", "read", host_nqn=OTHER_NQN))


class SpdkSecretsTest(SpdkHostTest):
    """bdevperf's verify with all that its host can prove, and be proved."""

    def verify(self, name, keys, options=None):
        """Whether it got in; a failed test where it did and something was wrong."""
        status, output = self.run_spdk(*self.bdevperf(name, {key: key for key in keys}, keys, options), "-q", "16", "-o", "16384", "-t", "1")
        self.assertNotIn("buffer mismatch", output.lower())
        return status == 0

    def test_authentication_with_each_hash_and_group(self):
        mine, ours = dhchap_secret("mine"), dhchap_secret("ours")
        self.export.add_host(HOST_NQN, {HOST: mine, SUBSYSTEM: ours})
        for number, group in enumerate(GROUPS):
            digest = DIGESTS[number % len(DIGESTS)]
            options = {"dhchap_digests": [digest], "dhchap_dhgroups": [group]}
            self.assertTrue(self.verify(f"{digest}-{group}", {"dhchap_key": mine, "dhchap_ctrlr_key": ours}, options))
        for number in SECRET_HASHES:
            mine, ours = dhchap_secret("mine", number), dhchap_secret("ours", number)
            self.export.update_host(HOST_NQN, {HOST: mine, SUBSYSTEM: ours})
            self.assertTrue(self.verify(f"form-{number}", {"dhchap_key": mine, "dhchap_ctrlr_key": ours}))
        self.assertTrue(self.verify("one-way", {"dhchap_key": mine}))
        self.assertFalse(self.verify("none", {}))
        self.assertFalse(self.verify("wrong", {"dhchap_key": dhchap_secret("wrong")}))
        self.assertFalse(self.verify("wrong-controller", {"dhchap_key": mine, "dhchap_ctrlr_key": dhchap_secret("wrong")}))

    def test_tls_with_each_hash_and_with_authentication(self):
        self.export.add_host(HOST_NQN, {})
        for number in (1, 2):
            key = tls_psk("key", number)
            self.export.update_host(HOST_NQN, {TLS: key})
            self.assertTrue(self.verify(f"tls-{number}", {"psk": key}))
        self.assertFalse(self.verify("plain", {}))
        self.assertFalse(self.verify("tls-wrong", {"psk": tls_psk("wrong", 2)}))
        secret = dhchap_secret("mine")
        self.export.update_host(HOST_NQN, {TLS: key, HOST: secret})
        self.assertFalse(self.verify("tls-without", {"psk": key}))
        self.assertFalse(self.verify("without-tls", {"dhchap_key": secret}))
        self.assertTrue(self.verify("tls-chap", {"psk": key, "dhchap_key": secret}))


class CleatTest(BenchTest):
    """Two hosts with Cleat: one exports a disk, which is the other's `remote`. No root is needed, nor SPDK."""

    def setUp(self):
        self.here = self.bench.cleat("here")
        self.image = self.bench.path("one.img")
        self.here.create_file_disk("one", f"{DISK_MIB}M", self.image)
        ports = free_ports()
        self.export = Export(self.here, "exported", nqn=NQN, ports=ports, hosts=[HOST_NQN])
        self.export.attach("one")
        addresses = [f"127.0.0.1:{port}" for port in ports]
        with BareHost(addresses[0], NQN, new_host_id(), HOST_NQN, keep_alive_ms=KEEP_ALIVE_MS) as somebody:
            uuid = somebody.namespace_uuid()
        self.there = self.bench.cleat("there")
        self.disk = RemoteDisk(self.there, addresses, nqn=NQN, uuid=uuid, size_bytes=DISK_MIB * MIB, keep_alive_ms=KEEP_ALIVE_MS,
                               options=("--host-nqn", HOST_NQN, "--host-id", HOST_ID, "--header-digest", "--data-digest"))
        self.socket = self.bench.path("there/remote.sock")

    def test_a_verified_load_goes_on_whatever_becomes_of_the_engines(self):
        load = HostLoad(self.bench, "load", self.socket, ["--mix", "read=30,write=50,zeroes=10,flush=10", "--depth", "8"])
        self.there.attach("remote", self.socket)
        self.settle()
        # The target's engine dies, and its host's: what was under way is in doubt until somebody says that it is dead.
        self.here.restart_engine()
        self.settle()
        self.there.restart_engine()
        self.settle()
        self.here.add_engine("engine-1")
        self.here.upgrade("engine-0", "engine-1")
        self.settle()
        self.there.add_engine("engine-1")
        self.there.upgrade("engine-0", "engine-1")
        self.settle()
        self.here.resize_disk("one", f"{2 * DISK_MIB}M")
        wait_for("the new size", self.disk.size_bytes, lambda size: size == 2 * DISK_MIB * MIB)
        load.end_well()
        self.there.detach("remote")
        self.export.detach("one")
        self.export.delete()

    def settle(self):
        wait_for("both paths", self.disk.usable_paths, lambda usable: usable == 2)
        self.disk.confirm_dead()
        before = self.changed()
        wait_for("further writes", self.changed, lambda now: now > before)

    def changed(self):
        """When the file was last written to."""
        return os.stat(self.image).st_mtime_ns


if __name__ == "__main__":
    unittest.main(verbosity=2)
