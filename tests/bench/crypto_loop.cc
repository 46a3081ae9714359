// SPDX-License-Identifier: Apache-2.0
// What encryption costs a request above the cipher itself. One thread, everything in the cache, three things in turns, a
// millisecond or two of each:
//
//   plain      requests of 4 KiB through the pipeline of a null disk
//   encrypted  the same with the filter
//   bare       OpenSSL alone, the same calls on the same memory: the requests' buffers, and one more for cipher text
//
// Prints, for each round, the median of the turns in nanoseconds a request:
//   crypto_loop --op write|read --unit 512|4096 [--rounds 7] [--round-ms 300]
#include <openssl/evp.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/tick_clock.h"
#include "block/pipeline.h"
#include "keys/secret_arena.h"
#include "modules/crypto/crypto.h"
#include "modules/null/null.h"
#include "reactor/reactor.h"

namespace cleat {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 30;
constexpr uint32_t kRequestBytes = 4096;
constexpr uint32_t kDepth = 32;
constexpr uint32_t kBatchesOfASlice = 16;

struct Arguments {
  std::string op = "write";
  uint32_t unit_bytes = 4096;
  uint32_t rounds = 7;
  uint32_t round_ms = 300;
};

keys::Secret Key() {
  keys::Secret key = keys::Secret::Zeroes(64);
  for (size_t i = 0; i < key.size(); ++i) key.mutable_bytes()[i] = static_cast<uint8_t>(i);
  return key;
}

// The fastest way that OpenSSL has of doing it.
class Bare {
 public:
  explicit Bare(const Arguments& arguments)
      : unit_bytes_(arguments.unit_bytes), encrypt_(arguments.op == "write") {
    cipher_ = EVP_CIPHER_fetch(nullptr, "AES-256-XTS", nullptr);
    context_ = EVP_CIPHER_CTX_new();
    const uint8_t tweak[16] = {};
    CLEAT_CHECK(
        EVP_CipherInit_ex(context_, cipher_, nullptr, Key().bytes().data(), tweak, encrypt_ ? 1 : 0) == 1);
  }
  ~Bare() {
    EVP_CIPHER_CTX_free(context_);
    EVP_CIPHER_free(cipher_);
  }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;

  void Run(const uint8_t* in, uint8_t* out, uint64_t sector) {
    uint8_t tweak[16] = {};
    for (uint32_t at = 0; at < kRequestBytes; at += unit_bytes_) {
      std::memcpy(tweak, &sector, sizeof(sector));
      int written = 0;
      if (encrypt_) {
        CLEAT_CHECK(EVP_EncryptInit_ex(context_, nullptr, nullptr, nullptr, tweak) == 1);
        CLEAT_CHECK(EVP_EncryptUpdate(context_, out + at, &written, in + at, static_cast<int>(unit_bytes_)) ==
                    1);
      } else {
        CLEAT_CHECK(EVP_DecryptInit_ex(context_, nullptr, nullptr, nullptr, tweak) == 1);
        CLEAT_CHECK(EVP_DecryptUpdate(context_, out + at, &written, in + at, static_cast<int>(unit_bytes_)) ==
                    1);
      }
      sector += unit_bytes_ / 512;
    }
  }

