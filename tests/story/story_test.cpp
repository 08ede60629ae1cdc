// The same story whoever dies: a model in several processes, its KV in hotkvd, and kill -9.
//
// "Between two steps" is where no step runs: one router has ended, the next goes on with its
// transcript. "Inside a step" is forced: the tail is stopped, so that the head has published the
// step's token and waits, and only then somebody is killed.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/story/story_workers.hpp"
#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {
namespace {

class Story : public ::testing::TestWithParam<StoryModel> {
 protected:
  void SetUp() override {
    if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
    start_daemon();
  }
  void TearDown() override {
    if (!daemon) return;
    EXPECT_EQ(broken_invariant(*daemon), "");
    EXPECT_EQ(daemon->stop(), 0) << daemon->err();
  }
  void start_daemon() {
    daemon = std::make_unique<DaemonProcess>(
        DaemonOptions{.flags = {"--max-bytes=64M", "--hugepages=off", "--chunk-tokens=16"},
                      .directory = folder.path()});
    ASSERT_TRUE(daemon->wait_ready()) << daemon->err();
  }
  std::vector<std::string> two_ranges() const {
    return {"0-2", "3-" + std::to_string(layers() - 1)};
  }
  std::uint32_t layers() const { return GetParam().weights().config().layers; }
  std::size_t steps() const { return GetParam().steps; }
  std::filesystem::path transcript() const { return folder.path() / "transcript"; }

  // A router that writes up to `count` tokens of the one story of this test.
  std::unique_ptr<ProgramProcess> start_router(const Workers& workers, std::size_t count,
                                               std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"generate",
                                       "--model=" + GetParam().argument,
                                       "--head=" + workers.head_socket(),
                                       "--steps=" + std::to_string(count),
                                       "--transcript=" + transcript().string(),
                                       "--epoch=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<ProgramProcess>("hotkv-shard", arguments);
  }
  void write_half(const Workers& workers) {
    const auto router = start_router(workers, steps() / 2);
    ASSERT_EQ(router->wait_exit(), 0) << router->err();
    ASSERT_EQ(tokens_written(transcript()), steps() / 2);
  }
  // Waits for the router's end and compares all that the story has come to.
  void expect_whole_story(ProgramProcess& router) {
    ASSERT_EQ(router.wait_exit(), 0) << router.err();
    EXPECT_EQ(router.out(), GetParam().reference()) << router.err();
  }
  // Tokens that the head has published of the story, seen by another client.
  std::uint32_t published_by_head() const {
    const auto recipe = adapter::recipe_for(GetParam().weights().config(), {0, 2}, DType::f32);
    ClientOptions options;
    options.socket_path = daemon->control_path();
    options.access = Access::read;
    const auto client = Client::attach(options, recipe.value());
    if (!client) return 0;
    const auto view = client->get(SessionId::from("story").value(), Epoch{1});
    return view ? view->length().value() : 0;
  }
  // Goes on with the half-written story until the head has published the next token and waits for
  // the stopped tail.
  std::unique_ptr<ProgramProcess> stop_inside_a_step(Workers& workers) {
    workers.tail().stop();
    auto router = start_router(workers, steps());
    const auto inside = static_cast<std::uint32_t>(steps() / 2 + 1);
    EXPECT_TRUE(eventually([&] { return published_by_head() == inside; }));
    return router;
  }

  TemporaryDirectory folder;
  std::unique_ptr<DaemonProcess> daemon;
};

TEST_P(Story, TwoWorkersWriteTheReference) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  const auto router = start_router(workers, steps());
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "recomputed"), 0u);
  EXPECT_EQ(said(*router, "interruptions"), 0u);
}

TEST_P(Story, OneWorkerWithAllLayersWritesIt) {
  Workers workers(GetParam(), *daemon, folder.path(), {"0-" + std::to_string(layers() - 1)});
  ASSERT_TRUE(workers.are_up());
  const auto router = start_router(workers, steps());
  expect_whole_story(*router);
}

TEST_P(Story, ThreeWorkersWriteIt) {
  Workers workers(GetParam(), *daemon, folder.path(),
                  {"0-1", "2-3", "4-" + std::to_string(layers() - 1)});
  ASSERT_TRUE(workers.are_up());
  const auto router = start_router(workers, steps());
  expect_whole_story(*router);
}

