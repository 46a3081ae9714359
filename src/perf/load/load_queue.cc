// SPDX-License-Identifier: Apache-2.0
#include "perf/load/load_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/random.h"
#include "perf/load/load_request.h"
#include "perf/ring/packed_driver_ring.h"
#include "perf/ring/split_driver_ring.h"
#include "perf/workload/zipf.h"

namespace cleat::perf {
namespace {

// New requests are shown to the device after so many completions, and after half of what is in flight: it is to have
// work while the other half is looked at.
constexpr size_t kPollBatchMax = 16;
constexpr uint64_t kVerifyEvery =
    8;                             // with verification, a write is followed by a read of the block so often
constexpr uint32_t kDueBits = 10;  // due times are kept in 1/1024 ns, so that a rate is met exactly
constexpr uint64_t kPageBytes = GuestMemory::kPageBytes;

template <typename Ring, typename Request>
class LoadQueueOf final : public LoadQueue {
  using Area = typename Request::Area;

 public:
  LoadQueueOf(Ring& ring, const Setup& setup, const LoadOptions& options, LoadThreadState& state)
      : LoadQueue(setup.name),
        posts_(ring),
        options_(options),
        state_(state),
        random_(options.seed + setup.stream * 0x9e3779b97f4a7c15ULL) {
    for (size_t op = 0; op < kLoadOps; ++op) {
      ops_.insert(ops_.end(), options_.mix[op], static_cast<LoadOp>(op));
    }
    if (ops_.empty() || options_.mix[static_cast<size_t>(ops_[0])] == 100) only_op_ = true;
  }

  ~LoadQueueOf() override {
    if (in_flight_ > 0) return;  // the device may still look at the descriptors: they stay taken
    for (const uint16_t id : ids_) posts_.Unreserve(id);
  }

  Status Prepare(GuestMemory& memory, const Setup& setup) {
    const bool indirect = options_.indirect && posts_.options().indirect_entries > 0;
    const size_t slots = setup.disks.size() * options_.depth;
    const uint64_t data_stride = (uint64_t{options_.block_bytes} + kPageBytes - 1) / kPageBytes * kPageBytes;
    CLEAT_ASSIGN(auto areas, memory.Allocate(slots * sizeof(Area), kPageBytes));
    CLEAT_ASSIGN(auto data, memory.Allocate(slots * data_stride, kPageBytes));
    slots_.resize(posts_.size());
    poll_batch_ = std::clamp<size_t>(slots / 2, 1, kPollBatchMax);
    streams_.reserve(setup.disks.size());
    for (size_t i = 0; i < setup.disks.size(); ++i) {
      streams_.emplace_back(setup.disks[i], options_, setup, setup.stream + i);
      for (uint32_t k = 0; k < options_.depth; ++k) {
        const uint64_t number = i * options_.depth + k;
        const auto id = posts_.Reserve(static_cast<uint16_t>(options_.segments + 2), indirect);
        if (!id) {
          return Error(ErrorCode::kInvalidArgument,
                       fmt::format("{}: {} requests in flight do not fit into a ring of {} descriptors",
                                   name_, slots, posts_.size()));
        }
        ids_.push_back(*id);
        Slot& slot = slots_[*id];
        slot.area_gpa = areas + number * sizeof(Area);
        slot.area = reinterpret_cast<Area*>(memory.At(slot.area_gpa, sizeof(Area)));
        slot.data_gpa = data + number * data_stride;
        slot.data = memory.At(slot.data_gpa, options_.block_bytes);
        CLEAT_CHECK(slot.area != nullptr && slot.data != nullptr);
        slot.stream = static_cast<uint16_t>(i);
        slot.lane = uint64_t{setup.queue} * options_.depth + k;
        Shape(*id, slot, ops_[0]);
      }
    }
    return Ok{};
  }

