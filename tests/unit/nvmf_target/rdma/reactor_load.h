// SPDX-License-Identifier: Apache-2.0
// A load on a disk by a channel of its own, wholly on the thread of the channel's reactor, as a guest's requests are.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "block/pipeline.h"
#include "reactor/reactor.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::test {

// Each of a few places of the disk is written with bytes that it has not had before, is read, and has to have them; then again.
// Made and destroyed on the rig's thread, destroyed when it is over(). Functions are for the rig's thread, whatever threads there are.
class ReactorLoad {
 public:
  static constexpr uint64_t kPlaceBytes = uint64_t{128} << 10;
  static constexpr std::array<uint32_t, 6> kLengths{512, 4096, 4608, 8192, 40960, 131072};
  static constexpr uint64_t kBytes = kLengths.size() * kPlaceBytes;  // of the disk, from `from` on

  ReactorLoad(block::Pipeline& disk, Reactor& reactor, uint64_t from) : reactor_(reactor) {
    for (size_t i = 0; i < places_.size(); ++i) {
      Place& place = places_[i];
      place.load = this;
      place.offset = from + i * kPlaceBytes;
      place.length = kLengths[i];
      // Adapters reach every other one's memory directly, and data of the others is copied.
      place.arena = std::make_unique<Arena>(kPlaceBytes, i % 2 == 0 ? Pages::kAny : Pages::kPinned);
      place.io.on_done = [&place] { place.load->Done(place); };
    }
    reactor_.PostCall([this, &disk] { Begin(disk); });
  }
  ~ReactorLoad() { CLEAT_CHECK(over_); }
  ReactorLoad(const ReactorLoad&) = delete;
  ReactorLoad& operator=(const ReactorLoad&) = delete;

  // What is under way is answered yet; then the channel goes.
  void End() {
    reactor_.PostCall([this] { ends_ = true; });
  }
  bool over() const { return over_; }
  // Reads that had what was written.
  uint64_t checked() const { return checked_; }
  // Answers that were none, and reads that had something else.
  uint64_t wrong() const { return wrong_; }

 private:
  struct Place {
    ReactorLoad* load = nullptr;
    uint64_t offset = 0;
    uint32_t length = 0;
    std::unique_ptr<Arena> arena;
    Io io;
    uint8_t fill = 0;
    bool reads = false;
  };

  void Begin(block::Pipeline& disk) {
    auto opened = disk.OpenChannel(reactor_);
    CLEAT_CHECK(opened.ok());
    channel_ = std::move(opened).value();
    for (Place& place : places_) Next(place);
  }
  void Next(Place& place) {
    ++under_way_;
    if (!place.reads) ++place.fill;
    std::memset(place.arena->data(), place.reads ? 0 : place.fill, place.length);
    // Two pieces, as guests' buffers are where they cross a page.
    const uint32_t half = place.length / 2;
    place.io.segments = {{&place.arena->region(), 0, half}, {&place.arena->region(), half, half}};
    place.io.Submit(*channel_, place.reads ? block::Op::kRead : block::Op::kWrite, place.offset,
                    place.length);
  }
  void Done(Place& place) {
    --under_way_;
    const bool is_right = place.io.status() == block::IoStatus::kOk && (!place.reads || IsFilled(place));
    if (!is_right) ++wrong_;
    if (is_right && place.reads) ++checked_;
    place.reads = is_right && !place.reads;
    if (!ends_) return Next(place);
    if (under_way_ == 0) reactor_.PostCall([this] { Close(); });
  }
  // Each byte is the first one's, which is the next one's.
  static bool IsFilled(Place& place) {
    const uint8_t* const data = place.arena->data();
    return data[0] == place.fill && std::memcmp(data, data + 1, place.length - 1) == 0;
  }
  void Close() {
    channel_.reset();
    over_ = true;
  }

  Reactor& reactor_;
  std::array<Place, kLengths.size()> places_;
  std::unique_ptr<block::PipelineChannel> channel_;
  uint32_t under_way_ = 0;
  bool ends_ = false;
  std::atomic<bool> over_ = false;
  std::atomic<uint64_t> checked_ = 0;
  std::atomic<uint64_t> wrong_ = 0;
};

}  // namespace cleat::test
