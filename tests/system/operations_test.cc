// SPDX-License-Identifier: Apache-2.0
// Thousands of random operations from a seed against the real processes, by several clients and guests at
// once, with no waiting in between: nothing leaks, hangs or is left half-way.
//
//   CLEAT_TEST_OPERATIONS  how many (default 10000)
//   CLEAT_TEST_SEED        the seed; it decides what each client and guest does, the threads' timing stays
//   the kernel's
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/random.h"
#include "expect_ok.h"
#include "host.h"
#include "peer.h"
#include "perf/vhost_user/deadline.h"
#include "tests/environment.h"

namespace cleat::system_test::operations_test {
namespace {

using test::FromEnvironment;

constexpr uint64_t kDefaultOperations = 10000;
constexpr uint64_t kDefaultSeed = 20261121;
constexpr int kClients = 4;
constexpr int kGuests = 4;
constexpr uint64_t kDisks = 14;
constexpr uint64_t kControllers = 8;
constexpr uint64_t kDiskBytes = uint64_t{4} << 20;
constexpr std::string_view kPrefix = "controllers/";
constexpr uint64_t kVisitTimeoutNs = 100 * kNsPerMs;
constexpr uint64_t kVisitsTimeoutNs = 120 * kNsPerSecond;
// The engine starts these when calls that may block are waiting for one, and keeps them: how many there are is up to how
// busy the machine was. What leaked with the operations would be hundreds.
constexpr uint64_t kLazyThreads = 4;

// A disk's name says what it is, its first letter above all.
std::string DiskId(uint64_t number) {
  return fmt::format("{}{}", "mfn"[number % 3], number);
}
bool Keeps(const std::string& disk_id) {
  return disk_id[0] != 'n';
}
std::string ControllerId(uint64_t number) {
  return fmt::format("c{}", number);
}
// Every fourth controller is the socket's server.
bool IsServer(uint64_t controller) {
  return controller % 4 == 3;
}

v1::DiskSpec SpecOf(const Host& host, uint64_t number) {
  const std::string id = DiskId(number);
  v1::DiskSpec spec = NullDisk(kDiskBytes);
  if (id[0] == 'm') spec = MemoryDisk(kDiskBytes);
  if (id[0] == 'f') spec = FileDisk(kDiskBytes, host.Path(id + ".img"));
  if (number % 4 == 1) {  // slow enough that much is in flight when it is taken away
    spec.mutable_fault()->set_seed(number);
    spec.mutable_fault()->set_delay_ns_max(2 * kNsPerMs);
  }
  return spec;
}

v1::ControllerSpec SpecOfController(const Host& host, uint64_t number) {
  const auto mode = IsServer(number) ? v1::SOCKET_MODE_SERVER : v1::SOCKET_MODE_CLIENT;
  return BlkController(host.SocketPath(ControllerId(number)), number % 2 == 0 ? 1 : 4, mode);
}

// Every answer there may be; anything else is a failure.
bool Expected(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::ABORTED:
      return true;
    default:
      return false;
  }
}

struct Counters {
  std::atomic<uint64_t> operations = 0;
  std::atomic<uint64_t> accepted = 0;
  std::atomic<uint64_t> attaches = 0;  // that were accepted, the same again included
  std::atomic<uint64_t> visits = 0;
  std::atomic<uint64_t> requests = 0;
};

class Client {
 public:
  Client(const Host& host, uint64_t seed, Counters* counters)
      : host_(host), api_(host.address()), random_(seed), counters_(counters) {}

  // So many, and more until guests have found a disk `visits` times: on a busy machine they come late.
  void Run(uint64_t operations, uint64_t visits) {
    const perf::Deadline deadline(kVisitsTimeoutNs);
    for (uint64_t i = 0; i < operations || (counters_->visits < visits && !deadline.passed()); ++i) {
      const grpc::Status status = Step();
      counters_->operations.fetch_add(1);
      if (status.ok()) counters_->accepted.fetch_add(1);
      if (!Expected(status))
        ADD_FAILURE() << "code " << status.error_code() << ": " << status.error_message();
      if (testing::Test::HasFailure()) return;
    }
  }