  void Start() override {
    const uint64_t now_ns = state_.clock.NowNs();
    for (Stream& stream : streams_) {
      if (options_.rate <= 0) break;
      // Evenly staggered, so that the disks' requests don't come all at once.
      stream.start_ns = state_.start_ns;
      stream.due_q = stream.interval_q / stream.streams * stream.number;
      ++state_.live_streams;
      stream.live = true;
    }
    for (const uint16_t id : ids_) {
      Slot& slot = slots_[id];
      if (options_.rate > 0) {
        streams_[slot.stream].free.push_back(id);
      } else {
        Next(id, slot, now_ns);
      }
    }
    if (options_.rate > 0) SendDue(now_ns);
    posts_.Submit();
  }

  size_t Poll() override {
    // All of a batch first: each header's cache line is the device's, and they all come at once instead of one by one.
    std::array<uint16_t, kPollBatchMax> ids;
    size_t completed = 0;
    typename Ring::Posted posted;
    PopResult popped = PopResult::kNone;
    while (completed < poll_batch_ && (popped = posts_.PopPosted(&posted)) == PopResult::kDone) {
      __builtin_prefetch(slots_[posted.id].area, /*rw=*/1);
      ids[completed++] = posted.id;
    }
    if (popped == PopResult::kBroken) [[unlikely]]
      state_.broken = true;
    uint64_t now_ns = 0;
    if (completed > 0) {
      now_ns = state_.clock.NowNs();
      for (size_t i = 0; i < completed; ++i) Complete(ids[i], now_ns);
      completed_ += completed;
      state_.stats.Completed(completed, now_ns);
    }
    if (options_.rate > 0 && state_.phase == LoadThreadState::Phase::kLoad) {
      SendDue(completed > 0 ? now_ns : state_.clock.NowNs());
    }
    if (posts_.HasUnpublished()) posts_.Submit();
    return completed;
  }

  void StartVerification() override {
    for (Stream& stream : streams_) stream.free.clear();
    for (const uint16_t id : ids_) {
      slots_[id].step = 0;
      NextVerification(id, slots_[id]);
    }
    posts_.Submit();
  }

  uint64_t NextDueNs() const override {
    uint64_t next = UINT64_MAX;
    for (const Stream& stream : streams_) {
      if (stream.live && !stream.free.empty()) next = std::min(next, stream.DueNs());
    }
    return next;
  }

  void EndSchedule(uint64_t now_ns) override {
    for (Stream& stream : streams_) {
      if (!stream.live) continue;
      for (; stream.left > 0 && stream.DueNs() < state_.end_ns && stream.DueNs() <= now_ns;
           stream.due_q += stream.interval_q) {
        const uint64_t due_ns = stream.DueNs();
        if (due_ns < state_.count_from_ns) continue;
        --stream.left;
        const auto op = static_cast<size_t>(PickOp());
        state_.stats.latency[op].Record(now_ns - due_ns);
        ++state_.stats.unsent[op];
      }
      Retire(stream);
    }
  }

  uint32_t in_flight() const override { return in_flight_; }
  uint64_t completed() const override { return completed_; }

  int call_fd() const override { return posts_.call_fd(); }
  bool EnableCalls() override { return posts_.EnableCalls(); }
  void DisableCalls() override { posts_.DisableCalls(); }
  std::string Problem() const override {
    if constexpr (std::is_base_of_v<DriverRing, Ring>) {
      return posts_.broken() ? "the device broke the ring: " + posts_.broken_reason() : std::string();
    } else {
      return posts_.Problem();
    }
  }

