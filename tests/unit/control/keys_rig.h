// SPDX-License-Identifier: Apache-2.0
// cleatd without gRPC, with key-encryption keys in files, for the tests of what is kept wrapped.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reconciler_rig.h"

namespace cleat::control {

class KeysRig : public ReconcilerRig {
 protected:
  KeysRig() {
    WriteKek("kek", '1');
    Restart();
  }

  void WriteKek(const std::string& name, char digit) {
    std::filesystem::remove(dir_ / name);
    std::ofstream(dir_ / name) << std::string(64, digit) << "\n";
    std::filesystem::permissions(dir_ / name, std::filesystem::perms::owner_read);
  }

  void Restart(std::vector<std::string> keks = {"kek"}) {
    for (std::string& path : keks) path = dir_ / path;
    auto keyring = std::make_unique<keys::Keyring>();
    ASSERT_TRUE(keyring->SetFiles(keks).ok());
    engine_.Disconnect();
    Stop();
    Start(std::move(keyring));
  }

  Result<v1::WaitResponse> WaitFor(const std::string& name) {
    v1::WaitRequest request;
    request.set_name(name);
    request.mutable_timeout()->set_seconds(60);
    return state_->waits().Wait(request, [] { return false; });
  }

  // All that the store has on its disk.
  std::string RawFiles() {
    std::string all;
    for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
      if (!file.is_regular_file()) continue;
      std::ifstream in(file.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    return all;
  }

  // What an engine was told, unwrapped; else why not.
  std::string Unwrapped(const std::string& kek_id, const std::string& data, const std::string& object) {
    const auto text = keyring_->Unwrap(kek_id, {reinterpret_cast<const uint8_t*>(data.data()), data.size()},
                                       object, keys::Wrapping::kPadded);
    if (!text.ok()) return text.error().message;
    return {reinterpret_cast<const char*>(text->bytes().data()), text->size()};
  }
};

}  // namespace cleat::control
