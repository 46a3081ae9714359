# SPDX-License-Identifier: Apache-2.0
"""Programs of this machine's for a guest: an archive of them and the libraries that they load, at the same paths."""

import os
import re
import subprocess
import tarfile

_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
SECONDS = 120  # for what can only hang


def pack(archive, programs, files=None):
    """A tar archive of `programs`, which go to /bin, and of `files`: paths in the guest -> paths here. As a disk of the guest's it is
    unpacked by `tar x -f /dev/vda -C /`."""
    found = {}
    for program in programs:
        found["bin/" + os.path.basename(program)] = program
        told = subprocess.run(["ldd", program], check=True, capture_output=True, text=True, timeout=SECONDS).stdout
        for library in _LIBRARY.findall(told):
            found[library.lstrip("/")] = os.path.realpath(library)
    found.update({name.lstrip("/"): path for name, path in (files or {}).items()})
    with tarfile.open(archive, "w") as tar:
        for name, path in sorted(found.items()):
            tar.add(path, name)
    return archive
