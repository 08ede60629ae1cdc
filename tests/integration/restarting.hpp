#pragma once
// A daemon that can die and be started again with what its service manager, the test, kept.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {

inline constexpr std::size_t kFilesOfAShard = 3;
inline constexpr std::size_t kOwnFile = 1;  // the count of failed adoptions

class Restart : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err(); }

  static std::unique_ptr<DaemonProcess> daemon_with(DaemonOptions options) {
    options.flags.insert(options.flags.end(), {"--hugepages=off", "--chunk-tokens=16"});
    return std::make_unique<DaemonProcess>(std::move(options));
  }
  void begin_anew_with(DaemonOptions options) {
    daemon_ = daemon_with(std::move(options));
    ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err();
  }
  void kill_and_start_again() {
    daemon_->kill();
    daemon_->start_again();
    ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err();
  }
  [[nodiscard]] bool log_has(const std::string& text) const {
    return daemon_->err().find(text) != std::string::npos;
  }
  [[nodiscard]] std::size_t log_count(const std::string& text) const {
    const std::string log = daemon_->err();
    std::size_t count = 0;
    for (auto at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  }
  [[nodiscard]] nlohmann::json status() const { return admin_page(*daemon_, "/status"); }
  // Published bytes of a session as a client sees them that attaches now; its length, or why not.
  [[nodiscard]] std::string look_at(const std::string& session, std::uint32_t tokens) const {
    KvWorker reader(daemon_->control_path(), worker_recipe(), Access::read);
    const auto view =
        reader.client().resolve(SessionId::from(session).value(), Epoch{1}, TokenCount{tokens});
    if (!view) return view.error().message();
    return wrong_bytes(worker_recipe(), session, 1, *view) == 0 ? "" : "wrong bytes";
  }

  std::unique_ptr<DaemonProcess> daemon_ = daemon_with({.flags = {"--max-bytes=16M"}});
};

}  // namespace hotkv::testing
