// SPDX-License-Identifier: Apache-2.0
// cleat-perf: a load generator with its own virtio driver. It stands where QEMU and a guest would: it owns
// the vhost-user socket, takes the back end's connection, and does I/O on the disk behind it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "base/version.h"
#include "perf/load.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kMemoryBytes = 1ULL << 30;  // not touched before it is used
constexpr int kExitFailed = 1;
constexpr int kExitDataFault = 2;

struct Arguments {
  std::string listen;
  std::string connect;
  BlkOptions blk;
  LoadOptions load;
  uint64_t timeout_seconds = 60;
};

int Fail(const char* step, const Error& error) {
  std::fprintf(stderr, "cleat-perf: %s: %s\n", step, error.message.c_str());
  return kExitFailed;
}

void Print(const BlkDriver& driver, const LoadReport& report) {
  const auto us = [&](double part) {
    return static_cast<double>(report.latency.PercentileNs(part)) / kNsPerUs;
  };
  std::printf("disk      %llu bytes, %u queue(s)\n", static_cast<unsigned long long>(driver.capacity_bytes()),
              driver.num_queues());
  std::printf("requests  %llu in %.3f s, %llu errors\n", static_cast<unsigned long long>(report.requests),
              static_cast<double>(report.elapsed_ns) / kNsPerSecond,
              static_cast<unsigned long long>(report.errors));
  std::printf("iops      %.0f\n", report.iops());
  std::printf("latency   p50 %.1f us, p99 %.1f us, p99.9 %.1f us, max %.1f us\n", us(0.5), us(0.99),
              us(0.999), static_cast<double>(report.latency.max_ns()) / kNsPerUs);
  if (report.verified_blocks > 0) {
    std::printf("verified  %llu blocks, %llu faults%s%s\n",
                static_cast<unsigned long long>(report.verified_blocks),
                static_cast<unsigned long long>(report.faults), report.faults > 0 ? ": " : "",
                report.first_fault.c_str());
  }
}

int Run(Arguments& arguments) {
  Result<std::unique_ptr<GuestMemory>> memory = GuestMemory::CreateWithHole(kMemoryBytes);
  if (!memory) return Fail("guest memory", memory.error());
  const FrontendOptions options{.accept_timeout_ns = arguments.timeout_seconds * kNsPerSecond};
  Result<std::unique_ptr<Frontend>> frontend = arguments.connect.empty()
                                                   ? Frontend::Listen(arguments.listen, options)
                                                   : Frontend::Connect(arguments.connect, options);
  if (!frontend) return Fail("socket", frontend.error());
  if (arguments.connect.empty()) {
    if (Status status = (*frontend)->Accept(); !status) return Fail("waiting for a back end", status.error());
  }
  if (Status status = (*frontend)->Open(); !status) return Fail("handshake", status.error());
  arguments.blk.auto_reconnect = true;
  Result<std::unique_ptr<BlkDriver>> driver = BlkDriver::Start(**frontend, **memory, arguments.blk);
  if (!driver) return Fail("device start", driver.error());
  Result<LoadReport> report = RunLoad(**driver, arguments.load);
  if (!report) return Fail("load", report.error());
  Print(**driver, *report);
  if (Status status = (*driver)->Stop(); !status) return Fail("device stop", status.error());
  if (report->faults > 0) return kExitDataFault;
  return report->errors > 0 ? kExitFailed : 0;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Load generator: plays QEMU and the guest on a vhost-user-blk socket.\n"
      "Exit status: 0 - all went well, 1 - errors, 2 - the disk returned wrong data.");
  app.set_version_flag("--version", std::string("cleat-perf ") + kVersion);
  auto* socket = app.add_option_group("socket");
  socket->add_option("--listen", arguments.listen, "Listen here as QEMU does; the engine connects");
  socket->add_option("--connect", arguments.connect, "Connect to an engine that listens here");
  socket->require_option(1);
  const std::map<std::string, LoadPattern> patterns = {{"read", LoadPattern::kRead},
                                                       {"write", LoadPattern::kWrite},
                                                       {"randread", LoadPattern::kRandRead},
                                                       {"randwrite", LoadPattern::kRandWrite}};
  app.add_option("--pattern", arguments.load.pattern,
                 "read, write, randread or randwrite (writes destroy the data)")
      ->transform(CLI::CheckedTransformer(patterns, CLI::ignore_case));
  app.add_option("--block-size", arguments.load.block_bytes, "Bytes a request")->capture_default_str();
  app.add_option("--queue-depth", arguments.load.queue_depth, "Requests in flight a queue")
      ->check(CLI::Range(1U, 1024U))
      ->capture_default_str();
  app.add_option("--queues", arguments.blk.num_queues, "Queues")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_flag("--packed", arguments.blk.packed, "Packed rings instead of split ones");
  app.add_option("--seconds", arguments.load.seconds, "Run so long");
  app.add_option("--requests", arguments.load.requests, "Run so many requests");
  app.add_flag("--verify", arguments.load.verify, "Stamp what is written, check what is read");
  app.add_option("--seed", arguments.load.seed, "Of the random pattern")->capture_default_str();
  app.add_option("--timeout", arguments.timeout_seconds, "Seconds to wait for a back end")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (arguments.load.seconds == 0 && arguments.load.requests == 0) arguments.load.seconds = 10;
  while (arguments.blk.queue_size < arguments.load.queue_depth) arguments.blk.queue_size *= 2;
  return Run(arguments);
}

}  // namespace
}  // namespace cleat::perf

int main(int argc, char** argv) {
  return cleat::perf::Main(argc, argv);
}
