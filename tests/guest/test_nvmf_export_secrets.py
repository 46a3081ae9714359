# SPDX-License-Identifier: Apache-2.0
"""Disks that Cleat exports to hosts that authenticate and speak TLS: Linux' own host in a guest whose secrets change under load, and over TLS
(`PEER_TLSHD`: the folder that has tlshd and keyctl); and Cleat's own host, in each way that it has to speak to a target."""

import unittest

from cleat_guest import BenchTest, SharedBenchTest
from cleat_guest.export import Export
from cleat_guest.export_ways import ExportWays
from cleat_guest.guest_tls import GuestTls, tls_programs
from cleat_guest.nvmf_guest import HOST_NQN, OTHER_NQN, PATHS, NvmfGuest, free_ports
from cleat_guest.nvmf_secrets import HOST, SUBSYSTEM, TLS, dhchap_secret, tls_psk
from cleat_guest.nvmf_ways import CLEAR_WAYS, TLS_WAYS, Walk
from cleat_guest.verified_load import VerifiedLoad

NQN = "nqn.2026-11.example:proves"
DISK = "32M"
REQUIRED, NOT_SAID = 1, 0  # a discovery log's TREQ
NONE, TLS_1_3 = 0, 2  # ... and its SECTYPE
OLD, NEW, OURS = dhchap_secret("the host's old one"), dhchap_secret("the host's new one"), dhchap_secret("the export's")
KEY = "the key of host and export"  # what it is made of
# A lost path is tried again every 10 s, in which whoever changes a secret at both ends is done with it.
OPTIONS = "-k 10 -c 10 -i 2"


class ChangedSecretTest(BenchTest):

    def test_a_secret_changes_under_load_and_no_request_fails(self):
        """The host is told first: it uses the new secret when it connects again, and until then what is connected stays."""
        cleat = self.bench.cleat(engine_options=("--kek-file", self.bench.path("state/kek")))  # which cleatd makes
        cleat.create_memory_disk("one", DISK)
        ports = free_ports()
        export = Export(cleat, "exported", nqn=NQN, ports=ports, hosts=[])
        export.add_host(HOST_NQN, {HOST: OLD, SUBSYSTEM: OURS})
        export.attach("one")
        host = NvmfGuest(self.bench, NQN, ports).wait_ready()
        device = host.connect_all(f"{OPTIONS} --dhchap-secret={OLD} --dhchap-ctrl-secret={OURS}")
        load = VerifiedLoad(host.guest, device, name="changed", seed=1, size="8M", io_size="4M")
        load.wait_begun()
        before = host.associations()
        host.guest.run(f"for c in /sys/class/nvme/nvme*; do echo '{NEW}' >$c/dhchap_secret; done")
        load.goes_on()
        export.update_host(HOST_NQN, {HOST: NEW, SUBSYSTEM: OURS})
        host.wait("all paths, by associations that are new", lambda: (host.live(), host.associations()),
                  lambda now: now[0] == PATHS and not set(now[1]) & set(before))
        load.goes_on()
        cleat.restart_engine()
        host.wait_live(PATHS)
        cleat.add_engine("engine-1", "--kek-file", self.bench.path("state/kek"))
        cleat.upgrade("engine-0", "engine-1")
        host.wait_live(PATHS)
        load.goes_on()
        load.wait()
        host.disconnect()


