# SPDX-License-Identifier: Apache-2.0
"""Secrets for tests over NVMe/TCP, made of a name each, in the forms that targets take: what `nvme gen-dhchap-key` and `nvme gen-tls-key` print.
And what Linux' target wants of a TLS key instead: the key that is derived of it for two names (NVMe TCP transport specification 1.0, 3.6.1)."""

import base64
import hashlib
import hmac
import os
import zlib

_KEY_BYTES = 32
_SHA256 = "01"  # by which a host transforms a secret, and by which a key's hash is named


def _wrapped(prefix, name):
    key = _key(name)
    text = base64.b64encode(key + zlib.crc32(key).to_bytes(4, "little")).decode()
    return f"{prefix}:{_SHA256}:{text}:"


def _key(name):
    return hashlib.sha256(name.encode()).digest()[:_KEY_BYTES]


def dhchap_secret(name):
    return _wrapped("DHHC-1", name)


def tls_psk(name):
    return _wrapped("NVMeTLSkey-1", name)


def _extract(secret):
    return hmac.new(bytes(_KEY_BYTES), secret, "sha256").digest()


def _expand(key, label, context):
    """HKDF-Expand-Label of RFC 8446, 7.1, as long as one hash."""
    label = b"tls13 " + label
    info = _KEY_BYTES.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    return hmac.new(key, info + b"\1", "sha256").digest()


def derived_psk(name, host_nqn, nqn):
    """The identity, and the key of that name which TLS uses by it: version 0, as SPDK and nvme-cli have it by default."""
    identity = f"NVMe0R{_SHA256} {host_nqn} {nqn}"
    retained = _expand(_extract(_key(name)), b"HostNQN", host_nqn.encode())
    return identity, _expand(_extract(retained), b"nvme-tls-psk", identity.encode())


def write_secret(path, secret):
    """As a file that nobody else may read, which targets insist on; the path."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(secret)
    return path
