#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <hotkv/client.hpp>

#include "client/library/socket_path.hpp"
#include "shared/seqpacket.hpp"
#include "tests/support/fake_daemon.hpp"

namespace hotkv {
namespace {

using fake::Bytes;
using fake::FakeDaemon;
using fake::join_bytes;
using fake::session_id;
using fake::small_recipe;
using protocol::Type;
using std::chrono::milliseconds;

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// Lines of the process's map that name one of the fake daemon's files.
std::size_t mapped_parts(std::string_view name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:" + std::string(name)) != std::string::npos) ++found;
  }
  return found;
}

TEST(Client, AttachesAndTellsWhatTheShardIs) {
  FakeDaemon daemon;
  const auto client = Client::attach(daemon.client_options(), daemon.recipe());
  ASSERT_TRUE(client.has_value()) << client.error().message();
  EXPECT_EQ(client->recipe(), daemon.recipe());
  EXPECT_EQ(client->chunk_tokens(), 16u);
  EXPECT_EQ(client->boot_token(), daemon.header().boot_token);
  EXPECT_TRUE(client->is_connected());
}

// FR-100: attaching is no ownership: an end of the client leaves nothing and removes nothing.
TEST(Client, KeepsNoDescriptorOfTheFilesAndNothingAtAllOnceItIsGone) {
  FakeDaemon daemon;
  const std::size_t descriptors = open_descriptors();
  const std::size_t arenas = mapped_parts("arena");
  const std::size_t pages = mapped_parts("pages");
  {
    const Client client = daemon.attach();
    daemon.wait_for_connections(1);
    // The socket, the eventfd, and the fake daemon's end of the socket.
    EXPECT_EQ(open_descriptors(), descriptors + 3);
    EXPECT_EQ(mapped_parts("arena"), arenas + 1);
    EXPECT_EQ(mapped_parts("pages"), pages + 2);
  }
  daemon.wait_for_connections(0);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(mapped_parts("arena"), arenas);
  EXPECT_EQ(mapped_parts("pages"), pages);
}

TEST(Client, NobodyAtTheSocketIsDaemonUnavailable) {
  ClientOptions options;
  options.socket_path = "/nowhere/hotkv.sock";
  const auto client = Client::attach(options, small_recipe());
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::daemon_unavailable);
  EXPECT_NE(client.error().message().find("/nowhere/hotkv.sock"), std::string::npos);
}

TEST(Client, AnotherRecipeIsRefusedFieldByField) {
  FakeDaemon daemon;
  const auto client = Client::attach(daemon.client_options(), small_recipe("tiny", DType::bf16));
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::incompatible_recipe);
  EXPECT_NE(client.error().message().find("dtype"), std::string::npos) << client.error().message();
}

TEST(Client, TheDaemonsRefusalComesThroughWithItsCode) {
  FakeDaemon daemon;
  daemon.distort_attach([](auto& answer) {
    answer.status = static_cast<std::uint32_t>(ErrorCode::too_many_clients);
  });
  const auto client = Client::attach(daemon.client_options(), daemon.recipe());
  EXPECT_EQ(client.error().code, ErrorCode::too_many_clients);
  EXPECT_EQ(client.error().operation, "attach");
}

// What a broken or hostile daemon may answer to ATTACH, and the code it must end with.
struct BadAnswer {
  const char* what;
  std::function<void(FakeDaemon&, FakeDaemon::AttachAnswer&)> distort;
  ErrorCode code;
};

void replace_fd(FakeDaemon::AttachAnswer& answer, std::size_t index, UniqueFd fd) {
  answer.fds[index] = fd.get();
  answer.owned.push_back(std::move(fd));
}

UniqueFd unsealed_copy(std::uint64_t size_bytes, int source) {
  UniqueFd fd(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size_bytes)), 0);
  Bytes bytes(size_bytes);
  EXPECT_EQ(::pread(source, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(size_bytes));
  EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(size_bytes));
  return fd;
}