TEST_P(Story, TheTailIsKilledBetweenTwoSteps) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  write_half(workers);
  workers.tail().kill();
  ASSERT_TRUE(workers.start(1));
  const auto router = start_router(workers, steps());
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "reused"), steps() / 2);
  EXPECT_EQ(said(*router, "recomputed"), 0u);
}

// The head lives on, still connected to the dead tail, and is asked while there is none: a step is
// not begun before there is one.
TEST_P(Story, ThereIsNoTailForAWhileBetweenTwoSteps) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  write_half(workers);
  workers.tail().kill();
  const auto router = start_router(workers, steps());
  ASSERT_TRUE(eventually([&] { return router->err().find("waiting") != std::string::npos; }))
      << router->err();
  ASSERT_TRUE(workers.start(1));
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "reused"), steps() / 2);
  EXPECT_EQ(said(*router, "recomputed"), 0u) << router->err();
  EXPECT_EQ(said(*router, "interruptions"), 1u);
}

TEST_P(Story, TheTailIsKilledInsideAStep) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  write_half(workers);
  const auto router = stop_inside_a_step(workers);
  workers.tail().kill();
  ASSERT_TRUE(workers.start(1));
  expect_whole_story(*router);
  // The head has run one token that the tail had not: it runs it again, unless the next tail is
  // there so soon that the residual is still at hand.
  EXPECT_LE(said(*router, "recomputed"), 1u);
}

TEST_P(Story, TheHeadIsKilledInsideAStep) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  write_half(workers);
  const auto router = stop_inside_a_step(workers);
  workers.head().kill();
  workers.tail().signal(SIGCONT);  // it drops the step, whose answer nobody waits for any more
  ASSERT_TRUE(workers.start(0));
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "recomputed"), 1u);
}

TEST_P(Story, BothAreKilledBetweenTwoSteps) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  write_half(workers);
  workers.head().kill();
  workers.tail().kill();
  ASSERT_TRUE(workers.start(1));
  ASSERT_TRUE(workers.start(0));
  const auto router = start_router(workers, steps());
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "reused"), steps() / 2);
  EXPECT_EQ(said(*router, "recomputed"), 0u);
}

TEST_P(Story, BothAreKilledInsideAStep) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  write_half(workers);
  const auto router = stop_inside_a_step(workers);
  workers.head().kill();
  workers.tail().kill();
  ASSERT_TRUE(workers.start(1));
  ASSERT_TRUE(workers.start(0));
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "recomputed"), 1u);
}

TEST_P(Story, WorkersAreKilledAgainAndAgainWhileItIsWritten) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  constexpr std::size_t kKills = 8;
  // About 1.2 s for the whole of it, whatever the machine; a third of it behind the last kill.
  const auto router =
      start_router(workers, steps(), {"--pace-ms=" + std::to_string(1200 / steps())});
  for (std::size_t kill = 0; kill < kKills; ++kill) {
    // Wherever it happens to be: in a step of one of them, or in the pause between two.
    const std::size_t from = steps() * (kill + 1) / (kKills + 4);
    ASSERT_TRUE(eventually([&] { return tokens_written(transcript()) >= from; })) << router->err();
    ASSERT_FALSE(router->has_ended());
    workers.worker(kill % 2).kill();
    ASSERT_TRUE(workers.start(kill % 2));
  }
  expect_whole_story(*router);
  EXPECT_LE(said(*router, "recomputed"), kKills);
}

TEST_P(Story, ASecondPairOfWorkersGoesOn) {
  Workers first(GetParam(), *daemon, folder.path(), two_ranges(), "first-");
  Workers second(GetParam(), *daemon, folder.path(), two_ranges(), "second-");
  ASSERT_TRUE(first.are_up() && second.are_up());
  write_half(first);
  const auto router = start_router(second, steps());
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "reused"), steps() / 2);
  EXPECT_EQ(said(*router, "recomputed"), 0u);
  EXPECT_EQ(said(*router, "interruptions"), 0u);
  EXPECT_FALSE(first.head().has_ended() || first.tail().has_ended());
}

TEST_P(Story, ASecondPairWaitsWhileTheFirstHoldsTheLeases) {
  Workers first(GetParam(), *daemon, folder.path(), two_ranges(), "first-");
  Workers second(GetParam(), *daemon, folder.path(), two_ranges(), "second-");
  ASSERT_TRUE(first.are_up() && second.are_up());
  write_half(first);
  const auto lost_router = stop_inside_a_step(first);
  lost_router->kill();  // so nobody tells the first pair to give the leases back
  first.tail().signal(SIGCONT);
  const auto router = start_router(second, steps());
  ASSERT_TRUE(eventually([&] { return router->err().find("session-busy") != std::string::npos; }))
      << router->err();
  first.head().kill();
  first.tail().kill();
  expect_whole_story(*router);
  EXPECT_EQ(said(*router, "recomputed"), 1u) << "the lost router had asked for one more";
}

