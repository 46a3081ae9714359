# SPDX-License-Identifier: Apache-2.0
"""The test bench: real QEMU guests and real Cleat processes, for the guest tests and the demo.

    with Bench("example") as bench:
        cleat = bench.cleat()
        cleat.create_memory_disk("d0", "64M")
        with bench.guest(disks={"d0": bench.path("d0.sock")}) as guest:
            cleat.attach("d0", bench.path("d0.sock"))
            guest.wait_ready()
            guest.run(f"mke2fs -q {guest.device('d0')}")

Standard library only, one thread, Linux only. Whatever a bench started it ends, also when the test is killed.
"""

from cleat_guest.bench import Bench, BenchError, BenchTest, SharedBenchTest
from cleat_guest.cleat import Cleat, CtlError
from cleat_guest.guest import Guest, GuestError

__all__ = ["Bench", "BenchError", "BenchTest", "SharedBenchTest", "Cleat", "CtlError", "Guest", "GuestError"]
