#pragma once
// Memory is put behind files by a thread of its own: it takes milliseconds, and the daemon's one
// thread has none to give.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <expected>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/platform/headroom.hpp"
#include "daemon/platform/memory_file.hpp"

namespace hotkv::platform {

// A range of a file; the job keeps the file open.
struct FileRange {
  std::shared_ptr<const MemoryFile> file;
  ByteRange range;
};

// First all punches, then all allocations. Allocated ranges must be holes that nobody uses: if the
// job fails they are holes again.
struct ProvisionJob {
  std::uint64_t id = 0;
  std::vector<FileRange> punches;
  std::vector<FileRange> allocations;
};

struct ProvisionCompletion {
  std::uint64_t id = 0;
  std::expected<void, Error> result;  // memory_unavailable: needed, available, and whose limit
  bool punches_done = false;          // all of them; may be so although the job failed
};

struct ProvisionerOptions {
  // What is allocated between two questions to Headroom: 2 ms with warm memory, 25 ms with first
  // touch at its worst, and so the time a stop waits. Small against any sensible reserve.
  std::uint64_t slice_bytes = std::uint64_t{8} << 20;
  // Jobs queued, running, or done and not yet taken.
  std::size_t jobs_max = 256;
};

// A bounded first-in first-out queue of jobs and the one thread that does them.
//
// Why it asks Headroom before each slice: fallocate past a cgroup's limit does not fail, the kernel
// kills a process of the group instead. It asks for all the job still needs, so that a job that
// cannot end well fails before it takes anything.
//
// submit() and take_completions() are for one thread, the daemon's. A mutex guards the queues, as
// the threads share nothing else; no system call is made under it.
class Provisioner {
 public:
  // `wake` runs on the helper thread after each completion; it must not throw nor call back into
  // the provisioner, only make the daemon's thread call take_completions().
  // Errors: invalid_argument (an option of 0), system_error (no thread).
  [[nodiscard]] static std::expected<std::unique_ptr<Provisioner>, Error> start(
      Headroom headroom, ProvisionerOptions options, std::function<void()> wake);

  Provisioner(const Provisioner&) = delete;
  Provisioner& operator=(const Provisioner&) = delete;
  // Stops after the current slice. Queued jobs are dropped; of the running one what is done stays
  // done, because giving it back takes unbounded time: the files end with the daemon, or an
  // adopting one compares them with the kernel's account.
  ~Provisioner();

  // Errors: too_many_waiting; the job was not taken.
  [[nodiscard]] std::expected<void, Error> submit(ProvisionJob job);

  // What ended since the last call, in the order of submission.
  [[nodiscard]] std::vector<ProvisionCompletion> take_completions();

 private:
  Provisioner(Headroom headroom, ProvisionerOptions options, std::function<void()> wake);
  void run(const std::stop_token& stop);
  [[nodiscard]] ProvisionCompletion execute(const ProvisionJob& job, const std::stop_token& stop);
  [[nodiscard]] std::expected<void, Error> allocate_all(const ProvisionJob& job,
                                                        const std::stop_token& stop,
                                                        std::vector<FileRange>& allocated);
  [[nodiscard]] std::expected<void, Error> check_headroom(std::uint64_t needed_bytes) const;

  const ProvisionerOptions options_;

  // The helper thread's.
  const Headroom headroom_;
  const std::function<void()> wake_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable_any submitted_;
  std::deque<ProvisionJob> queue_;
  std::vector<ProvisionCompletion> completions_;
  std::size_t jobs_inside_ = 0;  // queued, running, or done and not yet taken

  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace hotkv::platform
