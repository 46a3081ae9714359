# SPDX-License-Identifier: Apache-2.0
"""A host with NVMe drives: a guest with Linux 6.12 whose drives QEMU emulates, and Cleat in it. This machine's own kernel has none.
cleat-perf in the guest plays QEMU and the virtual machine."""

import json
import os
import shutil
import time

from cleat_guest.process import BenchError
from cleat_guest.programs import pack

SECONDS = 240  # for what can only hang
PROGRAMS = ("cleatd", "cleat-engine", "cleatctl", "cleat-perf")
AS_USER = "run_as --reuid 1000 --regid 1000 --clear-groups "
_STATE = "mkdir -p /run/cleat/state && chown -R 1000 /run/cleat"
_PATHS = "files /\\ndevices /\\nsockets /\\nkeys /\\n"
_POLL_SECONDS = 0.1
LOAD = "--mix read=50,write=50 --depth 8 --rate 100 --block-size 16k"


class Load:
    """cleat-perf as the front end of a controller, which is named as its disk and has its socket in /run: writes, reads and verifies until
    `end`, whatever becomes of the engine."""

    def __init__(self, host, disk, options=LOAD):
        self._guest = host.guest
        self._files = f"/run/{disk}"
        self._job = host.guest.background(
            f"umask 0; cleat-perf run --listen {self._files}.sock --reconnect --verify --wait call --timeout {SECONDS} --time 3600 "
            f"--no-progress {options} --json {self._files}.json & echo $! >{self._files}.pid; wait $!; echo status $?")

    def end(self):
        """What cleat-perf found, as its JSON has it."""
        self._guest.run(f"kill -INT $(cat {self._files}.pid)")
        return self.wait()

    def wait(self):
        """The same, of a load that ends by itself (--requests)."""
        said = self._job.wait(SECONDS)
        status, text = self._guest.execute(f"cat {self._files}.json")
        if status != 0:
            raise BenchError(f"cleat-perf on {self._files}.sock has no result:\n{said}")
        return json.loads(text)["result"]

    def end_well(self):
        """The same, of a disk that nothing may have gone wrong on."""
        result = self.end()
        if result["errors"] or result["faults"] or not result["verified_blocks"]:
            raise BenchError(f"the load on {self._files}.sock: {result['errors']} errors, {result['faults']} wrong blocks, "
                             f"{result['verified_blocks']} verified; {result['first_error']} {result['first_fault']}")
        return result


