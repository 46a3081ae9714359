# SPDX-License-Identifier: Apache-2.0
"""A verified load of a guest with Linux' own NVMe/TCP host on a disk that Cleat exports, with both digests and by two paths, while engines are
killed and exchanged, cleatd goes, and each path turns into a black hole."""

import sys
import unittest

from cleat_guest import BenchTest
from cleat_guest.export import Export
from cleat_guest.nvmf_guest import HOST_NQN, PATHS, NvmfGuest, free_ports
from cleat_guest.verified_load import VerifiedLoad

NQN = "nqn.2026-11.example:exported"
DISK = "64M"
OPTIONS = "-k 5 -c 1 --hdr-digest --data-digest"
SIZES = ("512-4k", "4k-64k", "64k-1M")


class ExportLoadTest(BenchTest):

    def test_nothing_is_lost(self):
        self.cleat = self.bench.cleat()
        self.cleat.create_file_disk("one", DISK, self.bench.path("one.img"))
        ports = free_ports()
        export = Export(self.cleat, "exported", nqn=NQN, ports=ports, hosts=[HOST_NQN])
        export.attach("one")
        self.host = NvmfGuest(self.bench, NQN, ports).wait_ready()
        device = self.host.connect_all(OPTIONS)
        for sizes in SIZES:
            self.host.fio(device, f"--iodepth=16 --numjobs=2 --offset_increment=16M --size=16M --io_size=8M --bsrange={sizes} "
                          f"--blockalign={sizes.split('-', maxsplit=1)[0]}")
        self.loads = [VerifiedLoad(self.host.guest, device, name=f"load-{sizes}", seed=seed, offset=f"{seed * 20}M", size="16M", io_size="4M",
                                   sizes=sizes) for seed, sizes in enumerate(("512-8k", "4k-128k", "64k-1M"))]
        for load in self.loads:
            load.wait_begun()
        for path in range(PATHS):
            self.host.guest.plug_cable(path, False)
            self.host.wait_live(PATHS - 1)
            self.go_on()
            self.host.guest.plug_cable(path, True)
            self.settle()
        self.cleat.restart_engine()
        self.settle()
        self.cleat.restart_cleatd()
        self.settle()
        self.cleat.add_engine("engine-1")
        pause_ms = self.cleat.upgrade("engine-0", "engine-1")
        self.settle()
        longest_ms = max(load.wait() for load in self.loads)
        print(f"upgrade: {pause_ms:.1f} ms at the engines; the longest request took {longest_ms} ms", file=sys.stderr)
        self.host.disconnect()
        export.detach("one")
        export.delete()

    def go_on(self):
        for load in self.loads:
            load.goes_on()

    def settle(self):
        """Both paths are there, and all go on."""
        self.host.wait_live(PATHS)
        self.go_on()


if __name__ == "__main__":
    unittest.main(verbosity=2)
