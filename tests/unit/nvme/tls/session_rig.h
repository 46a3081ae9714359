// SPDX-License-Identifier: Apache-2.0
// A TLS session (nvme/tls/session.h) and OpenSSL at the other end, whose bytes a test carries from the one to the other: honestly, or changed
// on their way.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "nvme/tls/psk.h"
#include "nvme/tls/session.h"
#include "tests/unit/nvme/tls/server.h"

namespace cleat::nvme::tls {

using test::Bytes;
using test::kOtherTlsKey;
using test::kTlsKeys;
using test::TlsClient;
using test::TlsKey;
using test::TlsPeer;
using test::TlsServer;

std::unique_ptr<Session> MakeSession(ConnectionKey key = TlsKey(), const SessionLimits& limits = {});

// What the session has for its peer by now.
Bytes TakeOutput(Session& session);

// Puts the bytes into the session, at most `step` at a time, and calls `use` after each.
void Feed(Session& session, const Bytes& bytes, const std::function<void()>& use, size_t step = SIZE_MAX);

// Both ends shake hands as far as they go. nullopt: it worked.
std::optional<Error> Connect(Session& session, TlsPeer& peer, size_t step = SIZE_MAX);

Bytes RandomBytes(size_t bytes, uint64_t seed);

// Cuts data into pieces of sizes that follow each other.
std::vector<iovec> Cut(Bytes& data, const std::vector<size_t>& sizes);

// All of it to the peer, by as many turns as it takes; what has arrived there.
Bytes Send(Session& session, TlsPeer& peer, Bytes data, const std::vector<size_t>& sizes);

// What the session makes of `bytes`, which came in steps.
struct Received {
  Bytes data;
  std::optional<Error> error;
};
Received Receive(Session& session, const Bytes& bytes, size_t step, const std::vector<size_t>& sizes);
Received Receive(Session& session, const Bytes& bytes);

// Both ends of a connection whose handshake is over.
struct Pair {
  explicit Pair(const char* key = kTlsKeys[0], const TlsServer::Options& options = {},
                const SessionLimits& limits = {});
  std::unique_ptr<Session> session;
  TlsServer server;
};

bool Mentions(const Error& error, const char* text);

}  // namespace cleat::nvme::tls
