# SPDX-License-Identifier: Apache-2.0
"""A host over NVMe/TCP that is nothing of Cleat's: one controller with one I/O queue, one command at a time. For what a target itself says, and
what it lets somebody do. Numbers by NVM Express Base 2.0 and the TCP transport 1.0."""

import socket
import struct
import time
import uuid

from cleat_guest.process import BenchError

BLOCK_BYTES = 512
RESERVATION_CONFLICT = 0x83
_SECONDS = 60  # for what can only hang
_POLL_SECONDS = 0.01
_IC_REQUEST, _IC_ANSWER, _COMMAND, _ANSWER, _DATA = 0, 1, 4, 5, 7  # types of PDUs
_IC_BYTES, _HEADER_BYTES, _COMMAND_BYTES, _DATA_HEADER_BYTES = 128, 8, 72, 24
_SUCCESS = 0x08  # a flag of the last data
_FABRICS, _SET, _CONNECT, _GET = 0x7f, 0, 1, 4
_CC, _ENABLE = 0x14, 0x00460001  # entries of 64 and 16 bytes
_CSTS, _READY = 0x1c, 1
_WRITE, _REPORT = 0x01, 0x0e
_IDENTIFY, _DESCRIPTORS, _UUID, _IDENTIFY_BYTES = 0x06, 3, 3, 4096
_EXTENDED = 1  # of a report: host identifiers of 128 bits
_REPORT_BYTES, _REGISTRANT_BYTES = 4096, 64
_IN_CAPSULE, _BY_TRANSPORT = 0x01, 0x5a  # SGL descriptors
_SGL = 0x40


class _Queue:
    """A connection."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), _SECONDS)
        self._commands = 0
        self._socket.sendall(struct.pack("<BBBBI", _IC_REQUEST, 0, _IC_BYTES, 0, _IC_BYTES).ljust(_IC_BYTES, b"\0"))
        if self._next()[0] != _IC_ANSWER:
            raise BenchError(f"{address}: no NVMe/TCP target")

    def close(self):
        self._socket.close()

    def command(self, opcode, nsid=0, fabrics=None, rest=b"", data=b"", reads=0):
        """`fabrics`: the type of a command of fabrics; `rest`: from byte 40 on; `data` goes to the target, `reads` bytes come from it. The
        status without its "do not retry", the first four bytes of the answer, and the data."""
        self._commands += 1
        sgl = struct.pack("<QI3xB", 0, len(data) or reads, _IN_CAPSULE if data else _BY_TRANSPORT)
        entry = struct.pack("<BBHI16x", opcode, _SGL, self._commands, nsid if fabrics is None else fabrics) + sgl + rest.ljust(24, b"\0")
        self._socket.sendall(struct.pack("<BBBBI", _COMMAND, 0, _COMMAND_BYTES, _COMMAND_BYTES if data else 0, _COMMAND_BYTES + len(data)) +
                             entry + data)
        got = bytearray(reads)
        while True:
            kind, flags, body = self._next()
            if kind == _DATA:
                offset, length = struct.unpack_from("<II", body, 4)
                got[offset:offset + length] = body[_DATA_HEADER_BYTES - _HEADER_BYTES:]
                if flags & _SUCCESS:  # no answer follows
                    return 0, 0, bytes(got)
            elif kind == _ANSWER:
                result, _, _, _, status = struct.unpack_from("<QHHHH", body)
                return status >> 1 & 0x7ff, result & 0xffffffff, bytes(got)
            else:
                raise BenchError(f"the target sent a PDU of type {kind}")

    def _next(self):
        """The type of the next PDU, its flags, and what is behind the common header."""
        kind, flags, _, _, length = struct.unpack("<BBBBI", self._take(_HEADER_BYTES))
        return kind, flags, self._take(length - _HEADER_BYTES)

    def _take(self, count):
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise BenchError("the target has closed the connection")
            data += more
        return data


class BareHost:
    """Namespace 1 of the subsystem `nqn`, without digests or secrets. `host_id`: 16 bytes, which are who this is to reservations.
    `keep_alive_ms`: how long it may be silent, as it never says that it is there; 0: for ever, which not every target accepts."""

    def __init__(self, address, nqn, host_id, host_nqn="nqn.2026-11.example:bare", keep_alive_ms=0):
        self._who = (host_id, nqn, host_nqn)
        self._keep_alive_ms = keep_alive_ms
        self._admin = _Queue(address)
        self._controller = 0xffff  # any
        self._controller = self._connect(self._admin, 0)
        self._right(self._admin.command(_FABRICS, fabrics=_SET, rest=struct.pack("<B3xIQ", 0, _CC, _ENABLE)), "enabling the controller")
        deadline = time.monotonic() + _SECONDS
        while not self._right(self._admin.command(_FABRICS, fabrics=_GET, rest=struct.pack("<B3xI", 0, _CSTS)), "its state") & _READY:
            if time.monotonic() >= deadline:
                raise BenchError("the target's controller does not become ready")
            time.sleep(_POLL_SECONDS)
        self._io = _Queue(address)
        self._connect(self._io, 1)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._io.close()
        self._admin.close()

    def registrants(self):
        """Their host identifiers, and the type of the reservation that is held; 0: none."""
        status, _, data = self._io.command(_REPORT, 1, rest=struct.pack("<II", _REPORT_BYTES // 4 - 1, _EXTENDED), reads=_REPORT_BYTES)
        if status:
            raise BenchError(f"the target's report of its reservation: status {status:#x}")
        kind, count = struct.unpack_from("<4xBH", data)
        entries = (data[_REGISTRANT_BYTES * (1 + index):] for index in range(count))
        return [entry[16:32] for entry in entries], kind

    def namespace_uuid(self):
        """Of its list of identification descriptors."""
        data = self._right_data(self._admin.command(_IDENTIFY, 1, rest=struct.pack("<I", _DESCRIPTORS), reads=_IDENTIFY_BYTES), "its names")
        while data[1]:
            kind, length = data[0], data[1]
            if kind == _UUID:
                return str(uuid.UUID(bytes=data[4:4 + length]))
            data = data[4 + length:]
        raise BenchError("the namespace has no UUID")

    def write(self, block, data):
        """The status of a write of one block: 0 is success."""
        return self._io.command(_WRITE, 1, rest=struct.pack("<QH", block, 0), data=data.ljust(BLOCK_BYTES, b"\0"))[0]

    def _connect(self, queue, number):
        host_id, nqn, host_nqn = self._who
        data = struct.pack("<16sH238x256s256s256x", host_id, self._controller, nqn.encode(), host_nqn.encode())
        return self._right(queue.command(_FABRICS, fabrics=_CONNECT, rest=struct.pack("<HHHBxI", 0, number, 31, 0, self._keep_alive_ms), data=data),
                           "connecting") & 0xffff

    @staticmethod
    def _right(answer, what):
        if answer[0]:
            raise BenchError(f"the target refuses {what}: status {answer[0]:#x}")
        return answer[1]

    @classmethod
    def _right_data(cls, answer, what):
        cls._right(answer, what)
        return answer[2]


def new_host_id():
    return uuid.uuid4().bytes
