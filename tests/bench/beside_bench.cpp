// What bad neighbours cost: the control operations of a client on its own shard, beside nobody and
// beside one that is stopped with answers unread, one that ends with its hands full, one that
// floods, and a log that nobody reads; in turns within one run. Two processes that only compute,
// and ask hotkvd nothing, are measured as well: what a neighbour costs beyond its share of the
// processors is what the daemon lets it take. Prints JSON.

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/daemon_process.hpp"
#include "tests/support/forked_child.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;
using Clock = std::chrono::steady_clock;

struct Sizes {
  std::uint32_t rounds = 0;
  std::uint32_t sessions = 0;    // that the ending client holds
  std::uint32_t operations = 0;  // measured in one round beside one kind of neighbour
  bool is_apart = false;  // who is measured and hotkvd on one processor, neighbours on another
};

void demand(bool is_so, const char* what) {
  if (!is_so) throw std::runtime_error(what);
}

void run_on(pid_t process, int processor) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(processor, &only);
  demand(::sched_setaffinity(process, sizeof only, &only) == 0, "a processor cannot be chosen");
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// ---- neighbours ---------------------------------------------------------------------------------

Bytes explain_frame(const RawClient& client) {
  ExplainOperation explain{
      context_name("nobody", 1), {}, 0, static_cast<std::uint32_t>(LengthMatch::any)};
  std::ranges::copy(client.fingerprint(), explain.fingerprint);
  return make_frame<ExplainOperation>(Type::explain, 1, {explain});
}

// The daemon's stderr: read all the time, or full and not read at all.
class LogPipe {
 public:
  LogPipe() {
    int ends[2];
    demand(::pipe2(ends, O_CLOEXEC) == 0, "no pipe");
    reader_.reset(ends[0]);
    writer_.reset(ends[1]);
    ::fcntl(reader_.get(), F_SETFL, O_NONBLOCK);
  }
  [[nodiscard]] int writer() const { return writer_.get(); }
  void empty() const {
    std::string text(1 << 16, '\0');
    while (::read(reader_.get(), text.data(), text.size()) > 0) {
    }
  }
  // The flags are the description's, so the daemon's log meets a non-blocking pipe for a moment.
  void fill() const {
    const std::string text(4096, '\n');
    for (pollfd room{writer_.get(), POLLOUT, 0}; ::poll(&room, 1, 0) == 1;) {
      if (::write(writer_.get(), text.data(), text.size()) < 0) return;
    }
  }

 private:
  UniqueFd reader_, writer_;
};

// Stopped, with more answers unread than its socket takes, so that the daemon has a queue of them.
ForkedChild stopped_client(const std::string& control_path) {
  constexpr int kUnread = 300;
  Turns turns;
  ForkedChild child([&] {
    RawClient client = attached_client(control_path, Access::write, small_recipe("stopped"));
    const Bytes ask = explain_frame(client);
    for (int sent = 0; sent < kUnread; ++sent) {
      if (!client.send(ask)) return 1;
    }
    turns.arrive_and_wait();
    return 0;
  });
  demand(turns.wait_for_child(), "the stopped client ended");
  child.stop();
  return child;
}

// Has the leases of so many sessions, and waits to be killed.
ForkedChild holder_of(const std::string& control_path, std::uint32_t sessions) {
  Turns turns;
  ForkedChild child([&] {
    RawClient client = attached_client(control_path, Access::write, small_recipe("ending"));
    for (std::uint32_t first = 0; first < sessions; first += kOperationsMax) {
      std::vector<OpenOperation> operations;
      for (std::uint32_t n = first; n < std::min(first + kOperationsMax, sessions); ++n) {
        operations.push_back({context_name("held-" + std::to_string(n), 1), {}});
        std::ranges::copy(client.fingerprint(), operations.back().fingerprint);
      }
      if (!std::ranges::all_of(client.operate(Type::open, operations), is_done)) return 1;
    }
    turns.arrive_and_wait();
    return 0;
  });
  demand(turns.wait_for_child(), "the client that was to hold many sessions ended");
  return child;
}