 private:
  // A disk as this queue sees it.
  struct Stream {
    Stream(const LoadDisk& target, const LoadOptions& options, const Setup& setup, uint64_t stream_number)
        : disk(target),
          form(target, options.block_bytes),
          blocks(target.bytes / options.block_bytes),
          number(stream_number),
          streams(setup.streams),
          lanes(uint64_t{setup.queues} * options.depth) {
      // With verification each request has the blocks to itself whose number is its lane's, modulo the lanes.
      span = options.verify ? blocks / lanes : blocks;
      cursor = span / setup.queues * setup.queue;
      if (options.pattern == LoadPattern::kZipf) zipf.emplace(span, options.zipf_theta);
      left = options.requests == 0
                 ? UINT64_MAX
                 : options.requests / streams + (number < options.requests % streams ? 1 : 0);
      if (options.rate > 0) {
        interval_q = static_cast<uint64_t>(static_cast<double>(streams) * static_cast<double>(kNsPerSecond) *
                                           (1U << kDueBits) / options.rate);
        interval_q = std::max<uint64_t>(interval_q, 1);
        free.reserve(options.depth);
      }
    }
    uint64_t DueNs() const { return start_ns + (due_q >> kDueBits); }

    LoadDisk disk;
    typename Request::Disk form;
    uint64_t blocks;
    uint64_t number, streams;
    uint64_t lanes;
    uint64_t span = 0;
    uint64_t cursor = 0;
    std::optional<Zipf> zipf;
    uint64_t left = 0;
    uint64_t interval_q = 0;
    uint64_t start_ns = 0;
    uint64_t due_q = 0;  // since then
    bool live = false;
    std::vector<uint16_t> free;  // open loop: slots that are not in flight
  };
  struct Slot {
    uint64_t due_ns = 0;  // or when it was sent: the beginning of its latency
    uint64_t offset_bytes = 0;
    Area* area = nullptr;
    uint8_t* data = nullptr;
    uint16_t stream = 0;
    LoadOp op = LoadOp::kRead;
    bool reads_back = false;  // not of the load: a verification
    uint64_t lane = 0;
    uint64_t step = 0;
    uint64_t area_gpa = 0;
    uint64_t data_gpa = 0;
  };

  std::span<uint8_t> Data(const Slot& slot) const { return {slot.data, options_.block_bytes}; }

  LoadOp PickOp() {
    if (only_op_) return ops_[0];
    return ops_[(static_cast<uint32_t>(random_.Next() >> 32) * uint64_t{ops_.size()}) >> 32];
  }

  uint64_t PickOffset(Stream& stream, Slot& slot) {
    uint64_t step = 0;
    switch (options_.pattern) {
      case LoadPattern::kRandom:
        step = random_.Below(stream.span);
        break;
      case LoadPattern::kSequential: {
        uint64_t& cursor = options_.verify ? slot.step : stream.cursor;
        step = cursor;
        cursor = cursor + 1 == stream.span ? 0 : cursor + 1;
        break;
      }
      case LoadPattern::kZipf:
        step = stream.zipf->Next(random_);
        break;
    }
    return (options_.verify ? step * stream.lanes + slot.lane : step) * options_.block_bytes;
  }

  // Writes the slot's chain and header for this operation.
  [[gnu::noinline]] void Shape(uint16_t id, Slot& slot, LoadOp op) {
    pieces_.clear();
    chain_.clear();
    const uint32_t piece = options_.block_bytes / options_.segments / wire::kSectorBytes * wire::kSectorBytes;
    for (uint32_t i = 0; i < options_.segments; ++i) {
      const uint32_t length = i + 1 == options_.segments ? options_.block_bytes - i * piece : piece;
      pieces_.push_back({slot.data_gpa + uint64_t{i} * piece, length, false});
    }
    Request::Chain(op, slot.area_gpa, pieces_, &chain_);
    posts_.Prepare(id, chain_);
    Request::Form(*slot.area, op, streams_[slot.stream].form, id);
    slot.op = op;
  }

  void Send(uint16_t id, Slot& slot, LoadOp op, uint64_t offset_bytes, uint64_t due_ns) {
    if (slot.op != op) Shape(id, slot, op);
    slot.offset_bytes = offset_bytes;
    slot.due_ns = due_ns;
    Request::Aim(*slot.area, op, streams_[slot.stream].form, offset_bytes);
    posts_.Post(id);
    ++in_flight_;
    ++state_.in_flight;
  }

