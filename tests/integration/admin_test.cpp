// The admin socket of a running daemon, and hotkvctl.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/seqpacket.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

using Json = nlohmann::json;

class Admin : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err(); }
  void TearDown() override { EXPECT_EQ(daemon_.stop(), 0) << daemon_.err(); }

  std::string say(const std::string& request) {
    return exchange_text(daemon_.admin_path(), request);
  }
  // "HTTP/1.1 200 OK" is "200".
  std::string status_of(const std::string& request) {
    const std::string reply = say(request);
    return reply.size() < 12 ? reply : reply.substr(9, 3);
  }
  Json get(const std::string& target) {
    const std::string reply = say("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return Json::parse(reply.substr(reply.find("\r\n\r\n") + 4));
  }
  RawClient attached() {
    RawClient client(daemon_.control_path());
    client.hello();
    const RawReply reply = client.attach(small_recipe("m\"o\\d\ne\xff"), Access::write);
    EXPECT_EQ(reply.header.status, 0U);
    client.stay_alive(reply);
    return client;
  }
  ProgramResult ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "--admin-socket=" + daemon_.admin_path());
    return run_program("hotkvctl", arguments);
  }

  DaemonProcess daemon_{{.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16"}}};
};

TEST_F(Admin, StatusShowsLimitsAccountAndWhatTheServerCounted) {
  RawClient client = attached();
  const auto opened = client.open("session", 1);
  client.append("session", 1, opened.generation, 20);
  client.ask(Bytes(3));
  const Json status = get("/status");
  EXPECT_EQ(status.at("limits").at("max_bytes"), 16 << 20);
  EXPECT_EQ(status.at("server").at("connections"), 1);
  EXPECT_EQ(status.at("server").at("frames_refused").at("protocol-error"), 1);
  ASSERT_EQ(status.at("shards").size(), 1U);
  const Json& shard = status.at("shards")[0];
  EXPECT_EQ(shard.at("contexts"), 1);
  EXPECT_EQ(shard.at("clients"), 1);
  const Json& account = status.at("account");
  EXPECT_GT(account.at("used_bytes"), 0);
  EXPECT_EQ(account.at("used_bytes").get<int>() + account.at("kept_bytes").get<int>() +
                account.at("free_bytes").get<int>() + account.at("in_transit_bytes").get<int>(),
            account.at("provisioned_bytes").get<int>());
}

TEST_F(Admin, LookingChangesNothing) {
  RawClient client = attached();
  client.open("session", 1);
  const Json before = get("/status").at("shards");
  get("/contexts");
  get("/why?session=session");
  get("/why?session=nobody");
  get("/verify");
  EXPECT_EQ(get("/status").at("shards"), before);
}

// Reading a hole of a memory file allocates it: looking must not touch slots that nobody ever used.
TEST(AdminOfALargeCap, LookingTakesNoMemory) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16",
                                  "--session-cap=1000000"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  RawClient client(daemon.control_path());
  client.hello();
  client.stay_alive(client.attach(small_recipe(), Access::write));
  client.open("session", 1);
  const auto shared_kib = [&] {
    std::ifstream status("/proc/" + std::to_string(daemon.pid()) + "/status");
    long kib = -1;
    for (std::string word; kib < 0 && status >> word;) {
      if (word == "RssShmem:") status >> kib;
    }
    return kib;
  };
  const long before = shared_kib();
  ASSERT_GT(before, 0);
  for (const char* page : {"/status", "/contexts", "/why?session=session"}) {
    (void)exchange_text(daemon.admin_path(), std::string("GET ") + page + " HTTP/1.0\r\n\r\n");
  }
  EXPECT_LT(shared_kib(), before + 1024);
  EXPECT_EQ(daemon.stop(), 0);
}

// FR-134: whatever a client calls its sessions, every page can be parsed.
// FR-082: ids are shown escaped.
TEST_F(Admin, SessionsOfAnyBytesLeaveEveryPageReadable) {
  RawClient client = attached();
  const std::vector<std::string> ids{
      "plain", "q\"uote", "back\\slash", "line\nfeed", std::string("zero\0byte", 9), "\xff\xfe{}#"};
  for (const std::string& id : ids) client.open(id, 1);
  const Json contexts = get("/contexts");
  ASSERT_EQ(contexts.at("count"), ids.size());
  std::vector<std::string> shown;
  for (const Json& context : contexts.at("contexts")) shown.push_back(context.at("session"));
  for (const std::string& id : ids) {
    EXPECT_NE(std::ranges::find(shown, SessionId::from(id)->escaped()), shown.end());
  }
  EXPECT_EQ(get("/why?session=zero%00byte").at("shards").size(), 1U);
  EXPECT_EQ(get("/contexts?limit=2").at("contexts").size(), 2U);
}

TEST_F(Admin, WhySaysHowASessionEnded) {
  RawClient client = attached();
  client.open("session", 4);
  EXPECT_FALSE(get("/why?session=session").at("shards")[0].at("context").is_null());
  client.release("session", 4);
  const Json shard = get("/why?session=session").at("shards")[0];
  EXPECT_TRUE(shard.at("context").is_null());
  EXPECT_EQ(shard.at("miss").at("reason"), "released");
  EXPECT_EQ(shard.at("miss").at("last_epoch"), 4);
}

