// SPDX-License-Identifier: Apache-2.0
// cleat-perf run.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "perf/load/load_devices.h"
#include "perf/report/report.h"
#include "perf/tool/command_line.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::perf {
namespace {

constexpr uint32_t kDeviceNumberMax = 1'000'000;
constexpr const char* kPlaceholder = "{}";

const std::map<std::string, LoadPattern> kPatterns = {
    {"sequential", LoadPattern::kSequential}, {"random", LoadPattern::kRandom}, {"zipf", LoadPattern::kZipf}};
const std::map<std::string, DeviceType> kTypes = {{"blk", DeviceType::kBlk}, {"scsi", DeviceType::kScsi}};
const std::map<std::string, LoadWait> kWaits = {{"poll", LoadWait::kPoll}, {"call", LoadWait::kCall}};

constexpr const char* kRunFooter =
    R"(Sizes take k, M, G, T (1024s). Lists look like 0-3,7. Writes destroy what is on the disks.

Latency is counted from when a request was sent or, with --rate, from when it was due: what a stall delays is
seen in full. Numbers in JSON and histogram files are nanoseconds, requests and bytes.

Examples:
  cleat-perf run --listen /run/d.sock --depth 32 --time 10 --cores 1
      random 4 KiB reads of a blk device; the engine connects to the socket, as it does to QEMU's
  cleat-perf run --listen '/run/c{}.sock' --devices 0-7 --type scsi --targets 0 --depth 32
      eight scsi controllers, the disk at target 0 of each
  cleat-perf run --connect /run/d.sock --mix read=70,write=30 --rate 20000 --depth 256 --json - --time 60
      open loop: 20,000 requests a second whatever the disk does; the result as JSON
  cleat-perf run --listen /run/d.sock --mix read=50,write=50 --verify --requests 100000
      every block stamped, checked when it is read, and all of them at the end
  cleat-perf run --nvme-tcp 10.0.0.1:4420 --nqn nqn.2024-01.org.example:disks --namespace 1 --queues 2 --cores 2,3
      a namespace behind any NVMe/TCP target, with an initiator of its own: two queue pairs, each on a core

Exit status: 0 - all went well, 1 - errors, 2 - a disk returned wrong data.)";

template <typename T>
std::string NameOf(const std::map<std::string, T>& names, T value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return "?";
}

class RunCommand final : public Command {
 public:
  explicit RunCommand(CLI::App& parent) {
    app = parent.add_subcommand("run", "Put a load on disks and report rate and latencies");
    app->footer(kRunFooter);
    AddDeviceOptions();
    AddNvmeOptions();
    AddLoadOptions();
    AddRunOptions();
  }

  int Run(const std::vector<std::string>& command_line) override {
    if (Status status = Resolve(); !status) return Complain(status.error());
    if (Status status = PrepareProcess(); !status) return Complain(status.error());
    const std::function<void(size_t)> opened = [&](size_t count) {
      if (progress_) std::fprintf(stderr, "%zu of %zu devices are connected\n", count, DeviceCount());
    };
    auto open = OpenLoadDevices(devices_, load_, opened);
    if (!open) return Complain(open.error());
    std::vector<LoadDevice> active;
    for (OpenLoadDevice& device : *open) {
      if (active_ == 0 || active.size() < active_) active.push_back(device.device());
    }
    if (progress_) environment_.progress = [](const LoadProgress& progress) { Print(progress); };
    Result<LoadReport> report = RunLoad(active, load_, environment_);
    if (!report) return Complain(report.error());
    int status = report->errors > 0 ? kExitFailed : kExitGood;
    if (report->faults > 0) status = kExitDataFault;
    if (Status written = Write(*report, command_line); !written)
      status = std::max(status, Complain(written.error()));
    for (OpenLoadDevice& device : *open) {
      if (Status stopped = device.Stop(); !stopped) status = std::max(status, Complain(stopped.error()));
    }
    return status;
  }

