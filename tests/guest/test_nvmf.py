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
PORT = 4420


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
            programs=[os.path.join(TEST_DIR, "nvmf_namespace")])
        cls.guest = cls.host.guest
        cls.guest.run("ifconfig lo 127.0.0.1 up && mount -t configfs none /sys/kernel/config")
        subsystem = f"{NVMET}/subsystems/{NQN}"
        cls.guest.run(f"mkdir {subsystem} && echo 1 >{subsystem}/attr_allow_any_host")
        for nsid, (serial, uuid) in enumerate(UUIDS.items(), start=1):
            space = f"{subsystem}/namespaces/{nsid}"
            cls.guest.run(f"mkdir {space} && echo /dev/{cls.host.namespace(serial)} >{space}/device_path && "
                          f"echo {uuid} >{space}/device_uuid && echo 1 >{space}/enable")
        cls.listen()

    @classmethod
    def listen(cls):
        """The address is written without its newline, which the kernel would take for a part of it."""
        port = f"{NVMET}/ports/1"
        cls.guest.run(f"mkdir {port} && echo tcp >{port}/addr_trtype && echo ipv4 >{port}/addr_adrfam && echo 127.0.0.1 >{port}/addr_traddr && "
                      f"echo {PORT} >{port}/addr_trsvcid && ln -s {NVMET}/subsystems/{NQN} {port}/subsystems/{NQN}")

    def run_program(self, arguments=""):
        variables = f"CLEAT_NVMF_ADDRESS=127.0.0.1:{PORT} CLEAT_NVMF_NQN={NQN} CLEAT_NVMF_SUBSYSTEM={NVMET}/subsystems/{NQN} " \
            f"CLEAT_NVMF_LINK={NVMET}/ports/1/subsystems/{NQN} " + " ".join(
            f"CLEAT_NVMF_{serial.upper()}={uuid}" for serial, uuid in UUIDS.items())
        return self.guest.execute(f"cd /run && {variables} nvmf_namespace {arguments}")

    def test_1_the_kernels_target_is_understood(self):
        status, output = self.run_program("--gtest_filter=-Disk.*")
        self.assertEqual(status, 0, output)
        self.assertIn("PASSED", output)

    def test_2_a_disk_outlives_its_target(self):
        status, output = self.run_program("--gtest_filter=Disk.*")
        self.assertEqual(status, 0, output)
        self.assertIn("[  PASSED  ] 1 test", output)

    # ---- As cleatd's disk

    def break_path(self):
        """The target ends all connections, and takes new ones at once."""
        link = f"{NVMET}/ports/1/subsystems/{NQN}"
        self.guest.run(f"rm {link} && ln -s {NVMET}/subsystems/{NQN} {link}")

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
        host.ctl("subsystem", "create", "kernel", "--nqn", NQN, "--address", f"127.0.0.1:{PORT}")
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
