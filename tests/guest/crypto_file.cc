// SPDX-License-Identifier: Apache-2.0
// Writes or reads a file through the engine's pipeline of io_uring and encryption, for comparison with other programs that
// understand the format:
//
//   crypto_file write|read --disk FILE --plain FILE --key FILE --cipher aes-256-xts|aes-128-xts --unit 512|4096
//
// "write" fills the disk, which has the size of the plain file, with that file's content; "read" makes the plain file.
// Requests are of mixed sizes, many at a time; some begin in the middle of a page of memory.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "block/pipeline.h"
#include "keys/secret_arena.h"
#include "modules/crypto/crypto.h"
#include "modules/uring/uring.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"

namespace cleat {
namespace {

constexpr uint64_t kBlocksMax = 70;  // of a request
constexpr size_t kInFlight = 16;
constexpr uint64_t kSkew = 24;  // bytes by which the memory is off a page's beginning

struct Arguments {
  std::string action;
  std::string disk;
  std::string plain;
  std::string key;
  std::string cipher = "aes-256-xts";
  uint32_t unit_bytes = 512;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "crypto_file: %s\n", why.c_str());
  std::exit(1);
}

template <typename T>
T Must(Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(path + " can't be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

class Copier {
 public:
  explicit Copier(const Arguments& arguments)
      : arguments_(arguments),
        bytes_(std::filesystem::file_size(arguments.action == "write" ? arguments.plain : arguments.disk)),
        block_bytes_(arguments.unit_bytes),
        memory_(static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes_ + 8191) / 4096 * 4096))),
        region_(block::MemoryRegion::Borrow(memory_, bytes_ + kSkew)) {
    reactor_ = Must(Reactor::Make(clock_, {}));
    const Status ring = hub_.AddReactor(*reactor_);
    if (!ring) Fail(ring.error().message);
    const Status crypto = crypto_.AddReactor(*reactor_);
    if (!crypto) Fail(crypto.error().message);
    reactor_->PostCall([this] { Spawn(Open()); });
    while (channel_ == nullptr) reactor_->RunOnce();
  }
  ~Copier() {
    channel_.reset();
    bool closed = false;
    reactor_->PostCall([this, &closed] { Spawn(Close(&closed)); });
    while (!closed) reactor_->RunOnce();
    pipeline_.reset();
    std::free(memory_);
  }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  void Run() {
    if (arguments_.action == "write") {
      const std::string plain = ReadFile(arguments_.plain);
      std::copy(plain.begin(), plain.end(), memory_ + kSkew);
    }
    Transfer(arguments_.action == "write" ? block::Op::kWrite : block::Op::kRead);
    One(block::Op::kFlush, 0, 0);
    if (arguments_.action == "read") {
      std::ofstream(arguments_.plain, std::ios::binary)
          .write(reinterpret_cast<const char*>(memory_ + kSkew), static_cast<std::streamsize>(bytes_));
    }
  }

 private:
  struct Io {
    block::Request request;
    std::vector<block::Segment> segments;
    bool busy = false;
  };

  Task<void> Open() {
    modules::UringOptions options(block::DiskShape("disks/file", bytes_, block_bytes_, 4096), arguments_.disk,
                                  block::AccessMode::kReadWrite);
    auto open = modules::OpenUring(std::move(options), hub_, blocking_);
    auto file = Must(co_await std::move(open));
    std::string key = ReadFile(arguments_.key);
    modules::CryptoOptions crypto(
        arguments_.cipher == "aes-256-xts" ? keys::Cipher::kAes256Xts : keys::Cipher::kAes128Xts,
        arguments_.unit_bytes, keys::Secret::TakeFrom(key));
    std::unique_ptr<block::Device> disk =
        Must(modules::CryptoDevice::Make(std::move(file), std::move(crypto), crypto_));
    pipeline_ = Must(block::Pipeline::Make(std::move(disk), block::AccessMode::kReadWrite));
    channel_ = Must(pipeline_->OpenChannel(*reactor_));
  }
  Task<void> Close(bool* closed) {
    auto close = pipeline_->Close();
    (void)co_await std::move(close);
    *closed = true;
  }

  void Transfer(block::Op op) {
    std::vector<std::unique_ptr<Io>> ios;
    for (size_t i = 0; i < kInFlight; ++i) ios.push_back(std::make_unique<Io>());
    for (uint64_t at = 0; at < bytes_;) {
      const auto idle = std::find_if(ios.begin(), ios.end(), [](const auto& io) { return !io->busy; });
      if (idle == ios.end()) {
        reactor_->RunOnce();
        continue;
      }
      const uint64_t length = std::min(bytes_ - at, block_bytes_ * random_.Between(1, kBlocksMax));
      Cut(**idle, at, length);
      Start(**idle, op, at, length);
      at += length;
    }
    while (std::any_of(ios.begin(), ios.end(), [](const auto& io) { return io->busy; })) reactor_->RunOnce();
  }
  void One(block::Op op, uint64_t at, uint64_t length) {
    Io io;
    Start(io, op, at, length);
    while (io.busy) reactor_->RunOnce();
  }
  // One piece, or two that meet anywhere.
  void Cut(Io& io, uint64_t at, uint64_t length) {
    const uint64_t first = random_.Chance(1, 2) ? length : random_.Between(1, length);
    io.segments = {{region_.get(), kSkew + at, static_cast<uint32_t>(first)}};
    if (first < length) {
      io.segments.push_back({region_.get(), kSkew + at + first, static_cast<uint32_t>(length - first)});
    }
  }
  void Start(Io& io, block::Op op, uint64_t at, uint64_t length) {
    io.busy = true;
    io.request.op = op;
    io.request.offset_bytes = at;
    io.request.length_bytes = length;
    io.request.segments = io.segments;
    io.request.Push(
        [](block::Request& request, const block::Frame& frame) {
          if (request.status != block::IoStatus::kOk) Fail(block::IoStatusName(request.status));
          static_cast<Io*>(frame.layer)->busy = false;
        },
        &io);
    channel_->Submit(io.request);
  }

  const Arguments& arguments_;
  const uint64_t bytes_;
  const uint32_t block_bytes_;
  uint8_t* const memory_;
  const std::shared_ptr<block::MemoryRegion> region_;
  const MonotonicClock clock_;
  Random random_{1};
  BlockingPool blocking_{1};
  std::unique_ptr<Reactor> reactor_;
  modules::UringHub hub_;
  modules::CryptoHub crypto_;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<block::PipelineChannel> channel_;
};

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Writes or reads an encrypted file as the engine does.");
  app.add_option("action", arguments.action)->required()->check(CLI::IsMember({"write", "read"}));
  app.add_option("--disk", arguments.disk)->required();
  app.add_option("--plain", arguments.plain)->required();
  app.add_option("--key", arguments.key, "A file of the key's bytes")->required();
  app.add_option("--cipher", arguments.cipher)->check(CLI::IsMember({"aes-256-xts", "aes-128-xts"}));
  app.add_option("--unit", arguments.unit_bytes)->check(CLI::IsMember({512, 4096}));
  CLI11_PARSE(app, argc, argv);
  const Status arena = keys::InstallSecretArena();
  if (!arena) Fail(arena.error().message);
  if (arguments.action == "write") {
    const auto bytes = std::filesystem::file_size(arguments.plain);
    const UniqueFd fd(open(arguments.disk.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) Fail(arguments.disk + " can't be made");
  }
  Copier(arguments).Run();
  return 0;
}

}  // namespace
}  // namespace cleat

int main(int argc, char** argv) {
  return cleat::Main(argc, argv);
}