 private:
  void AddDeviceOptions() {
    const char* group = "Devices";
    app->add_option("--listen", listen_,
                    "Listen on this socket as QEMU does; the back end connects. Repeatable")
        ->type_name("PATH")
        ->group(group);
    app->add_option("--connect", connect_, "Connect to a back end that listens here. Repeatable")
        ->type_name("PATH")
        ->group(group);
    app->add_option("--devices", device_numbers_, "Numbers that a {} in a path stands for: 0-383")
        ->type_name("LIST")
        ->group(group);
    app->add_option("--active", active_, "Load only on the first so many devices; the others stay idle")
        ->type_name("N")
        ->group(group);
    app->add_option("--type", devices_.type, "blk or scsi (default blk)")
        ->transform(CLI::CheckedTransformer(kTypes))
        ->option_text("TYPE")
        ->group(group);
    app->add_option("--targets", targets_,
                    "scsi: targets whose LUN 0 is used; otherwise all of 0-7 that answer")
        ->type_name("LIST")
        ->group(group);
    app->add_option("--queues", devices_.queues, "Request queues a device")
        ->check(CLI::Range(1, 256))
        ->capture_default_str()
        ->group(group);
    app->add_option("--queue-size", devices_.queue_size, "Descriptors a queue (default: what the load needs)")
        ->check(CLI::Range(2, 32768))
        ->group(group);
    app->add_flag("--packed", devices_.packed, "Packed rings instead of split ones")->group(group);
    app->add_flag("!--no-indirect", load_.indirect, "Chains in the ring instead of indirect tables")
        ->group(group);
    app->add_flag("--reconnect", devices_.reconnect,
                  "Wait for a back end that closes its connection, as QEMU does")
        ->group(group);
    app->add_option("--timeout", timeout_s_,
                    "Seconds to wait for all back ends, and for a request that hangs")
        ->check(CLI::PositiveNumber)
        ->capture_default_str()
        ->group(group);
  }

  void AddNvmeOptions() {
    const NvmeTargetOptions nvme =
        AddNvmeTarget(*app, devices_.nvme_tcp, "NVMe/TCP",
                      {.address = "Address and port of a target, in place of sockets",
                       .host_id = "another one each time",
                       .header_digest = "CRC32C of each PDU's header",
                       .data_digest = "CRC32C of each PDU's data"});
    for (const char* other : {"--listen", "--connect", "--devices", "--active", "--type", "--targets",
                              "--queue-size", "--packed", "--no-indirect", "--reconnect"}) {
      nvme.address->excludes(app->get_option(other));
    }
    nvme.nqn->needs(nvme.address);
    nvme.address->needs(nvme.nqn);
    for (CLI::Option* other : nvme.others) other->needs(nvme.address);
  }

  void AddLoadOptions() {
    const char* group = "Load";
    app->add_option("--depth", load_.depth, "Requests in flight a queue and disk; with --rate: at most")
        ->check(CLI::Range(1U, kLoadDepthMax))
        ->capture_default_str()
        ->group(group);
    app->add_option("--block-size", block_size_, "Bytes a request")
        ->type_name("SIZE")
        ->capture_default_str()
        ->group(group);
    app->add_option("--pattern", load_.pattern, "sequential, random or zipf (default random)")
        ->transform(CLI::CheckedTransformer(kPatterns))
        ->option_text("PATTERN")
        ->group(group);
    app->add_option("--zipf-theta", load_.zipf_theta, "How uneven zipf is: block k has a part of 1 / k^theta")
        ->capture_default_str()
        ->group(group);
    auto* mix =
        app->add_option("--mix", mix_,
                        "Percent of each: read=70,write=25,flush=1,discard=2,zeroes=2 (default read=100)")
            ->type_name("MIX")
            ->group(group);
    app->add_option("--read-percent", read_percent_, "Short for --mix read=N,write=100-N")
        ->check(CLI::Range(0, 100))
        ->excludes(mix)
        ->group(group);
    app->add_option("--segments", load_.segments, "Descriptors a request's data is cut into")
        ->check(CLI::Range(1U, kLoadSegmentsMax))
        ->capture_default_str()
        ->group(group);
    app->add_option("--rate", load_.rate,
                    "Open loop: requests a second, over all disks (default: closed loop)")
        ->check(CLI::Range(0.001, kLoadRateMax))
        ->group(group);
    app->add_flag("--verify", load_.verify,
                  "Stamp what is written and check what is read: torn, stale, lost, misplaced")
        ->group(group);
    app->add_option("--seed", load_.seed, "Of everything random")->capture_default_str()->group(group);
  }

