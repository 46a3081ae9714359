# SPDX-License-Identifier: Apache-2.0
"""A guest under QEMU's TCG with vhost-user disks, QEMU being the sockets' server."""

import base64
import functools
import itertools
import os
import shlex
import socket
import subprocess
import sys
import time

from cleat_guest.process import BenchError, Process, tail
from cleat_guest.qmp import Qmp

QEMU = "qemu-system-x86_64"
COMMAND_SECONDS = 240  # far above what any takes: emulated processors share the machine with whatever else runs
BOOT_SECONDS = 300
# How much longer than the guest's own limit for a command the host waits.
GRACE_SECONDS = 60
# The guest confirms a command within this time, or is sent it again.
RESEND_SECONDS = 3
# QEMU's TCG with a thread a processor: one may look up a page while another one's change of the memory map, as firmware and kernel
# make them at boot, takes its table away. Seen in 10.0.2, on a busy machine, once in some hundred boots.
TCG_RACE = "iotlb_to_section: Assertion"
# A guest whose clock is more than so many times too fast at a boot's end is booted again: the limits of its commands and all that it
# measures would be wrong. Its kernel measures the processor's clock at boot, and on a busy machine QEMU may stand still just then;
# 14 times was seen.
CLOCK_FACTOR_MAX = 1.5
# What the guest's kernel says, 21 s after its last sign of life, of a timer of a processor that never fires: seen in 10.0.2, on a
# busy machine, once in some thousand boots. It would be silent for ever.
TIMER_LOST = "Possible timer handling issue on cpu="
# A kernel that ends at boot although nothing but QEMU can have touched its memory, as none of its disks is a back end's: a page fault at an
# address of its map of all memory, in an interrupt, 2 s after power-on, was seen once, in 10.0.2.
PANIC = "Kernel panic - not syncing"
LOOK_SECONDS = 10  # how often a silent boot's console is looked at
BOOTS_MAX = 3
# QEMU's VIRTQUEUE_MAX_SIZE; a random number generator's queue has 8 entries.
LARGEST_QUEUE = 1024
# PCI slots on q35's root bus: disks from the first, SCSI controllers from the second, hot-plug ports from the third.
FIRST_DISK_SLOT = 0x08
FIRST_SCSI_SLOT = 0x10
FIRST_PORT_SLOT = 0x18
FIRST_CARD_NET = 2  # 10.0.2.0/24, as QEMU's own default
# What an image has beyond the basic tools; None: nothing.
IMAGES = {None: "initramfs.cpio", "fio": "initramfs-fio.cpio", "scsi": "initramfs-scsi.cpio",
          "crypt": "initramfs-crypt.cpio", "systemd": "initramfs-systemd.cpio", "nvme": "initramfs-nvme.cpio",
          "rdma": "initramfs-rdma.cpio"}
# What boots with another kernel than the rest.
KERNELS = {"nvme": "vmlinuz-nvme", "rdma": "vmlinuz-nvme"}


def _slot(number):
    return f"/sys/devices/pci0000:00/0000:00:{number:02x}.0"


@functools.cache
def _forced_queue_size():
    """The entries that QEMU gives every virtqueue whatever its device says, or None. Debian 13's QEMU 10.0.13 does so, and asks for an
    in-flight log of the size that the device says, so that the two must be made to agree."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen([QEMU, "-nodefaults", "-display", "none", "-no-user-config", "-machine", "q35", "-S", "-device",
                                    "virtio-rng-pci,id=rng", "-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon",
                                    "chardev=qmp,mode=control"], pass_fds=[theirs.fileno()])
        try:
            queue = Qmp(ours).command("x-query-virtio-queue-status", path="/machine/peripheral/rng/virtio-backend", queue=0)
        finally:
            process.kill()
            process.wait()
    size = queue["vring-num-default"]
    return size if size == LARGEST_QUEUE else None


class QemuEnded(BenchError):
    """QEMU ended by itself."""


class GuestSilent(BenchError):
    """The guest did not say what was waited for in time."""


class BadBoot(BenchError):
    """A boot failed, or is no good, as QEMU is known to make it: `boot_again` begins another one."""

    def __init__(self, message, boot_again):
        super().__init__(message)
        self.boot_again = boot_again


class GuestError(BenchError):
    """A command in the guest failed: `status` and `output` say how."""

    def __init__(self, command, status, output):
        super().__init__(f"in the guest, `{command}` ended with status {status}:\n{output}")
        self.status = status
        self.output = output


class Job:
    """A command that runs in the guest's background."""

    def __init__(self, guest, number, command):
        self._guest = guest
        self.path = f"/run/job.{number}"
        self.command = command

    def done(self):
        return self._guest.status(f"[ -e {self.path}.status ]") == 0

    def wait(self, timeout_s=COMMAND_SECONDS):
        """The command's output; GuestError when it failed."""
        self._guest.run(f"until [ -e {self.path}.status ]; do sleep 0.05; done", timeout_s)
        status, output = self._guest.execute(f"cat {self.path}.output; exit $(cat {self.path}.status)")
        if status != 0:
            raise GuestError(self.command, status, output)
        return output


