#pragma once
// hotkvd, workers and routers as processes, and what they must write.

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <hotkv/client.hpp>

#include "client/adapter/llama/tokenizer.hpp"
#include "client/adapter/llama/weights.hpp"
#include "tests/support/daemon_process.hpp"

namespace hotkv::testing {

// A model as the command line names it, and the story that it writes.
struct StoryModel {
  std::string name;       // in the test's name
  std::string argument;   // of --model
  std::size_t steps = 0;  // of its story
  // Set where it is not there: a checkpoint that lies beside the project.
  std::string missing{};

  [[nodiscard]] llama::Weights weights() const;
  [[nodiscard]] llama::Tokenizer tokenizer() const;
  // What `steps` greedy steps write: the independent program's text for the trained model, the
  // stateless whole model's for a seeded one.
  [[nodiscard]] std::string reference() const;
  // What the stateless whole model writes after `prompt`, with KV rounded to `dtype`.
  [[nodiscard]] std::string stateless_text(const std::string& prompt, std::size_t count,
                                           DType dtype) const;
  friend void PrintTo(const StoryModel& model, std::ostream* out) { *out << model.argument; }
};
[[nodiscard]] StoryModel trained_model();
[[nodiscard]] StoryModel seeded_model();

// Workers that together run a model, each a process. The first is the head.
class Workers {
 public:
  // Starts them, the tail first. Sockets lie in `folder` under names that begin with `name`.
  Workers(const StoryModel& model, const DaemonProcess& daemon, std::filesystem::path folder,
          const std::vector<std::string>& ranges, std::string name = "", std::string dtype = "f32");

  // (Re)starts one; a killed one's socket file is still there. False if it does not come up.
  [[nodiscard]] bool start(std::size_t index);
  [[nodiscard]] bool are_up() const { return are_up_; }
  [[nodiscard]] ProgramProcess& worker(std::size_t index) { return *processes_[index]; }
  [[nodiscard]] ProgramProcess& head() { return *processes_.front(); }
  [[nodiscard]] ProgramProcess& tail() { return *processes_.back(); }
  [[nodiscard]] std::size_t size() const { return ranges_.size(); }
  [[nodiscard]] std::string head_socket() const { return socket(0); }

 private:
  [[nodiscard]] std::string socket(std::size_t index) const;

  std::string model_;
  std::string control_path_;
  std::filesystem::path folder_;
  std::vector<std::string> ranges_;
  std::string name_;
  std::string dtype_;
  std::vector<std::unique_ptr<ProgramProcess>> processes_;
  bool are_up_ = true;
};

// A number that the router says at its end: "recomputed", "reused", "interruptions". Fails the test
// if it did not.
[[nodiscard]] std::uint64_t said(const ProgramProcess& router, const std::string& what);

// Tokens that a transcript file holds beside its prompt.
[[nodiscard]] std::size_t tokens_written(const std::filesystem::path& transcript);

}  // namespace hotkv::testing
