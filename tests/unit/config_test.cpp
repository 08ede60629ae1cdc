#include "daemon/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "daemon/config_keys.hpp"

namespace hotkv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A folder of its own for every test, and an environment in which nothing is set.
class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    std::string name = (std::filesystem::temp_directory_path() / "hotkv-config-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    environment_.is_root = true;
    environment_.default_config_file = (folder_ / "absent.toml").string();
  }
  ~ConfigTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text) {
    const std::string path = (folder_ / "hotkvd.toml").string();
    std::ofstream(path) << text;
    return path;
  }

  std::expected<ParsedCommandLine, Error> parse(const std::vector<std::string>& arguments) {
    std::vector<const char*> pointers;
    for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
    return parse_command_line(pointers, environment_);
  }

  std::expected<ParsedCommandLine, Error> parse_file(const std::string& text) {
    return parse({"--config", write(text)});
  }

  std::string refusal(const std::vector<std::string>& arguments) {
    const auto parsed = parse(arguments);
    if (parsed) return "accepted";
    EXPECT_EQ(parsed.error().code, ErrorCode::configuration_error);
    return parsed.error().message();
  }

  std::string file_refusal(const std::string& text) { return refusal({"--config", write(text)}); }

  std::filesystem::path folder_;
  Environment environment_;
};

std::string read_shipped_file(const std::string& name) {
  std::ifstream file(HOTKV_SOURCE_FOLDER "/systemd/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A valid value, as text, that is not the default.
std::string other_value(const ConfigKey& key) {
  if (key.flag == "socket" || key.flag == "admin-socket") return "/tmp/other.sock";
  if (key.flag == "hugepages") return "require";
  if (key.flag == "log-level") return "error";
  if (key.flag == "certified-architectures") return "llama,qwen2";
  if (key.form == ValueForm::size) return "3G";
  if (key.form == ValueForm::text) return "45s";
  return "7";
}

std::string toml_value(const ConfigKey& key, const std::string& text) {
  if (key.form == ValueForm::count || key.form == ValueForm::text_or_count) return text;
  if (key.form != ValueForm::words) return "\"" + text + "\"";
  return "[\"" + std::regex_replace(text, std::regex(","), "\", \"") + "\"]";
}

TEST_F(ConfigTest, WithoutFileAndFlagsEverythingIsTheDefault) {
  const auto parsed = parse({});
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->action, Action::run);
  EXPECT_EQ(parsed->config_file, "");
  EXPECT_EQ(parsed->config.socket, "/run/hotkv/control.sock");
  EXPECT_EQ(parsed->config.max_bytes, std::nullopt);
  EXPECT_EQ(parsed->config.session_cap, 4096u);
  EXPECT_EQ(describe(parsed->config), describe(Config{}));
}

TEST_F(ConfigTest, AnOrdinaryUserGetsSocketsInTheRuntimeFolder) {
  environment_.is_root = false;
  environment_.xdg_runtime_dir = "/run/user/1000";
  EXPECT_EQ(parse({})->config.socket, "/run/user/1000/hotkv/control.sock");
  EXPECT_EQ(parse({})->config.admin_socket, "/run/user/1000/hotkv/admin.sock");
  environment_.xdg_runtime_dir = "";
  EXPECT_EQ(parse({})->config.socket, "/run/hotkv/control.sock");
  environment_.xdg_runtime_dir = "/" + std::string(200, 'x');
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("XDG_RUNTIME_DIR"), HasSubstr("--socket")));
  EXPECT_TRUE(parse({"--socket", "/tmp/a", "--admin-socket", "/tmp/b"}));
}

TEST_F(ConfigTest, EveryKeyIsReadFromFlagAndFileAlike) {
  for (const ConfigKey& key : config_keys()) {
    const std::string text = other_value(key);
    Config expected;
    ASSERT_TRUE(key.set(expected, text)) << key.flag;
    ASSERT_NE(describe(expected), describe(Config{})) << key.flag << ": not another value";
    const auto by_flag = parse({"--" + std::string(key.flag), text});
    ASSERT_TRUE(by_flag) << by_flag.error().message();
    const auto by_file = parse_file(std::string(key.name) + " = " + toml_value(key, text) + "\n");
    ASSERT_TRUE(by_file) << by_file.error().message();
    EXPECT_EQ(key.show(by_flag->config), key.show(expected));
    EXPECT_EQ(describe(by_file->config), describe(by_flag->config));
  }
}