class Guest:
    """One virtual machine. `disks` maps names to socket paths: those virtio-blk disks are there from the start;
    `scsi` maps names to socket paths of SCSI controllers, whose disks come and go. QEMU goes no further than to
    them until a back end has connected to each. Other blk disks come through `listen` and `plug`. `files` maps names to raw
    images that QEMU itself serves as virtio-blk disks. `tools`: "fio", "scsi" (sg3-utils, udev), "crypt"
    (cryptsetup), "systemd" (as PID 1; the first of `files` is the root that make_root.sh makes), "nvme" (Linux 6.12) or "rdma" (that, with soft-RoCE). `nvme` maps serial
    numbers to QEMU's words for NVMe drives: a dictionary with "drive", options of -drive, and "device", those of -device nvme beside
    drive, serial and id; `nvme_ports`: each has a PCI Express port of its own, and may be pulled out and plugged in again, and its "drive" is in
    the words of -blockdev. `counted`: one processor, whose clock goes by instructions, one a nanosecond. `kernel_options`:
    more of the kernel's, or of its modules'. `forwards`: pairs of an address here and a port of the guest's, each by a network card of its own;
    `uplinks`: so many cards more, by each of which the guest reaches this machine's loopback. `incoming`: does not
    boot, but waits for a guest that migrates into it. Made by Bench.guest, which says where the logs go."""

    def __init__(self, name, image_dir, log_dir, disks=None, scsi=None, queues=1, packed=False, ports=0, tools=None,
                 cpus=2, memory_mb=256, files=None, nvme=None, nvme_ports=False, incoming=False,
                 counted=False, kernel_options="", forwards=(), uplinks=0):
        self.name = name
        self._incoming = incoming
        self._image_dir = image_dir
        self._initramfs = IMAGES[tools]
        self._kernel = KERNELS.get(tools, "vmlinuz")
        self._disks = dict(disks or {})
        self._scsi = dict(scsi or {})
        self._files = dict(files or {})
        self._nvme = dict(nvme or {})
        self._nvme_ports = nvme_ports
        self._forwards = tuple(forwards)
        self._uplinks = uplinks
        self._counted = counted
        self._kernel_options = kernel_options
        self._queues = queues
        self._packed = packed
        self._ports = ports
        self._cpus = cpus
        self._memory_mb = memory_mb + (256 if tools == "fio" else 0)
        self._console_path = os.path.join(log_dir, f"{name}-console.log")
        self._log_path = os.path.join(log_dir, f"{name}-qemu.log")
        self._plugged = {}  # disk -> port
        self._sysfs = {}  # disk -> its PCI slot's folder in the guest, kept after the disk is unplugged
        self._jobs = 0
        self._commands = 0
        self._process = None

    # Life

    def start(self):
        for file in (self._kernel, self._initramfs):
            if not os.path.exists(os.path.join(self._image_dir, file)):
                raise BenchError(f"{self._image_dir}/{file} is missing: run scripts/guest/make_image.sh")
        qmp, qemu_qmp = socket.socketpair()
        port, qemu_port = socket.socketpair()
        self._begin_boot()
        with qemu_qmp, qemu_port:
            fds = (qemu_qmp.fileno(), qemu_port.fileno())
            self._process = Process(f"QEMU of {self.name}", self._command_line(*fds), self._log_path, pass_fds=fds)
        self._qmp_socket, self._port, self._buffer = qmp, port, b""
        self.qmp = Qmp(qmp)
        self._boot_id = None
        self._plugged = {}
        self._sysfs = {disk: _slot(FIRST_DISK_SLOT + index) for index, disk in enumerate([*self._disks, *self._files])}
        return self

    def kill(self):
        """Ends QEMU as a crash would. The guest can be started again."""
        if self._process is None:
            return
        self._process.kill()
        self._process = None
        self._qmp_socket.close()
        self._port.close()

    def __enter__(self):
        return self if self._process else self.start()

    def __exit__(self, *unused):
        self.kill()

    @property
    def pid(self):
        return self._process.pid

    def wait_ready(self, timeout_s=BOOT_SECONDS):
        """Until the guest has booted and takes commands. What is known to go wrong in QEMU at boot gets another boot."""
        for boot in itertools.count(1):
            try:
                self._wait_boot(timeout_s)
                break
            except BadBoot as bad:
                if boot == BOOTS_MAX:
                    raise
                print(f"{bad}: it is booted again", file=sys.stderr)
                bad.boot_again()
        return self

    def _wait_boot(self, timeout_s):
        """Until the next boot's end; BadBoot when it is one that another boot mends. Of a guest that ran before, its disks may be
        at fault for what looks like QEMU's: there, only a fast clock is mended."""
        first = self._boot_id is None
        try:
            self._boot_id, uptime = self._wait_boot_id(time.monotonic() + timeout_s, first)
        except QemuEnded as ended:
            if first and TCG_RACE in self._said(self._log_path):
                raise BadBoot(f"guest {self.name}: QEMU died of its own at boot ({TCG_RACE})", self._restart) from ended
            raise
        took = time.monotonic() - self._boot_began
        if uptime > took * CLOCK_FACTOR_MAX:
            raise BadBoot(f"guest {self.name}: its clock says {uptime:.0f} s after {took:.0f} s of booting", self._reset)

    def _wait_boot_id(self, deadline, first):
        """The next boot's id, and for how long it has been up by its own clock, in seconds."""
        while True:
            look = min(deadline, time.monotonic() + LOOK_SECONDS)
            try:
                line = self._read_line(look, "the boot's end")
            except GuestSilent as silent:
                self._look_for_bad_boot(self._said(self._console_path), first, silent)
                if look == deadline:
                    raise
                continue
            if line.startswith("READY "):
                _, boot_id, uptime = line.split()
                if boot_id != self._boot_id:
                    return boot_id, float(uptime)

    def _look_for_bad_boot(self, said, first, silent):
        """What the console of a boot that is `silent` shows: BadBoot when it is QEMU's, an error when the kernel has ended for good."""
        if first and TIMER_LOST in said:
            raise BadBoot(f"guest {self.name}: its kernel waits for a timer that QEMU lost", self._reset) from silent
        if PANIC not in said:
            return
        message = f"guest {self.name}: its kernel ended at boot; its console:\n{said}"
        if first and not (self._disks or self._scsi):
            raise BadBoot(message, self._reset) from silent
        raise BenchError(message) from silent

    def _said(self, path):
        """What came into that log since this boot began."""
        with open(path, "rb") as log:
            log.seek(self._logged_before[path])
            return log.read().decode(errors="replace")

    def _begin_boot(self):
        self._boot_began = time.monotonic()
        self._logged_before = {}
        for path in (self._console_path, self._log_path):
            with open(path, "ab") as log:  # QEMU appends to it, and makes it when it likes
                self._logged_before[path] = log.tell()

    def _restart(self):
        self.kill()
        self.start()

    def _reset(self):
        self._begin_boot()
        self.qmp.command("system_reset")

    def reset(self, timeout_s=BOOT_SECONDS):
        """The reset button: the guest gets no warning."""
        self._reset()
        return self.wait_ready(timeout_s)

    def reboot(self, timeout_s=BOOT_SECONDS):
        """A reboot that the guest does itself, after a sync."""
        command = "sync; reboot -f"
        self._begin_boot()
        self._wait_got(self._send(command, timeout_s), command, time.monotonic() + timeout_s)
        return self.wait_ready(timeout_s)

    # Live migration

    def begin_migration(self, target, path, megabytes_per_second=0, pause=False):
        """Into `target`, an incoming guest with the same devices, over a socket at `path`; goes on in QEMU's background.
        `pause`: it stops at "pre-switchover", with the guest stopped here and not yet running there."""
        target.qmp.command("migrate-incoming", uri=f"unix:{path}")
        capabilities = [{"capability": "pause-before-switchover", "state": pause}]
        self.qmp.command("migrate-set-capabilities", capabilities=capabilities)
        self.qmp.command("migrate-set-parameters", downtime_limit=1000,
                         max_bandwidth=(megabytes_per_second or 4096) << 20)
        self.qmp.command("migrate", uri=f"unix:{path}")

    def wait_migration(self, *wanted, timeout_s=COMMAND_SECONDS):
        """Until QEMU says one of these of the migration ("completed", "cancelled", ...), which it returns."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self.qmp.command("query-migrate")
            status = answer.get("status")
            if status in wanted:
                return status
            if status == "failed" or time.monotonic() >= deadline:
                raise BenchError(f"guest {self.name}: its migration is {status}, not {' or '.join(wanted)}: {answer}")
            time.sleep(0.02)

    def cancel_migration(self):
        self.qmp.command("migrate_cancel")
        return self.wait_migration("cancelled")

    def wait_running(self, timeout_s=COMMAND_SECONDS):
        deadline = time.monotonic() + timeout_s
        while not (answer := self.qmp.command("query-status"))["running"]:
            if time.monotonic() >= deadline:
                raise BenchError(f"guest {self.name} does not run: {answer}")
            time.sleep(0.02)

    def move_to(self, target):
        """The guest has migrated: this object is the guest in `target`'s QEMU from now on, its background jobs with it,
        and `target` is what is left of the old one."""
        for field in ("name", "qmp", "_process", "_qmp_socket", "_port", "_buffer", "_console_path", "_log_path", "_incoming",
                      "_disks", "_scsi"):
            mine, theirs = getattr(self, field), getattr(target, field)
            setattr(self, field, theirs)
            setattr(target, field, mine)

    # Commands

    def execute(self, command, timeout_s=COMMAND_SECONDS):
        """(status, output), standard error included. A command over its time is ended: status 143, or 124 under systemd."""
        number = self._send(command, timeout_s)
        deadline = time.monotonic() + timeout_s + GRACE_SECONDS
        self._wait_got(number, command, deadline)
        begin = f"BEGIN {number} "
        while not (line := self._read_line(deadline, f"`{command}`")).startswith(begin):
            if line.startswith("READY "):
                raise BenchError(f"guest {self.name} rebooted during `{command}`:\n{tail(self._console_path)}")
        status = int(line[len(begin):])
        lines = []
        while (line := self._read_line(deadline, f"`{command}`")) != f"END {number}":
            lines.append(line)
        return status, base64.b64decode("".join(lines)).decode(errors="replace")

    def status(self, command, timeout_s=COMMAND_SECONDS):
        return self.execute(command, timeout_s)[0]

    def run(self, command, timeout_s=COMMAND_SECONDS):
        """The output; GuestError when the status is not 0."""
        status, output = self.execute(command, timeout_s)
        if status != 0:
            raise GuestError(command, status, output)
        return output

    def background(self, command):
        self._jobs += 1
        path = f"/run/job.{self._jobs}"
        # Renamed into place: whoever sees the status sees all of it.
        self.run(f"{{ sh -c {shlex.quote(command)} >{path}.output 2>&1; echo $? >{path}.new; "
                 f"mv {path}.new {path}.status; }} >/dev/null 2>&1 &")
        return Job(self, self._jobs, command)

    def _send(self, command, timeout_s):
        self._commands += 1
        # The empty line ends what may be left of one that lost its end.
        self._line = f"\n{self._commands} {max(1, int(timeout_s))} {base64.b64encode(command.encode()).decode()} .\n"
        self._port.settimeout(GRACE_SECONDS)
        self._port.sendall(self._line.encode())
        return self._commands

    def _wait_got(self, number, command, deadline):
        """Until the guest has the command, sending it again as often as it takes: see init."""
        while True:
            try:
                line = self._read_line(min(deadline, time.monotonic() + RESEND_SECONDS), f"`{command}`")
            except GuestSilent:
                if time.monotonic() >= deadline:
                    raise
                self._port.sendall(self._line.encode())
                continue
            if line == f"GOT {number}":
                return
            if line.startswith("READY "):
                raise BenchError(f"guest {self.name} rebooted during `{command}`:\n{tail(self._console_path)}")

    def _read_line(self, deadline, awaited):
        while b"\n" not in self._buffer:
            self._port.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._port.recv(65536)
            except TimeoutError:
                raise GuestSilent(f"guest {self.name}: no end of {awaited} in time; the end of "
                                  f"{self._console_path}:\n{tail(self._console_path)}") from None
            except ConnectionResetError:
                data = b""
            if not data:
                self._process.wait(GRACE_SECONDS)
                raise QemuEnded(f"guest {self.name}: QEMU ended during {awaited}; the end of "
                                 f"{self._log_path}:\n{tail(self._log_path)}")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode(errors="replace").rstrip("\r")

    # Disks

    def device(self, disk, timeout_s=COMMAND_SECONDS):
        """The path of the disk in the guest, /dev/vda for instance; waits until it is there."""
        directory = f"{self._sysfs[disk]}/virtio*/block"
        name = self.run(f"until ls {directory} 2>/dev/null; do sleep 0.05; done", timeout_s)
        return f"/dev/{name.strip()}"

    def scsi_device(self, controller, target, timeout_s=COMMAND_SECONDS):
        """The path of the disk at the SCSI controller's target, /dev/sda for instance; waits until it is there."""
        directory = self._scsi_sysfs(controller, target)
        name = self.run(f"until ls {directory} 2>/dev/null; do sleep 0.05; done", timeout_s)
        return f"/dev/{name.strip()}"

    def wait_scsi_gone(self, controller, target, timeout_s=COMMAND_SECONDS):
        """Until the guest's kernel has let go of the disk at that target."""
        self.run(f"while ls {self._scsi_sysfs(controller, target)} >/dev/null 2>&1; do sleep 0.05; done", timeout_s)

    def scsi_targets(self, controller):
        """The targets at which the guest has a disk."""
        found = self.run(f"ls -d {self._scsi_sysfs(controller, '*')} 2>/dev/null || true").split()
        return sorted(int(path.split("/")[-2].split(":")[2]) for path in found)

    def _scsi_sysfs(self, controller, target):
        slot = _slot(FIRST_SCSI_SLOT + list(self._scsi).index(controller))
        return f"{slot}/virtio*/host*/target*:0:{target}/*:0:{target}:0/block"

    def wait_size(self, device, size_bytes, timeout_s=COMMAND_SECONDS):
        """Until the guest's kernel says that the disk is that large; nobody asks it to look."""
        file = f"/sys/block/{device.removeprefix('/dev/')}/size"
        self.run(f"until [ $(cat {file}) = {size_bytes // 512} ]; do sleep 0.05; done", timeout_s)

    def is_present(self, disk):
        return self.status(f"ls {self._sysfs[disk]}/virtio*/block") == 0

    def listen(self, disk, path):
        """Makes the socket of a disk that will be plugged in. QMP blocks in `plug` until a back end is there, so
        let it connect between the two."""
        address = {"type": "unix", "data": {"path": path}}
        backend = {"type": "socket", "data": {"addr": address, "server": True, "wait": False}}
        self.qmp.command("chardev-add", id=f"chardev-{disk}", backend=backend)

    def plug(self, disk, queues=1, timeout_s=COMMAND_SECONDS):
        free = [port for port in range(self._ports) if port not in self._plugged.values()]
        if not free:
            raise BenchError(f"guest {self.name}: all {self._ports} hot-plug ports are taken")
        self.qmp.command("device_add", timeout_s, driver="vhost-user-blk-pci", id=f"disk-{disk}",
                         chardev=f"chardev-{disk}", num_queues=queues, bus=f"port{free[0]}",
                         **({"queue_size": size} if (size := _forced_queue_size()) else {}))
        self._plugged[disk] = free[0]
        self._sysfs[disk] = _slot(FIRST_PORT_SLOT + free[0]) + "/0000:*"

    def unplug(self, disk, timeout_s=COMMAND_SECONDS):
        """Asks the guest for the device back, and removes its socket when it is gone."""
        self.qmp.command("device_del", id=f"disk-{disk}")
        self.qmp.wait_event("DEVICE_DELETED", timeout_s, device=f"disk-{disk}")
        self.qmp.command("chardev-remove", id=f"chardev-{disk}")
        del self._plugged[disk]

    def resize_file(self, disk, size_bytes):
        """Makes one of `files` larger, under the guest."""
        self.qmp.command("block_resize", device=f"drive-{disk}", size=size_bytes)

    # Network cards

    @staticmethod
    def card_address(card):
        """Each card has a network of its own: 10.0.2.0/24 and so on, of which this is the guest's address."""
        return f"10.0.{FIRST_CARD_NET + card}.15"

    @staticmethod
    def host_address(card):
        """By which the guest reaches what listens on 127.0.0.1 here, by a card of `uplinks`."""
        return f"10.0.{FIRST_CARD_NET + card}.2"

    def cards_up(self):
        """After each boot. No route leads any further than to this machine."""
        for card in range(len(self._forwards) + self._uplinks):
            self.run(f"ifconfig eth{card} {self.card_address(card)} netmask 255.255.255.0 up")

    def plug_cable(self, card, plugged):
        """Without its cable a card sends and gets nothing. Who connects to its port here is connected, and hears no word."""
        self.qmp.command_as_is("set_link", {"name": f"card{card}", "up": plugged})

    # NVMe drives

    def pull_nvme(self, serial, timeout_s=COMMAND_SECONDS):
        """Pulls the drive out of its port: nobody in the guest was asked. QEMU takes it when the port's slot control says that its power and
        power indicator are off; as the kernel has not said so itself, it hears of it by the interrupt of a card that is no longer present,
        which is held back until slot control is as it was."""
        port = f"/sys/bus/pci/devices/0000:00:{self._nvme_slot(serial):02x}.0"
        self._in_slot(serial, f"put $((low & ~32)) $((high | 7)); put $low $high; while ls -d {port}/0000:*:00.0 >/dev/null 2>&1; do sleep 0.05; done",
                      timeout_s)

    def plug_nvme(self, serial):
        """The drive comes back, with what is on it. QEMU presses the port's button as well, which the kernel might take for a wish to have a
        drive out that it has just found: so it hears of nothing until that is forgotten."""
        self._in_slot(serial, "put $((low & ~32)) $high")
        typed = {"on": True} | {str(size): size for size in (512, 4096)}  # QMP wants them so
        self.qmp.command_as_is("device_add", {key: typed.get(value, value) for key, value in self._nvme_device(serial).items()})
        self._in_slot(serial, "at=$((at + 2)); put 1 0; at=$((at - 2)); put $((low | 32)) $high")

    def _in_slot(self, serial, commands, timeout_s=COMMAND_SECONDS):
        """Runs `commands` in the guest, where $low and $high are the two bytes of slot control of the drive's port, which lie at $at of its
        configuration, and `put` writes two bytes there. Behind them lies slot status."""
        config = f"/sys/bus/pci/devices/0000:00:{self._nvme_slot(serial):02x}.0/config"
        self.run(f"byte() {{ od -An -tu1 -j $1 -N 1 {config} | tr -d ' '; }}; at=$(byte 52); "
                 "until [ $(byte $at) = 16 ]; do at=$(byte $((at + 1))); done; at=$((at + 24)); low=$(byte $at); high=$(byte $((at + 1))); "
                 f"put() {{ printf \"\\\\$(printf %03o $1)\\\\$(printf %03o $2)\" | dd of={config} bs=2 seek=$((at / 2)) conv=notrunc 2>/dev/null; }}; "
                 f"{commands}", timeout_s)

    def throttle_nvme(self, serial, bytes_per_second):
        """0: no limit."""
        self.monitor(f"block_set_io_throttle nvme-{serial} {bytes_per_second} 0 0 0 0 0")

    def monitor(self, line):
        """A command of QEMU's monitor for people; what it answers."""
        return self.qmp.command("human-monitor-command", command_line=line)

    def _nvme_slot(self, serial):
        return FIRST_PORT_SLOT + self._ports + list(self._nvme).index(serial)

    def _nvme_device(self, serial):
        device = {"driver": "nvme", "id": f"nvme-{serial}", "serial": serial, "drive": f"drive-{serial}"}
        if self._nvme_ports:
            # QEMU lets go of what was pulled out a while later.
            device |= {"bus": f"nvme-port-{serial}", "share-rw": "on"}
        return device | dict(word.split("=", 1) for word in self._nvme[serial].get("device", "").split(",") if word)

    def _command_line(self, qmp_fd, port_fd):
        argv = [
            QEMU, "-nodefaults", "-display", "none", "-no-user-config", "-name", self.name,
            "-machine", "q35,memory-backend=mem,hpet=off", "-accel", f"tcg,thread={'single' if self._counted else 'multi'}", "-cpu", "max,la57=off",
            *(["-icount", "shift=0"] if self._counted else []),
            "-smp", "1" if self._counted else str(self._cpus), "-m", str(self._memory_mb),
            "-object", f"memory-backend-memfd,id=mem,size={self._memory_mb}M,share=on",
            "-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control",
            "-chardev", f"file,id=console,path={self._console_path},append=on", "-serial", "chardev:console",
            "-chardev", f"socket,id=port,fd={port_fd}", "-serial", "chardev:port",
            "-kernel", os.path.join(self._image_dir, self._kernel),
            "-initrd", os.path.join(self._image_dir, self._initramfs),
            "-append", "console=ttyS0 quiet panic=0 nokaslr mitigations=off tsc=reliable no_timer_check init_on_alloc=0 "
                       f"random.trust_cpu=on {self._kernel_options}",
        ]
        packed = "on" if self._packed else "off"
        size = _forced_queue_size()
        blk_size, scsi_size = (f",queue-size={size}", f",virtqueue_size={size}") if size else ("", "")
        for index, (disk, path) in enumerate(self._disks.items()):
            argv += ["-chardev", f"socket,id=chardev-{disk},path={path},server=on,wait=off",
                     "-device", f"vhost-user-blk-pci,id=disk-{disk},chardev=chardev-{disk},"
                                f"num-queues={self._queues},packed={packed},addr={FIRST_DISK_SLOT + index:#x}{blk_size}"]
        for index, (disk, path) in enumerate(self._files.items(), len(self._disks)):
            argv += ["-drive", f"file={path},format=raw,if=none,id=drive-{disk}",
                     "-device", f"virtio-blk-pci,id=disk-{disk},drive=drive-{disk},addr={FIRST_DISK_SLOT + index:#x}"]
        if self._nvme_ports:  # by the kernel's own driver of such ports, which sees what is pulled out; ACPI's is asked first
            argv += ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
        for serial, drive in self._nvme.items():
            if self._nvme_ports:
                slot = self._nvme_slot(serial)
                argv += ["-device", f"pcie-root-port,id=nvme-port-{serial},chassis={slot},addr={slot:#x}"]
            # A block node, unlike a drive, outlives the device that uses it.
            backend = ["-blockdev", f"{drive['drive']},node-name=drive-{serial}"] if self._nvme_ports else [
                "-drive", f"{drive['drive']},if=none,id=drive-{serial}"]
            device = ",".join(f"{key}={value}" for key, value in self._nvme_device(serial).items())
            argv += [*backend, "-device", device.removeprefix("driver=")]
        for index, (controller, path) in enumerate(self._scsi.items()):
            argv += ["-chardev", f"socket,id=chardev-{controller},path={path},server=on,wait=off",
                     "-device", f"vhost-user-scsi-pci,id=scsi-{controller},chardev=chardev-{controller},"
                                f"num_queues={self._queues},packed={packed},addr={FIRST_SCSI_SLOT + index:#x}{scsi_size}"]
        cards = [f",restrict=on,hostfwd=tcp:{address}-{self.card_address(card)}:{port}" for card, (address, port) in enumerate(self._forwards)]
        for card, options in enumerate([*cards, *[""] * self._uplinks]):
            argv += ["-netdev", f"user,id=net{card},ipv6=off,net=10.0.{FIRST_CARD_NET + card}.0/24{options}",
                     "-device", f"virtio-net-pci,id=card{card},netdev=net{card},romfile="]
        if self._incoming:
            argv += ["-incoming", "defer"]
        for port in range(self._ports):
            argv += ["-device", f"pcie-root-port,id=port{port},chassis={port + 1},addr={FIRST_PORT_SLOT + port:#x}"]
        return argv