// Asks as fast as it is answered, many requests at a time; wrong ones too, which are logged.
ForkedChild flooding_client(const DaemonProcess& daemon) {
  constexpr std::uint64_t kWindow = 32;
  const std::uint64_t rests = status_number(daemon, "/server/rests");
  ForkedChild child([&, parent = ::getpid()] {
    RawClient client =
        attached_client(daemon.control_path(), Access::write, small_recipe("flooding"));
    const Bytes right = explain_frame(client);
    const Bytes wrong(3);
    for (std::uint64_t sent = 0, received = 0; ::getppid() == parent; ++received) {
      for (; sent - received < kWindow; ++sent) {
        if (!client.send(sent % 8 == 0 ? wrong : right)) return 1;
      }
      if (!client.receive()) return 2;
    }
    return 0;
  });
  demand(eventually([&] { return status_number(daemon, "/server/rests") > rests; }),
         "the flooding client was never slowed");
  return child;
}

// Keeps a processor busy, and asks nothing.
ForkedChild computing_process() {
  return ForkedChild([parent = ::getpid()] {
    volatile std::uint64_t sum = 0;
    while (::getppid() == parent) {
      for (std::uint64_t i = 0; i < 1'000'000; ++i) sum = sum + i;
    }
    return 0;
  });
}

// ---- the client that is measured ----------------------------------------------------------------

class Measured {
 public:
  explicit Measured(const std::string& control_path)
      : client_(attached_client(control_path, Access::write, small_recipe("measured"))) {}

  // Microseconds of each of OPEN, APPEND, CLOSE, in turns.
  [[nodiscard]] std::vector<double> run(std::uint32_t operations) {
    std::vector<double> us;
    const auto timed = [&us](auto operation) {
      const auto begin = Clock::now();
      const OperationResult result = operation();
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
      demand(is_done(result), "an operation beside the neighbours failed");
      return result;
    };
    while (us.size() < operations) {
      const std::uint64_t epoch = ++epoch_;  // supersedes the last one, whose chunk is used again
      const auto opened = timed([&] { return client_.open("session", epoch); });
      timed([&] { return client_.append("session", epoch, opened.generation, 16); });
      timed([&] { return client_.close("session", epoch, opened.generation); });
    }
    return us;
  }

 private:
  RawClient client_;
  std::uint64_t epoch_ = 0;
};

class Beside {
 public:
  explicit Beside(Sizes sizes)
      : sizes_(sizes),
        daemon_({.flags = {"--max-bytes=64M", "--hugepages=off", "--chunk-tokens=16",
                           "--session-cap=" + std::to_string(sizes.sessions + 1000)},
                 .err = log_.writer()}) {
    demand(daemon_.wait_ready(), "hotkvd did not start");
    if (sizes_.is_apart) {
      run_on(daemon_.pid(), 0);
      run_on(::getpid(), 0);
    }
    measured_.emplace(daemon_.control_path());
    (void)measured_->run(300);  // its memory is there, and what is cached is cached
  }

  nlohmann::json run() {
    for (std::uint32_t round = 0; round < sizes_.rounds; ++round) {
      const std::vector<double> nobody = measure("nobody");
      computing_ = beside_computing(nobody);
      beside("stopped", nobody, [&] { return stopped_client(path()); });
      beside_ending(nobody);
      beside("flooding", nobody, [&] { return flooding_client(daemon_); });
      log_.fill();
      compare("log_unread", nobody, measure("log_unread"));
      beside_all(nobody);
      log_.empty();
    }
    const std::string fault = broken_invariant(daemon_);
    demand(fault.empty(), fault.c_str());
    nlohmann::json report{{"benchmark", "beside"},
                          {"rounds", sizes_.rounds},
                          {"sessions_of_the_ending", sizes_.sessions},
                          {"operations_a_round", sizes_.operations},
                          {"neighbours_apart", sizes_.is_apart},
                          {"longest_stall_ms", status_number(daemon_, "/longest_stall_ms")},
                          {"log_lines_lost", status_number(daemon_, "/log_lines_lost")},
                          {"results", nlohmann::json::array()}};
    for (const auto& [kind, us] : us_) {
      nlohmann::json result{{"beside", kind},
                            {"p50_us", quantile(us, 0.5)},
                            {"p99_us", quantile(us, 0.99)},
                            {"max_us", quantile(us, 1)}};
      if (kind != "nobody") result["p99_ratio"] = quantile(ratios_[kind], 0.5);
      if (kind != "nobody" && kind != "computing") {
        result["p99_ratio_to_computing"] = quantile(ratios_to_computing_[kind], 0.5);
      }
      report["results"].push_back(std::move(result));
    }
    demand(daemon_.stop() == 0, "hotkvd failed");
    return report;
  }