TEST_F(ConfigTest, WhatIsShownCanBeSet) {
  for (const ConfigKey& key : config_keys()) {
    Config config;
    EXPECT_TRUE(key.set(config, key.show(config))) << key.flag;
    EXPECT_EQ(describe(config), describe(Config{})) << key.flag;
  }
}

TEST_F(ConfigTest, NamesInFlagsAndFileDifferOnlyInTheDash) {
  for (const ConfigKey& key : config_keys()) {
    EXPECT_EQ(std::regex_replace(std::string(key.flag), std::regex("-"), "_"), key.name);
  }
}

TEST_F(ConfigTest, FlagsOverrideTheFile) {
  const std::string path = write("session_cap = 10\nmax_bytes = \"1G\"\n");
  const auto parsed = parse({"--config", path, "--session-cap", "20"});
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->config.session_cap, 20u);
  EXPECT_EQ(parsed->config.max_bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(parsed->config_file, path);
}

TEST_F(ConfigTest, TheDefaultFileIsReadOnlyIfItExistsAndANamedFileMustExist) {
  EXPECT_TRUE(parse({}));
  environment_.default_config_file = write("session_cap = 10\n");
  EXPECT_EQ(parse({})->config.session_cap, 10u);
  const auto absent = parse({"--config", (folder_ / "absent.toml").string()});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().os_errno, ENOENT);
  EXPECT_THAT(absent.error().message(), HasSubstr("absent.toml"));
}

TEST_F(ConfigTest, AFolderInPlaceOfTheFileIsRefusedByName) {
  const auto parsed = parse({"--config", folder_.string()});
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().os_errno, EISDIR);
  EXPECT_THAT(parsed.error().message(), HasSubstr(folder_.string()));
}

// FR-137: a typo is refused with file, line, key and what was meant.
TEST_F(ConfigTest, EveryKeyWithOneLetterChangedIsRefusedWithLineAndNearestKey) {
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    for (std::size_t i = 0; i < name.size(); ++i) {
      std::string misspelt = name;
      misspelt[i] = misspelt[i] == 'q' ? 'z' : 'q';
      EXPECT_THAT(file_refusal("# first line\n" + misspelt + " = 1\n"),
                  AllOf(HasSubstr(":2 " + misspelt), HasSubstr("nearest known key is " + name)));
    }
    EXPECT_THAT(refusal({"--" + std::string(key.flag) + "x", "1"}),
                AllOf(HasSubstr("--" + std::string(key.flag) + "x"),
                      HasSubstr("nearest known flag is --" + std::string(key.flag))));
  }
}

TEST_F(ConfigTest, TwoSwappedLettersAreNearest) {
  EXPECT_THAT(file_refusal("max_btyes = 1\n"), HasSubstr("nearest known key is max_bytes"));
  EXPECT_THAT(refusal({"--max_bytes=1G"}), HasSubstr("nearest known flag is --max-bytes"));
  EXPECT_THAT(refusal({"--chekc"}), HasSubstr("nearest known flag is --check"));
}

TEST_F(ConfigTest, DuplicateKeysAndFlagsAreRefused) {
  EXPECT_THAT(file_refusal("session_cap = 1\nsession_cap = 2\n"),
              AllOf(HasSubstr("hotkvd.toml:2"), HasSubstr("session_cap")));
  EXPECT_THAT(refusal({"--session-cap", "1", "--session-cap", "2"}),
              AllOf(HasSubstr("--session-cap"), HasSubstr("more than once")));
  EXPECT_THAT(refusal({"--config", write(""), "--config", write("")}), HasSubstr("--config"));
}

TEST_F(ConfigTest, TablesAreRefused) {
  EXPECT_THAT(file_refusal("[memory]\nmax_bytes = 1\n"),
              AllOf(HasSubstr(":1 memory"), HasSubstr("top level")));
  EXPECT_THAT(file_refusal("[max_bytes]\nx = 1\n"), HasSubstr("is a table"));
}

TEST_F(ConfigTest, WhatIsNoTomlIsRefusedWithItsLine) {
  EXPECT_THAT(file_refusal("\n\nhugepages = off\n"), HasSubstr("hotkvd.toml:3"));
  EXPECT_THAT(file_refusal("session_cap 12\n"), HasSubstr("hotkvd.toml:1"));
}

