#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make test-nvme DEVICE=/dev/disk/by-id/...`: tries Cleat on a real drive of this host, as root. DESTROYS all that is on it, and asks
before. cleatd and cleat-engine run from build/bin as a user without privileges, in a folder that is removed at the end; cleat-perf plays the
virtual machine. Ends with a page that is worth sending back: kernel, drive, each check, and speeds with their spread.

Any block device will do; one that is no NVMe namespace is used through the block device alone. Exit status: 0 - all checks went well, 1 - one
has failed, 2 - the drive was refused, or nobody agreed to its loss."""

import argparse
import contextlib
import os
import signal
import sys

from nvme_trial.cleat import ENDING, Cleat
from nvme_trial.common import Refused
from nvme_trial.drive import Drive
from nvme_trial.trial import Trial


def agree(drive, given):
    """Returns what is at the drive's ends, as it was before the question."""
    ends = drive.ends()
    print(f"{drive.given}\n  {drive.path}: {drive.model}, {drive.mark_is} {drive.mark}, {drive.bytes / 1e9:.1f} GB; it {drive.content()}\n"
          f"ALL DATA ON IT WILL BE LOST.")
    if given is None:
        print(f"Type its {drive.mark_is} ({drive.mark}) to go on: ", end="", flush=True)
        given = sys.stdin.readline()
    if " ".join(given.split()) != " ".join(drive.mark.split()):
        raise Refused(f"'{given.strip()}' is not the {drive.mark_is} of {drive.given}, which is {drive.mark}: nothing was done")
    return ends


def main():
    here = os.path.dirname(os.path.realpath(__file__))
    parser = argparse.ArgumentParser(description="Tries Cleat on a drive, which loses all its data.")
    parser.add_argument("device", help="the whole drive, best by its link in /dev/disk/by-id")
    parser.add_argument("--yes-destroy", metavar="SERIAL", help="agrees to the loss of that drive's data, instead of asking for what it is told by")
    parser.add_argument("--bin-dir", default=os.path.join(here, "..", "build", "bin"), help="where cleatd and the others are")
    parser.add_argument("--seconds", type=float, default=3, help="of each of the %(prog)s speeds' runs (default %(default)s)")
    options = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise Refused("this takes root: sudo make test-nvme DEVICE=...")
        drive = Drive(options.device)
        drive.check_unused()
        drive.check_as_shown(agree(drive, options.yes_destroy))
        with contextlib.ExitStack() as undo:
            cleat = Cleat(os.path.realpath(options.bin_dir), drive, undo)
            cleat.start()
            trial = Trial(cleat, drive, options.seconds)
            trial.run()
            failed = any(outcome != "ok" for _, outcome in trial.checks)
            if failed:
                print(cleat.log_tail())
            print(trial.page())
    except Refused as refused:
        print(f"test-nvme: {refused}", file=sys.stderr)
        return 2
    print("test-nvme: " + ("FAILED" if failed else "ok"))
    return 1 if failed else 0


if __name__ == "__main__":
    for ending in ENDING[1:]:
        signal.signal(ending, lambda number, unused: sys.exit(128 + number))
    sys.exit(main())
