// SPDX-License-Identifier: Apache-2.0
// What one caller's cluster, disks, images and controllers can be at: the model that rbd_operations_test.cc holds the API to.
// Nobody else touches them, so every answer is known but for what an engine does in its own time - letting go of a disk or a
// controller, growing an image, hearing that one has grown. The model keeps every world that there may be; an answer that
// none of them gives is wrong, and a right one tells which of them it is. Plain values.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cleat::system_test {

enum class Act : uint8_t {
  kCreateCluster,
  kDeleteCluster,
  kCreateDisk,  // of kMibNew
  kDeleteDisk,
  kResizeDisk,
  kCreateController,
  kDeleteController,
  kAttach,
  kDetach,
  // By the test itself, as an administrator with librbd.
  kCreateImage,
  kRemoveImage,
  kGrowImage,
};
std::string_view NameOf(Act act);

struct Step {
  Act act{};
  uint32_t disk = 0;  // and its image
  uint32_t controller = 0;
  uint8_t mib = 0;
  std::string ToString() const;
};

struct World {
  static constexpr uint32_t kDisks = 4;
  static constexpr uint32_t kControllers = 3;
  static constexpr uint8_t kMibNew = 2;
  static constexpr uint8_t kMibMax = 8;
  static constexpr uint8_t kNone = 0xff;

  enum Presence : uint8_t { kAbsent, kThere, kLeaving };
  // How an attachment ends when nothing changes any more.
  // kGrowing is no end: an owner makes the image larger.
  enum class End : uint8_t { kGone, kReady, kNoImage, kImageTooSmall, kGrowing };

  struct Disk {
    uint8_t mib = 0;        // 0: there is none
    uint8_t image_mib = 0;  // 0: there is none
    uint8_t known_mib =
        0;  // the most that an engine may have seen its image have: one with less may be too small
    uint8_t controller = kNone;  // that it is attached to
    bool leaving = false;        // being detached from it
    auto operator<=>(const Disk&) const = default;
    bool attached() const { return controller != kNone; }
    bool held() const { return attached() && !leaving; }
    void See();  // the engine that it is attached to does
  };

  bool cluster = false;
  std::array<Disk, kDisks> disks;
  std::array<Presence, kControllers> controllers{};
  auto operator<=>(const World&) const = default;

  // Controller 0 takes one disk, the others as many as there are.
  static bool IsBlk(uint32_t controller) { return controller == 0; }
  End EndOf(uint32_t disk) const;
  std::string ToString() const;

  // Takes the step; the answer. Where the engine's timing decides, `also` has the other answers, which change nothing.
  std::string Take(const Step& step, std::vector<std::string>* also);
  // What may come next by itself.
  std::vector<World> Next() const;

 private:
  std::string Answer(const Step& step, std::vector<std::string>* also);
  std::string Attach(uint32_t disk, uint32_t controller);
  std::string ActOnImage(const Step& step, std::vector<std::string>* also);
};

class Worlds {
 public:
  Worlds() : all_{World()} {}

  // The step was answered so. False: no world there can be gives that answer.
  bool Take(const Step& step, const std::string& answer);
  // What the step may be answered, for people.
  std::string AnswersTo(const Step& step) const;

  // Whether any of them has it.
  template <typename Predicate>
  bool Any(Predicate has) const {
    for (const World& world : all_) {
      if (has(world)) return true;
    }
    return false;
  }
  // Only those are left that have it. False: none has.
  template <typename Predicate>
  bool Keep(Predicate has) {
    std::erase_if(all_, [&has](const World& world) { return !has(world); });
    Close();
    return !all_.empty();
  }
  // Whether the disk's attachment may end so, and that it did.
  bool MayEnd(uint32_t disk, World::End end) const;
  bool Ended(uint32_t disk, World::End end);

  size_t size() const { return all_.size(); }
  std::string ToString() const;

 private:
  void Close();  // under what may come by itself

  std::set<World> all_;
};

}  // namespace cleat::system_test
