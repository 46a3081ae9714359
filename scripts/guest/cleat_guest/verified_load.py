# SPDX-License-Identifier: Apache-2.0
"""fio in the guest: direct random writes at depth, of one size or several, each block stamped, all read back and compared at a
round's end; rounds until somebody waits for it. Tells how long the longest request took, which with an engine that died meanwhile
is how long the guest was without its disk."""

import math

from cleat_guest.guest import COMMAND_SECONDS

_ROUNDS = ("round=0; while :; do "
           "fio --name=load --filename={device} --direct=1 --ioengine=libaio --iodepth={depth} --offset={offset} --size={size} "
           "--offset_increment={size} --numjobs={jobs} --io_size={io_size} --rw=randwrite --bsrange={sizes} --blockalign={align} "
           "--fsync=64 --randseed=$(({seed} * 1000 + round)) --verify=crc32c "
           "--verify_fatal=1 {more} --output-format=json --output=/run/{name}.$round.json || {{ cat /run/{name}.$round.json; exit 1; }}; "
           "[ ! -e /run/{name}.stop ] || exit 0; round=$((round + 1)); done")
_FURTHER_REQUESTS = 32
_WRITTEN, _ANSWERED = "$5", "$1 + $5"  # of a device's stat, as awk says it
# A line for each request of a job, in the order in which they ended: when, in milliseconds of the job's time, then what is not looked at.
_LOG = "--write_lat_log=/run/{name}.$round"
_LONGEST_GAP = ("awk -F, 'FNR == 1 {{ before = 0 }} $1 - before > longest {{ longest = $1 - before }} {{ before = $1 }} "
                "END {{ print longest + 0 }}' /run/{name}.*_clat.*.log")


class VerifiedLoad:
    """Runs in the guest's background until wait(): whatever happens before that happens under load."""

    def __init__(self, guest, device, *, name, seed, depth=8, offset="0", size="48M",
                 io_size="24M", sizes="4k-4k", jobs=1, gaps=False, rate=None):
        """`sizes`: of a request, from-to. `jobs` write at a time, `size` and `io_size` being those of each. `gaps`: longest_gap_ms is asked.
        `rate`: requests a second of each job, so that others have the machine too."""
        self._guest = guest
        self._name = name
        self._stat = f"/sys/block/{device.removeprefix('/dev/')}/stat"
        self._before = self._count(_WRITTEN)
        self._job = guest.background(
            _ROUNDS.format(device=device, name=name, seed=seed, depth=depth, offset=offset, size=size,
                           io_size=io_size, sizes=sizes, align=sizes.split("-", maxsplit=1)[0], jobs=jobs,
                           more=(_LOG.format(name=name) if gaps else "") + (f" --rate_iops={rate}" if rate else "")))

    def wait_begun(self, timeout_s=COMMAND_SECONDS):
        """Until it writes: fio takes its time to start in a guest without KVM."""
        self._wait_until(_WRITTEN, self._before, timeout_s)

    def goes_on(self, timeout_s=COMMAND_SECONDS):
        """Until further requests were answered, whatever they were."""
        self._wait_until(_ANSWERED, self._count(_ANSWERED), timeout_s)

    def _wait_until(self, counted, before, timeout_s):
        self._guest.run(f"until [ $(awk '{{ print {counted} }}' {self._stat}) -ge {before + _FURTHER_REQUESTS} ] || "
                        f"[ -e {self._job.path}.status ]; do sleep 0.02; done", timeout_s)

    def wait(self, timeout_s=COMMAND_SECONDS):
        """Milliseconds of the longest request. Raises when fio found anything wrong, or an I/O failed."""
        self._guest.run(f"touch /run/{self._name}.stop")
        self._job.wait(timeout_s)
        # fio's "max" stands in the objects of submission, completion and total latency, in nanoseconds.
        longest = self._guest.run(f"grep -h -o '\"max\" : [0-9]*' /run/{self._name}.*.json | sed 's/.*: //' | sort -n | tail -n1")
        return math.ceil(int(longest) / 1e6)

    def longest_gap_ms(self):
        """After `wait`: the longest time of a job in which none of its requests ended, from its beginning to its last request."""
        return int(self._guest.run(_LONGEST_GAP.format(name=self._name)))

    def _count(self, counted):
        return int(self._guest.run(f"awk '{{ print {counted} }}' {self._stat}"))