class TlsTest(SharedBenchTest):
    """One host, which each test finds and leaves disconnected, with KEY and no other secret."""

    @classmethod
    def set_up_bench(cls):
        if tls_programs() is None:
            raise unittest.SkipTest("PEER_TLSHD names no folder with tlshd and keyctl")
        cls.cleat = cls.bench.cleat(engine_options=("--kek-file", cls.bench.path("state/kek")))
        cls.cleat.create_memory_disk("one", DISK)
        ports = free_ports()
        cls.export = Export(cls.cleat, "exported", nqn=NQN, ports=ports, hosts=[])
        cls.export.add_host(HOST_NQN, {TLS: tls_psk(KEY)})
        cls.export.add_host(OTHER_NQN, {})
        cls.export.attach("one")
        cls.host = NvmfGuest(cls.bench, NQN, ports, programs=tls_programs()).wait_ready()
        cls.guest = cls.host.guest
        cls.tls = GuestTls(cls.guest, [cls.guest.host_address(path) for path in range(PATHS)])
        cls.tls.add_psk(KEY, HOST_NQN, NQN)

    def connect(self, path, more=""):
        status, output = self.host.connect_by_hand(path, f",tls,keep_alive_tmo=10,reconnect_delay=1,nr_io_queues=2{more}")
        self.assertEqual(status, 0, output)

    def assert_refused(self, answer):
        status, output = answer
        self.assertNotEqual(status, 0, output)
        self.assertEqual(self.host.live(), 0)

    def test_1_a_load_of_each_size_by_two_paths(self):
        for path in range(PATHS):
            self.connect(path)
        self.assertEqual(self.host.live(), PATHS)
        device = self.host.device(1)
        for sizes in ("512-4k", "4k-64k", "64k-1M"):
            self.host.fio(device, f"--iodepth=8 --numjobs=2 --offset_increment=8M --size=8M --io_size=2M --bsrange={sizes} "
                          f"--blockalign={sizes.split('-', maxsplit=1)[0]}")
        load = VerifiedLoad(self.guest, device, name="tls", seed=1, size="8M", io_size="2M")
        load.wait_begun()
        for path in range(PATHS):
            self.guest.plug_cable(path, False)
            self.host.wait_live(PATHS - 1)
            load.goes_on()
            self.guest.plug_cable(path, True)
            self.host.wait_live(PATHS)
        self.cleat.restart_engine()
        self.host.wait_live(PATHS)
        load.goes_on()
        load.wait()
        self.host.disconnect()

    def test_2_a_host_with_a_key_is_let_in_by_that_key_alone(self):
        self.assert_refused(self.host.try_connect(0, OPTIONS))
        self.tls.add_psk("nobody's", HOST_NQN, NQN)
        self.assert_refused(self.host.connect_by_hand(0, ",tls"))
        self.tls.add_psk(KEY, HOST_NQN, NQN)
        # A right key does not let in whoever else comes by it.
        self.tls.add_psk(KEY, OTHER_NQN, NQN)
        self.assert_refused(self.host.connect_as_other(0, ",tls"))
        self.export.update_host(HOST_NQN, {})
        self.assert_refused(self.host.connect_by_hand(0, ",tls"))
        self.host.connect(0, OPTIONS)
        self.host.device(1)
        self.export.update_host(HOST_NQN, {TLS: tls_psk(KEY)})
        self.host.wait_live(0)
        self.host.disconnect()
        self.connect(0)
        self.host.fio(self.host.device(1), "--iodepth=4 --size=1M --bs=4k")
        self.host.disconnect()

    def test_3_with_authentication_as_well(self):
        self.export.update_host(HOST_NQN, {TLS: tls_psk(KEY), HOST: OLD, SUBSYSTEM: OURS})
        self.assert_refused(self.host.connect_by_hand(0, ",tls"))
        self.assert_refused(self.host.connect_by_hand(0, f",tls,dhchap_secret={NEW}"))
        self.assert_refused(self.host.try_connect(0, f"{OPTIONS} --dhchap-secret={OLD}"))
        self.connect(0, f",dhchap_secret={OLD},dhchap_ctrl_secret={OURS}")
        self.host.fio(self.host.device(1), "--iodepth=8 --size=4M --io_size=1M --bsrange=4k-64k")
        self.host.disconnect()
        self.export.update_host(HOST_NQN, {TLS: tls_psk(KEY)})

    def test_4_discovery_says_that_it_is_wanted(self):
        self.assertEqual(self.host.secure_channels(), [(REQUIRED, TLS_1_3)] * PATHS)
        self.assertEqual(self.host.secure_channels(as_other=True), [(NOT_SAID, NONE)] * PATHS)


class WaysTest(BenchTest):

    def test_cleats_own_host_in_each_way(self):
        walk = Walk(self.bench, ExportWays(self.bench))
        walk.go((*CLEAR_WAYS, *TLS_WAYS))
        self.assertEqual(walk.refused, 12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
