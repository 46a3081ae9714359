// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <utility>

#include "base/log_request.h"

namespace cleat::log {
namespace {

// The last thing of a line. Lines are formatted on the thread that logs them.
class RequestFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& line) override {
    const std::string& id = CurrentRequest();
    if (id.empty()) return;
    constexpr std::string_view kField = " request=";
    line.append(kField.data(), kField.data() + kField.size());
    line.append(id.data(), id.data() + id.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<RequestFlag>(); }
};

}  // namespace

Status Init(std::string_view program, std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("log level '{}' is unknown: use trace, debug, info, "
                             "warn, error or off",
                             level));
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<RequestFlag>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n: %v%*");
  logger->set_formatter(std::move(formatter));
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return Ok{};
}

void Write(spdlog::level::level_enum level, std::string_view line) {
  spdlog::log(level, "{}", line);
}

}  // namespace cleat::log
