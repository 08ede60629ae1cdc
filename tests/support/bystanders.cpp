#include "tests/support/bystanders.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {
namespace {

constexpr std::uint32_t kTokens = 16;  // one chunk

bool request(KvWorker& worker, const std::string& session, std::uint64_t epoch) {
  if (!worker.open(session, epoch)) return false;
  Context& context = worker.context(session);
  return context.reserve(TokenCount{kTokens}).has_value() && context.release().has_value();
}

}  // namespace

Bystanders::Bystanders(const std::string& control_path) {
  for (std::uint32_t n = 0; n < kProcesses; ++n) {
    processes_.emplace_back(
        [&, n] { return ask(control_path, "bystander-" + std::to_string(n), *logs_[n]); });
  }
}

int Bystanders::ask(const std::string& control_path, const std::string& session, Log& log) {
  KvWorker worker(control_path, worker_recipe({0, 1}, "bystander"));
  // Epochs of earlier processes lie below.
  auto epoch = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  for (std::uint64_t count = 0; !log.ending && count < kRequestsMax; ++count) {
    Request& asked = log.requests[count];
    asked.begin = Clock::now();
    // A new epoch each time: whatever became of the request before.
    while (!request(worker, session, ++epoch) && !log.ending) {
      (void)worker.client().wait_connected(std::chrono::milliseconds(100));
    }
    asked.end = Clock::now();
    log.count = count + 1;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return 0;
}

std::vector<double> Bystanders::waits(Clock::time_point from, Clock::time_point to) const {
  constexpr std::chrono::microseconds kStep(500);
  std::vector<double> found;
  for (const auto& log : logs_) {
    const auto* const begin = log->requests.data();
    const auto* const end = begin + log->count.load();
    const auto* next = begin;
    for (auto moment = from; moment < to; moment += kStep) {
      next = std::find_if(next, end, [&](const Request& asked) { return asked.end >= moment; });
      if (next == end) break;
      const auto asked = std::max(moment, next->begin);
      found.push_back(std::chrono::duration<double, std::milli>(next->end - asked).count());
    }
  }
  return found;
}

std::uint64_t Bystanders::answered() const {
  std::uint64_t least = kRequestsMax;
  for (const auto& log : logs_) least = std::min<std::uint64_t>(least, log->count);
  return least;
}

void Bystanders::stop() {
  for (const auto& log : logs_) log->ending = true;
  for (ForkedChild& process : processes_) EXPECT_EQ(process.exit_code(), 0);
  processes_.clear();
}

}  // namespace hotkv::testing
