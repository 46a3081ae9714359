# SPDX-License-Identifier: Apache-2.0
"""A disk keeps its names: what udev makes of it below /dev/disk/by-id is the same after detach and attach, at another
target, behind another controller, after a reboot, with another engine, and on another host."""

import unittest

from cleat_guest import BenchTest

WWN = "0x5000c500a1b2c3d4"


class ScsiNamesTest(BenchTest):
    def start(self):
        self.cleat = self.bench.cleat()
        sockets = {name: self.bench.path(f"{name}.sock") for name in ("first", "second")}
        for name, path in sockets.items():
            self.cleat.create_controller(name, path, kind="scsi")
        self.cleat.create_memory_disk("given", "64M", "--wwn", WWN, "--serial", "serial-1")
        self.cleat.create_memory_disk("made", "64M")
        self.guest = self.bench.guest(scsi=sockets, tools="scsi").wait_ready()

    def attach(self, disk, controller, target):
        self.assertEqual(self.cleat.attach_scsi(disk, controller, "--target", str(target)), target)
        device = self.guest.scsi_device(controller, target)
        return device, self.names(device)

    def settle(self):
        """udev has seen all that the kernel said until now. Asked again, once: the daemon may hang up on a client that is about to
        say its last word (systemd 252, "Broken pipe")."""
        self.guest.run("udevadm settle --timeout=200 || udevadm settle --timeout=200")

    def names(self, device):
        self.settle()
        output = self.guest.run(f"udevadm info --query=symlink {device}")
        return sorted(name for name in output.split() if name.startswith("disk/by-id/"))

    def detach(self, disk, controller, target):
        self.cleat.detach_scsi(disk, controller)
        self.guest.wait_scsi_gone(controller, target)

    def test_names_stay(self):
        self.start()
        _, given = self.attach("given", "first", 0)
        self.assertIn(f"disk/by-id/wwn-{WWN}", given)
        self.assertIn(f"disk/by-id/scsi-3{WWN[2:]}", given)
        device, made = self.attach("made", "first", 1)
        self.assertTrue(any(name.startswith("disk/by-id/wwn-0x3") for name in made), made)
        self.assertEqual(self.guest.run(f"lsblk -dn -o SERIAL,WWN {device}").split(),
                         ["made", next(name for name in made if "wwn-" in name).partition("wwn-")[2]])

        self.detach("given", "first", 0)
        self.detach("made", "first", 1)
        self.settle()
        self.guest.run("[ -z \"$(ls /dev/disk/by-id 2>/dev/null)\" ]")
        # The other way round, elsewhere.
        self.assertEqual(self.attach("made", "first", 5)[1], made)
        self.assertEqual(self.attach("given", "second", 7)[1], given)

        self.guest.reboot()
        self.assertEqual(self.names(self.guest.scsi_device("first", 5)), made)
        self.assertEqual(self.names(self.guest.scsi_device("second", 7)), given)

        # Another engine process takes over: the kernel sees the same disks, and asks them anew.
        self.cleat.restart_engine()
        device = self.guest.scsi_device("first", 5)
        self.guest.run(f"echo 1 >/sys/block/{device[5:]}/device/rescan && udevadm trigger --settle {device}")
        self.assertEqual(self.names(device), made)
        self.guest.kill()
        self.cleat.kill()

        # Another host: nothing is left of the first but the disks' ids and specs.
        with type(self.bench)(f"{self.bench.name}-other-host") as self.bench:
            self.start()
            self.assertEqual(self.attach("made", "second", 2)[1], made)
            self.assertEqual(self.attach("given", "second", 0)[1], given)


if __name__ == "__main__":
    unittest.main()
