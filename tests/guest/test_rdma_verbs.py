# SPDX-License-Identifier: Apache-2.0
"""RDMA verbs and the connection manager over soft-RoCE, the kernel's adapter in software, in a guest: this machine's kernel has none. One boot for all."""

import os
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.programs import pack

TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
ADDRESS, OTHER_ADDRESS = "192.0.2.1", "198.51.100.1"
LINK, OTHER_LINK = "rxe0", "rxe1"


class RdmaVerbsTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        archive = pack(cls.bench.path("programs.tar"), [os.path.join(TEST_DIR, "rdma_verbs")])
        cls.guest = cls.bench.guest(tools="rdma", memory_mb=1024, kernel_options="dummy.numdummies=2", files={"programs": archive})
        cls.guest.wait_ready()
        # The connection manager finds no adapter on lo.
        cls.guest.run("tar x -f /dev/vda -C /")
        cls.add_link(LINK, "dummy0", ADDRESS)
        cls.add_link(OTHER_LINK, "dummy1", OTHER_ADDRESS)

    @classmethod
    def add_link(cls, link, device, address):
        cls.guest.run(f"ip address add {address}/24 dev {device}; ip link set {device} up && rdma link add {link} type rxe netdev {device}")

    def run_program(self, arguments, variables=""):
        status, output = self.guest.execute(f"cd /run && CLEAT_RDMA_ADDRESS={ADDRESS} CLEAT_RDMA_OTHER_ADDRESS={OTHER_ADDRESS} {variables} /bin/rdma_verbs {arguments}")
        self.assertEqual(status, 0, output)
        self.assertIn("PASSED", output)
        self.assertNotIn("SKIPPED", output)
        return output

    def test_1_both_ends_work_over_the_adapter(self):
        self.run_program("--gtest_filter=Verbs.*:AdapterVerbs.*")

    def test_2_an_adapter_that_is_taken_away_ends_what_is_on_it(self):
        self.run_program("--gtest_filter=DeviceRemoval.*", f"CLEAT_RDMA_LINK={LINK}")
        self.guest.run(f"while rdma link | grep -q {LINK}; do sleep 0.1; done")
        # One that comes back is an adapter like any other.
        self.add_link(LINK, "dummy0", ADDRESS)
        self.run_program("--gtest_filter=Verbs.MessagesComeByTheReceiveQueue")


if __name__ == "__main__":
    unittest.main(verbosity=2)
