// SPDX-License-Identifier: Apache-2.0
// Whatever a peer writes to its socket: framer, relay and session with a virtio-blk device behind it, on one thread in
// virtual time, and a protocol library that says yes to everything. The input is a list of pieces:
//   u8 kind (bit 7: raw bytes; otherwise a request with a sound header), u8 size, u8 descriptors, `size` bytes
// Nothing may crash, leak or hang, and the session always ends.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "block/pipeline.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "vhost/relay.h"
#include "vhost/session.h"
#include "virtio/blk_model.h"

namespace cleat::vhost {
namespace {

constexpr uint32_t kRings = 2;
constexpr off_t kFileBytes = 256 * 1024;
constexpr uint8_t kRaw = 0x80;
constexpr uint8_t kNeedReply = 0x40;
constexpr uint8_t kRequestMask = 0x3f;
constexpr int kTurnsMax = 100'000;

class NullChannel final : public block::Channel {
 public:
  void Submit(block::Request& request) override { request.Complete(block::IoStatus::kOk); }
};

class NullDevice final : public block::Device {
 public:
  NullDevice() : block::Device("null", TheGeometry()) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<NullChannel>());
  }

 private:
  static block::Geometry TheGeometry() {
    block::Geometry geometry;
    geometry.size_bytes = 1 << 20;
    return geometry;
  }
};

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int pair[2];
  CLEAT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  return {UniqueFd(pair[0]), UniqueFd(pair[1])};
}

class Bench {
 public:
  Bench() {
    Reactor::Options options;
    options.fd_check_interval_ns = 0;
    options.spin_ns = 0;
    reactor_ = Reactor::Make(clock_, options).value();
    pipeline_ = block::Pipeline::Make(std::make_unique<NullDevice>(), block::AccessMode::kReadWrite).value();
    channel_ = pipeline_->OpenChannel(*reactor_).value();
    model_ = std::make_unique<virtio::BlkModel>(pipeline_->geometry(), block::AccessMode::kReadWrite, "fuzz",
                                                kRings, [this](Reactor&) { return channel_.get(); });
    memory_ = UniqueFd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    CLEAT_CHECK(ftruncate(memory_.get(), kFileBytes) == 0);
    CLEAT_CHECK(fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  }

  void Run(std::span<const uint8_t> input) {
    Session::Options options;
    options.name = "fuzz";
    options.io_reactors = {reactor_.get()};
    Session session(options, *reactor_, pool_, *model_, [] {});
    Relay relay(*reactor_, session, *model_);
    auto [peer, relay_peer] = SocketPair();
    auto [library, relay_library] = SocketPair();
    ended_ = false;
    Spawn(Serve(relay, session, std::move(relay_peer), std::move(relay_library)));
    while (input.size() >= 3 && !ended_) {
      const size_t size = std::min<size_t>(input[1], input.size() - 3);
      Send(peer, input[0], input[2], input.subspan(3, size));
      input = input.subspan(3 + size);
      Settle(peer, library);
    }
    peer.Reset();
    for (int turn = 0; !ended_; ++turn) {
      CLEAT_CHECK(turn < kTurnsMax);
      Turn(library);
    }
  }

 private:
  Task<void> Serve(Relay& relay, Session& session, UniqueFd peer, UniqueFd library) {
    auto run = relay.Run(std::move(peer), std::move(library));
    (void)co_await std::move(run);
    auto end = session.End();
    co_await std::move(end);
    relay.Close();
    ended_ = true;
  }

  void Send(const UniqueFd& peer, uint8_t kind, uint8_t descriptors, std::span<const uint8_t> bytes) {
    std::vector<uint8_t> out;
    if ((kind & kRaw) == 0) {
      MessageHeader header;
      header.request = kind & kRequestMask;
      header.flags = kVersion | ((kind & kNeedReply) != 0 ? kFlagNeedReply : 0);
      header.size_bytes = static_cast<uint32_t>(bytes.size());
      out.resize(sizeof header);
      std::memcpy(out.data(), &header, sizeof header);
    }
    out.insert(out.end(), bytes.begin(), bytes.end());
    if (out.empty()) return;
    // Low four bits: how many; the next: memory, or eventfds.
    std::vector<UniqueFd> fds;
    for (int i = 0; i < (descriptors & 0x0f); ++i) {
      fds.push_back((descriptors & 0x10) != 0 ? memory_.Duplicate() : UniqueFd(eventfd(0, EFD_CLOEXEC)));
    }
    iovec io{out.data(), out.size()};
    alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(16 * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      for (size_t i = 0; i < fds.size(); ++i) {
        const int fd = fds[i].get();
        std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    (void)sendmsg(peer.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  bool Turn(const UniqueFd& library) {
    clock_.AdvanceBy(kNsPerUs);
    const bool worked = reactor_->RunOnce();
    return Answer(library) || worked;
  }

  void Settle(const UniqueFd& peer, const UniqueFd& library) {
    // A ring that is polled works at every turn: bounded.
    for (int turn = 0; turn < 64 && Turn(library); ++turn) {
    }
    std::array<uint8_t, 4096> answers;
    alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(8 * sizeof(int))> control;
    for (;;) {
      iovec io{answers.data(), answers.size()};
      msghdr header{};
      header.msg_iov = &io;
      header.msg_iovlen = 1;
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      if (recvmsg(peer.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) return;
      for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
          close(fd);
        }
      }
    }
  }

  // What reaches the library is whole: one read of a header, one of its payload.
  bool Answer(const UniqueFd& library) {
    Message message;
    const ssize_t got = recv(library.get(), &message.header, sizeof message.header, MSG_DONTWAIT);
    if (got <= 0) return false;
    CLEAT_CHECK(got == ssize_t{sizeof message.header});
    const uint32_t size = message.header.size_bytes;
    CLEAT_CHECK(size == 0 ||
                recv(library.get(), message.payload.data(), size, MSG_DONTWAIT) == ssize_t{size});
    const RequestShape* shape = FindRequest(message.header.request);
    CLEAT_CHECK(shape != nullptr && size >= shape->payload_bytes_min && size <= shape->payload_bytes_max);
    if (!shape->answered && !message.needs_reply()) return true;
    const MessageHeader header{message.header.request, kVersion | kFlagReply, sizeof(uint64_t)};
    std::array<uint8_t, sizeof header + sizeof(uint64_t)> reply{};
    std::memcpy(reply.data(), &header, sizeof header);
    (void)send(library.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return true;
  }

  ManualClock clock_;
  std::unique_ptr<Reactor> reactor_;
  BlockingPool pool_{0};
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<block::PipelineChannel> channel_;
  std::unique_ptr<virtio::BlkModel> model_;
  UniqueFd memory_;
  bool ended_ = true;
};

}  // namespace
}  // namespace cleat::vhost

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static cleat::vhost::Bench bench;
  bench.Run({data, size});
  return 0;
}
