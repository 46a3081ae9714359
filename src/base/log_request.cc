// SPDX-License-Identifier: Apache-2.0
#include "base/log_request.h"

#include <algorithm>
#include <utility>

namespace cleat::log {
namespace {

thread_local std::string current;

bool IsOfAWord(char c) {
  return c > ' ' && c < 0x7f;
}

}  // namespace

bool IsRequestId(std::string_view text) {
  return !text.empty() && text.size() <= kRequestBytesMax && std::all_of(text.begin(), text.end(), IsOfAWord);
}

std::string AsRequestId(std::string_view text) {
  std::string id(text.substr(0, kRequestBytesMax));
  std::replace_if(
      id.begin(), id.end(), [](char c) { return !IsOfAWord(c); }, '_');
  return id;
}

const std::string& CurrentRequest() {
  return current;
}

RequestScope::RequestScope(std::string id) : outer_(std::exchange(current, std::move(id))) {}

RequestScope::~RequestScope() {
  current = std::move(outer_);
}

void CarriedRequest::Swap() {
  current.swap(id_);
}

}  // namespace cleat::log
