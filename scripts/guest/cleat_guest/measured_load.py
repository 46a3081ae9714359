# SPDX-License-Identifier: Apache-2.0
"""fio in the guest: how many requests a second it gets done."""

_FIO = ("fio --direct=1 --ioengine=libaio --iodepth=32 --rw={rw} --bs=4k --time_based --runtime={seconds} "
        "--group_reporting --output-format=json --output=/run/rate.json {jobs}")


def measure(guest, devices, seconds, rw="randrw"):
    """Random requests of 4 KiB, 32 in flight on each of `devices` (name -> path); requests a second on all of them
    together. No time to warm up: nothing is saved up at the start, and what fio has in flight when its warming up ends it
    would not count."""
    jobs = " ".join(f"--name={name} --filename={device}" for name, device in devices.items())
    guest.run(_FIO.format(rw=rw, seconds=seconds, jobs=jobs), 240 + 10 * seconds)
    rates = guest.run("grep -o '\"iops\" : [0-9.]*' /run/rate.json | sed 's/.*: //'").split()
    return sum(float(rate) for rate in rates)