TEST_P(Story, HotkvdIsStoppedForASecond) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  write_half(workers);
  const auto router = stop_inside_a_step(workers);
  EXPECT_EQ(daemon->stop(), 0) << daemon->err();
  workers.tail().signal(SIGCONT);
  const auto stopped = std::chrono::steady_clock::now();
  EXPECT_TRUE(eventually([&] {
    return router->err().find("daemon-unavailable") != std::string::npos &&
           workers.head().err().find("hotkvd is gone") != std::string::npos;
  })) << router->err()
      << workers.head().err();
  std::this_thread::sleep_until(stopped + std::chrono::seconds(1));
  EXPECT_FALSE(router->has_ended() || workers.head().has_ended() || workers.tail().has_ended());
  start_daemon();
  expect_whole_story(*router);
  // Cold: all is computed again, once, and the reason is told.
  EXPECT_NE(router->err().find("unknown-session"), std::string::npos) << router->err();
  EXPECT_GE(said(*router, "recomputed"), steps() / 2);
  EXPECT_LT(said(*router, "recomputed"), steps());
  EXPECT_EQ(said(*router, "interruptions"), 1u);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    EXPECT_NE(workers.worker(i).err().find("hotkvd is back, with empty memory"), std::string::npos)
        << workers.worker(i).err();
  }
}

TEST_P(Story, GoesOnFromAPrompt) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  const std::string prompt = "One day, a big café opened";
  const auto router = start_router(workers, 40, {"--prompt=" + prompt});
  ASSERT_EQ(router->wait_exit(), 0) << router->err();
  EXPECT_EQ(router->out(), GetParam().stateless_text(prompt, 40, DType::f32));
  EXPECT_EQ(router->out().starts_with(prompt), GetParam().name == "Trained");
}

TEST_P(Story, IsTheStatelessModelsInEachDType) {
  for (const std::string dtype : {"f16", "bf16"}) {
    {
      Workers workers(GetParam(), *daemon, folder.path(), two_ranges(), dtype + "-", dtype);
      ASSERT_TRUE(workers.are_up());
      std::filesystem::remove(transcript());
      const auto router = start_router(workers, 40);
      ASSERT_EQ(router->wait_exit(), 0) << router->err();
      EXPECT_EQ(router->out(), GetParam().stateless_text("", 40, *dtype_from_name(dtype)));
    }
    // Another dtype of the same model and layers is another recipe: the shard of before would be in
    // use. Its workers are gone, or they would come back to the next daemon.
    ASSERT_EQ(daemon->stop(), 0);
    start_daemon();
  }
}

// The key of the second story was another's before, and a router dies before its first token: what
// is cached under the key is of other tokens, and its transcript proves nothing.
TEST_P(Story, WhatIsCachedOfAnotherStoryUnderTheSameKeyIsNotReused) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  ASSERT_TRUE(workers.are_up());
  const auto first = start_router(workers, 20, {"--prompt=The old cat sat by the fire"});
  ASSERT_EQ(first->wait_exit(), 0) << first->err();
  std::filesystem::remove(transcript());
  const std::string prompt = "--prompt=A small red fish swam away";
  workers.tail().stop();
  const auto lost = start_router(workers, 20, {prompt});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(transcript()); }));
  lost->kill();
  workers.tail().signal(SIGCONT);
  const auto router = start_router(workers, 20, {prompt});
  ASSERT_EQ(router->wait_exit(), 0) << router->err();
  EXPECT_EQ(router->out(), GetParam().stateless_text("A small red fish swam away", 20, DType::f32));
  EXPECT_EQ(said(*router, "reused"), 0u);
}

TEST_P(Story, SamplingThatIsNotGreedyIsRefused) {
  Workers workers(GetParam(), *daemon, folder.path(), two_ranges());
  const auto router = start_router(workers, 5, {"--temperature=0.7"});
  EXPECT_EQ(router->wait_exit(), 2);
  EXPECT_NE(router->err().find("not certified; certified: greedy"), std::string::npos)
      << router->err();
}

INSTANTIATE_TEST_SUITE_P(Models, Story, ::testing::Values(trained_model(), seeded_model()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace hotkv::testing