TEST_F(Admin, WhatIsNotAskedForRightlyIsRefusedInJson) {
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), "200");
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "404");
  EXPECT_EQ(status_of("GET /statusx HTTP/1.1\r\nHost: x\r\n\r\n"), "404");
  EXPECT_EQ(status_of("POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"), "405");
  EXPECT_EQ(status_of("DELETE /contexts HTTP/1.1\r\nHost: x\r\n\r\n"), "405");
  EXPECT_EQ(status_of("BREW /status HTTP/1.1\r\nHost: x\r\n\r\n"), "405");
  for (const char* target : {"/why", "/why?session=", "/why?session=%", "/why?session=%4",
                             "/why?session=%zz", "/why?sesion=a", "/why?session=a&b=c",
                             "/contexts?limit=-1", "/contexts?limit=10001", "/contexts?limit=9x"}) {
    EXPECT_EQ(status_of("GET " + std::string(target) + " HTTP/1.1\r\nHost: x\r\n\r\n"), "400")
        << target;
  }
  EXPECT_EQ(status_of("GET /why?session=" + std::string(129, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n"),
            "400");
  EXPECT_FALSE(get("/nothing").at("message").get<std::string>().empty());
}

TEST_F(Admin, RubbishIsAnsweredOrDroppedAndTheDaemonGoesOn) {
  say("rubbish\r\n\r\n");
  say(std::string(100'000, 'x'));
  say("GET /status HTTP/1.1\r\nX: " + std::string(20'000, 'y') + "\r\n\r\n");
  say("POST /status HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + std::string(5000, 'z'));
  say("GET /status HTTP/9.9\r\n\r\n");
  EXPECT_EQ(get("/health").at("health"), "ok");
}

TEST_F(Admin, SilentClientsFillTheirPlacesAndNothingElse) {
  const auto address = socket_address(daemon_.admin_path());
  std::vector<UniqueFd> silent;
  for (int count = 0; count < 20; ++count) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
              0);
    ASSERT_EQ(::send(fd.get(), "GET /sta", 8, MSG_NOSIGNAL), 8);
    silent.push_back(std::move(fd));
  }
  EXPECT_EQ(get("/health").at("health"), "ok");
  RawClient client = attached();
  EXPECT_EQ(client.open("session", 1).outcome, 0U);
}

// ---- hotkvctl -----------------------------------------------------------------------------------

TEST_F(Admin, CtlShowsTablesForPeopleAndJsonForScripts) {
  RawClient client = attached();
  client.open("a session", 3);
  const ProgramResult status = ctl({"status"});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_NE(status.out.find("16.0 MiB"), std::string::npos) << status.out;
  EXPECT_NE(status.out.find("SHARD"), std::string::npos) << status.out;
  const ProgramResult contexts = ctl({"contexts"});
  EXPECT_EQ(contexts.exit_code, 0) << contexts.err;
  EXPECT_NE(contexts.out.find("a session"), std::string::npos) << contexts.out;
  for (const char* command : {"status", "contexts"}) {
    const ProgramResult json = ctl({command, "--json"});
    EXPECT_EQ(json.exit_code, 0) << json.err;
    EXPECT_TRUE(Json::accept(json.out)) << json.out;
  }
}

TEST_F(Admin, CtlWhyTellsByItsExitCodeWhetherASessionLives) {
  RawClient client = attached();
  client.open("a/b c", 3);
  EXPECT_EQ(ctl({"why", "a/b c"}).exit_code, 0);
  EXPECT_EQ(ctl({"why", "nobody"}).exit_code, 1);
  client.release("a/b c", 3);
  const ProgramResult released = ctl({"why", "a/b c"});
  EXPECT_EQ(released.exit_code, 1);
  EXPECT_NE(released.out.find("released, last epoch 3"), std::string::npos) << released.out;
  EXPECT_EQ(Json::parse(ctl({"why", "--json", "a/b c"}).out).at("session"), "a/b c");
}

// FR-082: the tool refuses an id that is too long before it asks anybody.
TEST_F(Admin, CtlTellsUsageFromAnUnreachableDaemon) {
  EXPECT_EQ(ctl({}).exit_code, 2);
  EXPECT_EQ(ctl({"evict-all"}).exit_code, 2);
  EXPECT_EQ(ctl({"status", "--jsn"}).exit_code, 2);
  EXPECT_EQ(ctl({"why"}).exit_code, 2);
  EXPECT_EQ(ctl({"why", std::string(129, 'x')}).exit_code, 2);
  EXPECT_EQ(ctl({"--help"}).exit_code, 0);
  const ProgramResult gone = run_program("hotkvctl", {"status", "--admin-socket=/nowhere/a.sock"});
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_NE(gone.err.find("/nowhere/a.sock"), std::string::npos) << gone.err;
  EXPECT_EQ(
      run_program("hotkvctl", {"status", "--admin-socket=/" + std::string(107, 'x')}).exit_code, 2);
}

}  // namespace
}  // namespace hotkv::testing