 private:
  [[nodiscard]] const std::string& path() const { return daemon_.control_path(); }

  std::vector<double> measure(const std::string& kind) {
    std::vector<double> us = measured_->run(sizes_.operations);
    us_[kind].insert(us_[kind].end(), us.begin(), us.end());
    return us;
  }
  void compare(const std::string& kind, const std::vector<double>& nobody,
               const std::vector<double>& us) {
    ratios_[kind].push_back(quantile(us, 0.99) / quantile(nobody, 0.99));
    if (computing_.empty()) return;
    ratios_to_computing_[kind].push_back(quantile(us, 0.99) / quantile(computing_, 0.99));
  }
  // A neighbour, on its own processor where that is asked for.
  [[nodiscard]] ForkedChild elsewhere(ForkedChild neighbour) const {
    if (sizes_.is_apart) run_on(neighbour.pid(), 1);
    return neighbour;
  }
  std::vector<double> beside_computing(const std::vector<double>& nobody) {
    const ForkedChild one = elsewhere(computing_process());
    const ForkedChild other = elsewhere(computing_process());
    std::vector<double> us = measure("computing");
    compare("computing", nobody, us);
    return us;
  }
  template <class Make>
  void beside(const std::string& kind, const std::vector<double>& nobody, Make make) {
    const ForkedChild neighbour = elsewhere(make());
    compare(kind, nobody, measure(kind));
  }
  void beside_ending(const std::vector<double>& nobody) {
    ForkedChild ending = elsewhere(holder_of(path(), sizes_.sessions));
    ::kill(ending.pid(), SIGKILL);  // it ends while the other is measured
    compare("ending", nobody, measure("ending"));
  }
  void beside_all(const std::vector<double>& nobody) {
    ForkedChild ending = elsewhere(holder_of(path(), sizes_.sessions));
    const ForkedChild stopped = elsewhere(stopped_client(path()));
    const ForkedChild flooding = elsewhere(flooding_client(daemon_));
    ::kill(ending.pid(), SIGKILL);
    compare("all_of_them", nobody, measure("all_of_them"));
  }

  Sizes sizes_;
  LogPipe log_;
  DaemonProcess daemon_;
  std::optional<Measured> measured_;
  std::map<std::string, std::vector<double>> us_;
  std::map<std::string, std::vector<double>> ratios_;  // of each round's 99th percentiles
  std::map<std::string, std::vector<double>> ratios_to_computing_;
  std::vector<double> computing_;  // of this round
};

}  // namespace
}  // namespace hotkv::testing

int main(int argc, char** argv) {
  CLI::App app("Control operations of one client beside bad neighbours; prints JSON.");
  hotkv::testing::Sizes sizes{.rounds = 11, .sessions = 100'000, .operations = 3000};
  app.add_option("--rounds", sizes.rounds, "of each kind")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app.add_option("--sessions", sizes.sessions, "that the ending client holds")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--operations", sizes.operations, "that are measured in a round of a kind")
      ->capture_default_str()
      ->check(CLI::Range(3, 1'000'000));
  app.add_flag("--apart", sizes.is_apart,
               "neighbours run on a processor of their own: what is left is hotkvd's doing");
  CLI11_PARSE(app, argc, argv);
  try {
    std::printf("%s\n", hotkv::testing::Beside(sizes).run().dump(2).c_str());
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
