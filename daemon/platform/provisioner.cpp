#include "daemon/platform/provisioner.hpp"

#include <signal.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

namespace hotkv::platform {
namespace {

Error stop_error() {
  return Error{ErrorCode::shutting_down, "provision", "memory", "the daemon is stopping", 0};
}

// Calls `action` for consecutive parts of `range` of at most `slice_bytes` until one fails or a
// stop is requested.
template <class Action>
std::expected<void, Error> for_each_slice(ByteRange range, std::uint64_t slice_bytes,
                                          const std::stop_token& stop, Action action) {
  while (range.length_bytes > 0) {
    if (stop.stop_requested()) return std::unexpected(stop_error());
    const ByteRange slice{range.offset_bytes, std::min(range.length_bytes, slice_bytes)};
    if (std::expected<void, Error> done = action(slice); !done) return done;
    range.offset_bytes += slice.length_bytes;
    range.length_bytes -= slice.length_bytes;
  }
  return {};
}

std::expected<void, Error> punch_all(const std::vector<FileRange>& ranges,
                                     std::uint64_t slice_bytes, const std::stop_token& stop) {
  for (const FileRange& punch : ranges) {
    auto done = for_each_slice(punch.range, slice_bytes, stop,
                               [&](ByteRange slice) { return punch.file->punch(slice); });
    if (!done) return done;
  }
  return {};
}

// A signal would make fallocate undo its work and begin anew; signals are the main thread's.
void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

std::expected<std::unique_ptr<Provisioner>, Error> Provisioner::start(Headroom headroom,
                                                                      ProvisionerOptions options,
                                                                      std::function<void()> wake) {
  if (options.slice_bytes == 0 || options.jobs_max == 0) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "start", "provisioner",
                                 "slice_bytes and jobs_max must be at least 1", 0});
  }
  std::unique_ptr<Provisioner> provisioner(
      new Provisioner(std::move(headroom), options, std::move(wake)));
  try {
    provisioner->thread_ =
        std::jthread([self = provisioner.get()](const std::stop_token& stop) { self->run(stop); });
  } catch (const std::system_error& failure) {
    return std::unexpected(system_error("start", "provisioner", failure.code().value()));
  }
  return provisioner;
}

Provisioner::Provisioner(Headroom headroom, ProvisionerOptions options, std::function<void()> wake)
    : options_(options), headroom_(std::move(headroom)), wake_(std::move(wake)) {}

Provisioner::~Provisioner() = default;

std::expected<void, Error> Provisioner::submit(ProvisionJob job) {
  {
    const std::lock_guard lock(mutex_);
    if (jobs_inside_ == options_.jobs_max) {
      return std::unexpected(Error{ErrorCode::too_many_waiting, "provision",
                                   "job " + std::to_string(job.id),
                                   std::to_string(jobs_inside_) + " jobs wait already", 0});
    }
    queue_.push_back(std::move(job));
    ++jobs_inside_;
  }
  submitted_.notify_one();
  return {};
}

std::vector<ProvisionCompletion> Provisioner::take_completions() {
  const std::lock_guard lock(mutex_);
  jobs_inside_ -= completions_.size();
  return std::exchange(completions_, {});
}

void Provisioner::run(const std::stop_token& stop) {
  block_signals();
  for (;;) {
    ProvisionJob job;
    {
      std::unique_lock lock(mutex_);
      submitted_.wait(lock, stop, [&] { return !queue_.empty(); });
      if (stop.stop_requested()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    ProvisionCompletion completion = execute(job, stop);
    if (stop.stop_requested()) return;
    {
      const std::lock_guard lock(mutex_);
      completions_.push_back(std::move(completion));
    }
    wake_();
  }
}

ProvisionCompletion Provisioner::execute(const ProvisionJob& job, const std::stop_token& stop) {
  ProvisionCompletion completion{job.id, punch_all(job.punches, options_.slice_bytes, stop), false};
  if (!completion.result) return completion;
  completion.punches_done = true;

  std::vector<FileRange> allocated;
  completion.result = allocate_all(job, stop, allocated);
  if (completion.result || stop.stop_requested()) return completion;
  if (auto undone = punch_all(allocated, options_.slice_bytes, stop); !undone) {
    completion.result.error().cause += "; giving back failed too: " + undone.error().message();
  }
  return completion;
}

std::expected<void, Error> Provisioner::allocate_all(const ProvisionJob& job,
                                                     const std::stop_token& stop,
                                                     std::vector<FileRange>& allocated) {
  std::uint64_t needed_bytes = 0;
  for (const FileRange& allocation : job.allocations) {
    needed_bytes += allocation.range.length_bytes;
  }
  for (const FileRange& allocation : job.allocations) {
    auto done = for_each_slice(allocation.range, options_.slice_bytes, stop,
                               [&](ByteRange slice) -> std::expected<void, Error> {
                                 if (auto room = check_headroom(needed_bytes); !room) return room;
                                 if (auto taken = allocation.file->allocate(slice); !taken)
                                   return taken;
                                 allocated.push_back({allocation.file, slice});
                                 needed_bytes -= slice.length_bytes;
                                 return {};
                               });
    if (!done) return done;
  }
  return {};
}

std::expected<void, Error> Provisioner::check_headroom(std::uint64_t needed_bytes) const {
  auto room = headroom_.room();
  if (!room) return std::unexpected(std::move(room.error()));
  if (needed_bytes <= room->available_bytes) return {};
  return std::unexpected(Error{ErrorCode::memory_unavailable, "provision", "memory",
                               "needed " + std::to_string(needed_bytes) + " bytes, available " +
                                   std::to_string(room->available_bytes) + " within " + room->limit,
                               0});
}

}  // namespace hotkv::platform