  // The load's next request; due now or, in an open loop, when it was due.
  void SendNext(uint16_t id, Slot& slot, uint64_t due_ns) {
    Stream& stream = streams_[slot.stream];
    if (due_ns >= state_.count_from_ns) --stream.left;
    const LoadOp op = PickOp();
    const uint64_t offset_bytes = PickOffset(stream, slot);
    slot.reads_back = false;
    if (stream.disk.stamps != nullptr) [[unlikely]] {
      if (op == LoadOp::kWrite) stream.disk.stamps->BeginWrite(offset_bytes, Data(slot));
      if (op == LoadOp::kWriteZeroes) stream.disk.stamps->BeginZero(offset_bytes, options_.block_bytes);
    }
    Send(id, slot, op, offset_bytes, due_ns);
  }

  // A slot that is free: its next request, or nothing.
  void Next(uint16_t id, Slot& slot, uint64_t now_ns) {
    Stream& stream = streams_[slot.stream];
    if (options_.rate > 0) {
      stream.free.push_back(id);
    } else if (now_ns < state_.end_ns && stream.left > 0) [[likely]] {
      SendNext(id, slot, now_ns);
    }
  }

  void SendDue(uint64_t now_ns) {
    const uint64_t until_ns = std::min(now_ns + 1, state_.end_ns);
    for (Stream& stream : streams_) {
      if (!stream.live) continue;
      while (!stream.free.empty() && stream.left > 0 && stream.DueNs() < until_ns) {
        const uint16_t id = stream.free.back();
        stream.free.pop_back();
        SendNext(id, slots_[id], stream.DueNs());
        stream.due_q += stream.interval_q;
      }
      if (stream.left == 0 || stream.DueNs() >= state_.end_ns) Retire(stream);
    }
    if (now_ns >= state_.end_ns) EndSchedule(now_ns);
  }

  void Retire(Stream& stream) {
    stream.live = false;
    --state_.live_streams;
  }

  void Complete(uint16_t id, uint64_t now_ns) {
    Slot& slot = slots_[id];
    --in_flight_;
    --state_.in_flight;
    const bool good = Request::Good(*slot.area);
    if (!good) [[unlikely]]
      Failed(slot);
    if (slot.due_ns >= state_.count_from_ns && !slot.reads_back) [[likely]] {
      state_.stats.latency[static_cast<size_t>(slot.op)].Record(now_ns - slot.due_ns);
    }
    if (streams_[slot.stream].disk.stamps != nullptr) [[unlikely]] {
      if (Verified(id, slot, good)) return;
    }
    Next(id, slot, now_ns);
  }

  [[gnu::cold, gnu::noinline]] void Failed(const Slot& slot) {
    LoadStats& stats = state_.stats;
    LoadStats::Add(&stats.errors[static_cast<size_t>(slot.op)], 1);
    if (!stats.first_error.empty()) return;
    stats.first_error = fmt::format("{}, {} of {} bytes at {}: {}", streams_[slot.stream].disk.name,
                                    kLoadOpNames[static_cast<size_t>(slot.op)], options_.block_bytes,
                                    slot.offset_bytes, Request::Problem(*slot.area));
  }

  // ---- Verification.

  // True when the slot was given something else to do than the load's next request.
  [[gnu::noinline]] bool Verified(uint16_t id, Slot& slot, bool good) {
    StampedBlocks& stamps = *streams_[slot.stream].disk.stamps;
    const bool changes = slot.op == LoadOp::kWrite || slot.op == LoadOp::kWriteZeroes;
    if (good && changes) stamps.Acknowledge(slot.offset_bytes, options_.block_bytes);
    if (good && slot.op == LoadOp::kRead) Judge(stamps, slot);
    if (state_.phase == LoadThreadState::Phase::kVerify) {
      NextVerification(id, slot);
      return true;
    }
    if (!good || !changes || random_.Below(kVerifyEvery) != 0) return false;
    slot.reads_back = true;
    Send(id, slot, LoadOp::kRead, slot.offset_bytes, slot.due_ns);
    return true;
  }