  void AddRunOptions() {
    const char* group = "Run";
    app->add_option("--time", time_s_, "Seconds (default 10, unless --requests is given)")
        ->check(CLI::PositiveNumber)
        ->group(group);
    app->add_option("--requests", load_.requests, "Requests in all, over all disks")->group(group);
    app->add_option("--warmup", warmup_s_, "Seconds before that, not counted")
        ->check(CLI::NonNegativeNumber)
        ->group(group);
    app->add_option(
           "--wait", load_.wait,
           "poll: spin on the rings or sockets; call: sleep on the call eventfds or sockets (default poll)")
        ->transform(CLI::CheckedTransformer(kWaits))
        ->option_text("HOW")
        ->group(group);
    app->add_option("--cores", cores_, "A generator thread on each of these; devices are spread over them")
        ->type_name("LIST")
        ->group(group);
    AddJson(*app, json_)->group(group);
    app->add_option("--histogram", histogram_,
                    "All latencies: a line for each bucket with ns, count, part at or below")
        ->type_name("FILE")
        ->group(group);
    app->add_flag("--progress,!--no-progress", progress_,
                  "A line a second on standard error (default: on a terminal)")
        ->group(group);
  }

  Status Resolve() {
    CLEAT_TRY(ResolveSockets());
    CLEAT_ASSIGN(auto block_bytes, ParseSize(block_size_));
    if (block_bytes == 0 || block_bytes > kLoadBlockBytesMax) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("--block-size {}: must be from 512 to 64M", block_size_));
    }
    load_.block_bytes = static_cast<uint32_t>(block_bytes);
    if (!mix_.empty()) {
      CLEAT_ASSIGN(load_.mix, ParseMix(mix_));
    } else {
      load_.mix = {static_cast<uint8_t>(read_percent_), static_cast<uint8_t>(100 - read_percent_), 0, 0, 0};
    }
    if (!targets_.empty()) {
      if (devices_.type != DeviceType::kScsi) {
        return Error(ErrorCode::kInvalidArgument, "--targets is for --type scsi");
      }
      CLEAT_ASSIGN(auto targets, ParseList(targets_, UINT8_MAX));
      devices_.targets.assign(targets.begin(), targets.end());
    }
    if (!cores_.empty()) {
      CLEAT_ASSIGN(auto cores, ParseList(cores_, kCoreNumberMax));
      environment_.cores.assign(cores.begin(), cores.end());
    }
    if (time_s_ == 0 && load_.requests == 0) time_s_ = 10;
    load_.time_ns = Nanoseconds(time_s_);
    load_.warmup_ns = Nanoseconds(warmup_s_);
    load_.stall_timeout_ns = devices_.timeout_ns = Nanoseconds(timeout_s_);
    environment_.reconnect = devices_.reconnect;
    // What can be known without a disk.
    return CheckLoad(load_, UINT64_MAX, wire::kSectorBytes, 1);
  }

  Status ResolveSockets() {
    std::vector<uint32_t> numbers;
    if (!device_numbers_.empty()) {
      CLEAT_ASSIGN(numbers, ParseList(device_numbers_, kDeviceNumberMax));
    }
    bool pattern_seen = false;
    for (const bool listen : {true, false}) {
      for (const std::string& path : listen ? listen_ : connect_) {
        const size_t at = path.find(kPlaceholder);
        if (at == std::string::npos) {
          devices_.sockets.push_back({path, listen});
          continue;
        }
        pattern_seen = true;
        for (const uint32_t number : numbers) {
          devices_.sockets.push_back({std::string(path).replace(at, 2, std::to_string(number)), listen});
        }
      }
    }
    if (pattern_seen != !numbers.empty()) {
      return Error(ErrorCode::kInvalidArgument,
                   pattern_seen ? "a path with {} needs --devices, such as --devices 0-7"
                                : "--devices needs a path with {} in it, such as '/run/c{}.sock'");
    }
    if (devices_.sockets.empty() && !OverNvme()) {
      return Error(ErrorCode::kInvalidArgument,
                   "no socket: give --listen PATH, --connect PATH or --nvme-tcp HOST:PORT");
    }
    return Ok{};
  }

  bool OverNvme() const { return !devices_.nvme_tcp.address.empty(); }
  size_t DeviceCount() const { return OverNvme() ? 1 : devices_.sockets.size(); }

  Status PrepareProcess() {
    AllowManyDescriptors();  // many devices have many
    // Nothing of this process runs on other cores than it was given: there is somebody else to be measured.
    if (!environment_.cores.empty()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (const int core : environment_.cores) CPU_SET(static_cast<size_t>(core), &set);
      if (sched_setaffinity(0, sizeof set, &set) != 0) return ErrnoError(errno, "--cores " + cores_);
    }
    environment_.stop = StopOnSignals();
    return Ok{};
  }

  static void Print(const LoadProgress& progress) {
    std::string line = fmt::format(
        "{:6.0f} s {:>4}  {:>9.0f} iops {:>8.1f} MiB/s  p50 {:.1f} us  p99 {:.1f} us  {} errors",
        progress.seconds, progress.part_done < 0 ? "" : fmt::format("{:.0f}%", progress.part_done * 100),
        progress.iops, progress.bytes_per_second / (1 << 20), static_cast<double>(progress.p50_ns) / kNsPerUs,
        static_cast<double>(progress.p99_ns) / kNsPerUs, progress.errors);
    if (progress.warming_up) line += "  (warm-up)";
    std::fprintf(stderr, "%s\n", line.c_str());
  }

  Status Write(const LoadReport& report, const std::vector<std::string>& command_line) const {
    if (json_ != "-") std::fputs(ReportText(report).c_str(), stdout);
    if (!histogram_.empty()) {
      CLEAT_TRY(WriteText(histogram_, HistogramText(report.latency)));
    }
    return WriteJson(json_, command_line, OptionsJson(), ReportJson(report));
  }

  Json OptionsJson() const {
    Json mix;
    for (size_t op = 0; op < kLoadOps; ++op) mix[kLoadOpNames[op]] = load_.mix[op];
    Json json;
    json["type"] = OverNvme() ? "nvme-tcp" : NameOf(kTypes, devices_.type);
    json["sockets"] = DeviceCount();
    json["active"] = active_ == 0 ? DeviceCount() : active_;
    json["header_digest"] = devices_.nvme_tcp.digests.header;
    json["data_digest"] = devices_.nvme_tcp.digests.data;
    json["queues"] = devices_.queues;
    json["depth"] = load_.depth;
    json["block_bytes"] = load_.block_bytes;
    json["pattern"] = NameOf(kPatterns, load_.pattern);
    json["zipf_theta"] = load_.zipf_theta;
    json["mix"] = std::move(mix);
    json["segments"] = load_.segments;
    json["indirect"] = load_.indirect;
    json["packed"] = devices_.packed;
    json["rate"] = load_.rate;
    json["wait"] = NameOf(kWaits, load_.wait);
    json["cores"] = environment_.cores;
    json["time_ns"] = load_.time_ns;
    json["warmup_ns"] = load_.warmup_ns;
    json["requests"] = load_.requests;
    json["verify"] = load_.verify;
    json["seed"] = load_.seed;
    return json;
  }

  std::vector<std::string> listen_, connect_;
  std::string device_numbers_, targets_, cores_, mix_, json_, histogram_;
  std::string block_size_ = "4k";
  size_t active_ = 0;
  int read_percent_ = 100;
  double time_s_ = 0, warmup_s_ = 0, timeout_s_ = 60;
  bool progress_ = isatty(STDERR_FILENO) == 1;
  LoadDeviceOptions devices_;
  LoadOptions load_;
  LoadEnvironment environment_;
};

}  // namespace

std::unique_ptr<Command> AddRunCommand(CLI::App& app) {
  return std::make_unique<RunCommand>(app);
}

}  // namespace cleat::perf