 private:
  const uint32_t unit_bytes_;
  const bool encrypt_;
  EVP_CIPHER* cipher_;
  EVP_CIPHER_CTX* context_;
};

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments),
        memory_(static_cast<uint8_t*>(std::aligned_alloc(4096, (kDepth + 1) * kRequestBytes))),
        region_(block::MemoryRegion::Borrow(memory_, (kDepth + 1) * kRequestBytes)),
        bare_(arguments) {
    std::memset(memory_, 1, (kDepth + 1) * kRequestBytes);
    reactor_ = Reactor::Make(clock_, {}).value();
    CLEAT_CHECK(hub_.AddReactor(*reactor_).ok());
    Open(false);
    Open(true);
    for (uint32_t i = 0; i < kDepth; ++i)
      segments_.push_back({region_.get(), i * kRequestBytes, kRequestBytes});
  }
  ~Bench() {
    for (Disk& disk : disks_) disk.channel.reset();
    std::free(memory_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Requests(bool encrypted) {
    block::PipelineChannel& channel = *disks_[encrypted ? 1 : 0].channel;
    for (uint32_t batch = 0; batch < kBatchesOfASlice; ++batch) {
      reactor_->RefreshNow();
      for (uint32_t i = 0; i < kDepth; ++i) {
        block::Request& request = requests_[i];
        request.op = arguments_.op == "write" ? block::Op::kWrite : block::Op::kRead;
        request.offset_bytes = uint64_t{i} * kRequestBytes;
        request.length_bytes = kRequestBytes;
        request.segments = {&segments_[i], 1};
        request.stamps.Seen(reactor_->now_ns(), reactor_->now_ns(), batch);
        request.Push(&Done, this);
        channel.Submit(request);
      }
    }
  }
  void BareLoop() {
    for (uint32_t batch = 0; batch < kBatchesOfASlice; ++batch) {
      for (uint32_t i = 0; i < kDepth; ++i) {
        uint8_t* at = memory_ + uint64_t{i} * kRequestBytes;
        bare_.Run(at, arguments_.op == "write" ? memory_ + kDepth * kRequestBytes : at, uint64_t{i} * 8);
      }
    }
  }
  uint64_t done() const { return done_; }

 private:
  struct Disk {
    std::unique_ptr<block::Pipeline> pipeline;
    std::unique_ptr<block::PipelineChannel> channel;
  };
  static void Done(block::Request& request, const block::Frame& frame) {
    CLEAT_CHECK(request.status == block::IoStatus::kOk);
    ++static_cast<Bench*>(frame.layer)->done_;
  }
  Task<void> OpenNull(bool encrypted) {
    modules::NullOptions options(block::DiskShape{"disks/null", kDiskBytes, 4096, 4096});
    options.zero_fill = false;
    auto open = modules::OpenNull(std::move(options));
    auto opened = co_await std::move(open);
    std::unique_ptr<block::Device> device = std::move(opened).value();
    if (encrypted) {
      modules::CryptoOptions crypto(keys::Cipher::kAes256Xts, arguments_.unit_bytes, Key());
      device = modules::CryptoDevice::Make(std::move(device), std::move(crypto), hub_).value();
    }
    Disk& disk = disks_[encrypted ? 1 : 0];
    disk.pipeline = block::Pipeline::Make(std::move(device), block::AccessMode::kReadWrite).value();
    disk.channel = disk.pipeline->OpenChannel(*reactor_).value();
  }
  void Open(bool encrypted) {
    Spawn(OpenNull(encrypted));
    while (disks_[encrypted ? 1 : 0].channel == nullptr) reactor_->RunOnce();
  }

  const Arguments& arguments_;
  uint8_t* const memory_;
  const std::shared_ptr<block::MemoryRegion> region_;
  Bare bare_;
  const TickClock clock_{TickRate::Measure()};
  std::unique_ptr<Reactor> reactor_;
  modules::CryptoHub hub_;
  Disk disks_[2];
  std::vector<block::Segment> segments_;
  block::Request requests_[kDepth];
  uint64_t done_ = 0;
};

struct Round {
  double plain_ns = 0;
  double encrypted_ns = 0;
  double bare_ns = 0;
};

// Of one request, in the thread's own time: others that have the core in between are not ours.
double TimeOf(const std::function<void()>& slice) {
  const auto now_ns = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
  };
  const double begin_ns = now_ns();
  slice();
  return (now_ns() - begin_ns) / (kBatchesOfASlice * kDepth);
}

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Round RunRound(Bench& bench, uint32_t round_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(round_ms);
  std::vector<double> plain;
  std::vector<double> encrypted;
  std::vector<double> bare;
  do {  // once at least, however busy the machine is
    bare.push_back(TimeOf([&] { bench.BareLoop(); }));
    encrypted.push_back(TimeOf([&] { bench.Requests(true); }));
    plain.push_back(TimeOf([&] { bench.Requests(false); }));
  } while (std::chrono::steady_clock::now() < end);
  return {Median(plain), Median(encrypted), Median(bare)};
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("What encryption costs a 4 KiB request, beside the same OpenSSL in a bare loop.");
  app.add_option("--op", arguments.op)->check(CLI::IsMember({"write", "read"}))->capture_default_str();
  app.add_option("--unit", arguments.unit_bytes, "Bytes of a data unit")
      ->check(CLI::IsMember({512, 4096}))
      ->capture_default_str();
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--round-ms", arguments.round_ms)->check(CLI::Range(1, 60'000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  CLEAT_CHECK(keys::InstallSecretArena().ok());
  Bench bench(arguments);
  RunRound(bench, arguments.round_ms / 4);  // warms up
  std::printf("{\"rounds\": [");
  for (uint32_t i = 0; i < arguments.rounds; ++i) {
    const Round round = RunRound(bench, arguments.round_ms);
    std::printf("%s{\"plain_ns\": %.2f, \"encrypted_ns\": %.2f, \"bare_ns\": %.2f}", i == 0 ? "" : ", ",
                round.plain_ns, round.encrypted_ns, round.bare_ns);
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace cleat

int main(int argc, char** argv) {
  return cleat::Main(argc, argv);
}
