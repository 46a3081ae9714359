// SPDX-License-Identifier: Apache-2.0
// An encrypted disk on one I/O reactor. Reads are decrypted where they lie, when the storage has answered. Writes - and
// zeroes, which the storage may not see as such - are encrypted into buffers of the reactor's pool: small writes into one,
// others into several, up to 1 MiB of a request at a time, one part after the other; the request ends once, with the first
// error.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "block/filter_device.h"
#include "modules/crypto/bounce_pool.h"
#include "modules/crypto/xts_cipher.h"

namespace cleat::modules {

class CryptoChannel final : public block::FilterChannel {
 public:
  // `reactor` and `pool` outlive the channel.
  CryptoChannel(Reactor& reactor, BouncePool& pool, std::unique_ptr<XtsContext> cipher, uint32_t unit_bytes,
                std::unique_ptr<block::Channel> below);
  ~CryptoChannel() override { CLEAT_CHECK(in_flight_ == 0); }

  void Submit(block::Request& request) override;
  // Writes that wait for their first buffer. (There is no ThrottleControl: buffers come back when the storage answers, and nothing
  // else could let anything pass here.)
  void AbortQueued(const block::Request* only) override;

 private:
  // A write's frame: what the request was before it went down, and of one in parts how far it is.
  enum Scratch : uint8_t {
    kSegments,  // address
    kShape,     // count of segments, and operation
    kBounces,   // of what is under way
    kOffset,
    kLength,
    kDone,  // bytes that the storage has
  };
  class Line final : public BounceLine {
   public:
    Line(CryptoChannel& c, BounceSize s) : channel(c), size(s) {}
    void Turn(block::Request& request) override {
      if (size == BounceSize::kSmall) return channel.SubmitSmall(request, BouncePool::Whose::kTurn);
      channel.SubmitPart(request, BouncePool::Whose::kTurn);
    }
    CryptoChannel& channel;
    const BounceSize size;
  };
  class Cursor;

  void WriteSmall(block::Request& request);
  void SubmitSmall(block::Request& request, BouncePool::Whose whose);
  void WriteInParts(block::Request& request);
  void SubmitPart(block::Request& request, BouncePool::Whose whose);
  bool EncryptPart(block::Request& request, Bounce& bounces);
  bool EncryptInto(uint8_t* out, uint64_t bytes, uint64_t sector, Cursor& from);
  bool Decrypt(std::span<const block::Segment> segments, uint64_t offset_bytes, uint64_t bytes);
  bool DecryptSplit(Cursor& at, uint64_t sector);
  void WaitForNextPart(block::Request& request, const block::Frame& frame, uint64_t done);
  static void SmallDone(block::Request& request, const block::Frame& frame);
  static void PartDone(block::Request& request, const block::Frame& frame);
  static void Recalled(block::Request& request, const block::Frame& frame);
  static void ReadDone(block::Request& request, const block::Frame& frame);
  void Stamp(block::Request& request, RequestStage stage, uint64_t bytes);

  Reactor& reactor_;
  BouncePool& pool_;
  const std::unique_ptr<XtsContext> cipher_;
  const uint32_t unit_bytes_;
  const uint32_t unit_shift_;     // its power of two
  uint64_t in_flight_ = 0;        // writes and reads that have a frame of this channel's
  uint64_t bytes_unstamped_ = 0;  // since the reactor's time was taken
  std::array<Line, kBounceSizes> lines_;
  // A data unit that lies in several segments.
  alignas(64) std::array<uint8_t, kDataUnitBytesMax> split_unit_;
};

}  // namespace cleat::modules
