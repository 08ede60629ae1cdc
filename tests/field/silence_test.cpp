// Logs that fill a disk, counters that lie, messages that name nothing.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/raw_client.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

namespace fs = std::filesystem;

class Silence : public UnderFire {};

// FR-133: what was left out is told with the next line of its kind.
TEST_F(Silence, TheNextLineSaysHowManyWereLeftOut) {
  RawClient client(daemon_.control_path());
  EXPECT_TRUE(eventually([&] {
    client.ask(Bytes(3));
    return log_lines("left_out=") > 0;
  }));
}

// FR-136: a script with known numbers; looking on does not count, and nothing is counted twice.
TEST_F(Silence, CountersAreTheNumbersOfAScript) {
  const Recipe recipe = worker_recipe({0, 1}, "script");
  KvWorker worker(daemon_.control_path(), recipe);
  const auto count = [&](const std::string& name) {
    // The honest worker's shard is the first.
    return status_number(daemon_, "/shards/1/counters/" + name);
  };
  const SessionId a = SessionId::from("a").value();
  for (const char* session : {"a", "b", "c"}) ASSERT_TRUE(worker.open(session, 5));
  for (const char* session : {"a", "b"}) ASSERT_TRUE(worker.append(session, 20));
  ASSERT_TRUE(worker.append("a", 1));  // within the grant: the daemon is not asked
  ASSERT_TRUE(worker.context("a").truncate(TokenCount{3}));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(worker.client().resolve(a, Epoch{5}, TokenCount{3}));   // not the daemon's
    EXPECT_FALSE(worker.client().resolve(a, Epoch{5}, TokenCount{4}));  // explained
  }
  EXPECT_FALSE(worker.client().open(a, Epoch{4}));
  ASSERT_TRUE(worker.context("b").release());
  EXPECT_FALSE(worker.client().release(SessionId::from("b").value(), Epoch{5}));
  EXPECT_FALSE(worker.client().get(SessionId::from("b").value(), Epoch{5}));
  ASSERT_TRUE(worker.open("c", 6));
  for (const char* page : {"/status", "/contexts", "/verify", "/why?session=a"}) {
    (void)admin_get(daemon_, page);
  }
  EXPECT_EQ(count("opens"), 4U);
  EXPECT_EQ(count("appends"), 2U);
  EXPECT_EQ(count("truncates"), 1U);
  EXPECT_EQ(count("releases"), 1U);
  EXPECT_EQ(count("misses/seq-len-mismatch"), 10U);
  EXPECT_EQ(count("misses/released"), 1U);
  EXPECT_EQ(count("refusals/stale-epoch"), 1U);
  EXPECT_EQ(count("operations_missed/released"), 1U);
  EXPECT_EQ(count("contexts_ended/released"), 1U);
  EXPECT_EQ(count("contexts_ended/superseded-epoch"), 1U);
  EXPECT_EQ(count("hits_explained"), 0U);
}

// FR-140: whatever keeps the daemon from starting: the message names what was done, to what, and
// why, in at most two lines, and the exit code tells the kind.
TEST(StartUpFailures, NameOperationObjectAndCause) {
  const TemporaryDirectory folder;
  const fs::path path = folder.path();
  std::ofstream(path / "file") << "x";
  std::ofstream(path / "bad.toml") << "max-byts = \"8G\"\n";
  fs::create_directory(path / "folder");
  fs::create_directory(path / "open");
  ::chmod((path / "open").c_str(), 0777);
  DaemonProcess running({.flags = {"--max-bytes=16M", "--hugepages=off"}});
  ASSERT_TRUE(running.wait_ready()) << running.err();
  struct Failure {
    std::vector<std::string> flags;
    int exit_code;
    std::vector<std::string> words;
  };
  const auto socket = [&](const fs::path& at) { return "--socket=" + at.string(); };
  const std::vector<Failure> failures{
      {{"--config=" + (path / "none.toml").string()}, 2, {"none.toml", "No such file"}},
      {{"--config=" + (path / "folder").string()}, 2, {"folder", "irectory"}},
      {{"--config=" + (path / "bad.toml").string()}, 2, {"bad.toml:1", "max-byts", "max_bytes"}},
      {{"--max-bytes=8e9"}, 2, {"max-bytes", "8e9"}},
      {{"--max-bytes=1"}, 2, {"max-bytes"}},
      {{"--max-bytes=99999T"}, 2, {"max_bytes", "99999T", "this machine"}},
      {{"--session-cap=0"}, 2, {"session-cap", "0"}},
      {{"--default-ttl=-1s"}, 2, {"default-ttl", "-1s"}},
      {{"--log-level=loud"}, 2, {"log-level", "loud"}},
      {{"--hugepages=maybe"}, 2, {"hugepages", "maybe"}},
      {{"--no-such-flag=1"}, 2, {"no-such-flag"}},
      {{"stray"}, 2, {"stray"}},
      {{socket("/nowhere-at-all/s")}, 2, {"/nowhere-at-all"}},
      {{socket(path / "file")}, 3, {"file", "a regular file"}},
      {{socket(path / "folder")}, 3, {"folder", "a directory"}},
      {{socket(path / "open/s")}, 2, {"/open", "any user"}},
      {{socket(running.control_path())}, 3, {running.control_path()}},
      {{socket(path / std::string(200, 'x'))}, 2, {"107"}},
  };
  for (const Failure& failure : failures) {
    std::vector<std::string> flags{"--admin-socket=" + (path / "a.sock").string()};
    const auto has = [&](const char* flag) {
      return std::ranges::any_of(failure.flags,
                                 [&](const std::string& f) { return f.starts_with(flag); });
    };
    if (!has("--socket=")) flags.push_back(socket(path / "c.sock"));
    if (!has("--max-bytes") && !has("--config")) flags.push_back("--max-bytes=16M");
    flags.insert(flags.end(), failure.flags.begin(), failure.flags.end());
    const ProgramResult result = run_program("hotkvd", flags);
    const std::string what = failure.flags.front() + "\n" + result.err;
    EXPECT_EQ(result.exit_code, failure.exit_code) << what;
    EXPECT_LE(std::ranges::count(result.err, '\n'), 2) << what;
    EXPECT_TRUE(result.err.starts_with("hotkvd: ")) << what;
    for (const std::string& word : failure.words) {
      EXPECT_NE(result.err.find(word), std::string::npos) << word << " in " << what;
    }
    EXPECT_FALSE(fs::exists(path / "c.sock")) << what;
  }
  EXPECT_EQ(running.stop(), 0);
}

}  // namespace
}  // namespace hotkv::testing
