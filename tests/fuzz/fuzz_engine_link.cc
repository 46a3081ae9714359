// SPDX-License-Identifier: Apache-2.0
// cleatd's side of the engine socket: whatever a process sends that was let in. Link, reconciler and host state
// are the real ones, with a disk, a controller and an attachment that the host should have. The input is a
// list of pieces, each sent as one datagram:
//   u8 kind (bit 0: a good hello instead, bit 1: a good, empty inventory instead, bit 2: with a descriptor),
//   u16 length, bytes
// Nothing may crash, leak or hang; the connection always ends; the intent is afterwards what it was.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "control/link/engine_link.h"
#include "control/link/seqpacket.h"
#include "control/reconcile/reconciler.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/host_state.h"
#include "control/store/store.h"
#include "tests/fuzz/input.h"

namespace cleat::control {
namespace {

constexpr uint8_t kHello = 1;
constexpr uint8_t kInventory = 2;
constexpr uint8_t kDescriptor = 4;
constexpr uint32_t kPiecesMax = 64;

class Bench {
 public:
  Bench() {
    spdlog::set_level(spdlog::level::off);
    // In memory where there is such a folder: the store is written.
    const std::filesystem::path shm = "/dev/shm";
    std::string folder =
        (std::filesystem::exists(shm) ? shm : std::filesystem::temp_directory_path()) / "cleat-fuzz-XXXXXX";
    CLEAT_CHECK(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    store_ = Store::Open(folder_).value();
    state_ = HostState::Load(*store_, memory_).value();
    FillIn();
    link_ = EngineLink::Listen(folder_ + "/engine.sock", clock_).value();
    reconciler_ = std::make_unique<Reconciler>(*state_, memory_, *link_, clock_, ReconcilerOptions{});
    state_->SetWake([this] { link_->Wake(); });
    link_->Start(*reconciler_);
  }
  ~Bench() {
    link_->Stop();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Run(FuzzInput input) {
    auto socket = ConnectSeqpacket(folder_ + "/engine.sock");
    CLEAT_CHECK(socket.ok());
    for (uint32_t i = 0; i < kPiecesMax && !input.empty(); ++i) {
      const uint8_t kind = input.Byte();
      std::string bytes = input.Text();
      if ((kind & kHello) != 0) bytes = Hello();
      if ((kind & kInventory) != 0) bytes = EmptyInventory();
      if (!bytes.empty() && !Send(*socket, bytes, (kind & kDescriptor) != 0)) break;
      Drain(*socket, MSG_DONTWAIT);
    }
    shutdown(socket->get(), SHUT_WR);
    Drain(*socket, 0);
    CLEAT_CHECK(state_->disks().List({})->disks_size() == 2);
    CLEAT_CHECK(state_->controllers().List({})->controllers_size() == 1);
  }

 private:
  void FillIn() {
    v1::CreateDiskRequest disk;
    disk.mutable_disk()->mutable_spec()->set_size_bytes(1 << 20);
    disk.mutable_disk()->mutable_spec()->mutable_memory();
    for (const char* id : {"a", "b"}) {
      disk.set_disk_id(id);
      CLEAT_CHECK(state_->disks().Create(disk).ok());
    }
    v1::CreateControllerRequest controller;
    controller.set_controller_id("vm");
    auto* spec = controller.mutable_controller()->mutable_spec();
    spec->set_type(v1::CONTROLLER_TYPE_BLK);
    spec->set_socket_path("/nowhere/vm.sock");
    CLEAT_CHECK(state_->controllers().Create(controller).ok());
    v1::AttachDiskRequest attach;
    attach.set_parent("controllers/vm");
    attach.set_attachment_id("a");
    attach.mutable_attachment()->mutable_spec()->set_disk("disks/a");
    CLEAT_CHECK(state_->attachments().Attach(attach).ok());
  }

  static std::string Hello() {
    engine::v1::Envelope envelope;
    auto* hello = envelope.mutable_hello();
    hello->set_protocol_min(1);
    hello->set_protocol_max(EngineLink::kProtocol);
    hello->set_engine("engine-0");
    hello->set_incarnation(7);
    hello->set_reactors(1);
    hello->set_controllers_max(1000);
    return envelope.SerializeAsString();
  }
  static std::string EmptyInventory() {
    engine::v1::Envelope envelope;
    envelope.mutable_inventory()->set_last(true);
    return envelope.SerializeAsString();
  }

  // False when the other end has hung up.
  static bool Send(const UniqueFd& socket, std::string& bytes, bool with_descriptor) {
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
    const UniqueFd memory(with_descriptor ? memfd_create("fuzz", MFD_CLOEXEC) : -1);
    if (with_descriptor) {
      message.msg_control = space.data();
      message.msg_controllen = space.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = memory.get();
      std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    return sendmsg(socket.get(), &message, MSG_NOSIGNAL) >= 0 || errno == EAGAIN || errno == EMSGSIZE;
  }

  // Without MSG_DONTWAIT: until the other end hangs up.
  static void Drain(const UniqueFd& socket, int flags) {
    std::array<char, kDatagramBytesMax> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kDatagramFdsMax * sizeof(int))> space{};
    for (;;) {
      if (flags == 0) WaitReadable(socket.get());
      iovec part{bytes.data(), bytes.size()};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = space.data();
      message.msg_controllen = space.size();
      const ssize_t got = recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); got > 0 && c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
          close(fd);
        }
      }
      if (got <= 0) return;
    }
  }
  static void WaitReadable(int fd) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    int count = 0;
    do {
      count = poll(&ready, 1, -1);
    } while (count < 0 && errno == EINTR);  // libFuzzer's own timer
    CLEAT_CHECK(count == 1);
  }

  MonotonicClock clock_;
  std::string folder_;
  MemfdKeeper memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
  std::unique_ptr<EngineLink> link_;
  std::unique_ptr<Reconciler> reconciler_;
};

}  // namespace
}  // namespace cleat::control

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static cleat::control::Bench bench;
  bench.Run({data, size});
  return 0;
}
