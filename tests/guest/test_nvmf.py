# SPDX-License-Identifier: Apache-2.0
"""Namespaces that are reached over NVMe/TCP: the target is Linux' own (nvmet), in a guest whose emulated drives are behind it, and the
initiator under test runs beside it in that guest, since this machine's kernel has no target. One boot for all."""

import os
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.nvme_host import Load, NvmeHost

DRIVE_BYTES = 64 << 20
TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
NVMET = "/sys/kernel/config/nvmet"
NQN = "nqn.2026-11.example:guest"
# Both are given to the namespace by the target, so that the initiator can be told what to look for.
UUIDS = {"plain": "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e11", "large": "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e12"}
# Of nvmf_namespace, and the secrets of both sides, as `nvme gen-dhchap-key` makes them.
HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:42424242-4242-4242-4242-424242424242"
HOST_SECRET = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
OWN_SECRET = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
PORTS = (4420, 4421)  # two ways to the same namespaces: nvmet's ports 1 and 2


class NvmfTest(SharedBenchTest):
    """The kernel's target with two namespaces, of blocks of 512 and of 4096 bytes."""

    @classmethod
    def set_up_bench(cls):
        path = cls.bench.path
        for name in UUIDS:
            with open(path(name), "wb") as image:
                image.truncate(DRIVE_BYTES)
        cls.host = NvmeHost(cls.bench, {
            "plain": {"drive": f"file={path('plain')},format=raw"},
            "large": {"drive": f"file={path('large')},format=raw", "device": "logical_block_size=4096,physical_block_size=4096"}},
            programs=[os.path.join(TEST_DIR, name) for name in ("nvmf_namespace", "nvmf_kernel_tls")])
        cls.guest = cls.host.guest
        cls.guest.run("ifconfig lo 127.0.0.1 up && mount -t configfs none /sys/kernel/config")
        subsystem = f"{NVMET}/subsystems/{NQN}"
        cls.guest.run(f"mkdir {subsystem} && echo 1 >{subsystem}/attr_allow_any_host")
        for nsid, (serial, uuid) in enumerate(UUIDS.items(), start=1):
            space = f"{subsystem}/namespaces/{nsid}"
            cls.guest.run(f"mkdir {space} && echo /dev/{cls.host.namespace(serial)} >{space}/device_path && "
                          f"echo {uuid} >{space}/device_uuid && echo 1 >{space}/enable")
        for number in (1, 2):
            cls.listen(number)

    @classmethod
    def listen(cls, number):
        port = f"{NVMET}/ports/{number}"
        cls.guest.run(f"mkdir {port} && echo tcp >{port}/addr_trtype && echo ipv4 >{port}/addr_adrfam && echo 127.0.0.1 >{port}/addr_traddr && "
                      f"echo {PORTS[number - 1]} >{port}/addr_trsvcid && ln -s {NVMET}/subsystems/{NQN} {port}/subsystems/{NQN}")

    def run_program(self, arguments="", more_variables=""):
        variables = f"CLEAT_NVMF_ADDRESS=127.0.0.1:{PORTS[0]} CLEAT_NVMF_NQN={NQN} CLEAT_NVMF_SUBSYSTEM={NVMET}/subsystems/{NQN} " \
            f"CLEAT_NVMF_LINK={NVMET}/ports/1/subsystems/{NQN} " + " ".join(
            f"CLEAT_NVMF_{serial.upper()}={uuid}" for serial, uuid in UUIDS.items()) + " " + more_variables
        return self.guest.execute(f"cd /run && {variables} nvmf_namespace {arguments}")

    def test_1_the_kernels_target_is_understood(self):
        status, output = self.run_program("--gtest_filter=-Disk.*")
        self.assertEqual(status, 0, output)
        self.assertIn("PASSED", output)

    def test_2_a_disk_outlives_its_target(self):
        status, output = self.run_program("--gtest_filter=Disk.*")
        self.assertEqual(status, 0, output)
        self.assertIn("[  PASSED  ] 2 tests", output)

    # ---- As cleatd's disk

    def break_path(self, number=1):
        """The target ends all connections of that port, and takes new ones at once."""
        self.cut_path(number)
        self.mend_path(number)

    def cut_path(self, number):
        self.guest.run(f"rm {NVMET}/ports/{number}/subsystems/{NQN}")

    def mend_path(self, number):
        self.guest.run(f"ln -s {NVMET}/subsystems/{NQN} {NVMET}/ports/{number}/subsystems/{NQN}")

    def set_ana(self, number, state):
        self.guest.run(f"echo {state} >{NVMET}/ports/{number}/ana_groups/1/ana_state")

    def doubt(self):
        """What is in doubt of the disk, if anything is."""
        return self.host.ctl("disk", "get", "remote")["status"].get("doubt")

    def until_in_doubt(self, do):
        """Nearly each time at the first try: some write is under way, as the load goes as fast as it can."""
        def tried():
            do()
            return self.doubt()
        self.host.wait_for("writes in doubt", tried, bool)

    def confirm_what_is_in_doubt(self):
        """Said again where more has come into doubt meanwhile, as from a reactor that had not closed its socket yet."""
        def said():
            self.guest.execute("cleatctl --address unix:/run/cleat/api.sock disk confirm-dead remote --yes")
            return self.doubt()
        self.host.wait_for("nothing in doubt", said, lambda doubt: not doubt)

    def test_3_cleatds_disk_goes_on_after_broken_paths_kills_and_upgrades(self):
        host = self.host
        kills = 0

        def kill_engine():
            nonlocal kills
            kills += 1
            host.kill_engine(0)
            host.start_engine(0)
            host.ctl("wait", "controllers/remote/attachments/remote", "--timeout", "120")

        host.start_cleatd()
        host.start_engine(0)
        host.ctl("subsystem", "create", "kernel", "--nqn", NQN, "--address", f"127.0.0.1:{PORTS[0]}")
        host.ctl("disk", "create", "remote", "--size", "16M", "--nvme-tcp", "kernel", "--namespace", UUIDS["plain"])
        host.ctl("controller", "create", "remote", "--socket", "/run/remote.sock")
        load = Load(host, "remote", "--mix read=30,write=70 --depth 8")
        host.ctl("attach", "remote", "remote", "--wait=120")
        for bring_into_doubt in (self.break_path, kill_engine):
            self.until_in_doubt(bring_into_doubt)
            self.confirm_what_is_in_doubt()

        host.start_engine(1)
        host.ctl("engine", "upgrade", "engine-0", "--to", "engine-1")
        self.assertEqual(load.end_well()["reconnects"], kills + 1)  # and the upgrade
        host.ctl("detach", "remote", "remote", "--wait=120")

    def writes(self):
        """That the drive behind the namespace has done."""
        return int(self.guest.run(f"cat /sys/block/{self.host.namespace('plain')}/stat").split()[4])

    def goes_on(self):
        before = self.writes()
        self.host.wait_for("further writes", self.writes, lambda now: now > before + 100)

    def test_4_a_disk_of_two_paths_goes_on_by_the_one_that_is_left(self):
        """Each path is cut while the other one stays, and kept from the namespace by its state; then the engine is killed."""
        host = self.host
        host.ctl("subsystem", "update", "kernel", *(word for port in PORTS for word in ("--address", f"127.0.0.1:{port}")))
        load = Load(host, "remote", "--mix read=30,write=70 --depth 8")
        host.ctl("attach", "remote", "remote", "--wait=120")
        for number in (1, 2):
            self.cut_path(number)
            self.confirm_what_is_in_doubt()
            self.goes_on()
            self.mend_path(number)
            self.until_in_doubt(lambda: self.break_path(number))  # once it is used again
            self.confirm_what_is_in_doubt()
        for number in (1, 2):
            self.set_ana(number, "inaccessible")
            self.goes_on()
            self.set_ana(number, "non-optimized")
            self.goes_on()
        host.kill_engine(1)
        host.start_engine(1)
        host.ctl("wait", "controllers/remote/attachments/remote", "--timeout", "120")
        self.confirm_what_is_in_doubt()
        self.goes_on()
        self.assertEqual(load.end_well()["reconnects"], 1)

    def authenticate(self, own_secret):
        """One namespace, on queues that the kernel's target wants authenticated."""
        return self.run_program("--gtest_filter='Kinds/OverTcp.*/Of512'",
                                f"CLEAT_NVMF_DHCHAP_SECRET={HOST_SECRET} CLEAT_NVMF_DHCHAP_CTRL_SECRET={own_secret}")

    def test_5_the_kernels_target_authenticates_its_host(self):
        subsystem, host = f"{NVMET}/subsystems/{NQN}", f"{NVMET}/hosts/{HOST_NQN}"
        self.guest.run(f"echo 0 >{subsystem}/attr_allow_any_host && mkdir {host} && ln -s {host} {subsystem}/allowed_hosts/ && "
                       f"echo {HOST_SECRET} >{host}/dhchap_key && echo {OWN_SECRET} >{host}/dhchap_ctrl_key")
        try:
            for group in ("null", "ffdhe2048"):
                self.guest.run(f"echo {group} >{host}/dhchap_dhgroup")
                status, output = self.authenticate(OWN_SECRET)
                self.assertEqual(status, 0, output)
                self.assertIn("[  PASSED  ] 1 test", output)
            status, output = self.authenticate(HOST_SECRET)
            self.assertNotEqual(status, 0, output)
            self.assertIn("does not have the secret of subsystem", output)
            status, output = self.run_program("--gtest_filter='Kinds/OverTcp.*/Of512'")
            self.assertNotEqual(status, 0, output)
            self.assertIn("no secret is configured", output)
        finally:
            self.guest.run(f"rm {subsystem}/allowed_hosts/{HOST_NQN} && rmdir {host} && echo 1 >{subsystem}/attr_allow_any_host")

    def test_6_the_kernel_makes_tls_records(self):
        """Against a target of the test's own in the guest, as nvmet's TLS needs a daemon."""
        status, output = self.guest.execute("[ -d /sys/module/tls ]")
        if status != 0:
            self.skipTest("THE GUEST'S KERNEL HAS NO MODULE tls: kernel TLS is not tested")
        status, output = self.guest.execute("cd /run && nvmf_kernel_tls")
        self.assertEqual(status, 0, output)
        self.assertIn("PASSED", output)
        self.assertNotIn("SKIPPED", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
