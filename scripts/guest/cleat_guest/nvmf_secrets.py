# SPDX-License-Identifier: Apache-2.0
"""Secrets for tests over NVMe/TCP, made of a name each, in the forms that targets take: what `nvme gen-dhchap-key` and `nvme gen-tls-key` print.
And what Linux wants of a TLS key instead: the key that is derived of it for two names (NVMe TCP transport specification 1.0, 3.6.1)."""

import base64
import hashlib
import hmac
import os
import zlib

# Kinds of secrets, by the names of cleatctl's options.
HOST, SUBSYSTEM, TLS = "dhchap-secret", "dhchap-ctrl-secret", "tls-psk"
_KEY_BYTES = 32
# How many bytes a secret has, by the hash that it is transformed with, or that its key is used with; 0: a secret is taken as it is.
_HASH_BYTES = {0: 32, 1: 32, 2: 48, 3: 64}
SECRET_HASHES = tuple(_HASH_BYTES)
_SHA256 = 1


def _wrapped(prefix, name, hash_number):
    key = _key(name, _HASH_BYTES[hash_number])
    text = base64.b64encode(key + zlib.crc32(key).to_bytes(4, "little")).decode()
    return f"{prefix}:{hash_number:02}:{text}:"


def _key(name, length=_KEY_BYTES):
    return hashlib.shake_256(name.encode()).digest(length)


def dhchap_secret(name, hash_number=_SHA256):
    return _wrapped("DHHC-1", name, hash_number)


def tls_psk(name, hash_number=_SHA256):
    return _wrapped("NVMeTLSkey-1", name, hash_number)


FORMS = {HOST: dhchap_secret, SUBSYSTEM: dhchap_secret, TLS: tls_psk}


def _extract(secret):
    return hmac.new(bytes(_KEY_BYTES), secret, "sha256").digest()


def _expand(key, label, context):
    """HKDF-Expand-Label of RFC 8446, 7.1, as long as one hash."""
    label = b"tls13 " + label
    info = _KEY_BYTES.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    return hmac.new(key, info + b"\1", "sha256").digest()


def derived_psk(name, host_nqn, nqn):
    """The identity, and the key of that name which TLS uses by it: version 0, as SPDK and nvme-cli have it by default."""
    identity = f"NVMe0R{_SHA256:02} {host_nqn} {nqn}"
    retained = _expand(_extract(_key(name)), b"HostNQN", host_nqn.encode())
    return identity, _expand(_extract(retained), b"nvme-tls-psk", identity.encode())


def write_secret(path, secret):
    """As a file that nobody else may read, which targets insist on; the path."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(secret)
    return path


def secret_options(folder, secrets, *, removes_others=False):
    """Words of cleatctl's that give these secrets, kind -> secret, by files in `folder`; `removes_others`: and none of the other kinds."""
    words = []
    for kind in FORMS:
        if kind in secrets:
            words += [f"--{kind}-file", write_secret(os.path.join(folder, kind), secrets[kind])]
        elif removes_others:
            words.append(f"--no-{kind}")
    return words
