// SPDX-License-Identifier: Apache-2.0
// The floor of an NVMe/TCP target: what a host gets of a bare loop that answers its I/O queues with the same PDUs, and knows nothing of controllers,
// namespaces, limits or a host that breaks rules. What a target does beyond that is measured against it.
//
//   target_floor --listen 127.0.0.1:4440 --admin 127.0.0.1:4430 [--null] [--mib 256 [--huge-pages]] [--core 1] [--psk FILE --nqn NQN --host NQN]
//
// Admin queues are passed on to a target at --admin, so that a host finds a controller; I/O queues end here, each on a thread of its own that polls
// on that core. Reads are answered by the data alone, writes have theirs in their capsule: 4 KiB random requests of spdk_nvme_perf, and no others.
// With --psk all of it is TLS, by the same sessions as the target's; the one at --admin is spoken to in plain TCP.
// Prints "ready", serves until its input ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/names.h"
#include "nvme/tcp/pdu.h"
#include "nvme/tls/psk.h"
#include "nvme/tls/session.h"

namespace cleat {
namespace {

using nvme::fabrics::TransportAddress;
using nvme::tcp::CapsuleCmd;
using nvme::tcp::IcReq;
using nvme::tcp::IcResp;

constexpr uint32_t kBlockBytes = 512;
constexpr size_t kConnectBytes = sizeof(CapsuleCmd) + sizeof(nvme::fabrics::ConnectData);
constexpr size_t kReceiveBytes = 256 * 1024;
constexpr size_t kAnswersMax = 256;  // of one send
constexpr uint32_t kTransferMax = 16 * 1024;

struct Arguments {
  std::string listen;
  std::string admin;
  std::string psk_file;
  std::string nqn;
  std::string host;
  bool null = false;
  uint64_t mib = 256;
  bool huge_pages = false;
  int core = -1;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "target_floor: %s\n", why.c_str());
  std::exit(2);
}

template <typename T>
T Must(Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

sockaddr_in SocketAddressOf(const std::string& text) {
  const TransportAddress address = Must(nvme::fabrics::ParseTransportAddress(text));
  if (address.family != nvme::fabrics::AddressFamily::kIpv4) Fail(text + ": an IPv4 address is needed");
  sockaddr_in of_socket{};
  of_socket.sin_family = AF_INET;
  of_socket.sin_port = htons(address.port);
  std::memcpy(&of_socket.sin_addr, address.address.data(), sizeof(of_socket.sin_addr));
  return of_socket;
}

// A connection's bytes, in plain TCP or over TLS.
class Wire {
 public:
  explicit Wire(UniqueFd fd) : fd_(std::move(fd)) {
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  int fd() const { return fd_.get(); }
  bool over() const { return over_; }

  bool ShakeHands(const nvme::tls::KeyFinder& find_key) {
    tls_ = Must(nvme::tls::Session::MakeForTarget(find_key));
    for (;;) {
      const Result<bool> done = tls_->GoOn();
      if (!Flush() || !done.ok()) return false;
      if (*done) return true;
      if (!Fetch(0)) return false;
    }
  }

  // What has come, as much as there is; waits for it unless `flags` say otherwise. 0: nothing, or it is over.
  size_t Receive(std::span<uint8_t> room, int flags) {
    if (tls_ == nullptr) return Took(recv(fd_.get(), room.data(), room.size(), flags));
    for (;;) {
      const iovec piece{room.data(), room.size()};
      const Result<size_t> got = tls_->Read({&piece, 1});
      if (!got.ok()) over_ = true;
      if (!got.ok() || *got > 0) return got.ok() ? *got : 0;
      if (!Fetch(flags)) return 0;
    }
  }

  bool ReceiveAll(std::span<uint8_t> room) {
    while (!room.empty()) {
      const size_t got = Receive(room, 0);
      if (got == 0) return false;
      room = room.subspan(got);
    }
    return true;
  }

  bool Send(std::span<iovec> pieces) {
    if (tls_ != nullptr) return SendByTls(pieces);
    while (!pieces.empty()) {
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = pieces.size();
      ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      while (!pieces.empty() && static_cast<size_t>(sent) >= pieces.front().iov_len) {
        sent -= static_cast<ssize_t>(pieces.front().iov_len);
        pieces = pieces.subspan(1);
      }
      if (pieces.empty()) return true;
      pieces.front().iov_base = static_cast<uint8_t*>(pieces.front().iov_base) + sent;
      pieces.front().iov_len -= static_cast<size_t>(sent);
    }
    return true;
  }
  bool Send(std::span<const uint8_t> bytes) {
    iovec piece{const_cast<uint8_t*>(bytes.data()), bytes.size()};  // it is read alone
    return Send({&piece, 1});
  }

 private:
  size_t Took(ssize_t got) {
    if (got > 0) return static_cast<size_t>(got);
    over_ = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    return 0;
  }
  bool Fetch(int flags) {
    const auto space = tls_->InputSpace();
    const size_t got = Took(recv(fd_.get(), space.data(), space.size(), flags));
    tls_->Came(got);
    return got > 0;
  }
  bool Flush() {
    while (!tls_->output().empty()) {
      const ssize_t sent = send(fd_.get(), tls_->output().data(), tls_->output().size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      tls_->Sent(static_cast<size_t>(sent));
    }
    return true;
  }
  bool SendByTls(std::span<const iovec> pieces) {
    size_t bytes = 0;
    for (const iovec& piece : pieces) bytes += piece.iov_len;
    for (size_t done = 0; done < bytes;) {
      const Result<size_t> sealed = tls_->Write(pieces, done);
      if (!sealed.ok() || !Flush()) return false;
      done += *sealed;
    }
    return true;
  }

  UniqueFd fd_;
  std::unique_ptr<nvme::tls::Session> tls_;
  bool over_ = false;
};

// The disk, and the answers of a batch.
class Floor {
 public:
  explicit Floor(const Arguments& arguments) : null_(arguments.null), bytes_(arguments.mib << 20) {
    if (null_) bytes_ = kTransferMax;
    const int pages = arguments.huge_pages && !null_ ? MAP_HUGETLB : 0;
    void* const memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | pages, -1, 0);
    if (memory == MAP_FAILED) Fail("no memory for the disk");
    disk_ = static_cast<uint8_t*>(memory);
  }

  uint8_t* At(uint64_t block, uint32_t bytes) {
    if (null_) return disk_;
    const uint64_t offset = block * kBlockBytes;
    if (offset + bytes > bytes_) Fail("a request beyond the disk");
    return disk_ + offset;
  }
  bool null() const { return null_; }

 private:
  const bool null_;
  uint64_t bytes_;
  uint8_t* disk_ = nullptr;
};

class IoQueue {
 public:
  IoQueue(Wire& wire, Floor& floor, bool flow_control, uint32_t entries)
      : wire_(wire), floor_(floor), flow_control_(flow_control), entries_(entries), buffer_(kReceiveBytes) {}

  void Run() {
    while (!wire_.over()) {
      const size_t got = wire_.Receive(std::span(buffer_).subspan(have_), MSG_DONTWAIT);
      if (got == 0) continue;
      have_ += got;
      if (!AnswerAll()) return;
    }
  }

 private:
  bool AnswerAll() {
    size_t at = 0;
    while (have_ - at >= sizeof(CapsuleCmd)) {
      CapsuleCmd capsule;
      std::memcpy(&capsule, buffer_.data() + at, sizeof(capsule));
      if (capsule.header.pdu_bytes > have_ - at) break;
      if (answers_ == kAnswersMax && !SendAll()) return false;
      Answer(capsule, buffer_.data() + at);
      at += capsule.header.pdu_bytes;
    }
    std::memmove(buffer_.data(), buffer_.data() + at, have_ - at);
    have_ -= at;
    return SendAll();
  }

  bool SendAll() {
    const bool sent = pieces_ == 0 || wire_.Send(std::span(iovecs_).first(pieces_));
    answers_ = pieces_ = 0;
    return sent;
  }

  void Answer(const CapsuleCmd& capsule, const uint8_t* pdu) {
    const uint32_t bytes = ((capsule.entry.cdw12 & 0xffffU) + 1) * kBlockBytes;
    const uint64_t block = capsule.entry.cdw10 | uint64_t{capsule.entry.cdw11} << 32;
    const auto opcode = static_cast<nvme::Opcode>(capsule.entry.opcode);
    const bool reads = opcode == nvme::Opcode::kRead;
    if (bytes > kTransferMax || (!reads && opcode != nvme::Opcode::kWrite))
      Fail("a request that it does not know");
    if (!reads) {
      if (capsule.header.data_offset == 0) Fail("a write whose data is not in its capsule");
      if (!floor_.null()) std::memcpy(floor_.At(block, bytes), pdu + capsule.header.data_offset, bytes);
    }
    auto& answer = heads_[answers_++];
    if (reads) {
      answer.data = {};
      answer.data.header = {.type = nvme::tcp::PduType::kC2hData,
                            .flags = nvme::tcp::kFlagLast,
                            .header_bytes = sizeof(answer.data),
                            .data_offset = sizeof(answer.data),
                            .pdu_bytes = static_cast<uint32_t>(sizeof(answer.data)) + bytes};
      if (!flow_control_) answer.data.header.flags |= nvme::tcp::kFlagSuccess;
      answer.data.cid = capsule.entry.cid;
      answer.data.data_bytes = bytes;
      iovecs_[pieces_++] = {&answer.data, sizeof(answer.data)};
      iovecs_[pieces_++] = {floor_.At(block, bytes), bytes};
      if (!flow_control_) return;
    }
    answer.response = {};
    answer.response.header = {.type = nvme::tcp::PduType::kCapsuleResp,
                              .header_bytes = sizeof(answer.response),
                              .pdu_bytes = sizeof(answer.response)};
    answer.response.entry.cid = capsule.entry.cid;
    head_ = (head_ + 1) % entries_;
    answer.response.entry.sq_head = flow_control_ ? static_cast<uint16_t>(head_) : 0xffff;
    iovecs_[pieces_++] = {&answer.response, sizeof(answer.response)};
  }

  struct Heads {
    nvme::tcp::C2hData data;
    nvme::tcp::CapsuleResp response;
  };
  Wire& wire_;
  Floor& floor_;
  const bool flow_control_;
  const uint32_t entries_;
  std::vector<uint8_t> buffer_;
  size_t have_ = 0;
  std::array<Heads, kAnswersMax> heads_;
  std::array<iovec, 3 * kAnswersMax> iovecs_;
  size_t answers_ = 0;
  size_t pieces_ = 0;
  uint32_t head_ = 0;
};

class Connection {
 public:
  Connection(const Arguments& arguments, Floor& floor, UniqueFd fd)
      : arguments_(arguments), floor_(floor), wire_(std::move(fd)) {}

  void Run(const nvme::tls::Psk* psk) {
    if (psk != nullptr && !wire_.ShakeHands([&](std::string_view identity) { return KeyOf(*psk, identity); }))
      return;
    IcReq request;
    std::vector<uint8_t> connect(kConnectBytes);
    if (!wire_.ReceiveAll({reinterpret_cast<uint8_t*>(&request), sizeof(request)})) return;
    IcResp response;
    response.header = {
        .type = nvme::tcp::PduType::kIcResp, .header_bytes = sizeof(response), .pdu_bytes = sizeof(response)};
    response.h2c_data_max_bytes = kTransferMax;
    if (!wire_.Send({reinterpret_cast<const uint8_t*>(&response), sizeof(response)}) ||
        !wire_.ReceiveAll(connect))
      return;
    CapsuleCmd capsule;
    std::memcpy(&capsule, connect.data(), sizeof(capsule));
    const uint32_t queue_id = capsule.entry.cdw10 >> 16;
    if (queue_id == 0) return PassOn(request, connect);
    const uint32_t entries = (capsule.entry.cdw11 & 0xffffU) + 1;
    const bool flow_control = (capsule.entry.cdw11 >> 18 & 1U) == 0;
    nvme::tcp::CapsuleResp connected;
    connected.header = {.type = nvme::tcp::PduType::kCapsuleResp,
                        .header_bytes = sizeof(connected),
                        .pdu_bytes = sizeof(connected)};
    nvme::fabrics::ConnectData data;
    std::memcpy(&data, connect.data() + capsule.header.data_offset, sizeof(data));
    connected.entry.result = data.controller_id;
    connected.entry.cid = capsule.entry.cid;
    connected.entry.sq_head = flow_control ? 1 : 0xffff;
    if (!wire_.Send({reinterpret_cast<const uint8_t*>(&connected), sizeof(connected)})) return;
    Bind();
    std::make_unique<IoQueue>(wire_, floor_, flow_control, entries)->Run();
  }

 private:
  Result<nvme::tls::ConnectionKey> KeyOf(const nvme::tls::Psk& psk, std::string_view identity) const {
    for (const auto version : {nvme::tls::IdentityVersion::kV0, nvme::tls::IdentityVersion::kV1}) {
      auto key = psk.KeyFor(arguments_.host, arguments_.nqn, version);
      if (key.ok() && key->identity == identity) return key;
    }
    return Error(ErrorCode::kPermissionDenied, "another key");
  }

  void Bind() const {
    if (arguments_.core < 0) return;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(arguments_.core, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
  }

  // An admin queue: byte by byte to the target behind, but for what was answered already.
  void PassOn(const IcReq& request, const std::vector<uint8_t>& connect) {
    Wire behind(UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    const sockaddr_in address = SocketAddressOf(arguments_.admin);
    if (::connect(behind.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      Fail("no target behind");
    IcResp response;
    if (!behind.Send({reinterpret_cast<const uint8_t*>(&request), sizeof(request)}) ||
        !behind.ReceiveAll({reinterpret_cast<uint8_t*>(&response), sizeof(response)}) ||
        !behind.Send(connect))
      return;
    std::vector<uint8_t> buffer(kReceiveBytes);
    std::array<pollfd, 2> ready{pollfd{wire_.fd(), POLLIN, 0}, pollfd{behind.fd(), POLLIN, 0}};
    while (!wire_.over() && !behind.over()) {
      if (poll(ready.data(), ready.size(), -1) < 0) return;
      for (const auto& [from, to] : {std::pair(&wire_, &behind), std::pair(&behind, &wire_)}) {
        for (size_t got = 1; got > 0;) {
          got = from->Receive(buffer, MSG_DONTWAIT);
          if (got > 0 && !to->Send(std::span(buffer).first(got))) return;
        }
      }
    }
  }

  const Arguments& arguments_;
  Floor& floor_;
  Wire wire_;
};

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Answers 4 KiB requests of NVMe/TCP hosts from a bare loop.");
  app.add_option("--listen", arguments.listen, "Address for hosts")->required();
  app.add_option("--admin", arguments.admin, "Address of the target that has the admin queues")->required();
  app.add_flag("--null", arguments.null, "A disk that does nothing");
  app.add_option("--mib", arguments.mib, "The disk's size");
  app.add_flag("--huge-pages", arguments.huge_pages,
               "Its memory is in huge pages, which are reserved already");
  app.add_option("--core", arguments.core, "Of I/O queues");
  auto* const psk_option = app.add_option("--psk", arguments.psk_file, "File with the pre-shared key of TLS");
  app.add_option("--nqn", arguments.nqn, "The subsystem's, with --psk");
  app.add_option("--host", arguments.host, "The host's, with --psk");
  CLI11_PARSE(app, argc, argv);
  std::optional<nvme::tls::Psk> psk;
  if (psk_option->count() > 0) {
    std::ifstream file(arguments.psk_file);
    std::string text;
    file >> text;
    psk.emplace(Must(nvme::tls::Psk::Parse(text, "the pre-shared key")));
  }
  Floor floor(arguments);
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in address = SocketAddressOf(arguments.listen);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0)
    Fail("can't listen at " + arguments.listen);
  std::thread([&] {
    for (;;) {
      UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      std::thread([&, connection = std::make_shared<Connection>(arguments, floor, std::move(fd))] {
        connection->Run(psk ? &*psk : nullptr);
      }).detach();
    }
  }).detach();
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
  }
  std::_Exit(0);  // its threads have no end of their own
}

}  // namespace
}  // namespace cleat

int main(int argc, char** argv) {
  return cleat::Main(argc, argv);
}
