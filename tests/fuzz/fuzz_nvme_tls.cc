// SPDX-License-Identifier: Apache-2.0
// A peer made of random bytes against a TLS session, a target against a host's and a host against a target's: in the place of the handshake, in
// the place of records, and as the content of records that are made with the right keys, which is where most rules are. Whatever comes: what is given as data is exactly the
// data of the records before the first error, an error is for good, and no buffer is left behind or grows.
//
// An input: a byte of options (bit 0: the handshake is made by an honest peer first; bit 1: what is left of the input are bytes as they
// are, otherwise contents of records with a length in front of each; bit 2: the session is a target's), a byte for how the bytes are cut, and the rest.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "nvme/tls/session.h"
#include "tests/fuzz/input.h"
#include "tests/unit/nvme/tls/server.h"

namespace cleat::nvme::tls {
namespace {

using test::Bytes;
using test::TlsClient;
using test::TlsKey;
using test::TlsPeer;
using test::TlsServer;

Result<ConnectionKey> FindKey(std::string_view identity) {
  ConnectionKey key = TlsKey();
  if (key.identity == identity) return key;
  return Error(ErrorCode::kPermissionDenied, "nobody is known by that name");
}

class FuzzEnd {
 public:
  explicit FuzzEnd(Role role)
      : session_(role == Role::kHost ? Session::Make(TlsKey()).value()
                                     : Session::MakeForTarget(FindKey).value()) {
    (void)session_->GoOn();
  }

  void ShakeHands(TlsPeer& peer) {
    while (!session_->established()) {
      peer.Give(session_->output());
      session_->Sent(session_->output().size());
      peer.Handshake();
      Receive(peer.Take(), SIZE_MAX);
      CLEAT_CHECK(!failed_);
    }
    peer.Give(session_->output());
    session_->Sent(session_->output().size());
    CLEAT_CHECK(peer.Handshake());
  }

  void Receive(std::span<const uint8_t> bytes, size_t step) {
    while (!bytes.empty() && !failed_) {
      const auto space = session_->InputSpace();
      CLEAT_CHECK(!space.empty());
      const size_t count = std::min({step, space.size(), bytes.size()});
      std::copy_n(bytes.begin(), count, space.begin());
      session_->Came(count);
      bytes = bytes.subspan(count);
      if (!session_->established()) {
        if (!session_->GoOn().ok()) failed_ = true;
      } else {
        Read();
      }
    }
  }

  // A session that has failed keeps its promises too.
  void Finish() {
    CLEAT_CHECK(session_->output().size() <= Session::kOutputBytes);
    if (!session_->established()) {
      CLEAT_CHECK(!failed_ || !session_->GoOn().ok());
      return;
    }
    Bytes room(100);
    const iovec piece{room.data(), room.size()};
    CLEAT_CHECK(session_->Write({&piece, 1}).ok() == !failed_);
    CLEAT_CHECK(session_->Read({&piece, 1}).ok() == !failed_);
    session_->Close();
  }

  const Bytes& data() const { return data_; }
  bool failed() const { return failed_; }

 private:
  void Read() {
    for (;;) {
      Bytes room(700);
      const iovec pieces[] = {{room.data(), 3}, {room.data() + 3, 0}, {room.data() + 3, room.size() - 3}};
      const Result<size_t> got = session_->Read(pieces);
      failed_ |= !got.ok();
      if (!got.ok() || *got == 0) return;
      data_.insert(data_.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(*got));
    }
  }

  std::unique_ptr<Session> session_;
  Bytes data_;
  bool failed_ = false;
};

// The records of the input, and the data that an honest reader finds in them.
Bytes MakeRecords(FuzzInput& input, RecordCipher first, Bytes& data) {
  std::optional<RecordCipher> cipher(std::move(first));
  Bytes records;
  while (!input.empty()) {
    auto content = input.Piece();
    content = content.first(std::min(content.size(), kRecordDataBytesMax));
    Bytes record(kRecordHeaderBytes + content.size() + kRecordTagBytes);
    std::copy(content.begin(), content.end(), record.begin() + kRecordHeaderBytes);
    if (content.empty()) record.push_back(0);
    size_t size = content.size();
    while (size > 0 && content[size - 1] == 0) --size;
    if (size > 0 && content[size - 1] == static_cast<uint8_t>(ContentType::kData))
      data.insert(data.end(), content.begin(), content.begin() + static_cast<ptrdiff_t>(size - 1));
    cipher->Seal(record, static_cast<ContentType>(content.empty() ? 0 : content.back()));
    records.insert(records.end(), record.begin(), record.end());
    // The keys go on with each whole KeyUpdate that is alone in its record, which is all that an input can say of it here.
    const Bytes text(content.begin(), content.begin() + static_cast<ptrdiff_t>(size));
    if (text == Bytes{24, 0, 0, 1, 0, 22} || text == Bytes{24, 0, 0, 1, 1, 22}) {
      Result<RecordCipher> next = cipher->Next();
      cipher.emplace(std::move(next).value());
    }
  }
  return records;
}

void Run(Role role, TlsPeer& peer, uint8_t options, FuzzInput input) {
  const size_t step = input.Byte() + size_t{1};
  FuzzEnd end(role);
  const bool shakes_hands = (options & 1) != 0;
  if (shakes_hands) end.ShakeHands(peer);
  if (!shakes_hands || (options & 2) != 0) {
    end.Receive(input.Rest(), step);
    CLEAT_CHECK(end.data().empty());
    return end.Finish();
  }
  Bytes data;
  end.Receive(MakeRecords(input, peer.Forge(), data), step);
  CLEAT_CHECK(end.data().size() <= data.size());
  CLEAT_CHECK(std::equal(end.data().begin(), end.data().end(), data.begin()));
  CLEAT_CHECK(end.failed() || end.data().size() == data.size());
  end.Finish();
}

void Run(FuzzInput input) {
  const uint8_t options = input.Byte();
  if ((options & 4) != 0) {
    TlsClient client(TlsKey());
    return Run(Role::kTarget, client, options, input);
  }
  TlsServer server(TlsKey(), {.tickets = 0});
  Run(Role::kHost, server, options, input);
}

}  // namespace
}  // namespace cleat::nvme::tls

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::tls::Run(cleat::FuzzInput(data, size));
  return 0;
}