TEST_F(ConfigTest, WrongTypesAreRefusedWithBothTypes) {
  EXPECT_THAT(file_refusal("session_cap = \"12\"\n"),
              AllOf(HasSubstr(":1 session_cap"), HasSubstr("must be an integer, is a string")));
  EXPECT_THAT(file_refusal("default_ttl = 90\n"), HasSubstr("must be a string, is an integer"));
  EXPECT_THAT(file_refusal("max_bytes = 1.5\n"), HasSubstr("is a number with a fraction"));
  EXPECT_THAT(file_refusal("hugepages = true\n"), HasSubstr("is a boolean"));
  EXPECT_THAT(file_refusal("certified_architectures = \"llama\"\n"), HasSubstr("array of strings"));
  EXPECT_THAT(file_refusal("certified_architectures = [1]\n"), HasSubstr("array of strings"));
  EXPECT_THAT(file_refusal("certified_architectures = [\"a,b\"]\n"), HasSubstr("array of strings"));
}

// FR-137: no unit, sign, overflow or trailing text is read as something else.
TEST_F(ConfigTest, BadValuesAreRefusedWithKeyAndValue) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"max-bytes", "8 GB garbage"},
      {"max-bytes", "8 GB"},
      {"max-bytes", "8e9"},
      {"max-bytes", "99999999999999999999"},
      {"max-bytes", "0"},
      {"max-bytes", "off"},
      {"max-bytes-per-owner", "auto"},
      {"session-cap", "0"},
      {"session-cap", "4096x"},
      {"session-cap", "1048577"},
      {"session-cap", "99999999999"},
      {"default-ttl", "0s"},
      {"default-ttl", "30"},
      {"default-ttl", "never"},
      {"tombstone-ttl", "off"},
      {"hugepages", "always"},
      {"chunk-tokens", "0"},
      {"chunk-tokens", "65537"},
      {"certified-architectures", "llama,,qwen2"},
      {"certified-architectures", "llama,llama"},
      {"certified-architectures", "a b"},
      {"log-level", "verbose"},
      {"max-connections", "0"},
      {"socket", "control.sock"},
      {"socket", "@hotkv"},
      {"socket", "/" + std::string(107, 's')},
  };
  for (const auto& [flag, value] : cases) {
    EXPECT_THAT(refusal({"--" + flag, value}), AllOf(HasSubstr("--" + flag), HasSubstr(value)));
  }
  EXPECT_THAT(refusal({"--max-bytes=-1"}), AllOf(HasSubstr("--max-bytes"), HasSubstr("-1")));
  EXPECT_THAT(refusal({"--max-bytes", "-1"}), HasSubstr("--max-bytes"));
  EXPECT_THAT(refusal({"--session-cap="}), HasSubstr("--session-cap"));
  EXPECT_THAT(refusal({"--session-cap"}), HasSubstr("--session-cap"));
  EXPECT_THAT(file_refusal("max_bytes = -1\n"), AllOf(HasSubstr(":1 max_bytes"), HasSubstr("-1")));
  EXPECT_THAT(file_refusal("certified_architectures = []\n"), HasSubstr("certified_architectures"));
  EXPECT_THAT(file_refusal("socket = \"/tmp/a\\u0000b\"\n"), HasSubstr("zero byte"));
}

TEST_F(ConfigTest, ASocketPathMayHave107BytesAndIsRefusedWithItsLengthAt108) {
  EXPECT_TRUE(parse({"--socket", "/" + std::string(106, 's')}));
  EXPECT_THAT(refusal({"--socket", "/" + std::string(107, 's')}),
              AllOf(HasSubstr("108 bytes"), HasSubstr("at most 107")));
}

// FR-037: limits that contradict one another are refused by name; equal ones are not.
TEST_F(ConfigTest, ContradictionsNameBothKeysAndWhereTheyWereSet) {
  const std::string path = write("max_bytes = \"1G\"\n");
  EXPECT_THAT(refusal({"--config", path, "--max-bytes-per-owner", "2G"}),
              AllOf(HasSubstr("--max-bytes-per-owner"), HasSubstr(path + ":1 max_bytes")));
  EXPECT_TRUE(parse({"--config", path, "--max-bytes-per-owner", "1G"}));
  EXPECT_THAT(refusal({"--max-shards-per-owner", "65"}),
              AllOf(HasSubstr("--max-shards-per-owner"), HasSubstr("max-shards (default)")));
  EXPECT_THAT(refusal({"--socket", "/tmp/a", "--admin-socket", "/tmp/a"}), HasSubstr("same path"));
}