// FR-086: sizes are compared with the files before anything is mapped.
// FR-007: an attach that fails half way leaves neither a mapping nor a descriptor.
TEST(Client, SizesNumbersAndDescriptorsThatDoNotAgreeAreRefused) {
  const std::vector<BadAnswer> bad = {
      {"twice the size", [](auto&, auto& a) { a.reply.arena_bytes *= 2; },
       ErrorCode::shard_damaged},
      {"no size", [](auto&, auto& a) { a.reply.tables_bytes = 0; }, ErrorCode::shard_damaged},
      {"no page multiple", [](auto&, auto& a) { ++a.reply.pages_bytes; }, ErrorCode::shard_damaged},
      {"a huge size", [](auto&, auto& a) { a.reply.arena_bytes = ~std::uint64_t{0}; },
       ErrorCode::shard_damaged},
      {"more than an address space", [](auto&, auto& a) { a.reply.arena_bytes = 1ULL << 48; },
       ErrorCode::shard_damaged},
      {"sizes that a small file repeats",
       [](auto& d, auto& a) {
         a.reply.arena_bytes *= 2;
         d.header().arena_bytes *= 2;
       },
       ErrorCode::shard_damaged},
      {"files swapped", [](auto&, auto& a) { std::swap(a.fds[0], a.fds[2]); },
       ErrorCode::shard_damaged},
      {"two descriptors", [](auto&, auto& a) { a.fds.pop_back(); }, ErrorCode::protocol_error},
      {"no descriptor", [](auto&, auto& a) { a.fds.clear(); }, ErrorCode::protocol_error},
      {"four descriptors", [](auto&, auto& a) { a.fds.push_back(a.fds[0]); },
       ErrorCode::protocol_error},
      {"a page that is none", [](auto& d, auto& a) { a.reply.page = d.capacities().page_count; },
       ErrorCode::shard_damaged},
      {"a boot token that is not the header's", [](auto&, auto& a) { ++a.reply.boot_token; },
       ErrorCode::shard_damaged},
      {"tables that can shrink",
       [](auto&, auto& a) { replace_fd(a, 0, unsealed_copy(a.reply.tables_bytes, a.fds[0])); },
       ErrorCode::shard_damaged},
      {"a pipe for a file",
       [](auto&, auto& a) {
         int ends[2];
         ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
         replace_fd(a, 2, UniqueFd(ends[0]));
         a.owned.push_back(UniqueFd(ends[1]));
       },
       ErrorCode::shard_damaged},
      {"a closed shard",
       [](auto& d, auto&) { d.header().state = static_cast<std::uint32_t>(ShardState::closed); },
       ErrorCode::shard_damaged},
      {"no magic", [](auto& d, auto&) { d.header().magic = 0; }, ErrorCode::shard_damaged},
      {"another layout", [](auto& d, auto&) { ++d.header().layout_version; },
       ErrorCode::unsupported_version},
      {"more slots than the file holds",
       [](auto& d, auto&) { d.header().capacities.slot_count = 1 << 20; },
       ErrorCode::shard_damaged},
      {"more extents than the arena holds",
       [](auto& d, auto&) { d.header().geometry.extent_count *= 2; }, ErrorCode::shard_damaged},
      {"chunks whose number wraps with their size",
       [](auto& d, auto&) { d.header().geometry.extent_bytes = 1ULL << 63; },
       ErrorCode::shard_damaged},
      {"rows that are not the recipe's",
       [](auto& d, auto&) {
         std::swap(d.header().geometry.key_row_bytes, d.header().geometry.value_row_bytes);
       },
       ErrorCode::shard_damaged},
      {"another recipe in the header",
       [](auto& d, auto&) { d.header().recipe = encode_recipe(small_recipe("other")); },
       ErrorCode::incompatible_recipe},
  };
  const std::size_t descriptors = open_descriptors();
  const std::size_t arenas = mapped_parts("arena");
  for (const BadAnswer& answer : bad) {
    FakeDaemon daemon;
    daemon.distort_attach([&](auto& attach) {
      answer.distort(daemon, attach);
      seal_header(daemon.header());
    });
    const auto client = Client::attach(daemon.client_options(), daemon.recipe());
    ASSERT_FALSE(client.has_value()) << answer.what;
    EXPECT_EQ(client.error().code, answer.code) << answer.what << ": " << client.error().message();
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(mapped_parts("arena"), arenas);
}

TEST(Client, HostileFramesInTheHandshakeAreErrorsAndNeverACrash) {
  const auto cut = [](std::size_t size) {
    return [size](FakeDaemon& daemon, const FakeDaemon::Received& received) {
      Bytes frame = daemon.honest_answer(received);
      frame.resize(std::min(size, frame.size()));
      return frame;
    };
  };
  std::vector<std::function<Bytes(FakeDaemon&, const FakeDaemon::Received&)>> answers = {
      cut(0),
      cut(1),
      cut(31),
      cut(32),
      cut(39),
      [](auto&, auto&) { return Bytes(protocol::kFrameBytesMax, std::byte{0xff}); },
      [](auto&, auto&) { return Bytes(protocol::kFrameBytesMax + 1); },
      [](auto& daemon, auto& received) {
        Bytes frame = daemon.honest_answer(received);
        frame[8] = std::byte{0xee};  // the request id
        return frame;
      },
      [](auto& daemon, auto& received) {
        Bytes frame = daemon.honest_answer(received);
        frame[32] = std::byte{9};  // the chosen version
        return frame;
      },
      [](auto& daemon, auto& received) {
        Bytes frame = daemon.honest_answer(received);
        frame[36] = std::byte{9};  // the layout version
        return frame;
      },
  };
  for (std::size_t i = 0; i < answers.size(); ++i) {
    FakeDaemon daemon;
    daemon.script(Type::hello, [&](const auto& received) {
      return std::vector<Bytes>{answers[i](daemon, received)};
    });
    const auto client = Client::attach(daemon.client_options(), daemon.recipe());
    ASSERT_FALSE(client.has_value()) << i;
    EXPECT_TRUE(client.error().code == ErrorCode::protocol_error ||
                client.error().code == ErrorCode::unsupported_version)
        << i << ": " << client.error().message();
  }
}

TEST(Client, ADaemonThatNeverAnswersEndsTheAttachByItsDeadline) {
  for (const Type silent : {Type::hello, Type::attach}) {
    FakeDaemon daemon;
    daemon.script(silent, [](const auto&) { return std::vector<Bytes>{}; });
    const auto client =
        Client::attach(daemon.client_options(Access::write, milliseconds(30)), daemon.recipe());
    ASSERT_FALSE(client.has_value());
    EXPECT_EQ(client.error().code, ErrorCode::deadline_exceeded) << client.error().message();
  }
}

TEST(Client, ADaemonThatHangsUpInTheHandshakeIsUnavailable) {
  FakeDaemon daemon;
  daemon.script(Type::attach, [](const auto&) { return std::vector<Bytes>{}; });
  std::thread hang_up([&] {
    daemon.wait_for(Type::attach, 1);
    daemon.hang_up();
  });
  const auto client = Client::attach(daemon.client_options(), daemon.recipe());
  hang_up.join();
  EXPECT_EQ(client.error().code, ErrorCode::daemon_unavailable);
}

// Lets at most `room` more descriptors be opened in this process, until it is restored.
class DescriptorLimit {
 public:
  DescriptorLimit() { EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0); }
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  void leave_room_for(rlim_t room) const {
    const UniqueFd lowest_free(::dup(STDIN_FILENO));
    rlimit limited = before_;
    limited.rlim_cur = static_cast<rlim_t>(lowest_free.get()) + room;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limited), 0);
  }

 private:
  rlimit before_{};
};