 private:
  grpc::Status Step() {
    const uint64_t disk = random_.Below(kDisks);
    const uint64_t controller = random_.Below(kControllers);
    switch (random_.Below(12)) {
      case 0:
      case 1:
        return api_.CreateDisk(DiskId(disk), SpecOf(host_, disk)).status;
      case 2:
      case 3:
        return api_.CreateController(ControllerId(controller), SpecOfController(host_, controller)).status;
      case 4:
      case 5:
      case 6:
      case 7:
        return AttachSomething(ControllerId(controller), DiskId(disk));
      case 8:
        return api_.DeleteDisk(DiskId(disk));
      case 9:
        return api_.DeleteController(ControllerId(controller));
      default:
        return DetachSomething(ControllerId(controller));
    }
  }

  grpc::Status AttachSomething(const std::string& controller, const std::string& disk) {
    const auto attached = api_.Attach(controller, disk, random_.Chance(1, 4));
    if (attached.ok()) counters_->attaches.fetch_add(1);
    return attached.status;
  }

  // What a controller has is asked for: a random pair would hardly ever be attached.
  grpc::Status DetachSomething(const std::string& controller) {
    grpc::ClientContext context;
    v1::ListAttachmentsRequest request;
    request.set_parent("controllers/" + controller);
    v1::ListAttachmentsResponse response;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(kCallTimeoutNs));
    grpc::Status status = api_.stub().ListAttachments(&context, request, &response);
    if (!status.ok() || response.attachments().empty()) return status;
    const std::string& name = response.attachments(0).name();
    return api_.Detach(controller, name.substr(name.rfind('/') + 1));
  }

  const Host& host_;
  Api api_;
  Random random_;
  Counters* counters_;
};

// Guests that come to the controllers of their share, do some I/O and vanish, politely or not.
class Guest {
 public:
  Guest(const Host& host, uint64_t first, uint64_t seed, Counters* counters)
      : host_(host), first_(first), random_(seed), counters_(counters) {
    options_.accept_timeout_ns = kVisitTimeoutNs;
    options_.message_timeout_ns = kWaitTimeoutNs;  // a set-up is answered, or cut by a detach
  }

  void Run(const std::atomic<bool>& stop) {
    while (!stop.load() && !testing::Test::HasFailure()) {
      const uint64_t share = (kControllers - first_ + kGuests - 1) / kGuests;
      Visit(first_ + random_.Below(share) * kGuests);
    }
  }

 private:
  void Visit(uint64_t controller) {
    const std::string path = host_.SocketPath(ControllerId(controller));
    auto peer = IsServer(controller) ? Peer::Connect(path, options_) : Peer::Listen(path, options_);
    if (!peer) return;  // nobody there, or no longer
    perf::BlkOptions options;
    options.num_queues = controller % 2 == 0 ? 1 : static_cast<uint16_t>(random_.Between(1, 4));
    options.queue_size = 64;
    options.layout = perf::LayoutPolicy::kAnyLayout;
    options.layout_seed = random_.Next();
    if (!(*peer)->Boot(options)) return;
    counters_->visits.fetch_add(1);
    const Status done = DoIo((*peer)->driver());
    // The disk may be taken away at any moment: then the connection ends. Anything else is a failure.
    if (!done && done.error().code != ErrorCode::kUnavailable) {
      ADD_FAILURE() << ControllerId(controller) << ": " << done.error().message;
    }
    if (done && random_.Chance(1, 2)) (void)(*peer)->ShutDown();
  }