TEST_F(ConfigTest, LoweringMaxShardsAloneLowersTheDefaultPerOwner) {
  EXPECT_EQ(parse({"--max-shards", "8"})->config.max_shards_per_owner, 8u);
  EXPECT_EQ(parse({"--max-shards", "100"})->config.max_shards_per_owner, 16u);
}

TEST_F(ConfigTest, PositionalArgumentsAndShortFlagsAreRefused) {
  EXPECT_THAT(refusal({"start"}), HasSubstr("start"));
  EXPECT_THAT(refusal({"-v"}), HasSubstr("-v"));
  EXPECT_THAT(refusal({"--check=maybe"}), AllOf(HasSubstr("--check"), HasSubstr("takes no value")));
}

TEST_F(ConfigTest, AVariableThatSpellsAKeyIsRefusedBecauseItWouldDoNothing) {
  environment_.hotkv_variables = {"HOTKV_SOCKET", "HOTKV_SOMETHING_ELSE"};
  EXPECT_TRUE(parse({}));
  environment_.hotkv_variables = {"HOTKV_MAX_BYTES"};
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("HOTKV_MAX_BYTES"), HasSubstr("--max-bytes")));
}

TEST_F(ConfigTest, CheckHelpAndVersionAreToldFromRunning) {
  EXPECT_EQ(parse({"--check"})->action, Action::check);
  EXPECT_THAT(refusal({"--check", "--session-cap", "0"}), HasSubstr("--session-cap"));
  EXPECT_EQ(parse({"--version"})->action, Action::show_version);
  EXPECT_THAT(parse({"--version"})->text, HasSubstr("hotkvd 0."));
  const auto help = parse({"--help"});
  EXPECT_EQ(help->action, Action::show_help);
  for (const ConfigKey& key : config_keys()) {
    EXPECT_THAT(help->text, HasSubstr("--" + std::string(key.flag) + " "));
  }
}

// FR-137: the manual and the parser know the same keys.
TEST_F(ConfigTest, TheShippedFileShowsEveryKeyOnceAtItsDefault) {
  std::vector<std::string> shown;
  std::string uncommented;
  std::istringstream text(read_shipped_file("hotkvd.toml"));
  const std::regex setting("^#(\\w+) = .*");
  for (std::string line; std::getline(text, line);) {
    std::smatch match;
    if (std::regex_match(line, match, setting)) {
      shown.push_back(match[1]);
      uncommented += line.substr(1) + "\n";
    } else {
      EXPECT_TRUE(line.empty() || line == "#" || line.starts_with("# "))
          << "not a comment: " << line;
    }
  }
  std::vector<std::string> known;
  for (const ConfigKey& key : config_keys()) known.emplace_back(key.name);
  EXPECT_EQ(shown, known);
  const auto parsed = parse_file(uncommented);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(describe(parsed->config), describe(Config{}));
}

// The number behind "NAME=" in the shipped unit; 0 if it is not there.
std::uint64_t unit_number(const std::string& name) {
  const std::string unit = read_shipped_file("hotkvd.service");
  std::smatch match;
  const std::regex setting("\n" + name + "=(\\d+)\n");
  return std::regex_search(unit, match, setting) ? std::stoull(match[1]) : 0;
}

TEST_F(ConfigTest, TheShippedUnitHasRoomForTheDefaults) {
  const Config config;
  const std::uint64_t shard_descriptors = 3 * std::uint64_t{config.max_shards};
  // Those of refused shards whose clients live, too, and a file of its own.
  EXPECT_EQ(unit_number("FileDescriptorStoreMax"), 2 * shard_descriptors + 1);
  EXPECT_GT(unit_number("LimitNOFILE"), config.max_connections + 2 * shard_descriptors);
  EXPECT_THAT(read_shipped_file("hotkvd.service"), Not(HasSubstr("\nMemoryMax=")));
}

// FR-140: a refusal to start is at most two lines.
TEST_F(ConfigTest, NoRefusalIsLongerThanTwoLines) {
  for (const std::string& message :
       {refusal({"--max-bytes", std::string(5000, 'x')}), refusal({"--socket"}),
        refusal({"--" + std::string(5000, 'y')}), file_refusal("a = \n")}) {
    EXPECT_LE(std::ranges::count(message, '\n'), 1) << message;
  }
}

}  // namespace
}  // namespace hotkv