// FR-073: one, two or all three descriptors lost: an error that says so, nothing mapped or leaked,
// and the next attach works.
TEST(Client, ADescriptorThatTheKernelDropsIsAnErrorAndTheNextAttachWorks) {
  FakeDaemon daemon;
  const std::size_t descriptors = open_descriptors();
  for (const rlim_t room : {0, 1, 2}) {
    const DescriptorLimit limit;
    std::vector<UniqueFd> kept;  // closing them would make room again
    daemon.distort_attach([&](auto& answer) {
      kept = std::move(answer.owned);
      limit.leave_room_for(room);
    });
    const auto client = Client::attach(daemon.client_options(), daemon.recipe());
    ASSERT_FALSE(client.has_value());
    EXPECT_EQ(client.error().code, ErrorCode::system_error);
    EXPECT_NE(client.error().message().find("descriptor"), std::string::npos)
        << client.error().message();
  }
  daemon.distort_attach({});
  EXPECT_TRUE(Client::attach(daemon.client_options(), daemon.recipe()).has_value());
  daemon.wait_for_connections(0);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(Client, AReaderMapsTheArenaReadOnlyAndMayNotWrite) {
  FakeDaemon daemon;
  daemon.put(session_id("a"), Epoch{1}, TokenCount{3});
  Client reader = daemon.attach(Access::read);
  EXPECT_TRUE(reader.open(session_id("a"), Epoch{1}).error().is(ErrorCode::read_only));
  EXPECT_EQ(daemon.received(Type::open), 0u);
  EXPECT_TRUE(reader.resolve(session_id("a"), Epoch{1}, TokenCount{3}).has_value());
  std::ifstream maps("/proc/self/maps");
  std::size_t read_only = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:arena") != std::string::npos && line.find(" r--s ") != std::string::npos) {
      ++read_only;
    }
  }
  EXPECT_EQ(read_only, 1u);
}

TEST(Client, AMovedFromClientRefusesInsteadOfCrashing) {
  FakeDaemon daemon;
  daemon.put(session_id("a"), Epoch{1}, TokenCount{3});
  Client first = daemon.attach();
  Client second = std::move(first);
  EXPECT_FALSE(first.is_connected());  // NOLINT: that is what is tested
  EXPECT_TRUE(first.open(session_id("a"), Epoch{1}).error().is(ErrorCode::invalid_argument));
  EXPECT_EQ(first.get(session_id("a"), Epoch{1}).error().cause, ErrorCode::invalid_argument);
  EXPECT_TRUE(second.is_connected());
}

// ---- where the daemon is ------------------------------------------------------------------------

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~Environment() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(DefaultSocketPath, IsTheEnvironmentsElseTheSystems) {
  const Environment runtime("XDG_RUNTIME_DIR", "/nowhere");
  {
    const Environment socket("HOTKV_SOCKET", "/somewhere/else.sock");
    EXPECT_EQ(client::default_socket_path(), "/somewhere/else.sock");
  }
  const Environment socket("HOTKV_SOCKET", nullptr);
  EXPECT_EQ(client::default_socket_path(), "/run/hotkv/control.sock");
}

}  // namespace
}  // namespace hotkv
