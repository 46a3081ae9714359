// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvme/tls/session_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace cleat::nvme::tls {

std::unique_ptr<Session> MakeSession(ConnectionKey key, const SessionLimits& limits) {
  return Session::Make(std::move(key), limits).value();
}

Bytes TakeOutput(Session& session) {
  const auto output = session.output();
  Bytes bytes(output.begin(), output.end());
  session.Sent(bytes.size());
  return bytes;
}

void Feed(Session& session, const Bytes& bytes, const std::function<void()>& use, size_t step) {
  for (size_t at = 0; at < bytes.size();) {
    const auto space = session.InputSpace();
    const size_t count = std::min({step, space.size(), bytes.size() - at});
    ASSERT_GT(count, 0U);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), count, space.begin());
    session.Came(count);
    at += count;
    use();
  }
}

std::optional<Error> Connect(Session& session, TlsPeer& peer, size_t step) {
  for (int turn = 0; turn < 10; ++turn) {
    Result<bool> done = session.GoOn();
    if (!done.ok()) return done.error();
    peer.Give(TakeOutput(session));
    const bool peer_done = peer.Handshake();
    if (*done && peer_done) return std::nullopt;
    std::optional<Error> error;
    const auto use = [&] {
      const Result<bool> more = session.GoOn();
      if (!more.ok()) error = more.error();
    };
    Feed(session, peer.Take(), use, step);
    if (error) return error;
  }
  return Error(ErrorCode::kDeadlineExceeded, "the two do not come to an end");
}

Bytes RandomBytes(size_t bytes, uint64_t seed) {
  Random random(seed);
  Bytes data(bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Next());
  return data;
}

std::vector<iovec> Cut(Bytes& data, const std::vector<size_t>& sizes) {
  std::vector<iovec> pieces;
  for (size_t at = 0, i = 0; at < data.size(); ++i) {
    const size_t bytes = std::min(sizes[i % sizes.size()], data.size() - at);
    pieces.push_back({data.data() + at, bytes});
    at += bytes;
  }
  return pieces;
}

Bytes Send(Session& session, TlsPeer& peer, Bytes data, const std::vector<size_t>& sizes) {
  Bytes arrived;
  for (size_t at = 0; at < data.size();) {
    Bytes rest(data.begin() + static_cast<ptrdiff_t>(at), data.end());
    const auto pieces = Cut(rest, sizes);
    const Result<size_t> taken = session.Write(pieces);
    EXPECT_TRUE(taken.ok() && *taken > 0);
    if (!taken.ok() || *taken == 0) break;
    at += *taken;
    peer.Give(TakeOutput(session));
    const auto got = peer.Read();
    if (got) arrived.insert(arrived.end(), got->begin(), got->end());
  }
  return arrived;
}

Received Receive(Session& session, const Bytes& bytes, size_t step, const std::vector<size_t>& sizes) {
  Received all;
  Bytes room(40'000);
  const auto pieces = Cut(room, sizes);
  const auto use = [&] {
    for (;;) {
      const Result<size_t> got = session.Read(pieces);
      if (!got.ok()) all.error = got.error();
      if (!got.ok() || *got == 0) return;
      all.data.insert(all.data.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(*got));
    }
  };
  Feed(session, bytes, use, step);
  return all;
}
Received Receive(Session& session, const Bytes& bytes) {
  return Receive(session, bytes, SIZE_MAX, {100'000});
}

Pair::Pair(const char* key, const TlsServer::Options& options, const SessionLimits& limits)
    : session(MakeSession(TlsKey(key), limits)), server(TlsKey(key), options) {
  const auto error = Connect(*session, server);
  EXPECT_FALSE(error) << error->message;
  // Tickets that came with the handshake.
  EXPECT_FALSE(Receive(*session, server.Take()).error);
}

bool Mentions(const Error& error, const char* text) {
  return error.message.find(text) != std::string::npos;
}

}  // namespace cleat::nvme::tls
