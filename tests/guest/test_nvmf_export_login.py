# SPDX-License-Identifier: Apache-2.0
"""A disk that Cleat exports to hosts that prove who they are: Linux' own host in a guest, with DH-HMAC-CHAP."""

import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.export import Export
from cleat_guest.nvmf_guest import HOST_NQN, OTHER_NQN, NvmfGuest, free_ports
from cleat_guest.nvmf_secrets import HOST, SECRET_HASHES, SUBSYSTEM, dhchap_secret
from cleat_guest.verified_load import VerifiedLoad

NQN = "nqn.2026-11.example:proves"
OPTIONS = "-k 10 -c 1 -i 1"  # seconds of keep alive and until a lost path is tried again; one I/O queue
MINE, OURS, OTHERS = dhchap_secret("the host's"), dhchap_secret("the export's"), dhchap_secret("the other host's")
WRONG = dhchap_secret("nobody's")


def given(secret, of_export=None):
    """Options of nvme's."""
    return f"{OPTIONS} --dhchap-secret={secret}" + (f" --dhchap-ctrl-secret={of_export}" if of_export else "")


class LoginTest(SharedBenchTest):
    """One host, which each test finds and leaves disconnected, with MINE and OURS as its secrets; and another one, which has OTHERS."""

    @classmethod
    def set_up_bench(cls):
        cls.cleat = cls.bench.cleat(engine_options=("--kek-file", cls.bench.path("state/kek")))  # which cleatd makes
        cls.cleat.create_memory_disk("one", "16M")
        ports = free_ports(1)
        cls.export = Export(cls.cleat, "exported", nqn=NQN, ports=ports, hosts=[])
        cls.export.add_host(HOST_NQN, {HOST: MINE, SUBSYSTEM: OURS})
        cls.export.add_host(OTHER_NQN, {HOST: OTHERS})
        cls.export.attach("one")
        cls.host = NvmfGuest(cls.bench, NQN, ports).wait_ready()

    def use(self, options):
        """Connects, writes and reads back, and disconnects."""
        self.host.connect(0, options)
        self.host.fio(self.host.device(1), "--iodepth=8 --size=1M --bs=4k")
        self.assertIn("authenticated with hash hmac(sha512) dhgroup ffdhe3072", self.host.guest.run("dmesg -c"))
        self.host.disconnect()

    def refused(self, options, words):
        """... and the kernel says why."""
        status, output = self.host.try_connect(0, options)
        self.assertNotEqual(status, 0, output)
        self.assertIn(words, self.host.guest.run("dmesg -c"))
        self.assertEqual(self.host.controllers(), {})

    def test_1_each_form_of_a_secret_is_taken_one_way_and_both(self):
        self.use(given(MINE))
        for number in SECRET_HASHES:
            mine, ours = dhchap_secret("mine", number), dhchap_secret("ours", number)
            self.export.update_host(HOST_NQN, {HOST: mine, SUBSYSTEM: ours})
            self.use(given(mine, ours))
        self.export.update_host(HOST_NQN, {HOST: MINE, SUBSYSTEM: OURS})

    def test_2_who_has_another_secret_or_none_gets_nothing(self):
        self.refused(given(WRONG), "authentication failed")
        self.refused(OPTIONS, "no key")
        # The host is who refuses an export that can't prove itself.
        self.refused(given(MINE, WRONG), "controller authentication failed")
        self.use(given(MINE, OURS))

    def test_3_others_go_on_beside_those_that_are_refused(self):
        self.host.connect(0, given(MINE, OURS))
        load = VerifiedLoad(self.host.guest, self.host.device(1), name="beside", seed=3, size="4M", io_size="1M")
        load.wait_begun()
        for wrong in ("", f",dhchap_secret={MINE}", f",dhchap_secret={OURS}"):  # nor does another's serve
            status, output = self.host.connect_as_other(0, wrong)
            self.assertNotEqual(status, 0, output)
        load.goes_on()
        self.assertEqual(self.host.live(), 1)
        status, output = self.host.connect_as_other(0, f",dhchap_secret={OTHERS}")
        self.assertEqual(status, 0, output)
        load.goes_on()
        load.wait()
        self.host.disconnect()

    def test_4_who_has_to_prove_something_else_loses_its_connections(self):
        self.host.connect(0, given(MINE, OURS))
        self.host.device(1)
        before = self.host.associations()
        self.export.update_host(HOST_NQN, {HOST: MINE, SUBSYSTEM: OURS})
        self.export.update_host(OTHER_NQN, {HOST: dhchap_secret("the other host's new one")})
        self.assertEqual(self.host.associations(), before, "the same secrets again change nothing, nor do another host's")
        new = dhchap_secret("the host's new one")
        self.export.update_host(HOST_NQN, {HOST: new, SUBSYSTEM: OURS})
        self.host.wait_live(0)
        self.host.disconnect()  # where the kernel has not given it up
        self.refused(given(MINE, OURS), "authentication failed")
        self.use(given(new, OURS))
        self.export.update_host(HOST_NQN, {})
        self.host.connect(0, OPTIONS)
        self.host.device(1)
        self.host.disconnect()
        self.export.update_host(HOST_NQN, {HOST: MINE, SUBSYSTEM: OURS})
        self.export.update_host(OTHER_NQN, {HOST: OTHERS})


if __name__ == "__main__":
    unittest.main(verbosity=2)
