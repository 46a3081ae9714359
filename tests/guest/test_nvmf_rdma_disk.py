# SPDX-License-Identifier: Apache-2.0
"""Disks that are reached over NVMe/RDMA, over soft-RoCE in a guest, as this machine's kernel has no RDMA. Two adapters are two paths. The target is Linux'
own (nvmet), or Cleat's (target_loop); the initiator under test runs beside it: alone, and as cleatd's disk. One boot for all."""

import os
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.nvme_host import Load, NvmeHost

DRIVE_BYTES = 64 << 20
TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
NVMET = "/sys/kernel/config/nvmet"
NQN = "nqn.2026-11.example:guest"
UUID = "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e11"
# Cleat's target.
OWN_NQN = "nqn.2026-11.example:own"
OWN_UUID = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"
OWN_PORT = 4430
HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:43434343-4343-4343-4343-434343434343"  # nvmf_disk.cc
PATHS = {1: ("rxe0", "dummy0", "192.0.2.1"), 2: ("rxe1", "dummy1", "198.51.100.1")}
UNLIMITED = "ulimit -l unlimited; "  # memory that adapters reach is pinned


class NvmfRdmaDiskTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        path = cls.bench.path
        with open(path("plain"), "wb") as image:
            image.truncate(DRIVE_BYTES)
        cls.host = NvmeHost(cls.bench, {"plain": {"drive": f"file={path('plain')},format=raw"}}, tools="rdma", memory_mb=1536,
                            kernel_options="nvme_core.multipath=0 dummy.numdummies=2",
                            programs=[os.path.join(TEST_DIR, name) for name in ("nvmf_namespace", "target_loop")])
        cls.guest = cls.host.guest
        for number in PATHS:
            cls.add_adapter(number)
        cls.guest.run("ifconfig lo 127.0.0.1 up && chmod 666 /dev/infiniband/* && mount -t configfs none /sys/kernel/config")
        subsystem = f"{NVMET}/subsystems/{NQN}"
        space = f"{subsystem}/namespaces/1"
        cls.guest.run(f"mkdir {subsystem} && echo 1 >{subsystem}/attr_allow_any_host && mkdir {space} && "
                      f"echo /dev/{cls.host.namespace('plain')} >{space}/device_path && echo {UUID} >{space}/device_uuid && echo 1 >{space}/enable")
        for number, (_, _, address) in PATHS.items():
            port = f"{NVMET}/ports/{number}"
            cls.guest.run(f"mkdir {port} && echo rdma >{port}/addr_trtype && echo ipv4 >{port}/addr_adrfam && echo {address} >{port}/addr_traddr && "
                          f"echo 4420 >{port}/addr_trsvcid")
            cls.mend_path(number)

    @classmethod
    def add_adapter(cls, number):
        link, device, address = PATHS[number]
        cls.guest.run(f"ip address replace {address}/24 dev {device}; ip link set {device} up && rdma link add {link} type rxe netdev {device}")

    @classmethod
    def cut_path(cls, number):
        cls.guest.run(f"rm {NVMET}/ports/{number}/subsystems/{NQN}")

    @classmethod
    def mend_path(cls, number):
        cls.guest.run(f"ln -s {NVMET}/subsystems/{NQN} {NVMET}/ports/{number}/subsystems/{NQN}")

    def run_program(self, tests, address, nqn=NQN, uuid=UUID):
        variables = f"CLEAT_NVMF_ADDRESS=rdma://{address} CLEAT_NVMF_NQN={nqn} CLEAT_NVMF_PLAIN={uuid} CLEAT_NVMF_SUBSYSTEM={NVMET}/subsystems/{NQN} " \
            f"CLEAT_NVMF_LINK={NVMET}/ports/1/subsystems/{NQN}"
        status, output = self.guest.execute(f"{UNLIMITED}cd /run && {variables} nvmf_namespace --gtest_filter={tests}")
        self.assertEqual(status, 0, output)
        self.assertIn("PASSED", output)

    def test_1_the_kernels_target_goes_and_comes_back_under_a_disk(self):
        self.run_program("Disk.*:Discovery.*", f"{PATHS[1][2]}:4420")

    def test_2_a_disk_of_ours_on_a_target_of_ours(self):
        listen = f"rdma://{PATHS[1][2]}:{OWN_PORT}"
        self.guest.run("mkfifo /run/target.in")
        target = self.guest.background(
            f"{UNLIMITED}(until [ -e /run/stop ]; do sleep 0.1; done) >/run/target.in & "
            f"target_loop --listen {listen} --nqn {OWN_NQN} --host {HOST_NQN} --sleeps --mib 64 </run/target.in >/run/target.out 2>&1")
        self.guest.run("until grep -q ready /run/target.out; do sleep 0.1; done")
        try:
            self.run_program("Disk.AgreesWithTheReference", f"{PATHS[1][2]}:{OWN_PORT}", OWN_NQN, OWN_UUID)
        finally:
            self.guest.run("touch /run/stop")
            target.wait()
        self.assertNotIn("CHECK", self.guest.run("cat /run/target.out"))

    # ---- As cleatd's disk

    def doubt(self):
        return self.host.ctl("disk", "get", "remote")["status"].get("doubt")

    def confirm_what_is_in_doubt(self):
        """Said again where more has come into doubt meanwhile, as from a reactor whose queue had not ended yet."""
        def said():
            self.guest.execute("cleatctl --address unix:/run/cleat/api.sock disk confirm-dead remote --yes")
            return self.doubt()
        self.host.wait_for("nothing in doubt", said, lambda doubt: not doubt)

    def goes_on(self):
        writes = f"cat /sys/block/{self.host.namespace('plain')}/stat"
        before = int(self.guest.run(writes).split()[4])
        self.host.wait_for("further writes", lambda: int(self.guest.run(writes).split()[4]), lambda now: now > before + 100)

    def test_3_cleatds_disk_outlives_paths_adapters_and_engines(self):
        host = self.host
        host.start_cleatd()
        host.start_engine(0, limits=UNLIMITED)
        addresses = " ".join(f"--address rdma://{address}" for _, _, address in PATHS.values())
        host.ctl("subsystem", "create", "kernel", "--nqn", NQN, addresses)
        host.ctl("disk", "create", "remote", "--size", "16M", "--nvme-tcp", "kernel", "--namespace", UUID)
        host.ctl("controller", "create", "remote", "--socket", "/run/remote.sock")
        load = Load(host, "remote", "--mix read=30,write=70 --depth 8")
        host.ctl("attach", "remote", "remote", "--wait=120")
        for number in PATHS:
            self.cut_path(number)
            self.confirm_what_is_in_doubt()
            self.goes_on()
            self.mend_path(number)
        host.kill_engine(0)
        host.start_engine(0, limits=UNLIMITED)
        host.ctl("wait", "controllers/remote/attachments/remote", "--timeout", "120")
        self.confirm_what_is_in_doubt()
        self.goes_on()
        host.start_engine(1, limits=UNLIMITED)
        host.ctl("engine", "upgrade", "engine-0", "--to", "engine-1")
        self.goes_on()
        # The kernel takes it away once nobody has it open any more: the engine, which lives on by the other one, among these.
        self.guest.run("rdma link delete rxe1 >/dev/null 2>&1 &")
        self.confirm_what_is_in_doubt()
        self.goes_on()
        self.assertEqual(load.end_well()["reconnects"], 2)  # after the kill, and the upgrade
        host.ctl("detach", "remote", "remote", "--wait=120")


if __name__ == "__main__":
    unittest.main(verbosity=2)
