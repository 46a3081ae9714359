# SPDX-License-Identifier: Apache-2.0
"""fio in the guest: direct random writes at depth, each block stamped, all read back and compared at the end. Tells how
long the longest request took, which with an engine that died meanwhile is how long the guest was without its disk."""

import math

_FIO = ("fio --name=load --filename={device} --direct=1 --ioengine=libaio --iodepth={depth} --offset={offset} --size={size} "
        "--io_size={io_size} --rw=randwrite --bs=4k --fsync=64 --randseed={seed} --verify=crc32c --verify_fatal=1 "
        "--output-format=json --output=/run/{name}.json || {{ cat /run/{name}.json; false; }}")


class VerifiedLoad:
    """Runs in the guest's background until wait()."""

    def __init__(self, guest, device, *, name, seed, depth=8, offset="0", size="48M",
                 io_size="24M"):
        self._guest = guest
        self._name = name
        self._job = guest.background(
            _FIO.format(device=device, name=name, seed=seed, depth=depth, offset=offset, size=size,
                        io_size=io_size))

    def done(self):
        return self._job.done()

    def wait(self, timeout_s=180):
        """Milliseconds of the longest request. Raises when fio found anything wrong, or an I/O failed."""
        self._job.wait(timeout_s)
        # fio's "max" stands in the objects of submission, completion and total latency, in nanoseconds.
        longest = self._guest.run(f"grep -o '\"max\" : [0-9]*' /run/{self._name}.json | sed 's/.*: //' | sort -n | tail -n1")
        return math.ceil(int(longest) / 1e6)