  Status DoIo(perf::BlkDriver& driver) {
    auto id = driver.GetIdSync();
    if (!id) return std::move(id).error();
    const bool read_only = driver.has(perf::wire::kBlkReadOnly);
    std::vector<uint8_t> data(random_.Between(1, 64) * 512);
    std::vector<uint8_t> read(data.size());
    const uint64_t rounds = random_.Between(1, 20);
    for (uint64_t i = 0; i < rounds; ++i) {
      const auto queue = static_cast<uint16_t>(random_.Below(driver.num_queues()));
      const uint64_t offset = random_.Below((kDiskBytes - data.size()) / 512) * 512;
      std::fill(data.begin(), data.end(), static_cast<uint8_t>(random_.Next()));
      counters_->requests.fetch_add(2);
      if (!read_only) {
        if (Status written = driver.WriteSync(offset, data, queue); !written) return written;
      }
      if (Status done = driver.ReadSync(offset, read, queue); !done) return done;
      if (!read_only && Keeps(*id) && read != data) {
        return Error(ErrorCode::kDataLoss,
                     fmt::format("{}: {} bytes at {} read other than written", *id, data.size(), offset));
      }
    }
    // Some leave with requests in flight.
    for (uint64_t token = random_.Below(16); token > 0; --token) {
      driver.Submit(0, {.op = perf::BlkOp::kFlush, .token = token});
    }
    driver.Kick(0);
    return Ok{};
  }

  const Host& host_;
  const uint64_t first_;
  Random random_;
  Counters* counters_;
  perf::FrontendOptions options_;
};

class Operations : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(host_.ok()); }

  void RunAll(uint64_t operations, uint64_t seed, uint64_t visits = 0) {
    std::vector<std::thread> threads;
    std::atomic<bool> stop = false;
    for (uint64_t i = 0; i < kGuests; ++i) {
      threads.emplace_back([&, i] { Guest(host_, i, seed + 100 + i, &counters_).Run(stop); });
    }
    std::vector<std::thread> clients;
    for (uint64_t i = 0; i < kClients; ++i) {
      clients.emplace_back(
          [&, i] { Client(host_, seed + i, &counters_).Run(operations / kClients, visits); });
    }
    for (std::thread& client : clients) client.join();
    stop = true;
    for (std::thread& guest : threads) guest.join();
  }

  // Every kind of device once: what the engine makes for a kind (a listener of the vhost library, say) stays.
  void WarmUp() {
    for (uint64_t i = 0; i < 12; ++i) {
      const bool read_only = i % 2 == 1;
      const uint64_t number = i / 2 % 3;
      const std::string id = fmt::format("warm-up-{}", i);
      v1::DiskSpec spec = SpecOf(host_, number);
      if (spec.has_file()) spec.mutable_file()->set_path(host_.Path(id + ".img"));
      ASSERT_TRUE(host_.AttachNew(id, spec, i < 6 ? 1 : 4, v1::SOCKET_MODE_CLIENT, read_only));
      auto peer = Peer::Start(host_.SocketPath(id));
      ASSERT_OK(peer);
      EXPECT_OK((*peer)->ShutDown());
      ASSERT_TRUE(host_.Remove(id));
    }
  }

  // No guest is there any more: everything has to go.
  void DeleteAll() {
    const auto listed = host_.api().List();
    ASSERT_OK(listed);
    for (const auto& [name, attachment] : listed.value.attachments) {
      const std::string controller = name.substr(kPrefix.size(), name.find("/attachments/") - kPrefix.size());
      EXPECT_OK(host_.api().Detach(controller, name.substr(name.rfind('/') + 1)));
    }
    for (const auto& [name, controller] : listed.value.controllers) {
      EXPECT_OK(host_.api().DeleteController(name.substr(name.find('/') + 1)));
    }
    // A disk has to be detached first, which the engine takes its time for.
    Model last;
    EXPECT_TRUE(host_.api().WaitUntil([](const Model& model) { return model.attachments.empty(); }, &last))
        << "half-way:\n"
        << last.ToString();
    for (const auto& [name, disk] : listed.value.disks) {
      EXPECT_OK(host_.api().DeleteDisk(name.substr(name.find('/') + 1)));
    }
    EXPECT_TRUE(host_.api().WaitUntil([](const Model& model) { return model.empty(); }, &last))
        << "half-way:\n"
        << last.ToString();
    EXPECT_EQ(last.engines.at(kEngineName).status().controllers(), 0U);
  }

  void ExpectBackTo(const ProcessStats& before) {
    ProcessStats after;
    EXPECT_TRUE(host_.WaitEngineStats(
        [&](const ProcessStats& now) {
          return now.descriptors <= before.descriptors && now.threads <= before.threads + kLazyThreads;
        },
        &after))
        << "engine: " << after.descriptors << " descriptors and " << after.threads
        << " threads, at the start " << before.descriptors << " and " << before.threads;
  }

  Host host_{{.reactors = 2, .as_nobody = true, .log_level = "warn"}};
  Counters counters_;
};

