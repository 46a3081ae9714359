#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/check_includes.py refuses, on a tree of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/check_includes.py")


class Includes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        os.makedirs(os.path.join(self.root, "scripts"))
        shutil.copy(SCRIPT, os.path.join(self.root, "scripts"))

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def found(self):
        script = os.path.join(self.root, "scripts/check_includes.py")
        done = subprocess.run([sys.executable, "-B", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1 if done.stdout else 0)
        return done.stdout

    def test_the_order_of_the_folders(self):
        self.write("src/virtio/good.h", '#include <vector>\n#include "block/device.h"\n')
        self.assertEqual(self.found(), "")
        self.write("src/virtio/bad.h", '// Says why.\n#include "vhost/session.h"\n')
        self.assertEqual(self.found(), "src/virtio/bad.h:2: virtio must not include vhost (vhost/session.h)\n")

    def test_the_order_of_the_rooms(self):
        self.write("src/perf/ring/good.h", '#include "perf/wire/virtqueue.h"\n')
        self.assertEqual(self.found(), "")
        self.write("src/perf/wire/bad.h", '#include "perf/ring/driver_ring.h"\n')
        self.assertEqual(self.found(), "src/perf/wire/bad.h:1: perf/wire must not include perf/ring (perf/ring/driver_ring.h)\n")

    def test_no_room_holds_more_than_twelve_files(self):
        for number in range(13):
            self.assertEqual(self.found(), "")
            self.write(f"src/engine/link/file{number}.h", "")
        self.assertEqual(self.found(), "src/engine/link has 13 files, 12 may be: more are two concepts\n")

    def test_no_file_is_longer_than_a_reader_can_keep_in_mind(self):
        self.write("src/virtio/ring.h", "\n" * 250)
        self.write("src/virtio/ring.cc", "\n" * 600)
        self.assertEqual(self.found(), "")
        self.write("src/virtio/ring.h", "\n" * 251)
        self.write("modules/ram/ram_test.cc", "\n" * 601)
        self.assertEqual(
            self.found(),
            "src/virtio/ring.h: 251 lines, 250 may be: more are two concepts\n"
            "modules/ram/ram_test.cc: 601 lines, 600 may be: more are two concepts\n",
        )

    def test_rooms_have_rooms(self):
        self.write("src/control/state/moves/good.h", '#include "control/state/tables/tables.h"\n#include "control/store/store.h"\n')
        self.assertEqual(self.found(), "")
        self.write("src/control/state/tables/bad.h", '#include "control/state/moves/upgrades.h"\n')
        self.write("src/control/store/bad.h", '#include "control/state/tables/tables.h"\n')
        self.assertEqual(
            sorted(self.found().splitlines()),
            [
                "src/control/state/tables/bad.h:1: control/state/tables must not include control/state/moves"
                " (control/state/moves/upgrades.h)",
                "src/control/store/bad.h:1: control/store must not include control/state (control/state/tables/tables.h)",
            ],
        )


if __name__ == "__main__":
    unittest.main()
