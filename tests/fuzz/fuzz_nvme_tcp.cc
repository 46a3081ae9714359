// SPDX-License-Identifier: Apache-2.0
// A controller made of random bytes against a host's NVMe/TCP connection with reads, and writes with and without their data along, in
// flight. Whatever it sends: no byte outside of a read's memory is written, memory is in place until its command has come back, each command
// comes back once, and an end is heard once and after all of them.
//
// An input: a byte of options (bit 0 header digest, bit 1 data digest, bit 2 the whole of an ICResp that fits is put in front, bit 3
// digests are made right: of the header of what comes at the beginning of a piece), then pieces: a byte that says what comes first (0-3
// sends a part of what is queued, 4-5 all of it, 6 submits a command, 7 nothing), a byte for how it is cut, and a piece with its length.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "block/memory.h"
#include "nvme/tcp/crc32c.h"
#include "nvme/tcp_host/host_connection.h"
#include "tests/fuzz/input.h"

namespace cleat::nvme::tcp {
namespace {

constexpr uint32_t kDepth = 6;
constexpr uint32_t kCommandsMax = 24;
constexpr uint32_t kInCapsuleBytes = 256;
constexpr uint32_t kPiecesMax = 200;

// One command, in memory of its own that is freed when it comes back: what touches it later is found by AddressSanitizer.
struct Command {
  bool reads = false;
  bool in_flight = false;
  std::vector<uint8_t> bytes;
  std::shared_ptr<block::MemoryRegion> region;
  std::array<block::Segment, 2> segments;
};

class FuzzHost final : public fabrics::QueuePairOwner {
 public:
  explicit FuzzHost(Digests digests)
      : connection_({.name = "fuzz",
                     .depth = kDepth,
                     .in_capsule_bytes = kInCapsuleBytes,
                     .digests = digests,
                     .receive_buffer_bytes = 700},
                    *this) {
    connection_.Start();
  }

  void Connected() override {
    CLEAT_CHECK(!connected_ && !ended_);
    connected_ = true;
    for (uint32_t i = 0; i < kDepth; ++i) Submit();
  }
  void Completed(uint64_t cookie, const fabrics::CompletionEntry&, uint64_t data_bytes) override {
    CLEAT_CHECK(data_bytes <= (commands_[cookie].reads ? commands_[cookie].bytes.size() : 0));
    Back(cookie);
    if (cookie % 3 == 0) Submit();
  }
  void Unanswered(uint64_t cookie, fabrics::Reached reached) override {
    CLEAT_CHECK(!commands_[cookie].reads || reached != fabrics::Reached::kNoData);
    Back(cookie);
  }
  void Ended(const Error& reason) override {
    CLEAT_CHECK(!ended_ && in_flight_ == 0 && !reason.message.empty());
    ended_ = true;
  }

  void Submit() {
    if (connection_.room() == 0 || count_ == kCommandsMax) return;
    Command& command = commands_[count_];
    static constexpr uint32_t kSizes[] = {4096, 9000, 200, 512, 0};
    const uint32_t size = kSizes[count_ % std::size(kSizes)];
    command.reads = count_ % 2 == 0;
    command.in_flight = true;
    command.bytes.assign(size, static_cast<uint8_t>(0x40 + count_));
    command.region = block::MemoryRegion::Borrow(command.bytes.data(), size);
    command.segments = {block::Segment{command.region.get(), 0, size / 3},
                        block::Segment{command.region.get(), size / 3, size - size / 3}};
    fabrics::QueuedCommand queued{.entry = {}, .to_target = {}, .from_target = {}, .cookie = count_};
    queued.entry.opcode = command.reads ? 2 : 1;
    (command.reads ? queued.from_target : queued.to_target) = command.segments;
    ++count_;
    ++in_flight_;
    connection_.Submit(queued);
  }

  // At most `bytes_max`, after a look at each byte of it.
  void Send(size_t bytes_max) {
    std::array<iovec, 5> iovecs;
    while (bytes_max > 0) {
      const uint32_t count = connection_.FillSend(iovecs);
      size_t bytes = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min(iovecs[i].iov_len, bytes_max - bytes);
        seen_ ^= Crc32cOf(iovecs[i].iov_base, part);
        bytes += part;
      }
      if (bytes == 0) return;
      bytes_max -= bytes;
      connection_.Sent(bytes);
    }
  }

  void Receive(std::span<const uint8_t> bytes, size_t step) {
    std::array<iovec, 3> iovecs;
    while (!bytes.empty()) {
      const uint32_t count = connection_.ReceiveSpace(iovecs);
      CLEAT_CHECK((count == 0) == ended_);
      if (count == 0) return;
      size_t came = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min({iovecs[i].iov_len, bytes.size(), step - came});
        if (part > 0) std::memcpy(iovecs[i].iov_base, bytes.data(), part);
        bytes = bytes.subspan(part);
        came += part;
      }
      connection_.Received(came);
    }
  }

  void Finish() {
    Send(SIZE_MAX);
    connection_.Abort(Error(ErrorCode::kCancelled, "the input's end"));
    CLEAT_CHECK(ended_ && in_flight_ == 0);
  }

 private:
  void Back(uint64_t cookie) {
    Command& command = commands_[cookie];
    CLEAT_CHECK(command.in_flight && !ended_);
    command.in_flight = false;
    --in_flight_;
    if (!command.reads) {
      for (const uint8_t byte : command.bytes) CLEAT_CHECK(byte == 0x40 + cookie);
    }
    command.region.reset();
    command.bytes = std::vector<uint8_t>();
  }

  std::array<Command, kCommandsMax> commands_;
  HostConnection connection_;
  uint64_t count_ = 0;
  uint32_t in_flight_ = 0;
  uint32_t seen_ = 0;
  bool connected_ = false;
  bool ended_ = false;
};

// Else nothing behind a digest would ever be reached.
void MakeHeaderDigest(std::vector<uint8_t>& piece) {
  constexpr size_t kHeaderBytes = 24;
  if (piece.size() < kHeaderBytes + kDigestBytes) return;
  const uint32_t digest = Crc32cOf(piece.data(), kHeaderBytes);
  std::memcpy(piece.data() + kHeaderBytes, &digest, sizeof(digest));
}

void Run(FuzzInput input) {
  const uint8_t options = input.Byte();
  const Digests digests{.header = (options & 1) != 0, .data = (options & 2) != 0};
  FuzzHost host(digests);
  if ((options & 4) != 0) {
    host.Send(SIZE_MAX);
    IcResp response;
    response.header = {PduType::kIcResp, 0, sizeof(IcResp), 0, sizeof(IcResp)};
    response.digests = options & 3;
    response.h2c_data_max_bytes = kH2cDataLeastBytes;
    host.Receive({reinterpret_cast<const uint8_t*>(&response), sizeof(response)}, SIZE_MAX);
  }
  for (uint32_t pieces = 0; !input.empty() && pieces < kPiecesMax; ++pieces) {
    const uint8_t what = input.Byte() & 7;
    if (what == 6) host.Submit();
    if (what < 6) host.Send(what < 4 ? size_t{1} << (what * 4) : SIZE_MAX);
    const size_t step = 1 + size_t{input.Byte()} * 16;
    const auto taken = input.Piece();
    std::vector<uint8_t> piece(taken.begin(), taken.end());
    if ((options & 8) != 0 && digests.header) MakeHeaderDigest(piece);
    host.Receive(piece, step);
  }
  host.Finish();
}

}  // namespace
}  // namespace cleat::nvme::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::tcp::Run(cleat::FuzzInput(data, size));
  return 0;
}