class NvmeHost:
    """`drives` and `ports`: as Guest's `nvme` and `nvme_ports`. `files`: paths in the
    guest -> paths here, beside the programs. `images`: as Guest's `files`. `tools`: of Guest's, those with drives."""

    def __init__(self, bench, drives, kernel_options="nvme_core.multipath=0", programs=(), files=None, ports=False, memory_mb=1024, tools="nvme",
                 images=None):
        self._bench = bench
        self._drives = drives
        run_as = shutil.copy(shutil.which("setpriv"), bench.path("run_as"))  # busybox's setpriv can't become another user
        archive = pack(bench.path("programs.tar"), [*(os.path.join(bench.bin_dir, name) for name in PROGRAMS), *programs, run_as], files)
        self.guest = bench.guest(tools=tools, memory_mb=memory_mb, kernel_options=kernel_options,
                                 files={"programs": archive, **(images or {})}, nvme=drives, nvme_ports=ports)
        self.guest.wait_ready()
        self.guest.run(f"tar x -f /dev/vda -C / && mkdir -p /dev/disk/by-id && {_STATE} && printf '{_PATHS}' >/run/paths.conf")
        for serial in drives:
            self.link(serial)

    # ---- Drives

    def namespace(self, serial):
        """What the kernel calls the namespace of the drive with that serial number, once it has it: nvme0n1, also where that is reached by
        several ways, of which nvme0c0n1 is one. A drive that came back while its former self was still open somewhere has other numbers, both."""
        return self.guest.run(
            f"until serial=$(grep -lx '{serial} *' /sys/class/nvme/nvme*/serial 2>/dev/null) && "
            "name=$(basename $(ls -d ${serial%serial}nvme*n* 2>/dev/null | head -n1) 2>/dev/null | sed 's/c[0-9]*n/n/') && "
            "[ -b /dev/$name ] && [ -c /dev/ng${name#nvme} ]; do sleep 0.05; done; echo $name").strip()

    def link(self, serial):
        """As a host's udev does with a drive that has come; the name that stays."""
        name = self.namespace(serial)
        self.guest.run(f"chown 1000 /dev/{name} /dev/ng{name.removeprefix('nvme')}; ln -sfn /dev/{name} {self.by_id(serial)}")
        return self.by_id(serial)

    def load_driver(self, multipath):
        """The kernel's driver anew, for drives that may have several ways to them or that have one; none is in use. The drives get other
        numbers."""
        self.guest.run("rmmod nvmet_tcp nvmet nvme_tcp nvme_fabrics 2>/dev/null; cd /lib/modules && rmmod nvme nvme_core && "
                       f"insmod nvme-core.ko multipath={int(multipath)} && insmod nvme.ko")
        for serial in self._drives:
            self.link(serial)

    @staticmethod
    def by_id(serial):
        return f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{serial}"

    # ---- Processes. As in production, none has any privilege unless a test gives it one.

    def start_cleatd(self, privileges=""):
        """`privileges`: options of setpriv's."""
        self.guest.run("rm -f /run/cleat/api.sock; " + AS_USER + privileges + "cleatd --state-dir /run/cleat/state --listen unix:/run/cleat/api.sock "
                       "--engine-socket /run/cleat/engine.sock --paths /run/paths.conf >>/run/cleatd.log 2>&1 & echo $! >/run/cleatd.pid; "
                       "until [ -S /run/cleat/api.sock ]; do sleep 0.05; done")

    def launch_engine(self, number=0, options="", limits=""):
        """`limits`: what the shell says before, "ulimit -l unlimited; "."""
        self.guest.run(limits + AS_USER + f"cleat-engine --name engine-{number} --control /run/cleat/engine.sock --runtime-dir /run/cleat/engine "
                       f"--reactors 1 --state-dir /run/cleat/state --paths /run/paths.conf {options} >>/run/engine-{number}.log 2>&1 & "
                       f"echo $! >/run/engine-{number}.pid")

    def start_engine(self, number=0, options="", limits=""):
        """As launch_engine, until cleatd has it."""
        self.launch_engine(number, options, limits)
        self.ctl("wait", f"engines/engine-{number}", "--timeout", "120")

    def kill_cleatd(self):
        self.guest.run("kill -9 $(cat /run/cleatd.pid)")

    def signal_engine(self, name, number=0):
        """`name`: as kill has it, "STOP"."""
        self.guest.run(f"kill -{name} $(cat /run/engine-{number}.pid)")

    def kill_engine(self, number=0):
        self.signal_engine("KILL", number)

    def clear(self, engines):
        """Ends cleatd and so many engines, and forgets all that they have kept."""
        pids = " ".join(f"$(cat /run/engine-{number}.pid)" for number in range(engines))
        self.guest.run(f"kill -9 $(cat /run/cleatd.pid); kill -9 {pids}; rm -rf /run/cleat /run/engine-*.log; {_STATE}")

    def ctl(self, *arguments):
        """What cleatctl says, as JSON where it says anything."""
        said = self.ctl_text("--output", "json", *arguments)
        try:
            return json.loads(said)
        except ValueError:
            return said

    def ctl_text(self, *arguments):
        """What cleatctl says, as people see it."""
        return self.guest.run("cleatctl --address unix:/run/cleat/api.sock " + " ".join(arguments))

    def wait_for(self, what, get, there):
        """Until `there` holds of what `get` returns, which is returned."""
        deadline = time.monotonic() + SECONDS
        while not there(last := get()):
            if time.monotonic() >= deadline:
                raise BenchError(f"{what}: not within {SECONDS} s; last: {last}")
            time.sleep(_POLL_SECONDS)
        return last
