# SPDX-License-Identifier: Apache-2.0
"""A QMP client: commands one at a time, events kept until somebody asks for them."""

import json
import time

from cleat_guest.process import BenchError


ANSWER_SECONDS = 120  # for what can only hang: QEMU that starts on a busy machine


class Qmp:
    """Speaks over a connected socket; not thread-safe."""

    def __init__(self, sock):
        self._sock = sock
        self._buffer = b""
        self._events = []
        self._greeted = False

    def command(self, name, timeout_s=ANSWER_SECONDS, **arguments):
        """The command's return value; `_` in a name stands for `-`."""
        return self.command_as_is(name, {key.replace("_", "-"): value for key, value in arguments.items()}, timeout_s)

    def command_as_is(self, name, arguments, timeout_s=ANSWER_SECONDS):
        """The same, with names as they are. QEMU greets before it makes devices but answers only afterwards."""
        deadline = time.monotonic() + timeout_s
        if not self._greeted:
            self._next_message(deadline, name)
            self._greeted = True
            self._exchange({"execute": "qmp_capabilities"}, deadline)
        return self._exchange({"execute": name, "arguments": arguments}, deadline)

    def wait_event(self, name, timeout_s=ANSWER_SECONDS, **data):
        """Takes the first event of that name whose data has these values."""
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self._events:
                if event["event"] == name and data.items() <= event.get("data", {}).items():
                    self._events.remove(event)
                    return event
            message = self._next_message(deadline, f"event {name}")
            if "event" in message:
                self._events.append(message)

    def _exchange(self, request, deadline):
        self._sock.sendall(json.dumps(request).encode() + b"\n")
        while True:
            message = self._next_message(deadline, request["execute"])
            if "event" in message:
                self._events.append(message)
            elif "error" in message:
                raise BenchError(f"QMP {request['execute']}: {message['error']['desc']}")
            else:
                return message["return"]

    def _next_message(self, deadline, awaited):
        while b"\n" not in self._buffer:
            self._sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._sock.recv(65536)
            except TimeoutError:
                raise BenchError(f"QEMU did not answer QMP in time ({awaited}); a device without its back end "
                                 "blocks it") from None
            if not data:
                raise BenchError(f"QEMU closed QMP ({awaited})")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)