TEST_F(Operations, AnyOrderAtAnyMoment) {
  const uint64_t operations = FromEnvironment("CLEAT_TEST_OPERATIONS", kDefaultOperations);
  const uint64_t seed = FromEnvironment("CLEAT_TEST_SEED", kDefaultSeed);
  fmt::print("CLEAT_TEST_SEED={} CLEAT_TEST_OPERATIONS={}\n", seed, operations);
  RecordProperty("seed", std::to_string(seed));

  // What is made once and stays is made first: a listener for each kind of device by the warm-up - the first tenth
  // alone may miss a kind -, watches, pools and the allocator's reserves by the first tenth.
  ASSERT_NO_FATAL_FAILURE(WarmUp());
  RunAll(operations / 10, seed);
  DeleteAll();
  if (HasFailure()) return;
  const ProcessStats engine_before = host_.engine().Stats();
  const ProcessStats cleatd_before = host_.cleatd().Stats();

  const uint64_t visits = operations / 500 + 1;
  RunAll(operations - operations / 10, seed + 1, visits);
  DeleteAll();
  ExpectBackTo(engine_before);
  const ProcessStats engine_after = host_.engine().Stats();
  ProcessStats cleatd_after = host_.cleatd().Stats();
  fmt::print(
      "{} operations ({} accepted, {} of them attaches), {} visits with {} requests; engine {} -> {} KiB, "
      "cleatd {} -> {} KiB\n",
      counters_.operations.load(), counters_.accepted.load(), counters_.attaches.load(),
      counters_.visits.load(), counters_.requests.load(), engine_before.resident_bytes / 1024,
      engine_after.resident_bytes / 1024, cleatd_before.resident_bytes / 1024,
      cleatd_after.resident_bytes / 1024);
  EXPECT_GT(counters_.attaches.load(), operations / 100) << "hardly a disk was attached: nothing was tested";
  EXPECT_GE(counters_.visits.load(), visits) << "hardly a guest found a disk: nothing was tested";
  // gRPC keeps connections and threads for a while; what counts is that they don't grow with the operations.
  const auto steady = [&](const ProcessStats& now) {
    return now.descriptors <= cleatd_before.descriptors + 2 * kClients &&
           now.threads <= cleatd_before.threads + 2 * kClients;
  };
  EXPECT_TRUE(host_.WaitStats(host_.cleatd(), steady, &cleatd_after))
      << "cleatd: " << cleatd_after.descriptors << " descriptors and " << cleatd_after.threads
      << " threads, at the start " << cleatd_before.descriptors << " and " << cleatd_before.threads;
  // A sanitizer build keeps what was freed for a while, and the state of its own grows with it.
  const uint64_t growth_max = uint64_t{kSanitized ? 96 : 16} << 20;
  EXPECT_LE(engine_after.resident_bytes, engine_before.resident_bytes + growth_max);
  EXPECT_LE(cleatd_after.resident_bytes, cleatd_before.resident_bytes + growth_max);
  // What the engine itself says it has, to a new cleatd that knows of nothing: it would be taken down, and
  // logged.
  host_.RestartCleatd();
  const auto listed = host_.api().List();
  ASSERT_OK(listed);
  EXPECT_TRUE(listed.value.empty());
}

}  // namespace
}  // namespace cleat::system_test::operations_test
