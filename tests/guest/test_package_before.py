# SPDX-License-Identifier: Apache-2.0
"""A host with the package of an older version, CLEAT_PACKAGE_BEFORE, gets the present one under its guests' load."""

import json
import os
import unittest

from test_systemd import SECONDS, PackageTest

BEFORE = os.environ.get("CLEAT_PACKAGE_BEFORE")


@unittest.skipUnless(BEFORE, "CLEAT_PACKAGE_BEFORE names no package of an older version to come from")
class UpgradeFromBeforeTest(PackageTest):
    """Its disks lie where that version let them."""

    packages = {"before.deb": BEFORE}
    DEVICES = 3

    def test_no_guest_loses_its_disk(self):
        self.take(self.install_before, self.attach, self.upgrade, self.those_elsewhere_are_named, self.they_outlive_the_engine,
                  self.load_ends)

    def install_before(self):
        self.install_package("before.deb")
        for unit in ("cleatd", "cleat-engine@"):
            self.write(f"/etc/systemd/system/{unit}.service.d/srv.conf", "[Service]\nReadWritePaths=/srv")
        self.run_in_guest("chown cleat /srv /dev/vdc; chmod 600 /dev/vdc; systemctl daemon-reload; "
                          "systemctl restart cleatd cleat-engine@blue", SECONDS)
        self.until("cleatctl wait engines/blue --timeout 1 >/dev/null 2>&1")

    def attach(self):
        self.begin_load(self.DEVICES)
        self.attach_disk(0, "/var/lib/cleat/disks/d0.img", "--create")
        self.attach_disk(1, "/dev/vdc")
        self.attach_disk(2, "/srv/d2.img", "--create")
        self.in_use(self.DEVICES)

    def upgrade(self):
        self.install_package("cleat.deb")
        print(self.run_in_guest("cleat-upgrade 2>&1", SECONDS))
        listed = json.loads(self.run_in_guest("cleatctl controller list -o json"))["controllers"]
        self.assertEqual([controller["status"]["engine"] for controller in listed], ["engines/green"] * self.DEVICES)
        self.in_use(self.DEVICES)

    def those_elsewhere_are_named(self):
        for number, elsewhere in ((0, False), (1, True), (2, True)):
            message = json.loads(self.run_in_guest(f"cleatctl disk get d{number} -o json"))["status"].get("message", "")
            self.assertEqual("is not among the paths" in message, elsewhere, message)
        self.assertIn("disks/d2: '/srv/d2.img' is not among the paths", self.journal())
        status, text = self.guest.execute("cleatctl disk create d3 --file /srv/d3.img --create --size 64M")
        self.assertEqual((status, "PATH_NOT_ALLOWED" in text), (1, True), text)

    def they_outlive_the_engine(self):
        self.exchange("cleat-engine@green", "systemctl kill --signal=KILL cleat-engine@green")
        self.in_use(self.DEVICES)

    def load_ends(self):
        self.end_load()


if __name__ == "__main__":
    unittest.main()
