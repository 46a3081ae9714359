# SPDX-License-Identifier: Apache-2.0
"""What an NVMe drive says of itself."""

import array
import fcntl
import os
import struct

NVME_IOCTL_ID = 0x4E40
NVME_IOCTL_ADMIN_CMD = 0xC0484E41


def features(drive):
    """What the drive says in Identify, by the names of the specification; of a drive that is no NVMe drive, nothing."""
    if not drive.is_nvme:
        return {}
    controller, space = _identify(drive.path, 1, 0), _identify(drive.path, 0, _nsid(drive.path))
    formats = [f"{1 << space[128 + 4 * i + 2]}+{struct.unpack_from('<H', space, 128 + 4 * i)[0]}" for i in range(space[25] + 1)
               if space[128 + 4 * i + 2]]
    version = struct.unpack_from("<I", controller, 80)[0]
    return {"VER": f"{version >> 16}.{version >> 8 & 255}", "MDTS": controller[77], "ONCS": f"{struct.unpack_from('<H', controller, 520)[0]:#x}",
            "VWC": controller[525], "LPA": f"{controller[261]:#x}", "SGLS": f"{struct.unpack_from('<I', controller, 536)[0]:#x}",
            "AWUPF": struct.unpack_from("<H", controller, 528)[0], "FLBAS": space[26], "DLFEAT": f"{space[33]:#x}",
            "formats (data+metadata)": ", ".join(formats)}


def _nsid(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        return fcntl.ioctl(handle, NVME_IOCTL_ID)
    finally:
        os.close(handle)


def _identify(path, cns, nsid):
    data = array.array("B", bytes(4096))
    address, _ = data.buffer_info()
    command = bytearray(struct.pack("<BBHIIIQQIIIIIIIIII", 6, 0, 0, nsid, 0, 0, 0, address, 0, 4096, cns, 0, 0, 0, 0, 0, 0, 0))
    handle = os.open(path, os.O_RDONLY)
    try:
        status = fcntl.ioctl(handle, NVME_IOCTL_ADMIN_CMD, command)
    finally:
        os.close(handle)
    if status != 0:
        raise OSError(f"{path}: Identify {cns} ended with NVMe status {status:#x}")
    return data.tobytes()