  void Judge(StampedBlocks& stamps, const Slot& slot) {
    LoadStats& stats = state_.stats;
    LoadStats::Add(&stats.verified_blocks, 1);
    const BlockFinding finding = stamps.Check(slot.offset_bytes, Data(slot));
    if (finding.ok()) return;
    if (stats.first_fault.empty()) {
      stats.first_fault = streams_[slot.stream].disk.name + ": " + finding.ToString();
    }
    LoadStats::Add(&stats.faults, 1);
  }

  void NextVerification(uint16_t id, Slot& slot) {
    Stream& stream = streams_[slot.stream];
    if (stream.disk.stamps == nullptr) return;
    while (slot.step < stream.span) {
      const uint64_t offset_bytes = (slot.step++ * stream.lanes + slot.lane) * options_.block_bytes;
      if (!stream.disk.stamps->begun(offset_bytes)) continue;
      slot.reads_back = true;
      Send(id, slot, LoadOp::kRead, offset_bytes, 0);
      return;
    }
  }

  Ring& posts_;
  const LoadOptions options_;
  LoadThreadState& state_;
  Random random_;
  std::vector<LoadOp> ops_;  // a hundred, as the mix says
  bool only_op_ = false;
  std::vector<Stream> streams_;
  std::vector<Slot> slots_;    // by id
  std::vector<uint16_t> ids_;  // of all slots
  size_t poll_batch_ = 1;
  uint32_t in_flight_ = 0;
  uint64_t completed_ = 0;
  std::vector<Segment> pieces_, chain_;  // Shape's
};

template <typename Ring, typename Request, typename Base>
Result<std::unique_ptr<LoadQueue>> MakeOf(Base& ring, GuestMemory& memory, const LoadQueue::Setup& setup,
                                          const LoadOptions& options, LoadThreadState& state) {
  auto queue = std::make_unique<LoadQueueOf<Ring, Request>>(static_cast<Ring&>(ring), setup, options, state);
  CLEAT_TRY(queue->Prepare(memory, setup));
  return std::unique_ptr<LoadQueue>(std::move(queue));
}

Status CheckDisks(const LoadQueue::Setup& setup, const LoadOptions& options) {
  for (const LoadDisk& disk : setup.disks) {
    const uint64_t lanes = uint64_t{setup.queues} * options.depth;
    if (Status status = CheckLoad(options, disk.bytes, disk.logical_block_bytes, lanes); !status) {
      return Error(status.error().code, disk.name + ": " + status.error().message);
    }
  }
  return Ok{};
}

}  // namespace

uint32_t LoadQueue::DescriptorsNeeded(const LoadOptions& options, size_t disks, bool indirect) {
  return static_cast<uint32_t>(disks) * options.depth * (indirect ? 1 : options.segments + 2);
}

Result<std::unique_ptr<LoadQueue>> LoadQueue::Make(DriverRing& ring, GuestMemory& memory, const Setup& setup,
                                                   const LoadOptions& options, LoadThreadState& state) {
  CLEAT_TRY(CheckDisks(setup, options));
  const bool scsi = setup.type == DeviceType::kScsi;
  if (ring.packed()) {
    return scsi ? MakeOf<PackedDriverRing, ScsiLoadRequest>(ring, memory, setup, options, state)
                : MakeOf<PackedDriverRing, BlkLoadRequest>(ring, memory, setup, options, state);
  }
  return scsi ? MakeOf<SplitDriverRing, ScsiLoadRequest>(ring, memory, setup, options, state)
              : MakeOf<SplitDriverRing, BlkLoadRequest>(ring, memory, setup, options, state);
}

Result<std::unique_ptr<LoadQueue>> LoadQueue::Make(NvmePostedQueue& queue, GuestMemory& memory,
                                                   const Setup& setup, const LoadOptions& options,
                                                   LoadThreadState& state) {
  CLEAT_TRY(CheckDisks(setup, options));
  return MakeOf<NvmePostedQueue, NvmeLoadRequest>(queue, memory, setup, options, state);
}

}  // namespace cleat::perf
