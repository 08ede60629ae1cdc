// Reading, and publishing within a grant, use memory only: shown by a child that the kernel kills
// at its first system call.

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include <hotkv/client.hpp>

#include "tests/support/fake_daemon.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv {
namespace {

using fake::Bytes;
using fake::FakeDaemon;
using fake::session_id;

constexpr int kNoFilter = 100;
constexpr int kNotReady = 101;

// From here on every system call of this thread ends the process, but the one that ends it anyway.
bool forbid_system_calls() {
  std::array<sock_filter, 4> code{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

struct Worker {
  Client client;
  Context context;
  SessionId session;
  Bytes rows;
};

// Attaches in a child of its own and runs `body` twice: once to warm up, once without system calls.
// The exit code is 0 if `body` was true both times; -1 if the kernel ended the child.
int exit_code_of(const FakeDaemon& daemon, const std::function<bool(Worker&)>& body) {
  testing::ForkedChild child([&] {
    auto client = Client::attach(daemon.client_options(), daemon.recipe());
    if (!client) return kNotReady;
    auto context = client->open(session_id("a"), Epoch{1});
    if (!context || !context->reserve(TokenCount{640})) return kNotReady;
    Worker worker{std::move(*client), std::move(*context), session_id("a"), Bytes(32 * 16)};
    if (!body(worker)) return kNotReady;
    if (!forbid_system_calls()) return kNoFilter;
    const bool good = body(worker);
    ::_exit(good ? 0 : 1);
    return 0;
  });
  return child.exit_code();
}

class NoSystemCall : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer makes system calls of its own";
#endif
  }
  void expect_none(const std::function<bool(Worker&)>& body) {
    const int code = exit_code_of(daemon_, body);
    if (code == kNoFilter) GTEST_SKIP() << "this system allows no seccomp filter";
    EXPECT_EQ(code, 0) << "-1: the kernel ended it at a system call";
  }
  FakeDaemon daemon_;
};

TEST_F(NoSystemCall, ResolveAndLookAtAView) {
  daemon_.put(session_id("read"), Epoch{1}, TokenCount{100});
  expect_none([](Worker& worker) {
    for (int i = 0; i < 1000; ++i) {
      const auto view = worker.client.resolve(session_id("read"), Epoch{1}, TokenCount{100});
      if (!view || view->keys(3, 6).size() != 4 * 16) return false;
      if (view->keys(3, 6)[0] != FakeDaemon::pattern(96, 3, true)) return false;
      if (view->gather_values(4, worker.rows) != 0) return false;
    }
    return worker.client.get(session_id("read"), Epoch{1}).has_value();
  });
}

TEST_F(NoSystemCall, AppendWriteAndPublishWithinAGrant) {
  expect_none([](Worker& worker) {
    for (int i = 0; i < 300; ++i) {
      auto writer = worker.context.append(TokenCount{1});
      if (!writer) return false;
      for (const std::uint32_t layer : {3u, 4u}) {
        if (!writer->write_keys(layer, TokenCount{0}, std::span(worker.rows).first(16)) ||
            !writer->write_values(layer, TokenCount{0}, std::span(worker.rows).first(8))) {
          return false;
        }
      }
      if (!writer->publish()) return false;
      if (!worker.client.resolve(worker.session, Epoch{1}, worker.context.length())) return false;
    }
    return worker.context.granted() <= TokenCount{340};
  });
}

TEST_F(NoSystemCall, TheTestCanFail) {
  const int code = exit_code_of(daemon_, [](Worker& worker) {
    return !worker.client.get(session_id("missing"), Epoch{1}).has_value();
  });
  if (code == kNoFilter) GTEST_SKIP() << "this system allows no seccomp filter";
  EXPECT_EQ(code, -1) << "a miss asks the daemon, which is a system call";
}

}  // namespace
}  // namespace hotkv
