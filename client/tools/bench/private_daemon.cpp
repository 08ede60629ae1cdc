#include "client/tools/bench/private_daemon.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "client/tools/admin_client.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kStartPatience{10};
constexpr int kStopPatienceMs = 10000;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::expected<std::string, Error> body_of(const std::string& admin_path, std::string_view target) {
  auto reply = tools::admin_get(admin_path, target);
  if (!reply) return std::unexpected(reply.error());
  return std::move(reply->body);
}

}  // namespace

std::expected<PrivateDaemon, Error> PrivateDaemon::start(std::vector<std::string> flags) {
  std::string folder = (fs::temp_directory_path() / "hotkv-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return std::unexpected(system_error("mkdtemp", folder));
  PrivateDaemon daemon;
  daemon.folder_ = folder;
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure).parent_path() / "hotkvd";
  flags.insert(flags.begin(), program.string());
  flags.push_back("--socket=" + daemon.control_path());
  flags.push_back("--admin-socket=" + daemon.admin_path());
  std::vector<char*> arguments;
  for (std::string& flag : flags) arguments.push_back(flag.data());
  arguments.push_back(nullptr);
  const fs::path log = daemon.folder_ / "hotkvd.log";
  const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const pid_t parent = ::getpid();
  daemon.pid_ = ::fork();
  if (daemon.pid_ < 0) return std::unexpected(system_error("fork", program.string()));
  if (daemon.pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    ::dup2(output.get(), STDOUT_FILENO);
    ::dup2(output.get(), STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  const auto end = std::chrono::steady_clock::now() + kStartPatience;
  while (!daemon.status()) {
    const bool has_ended = ::waitpid(daemon.pid_, nullptr, WNOHANG) == daemon.pid_;
    if (has_ended) daemon.pid_ = -1;
    if (has_ended || std::chrono::steady_clock::now() > end) {
      return std::unexpected(Error{ErrorCode::configuration_error, "start", program.string(),
                                   "it did not come up: " + text_of(log)});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return daemon;
}

PrivateDaemon::PrivateDaemon(PrivateDaemon&& other) noexcept
    : folder_(std::move(other.folder_)), pid_(std::exchange(other.pid_, -1)) {
  other.folder_.clear();
}

PrivateDaemon::~PrivateDaemon() {
  if (pid_ > 0) {
    const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    ::kill(pid_, SIGTERM);
    pollfd entry{.fd = ended.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, kStopPatienceMs) != 1) ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

std::expected<std::string, Error> PrivateDaemon::status() const {
  return body_of(admin_path(), "/status");
}

std::expected<std::string, Error> PrivateDaemon::contexts() const {
  return body_of(admin_path(), "/contexts?limit=10000");
}

std::expected<std::string, Error> PrivateDaemon::verify() const {
  return body_of(admin_path(), "/verify");
}

}  // namespace hotkv::bench
