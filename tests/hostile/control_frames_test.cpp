// Frames of a connection that no library would send.

#include <gtest/gtest.h>

#include <string>

#include "tests/support/raw_client.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

class ControlFrames : public UnderFire {};

TEST_F(ControlFrames, AFrameCutAtEveryByteIsRefused) {
  RawClient client(daemon_.control_path());
  ASSERT_EQ(client.hello().header.status, 0U);
  client.stay_alive(client.attach(small_recipe(), Access::write));
  const Bytes whole = make_frame<protocol::ReleaseOperation>(protocol::Type::release, 7,
                                                             {{context_name("nobody", 1), 0, 0}});
  const std::uint64_t before = status_number(daemon_, "/server/frames_refused/protocol-error");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const RawReply reply = client.ask(std::span(whole).first(size));
    EXPECT_TRUE(reply.is_error(ErrorCode::protocol_error)) << size;
    EXPECT_FALSE(reply.text.empty()) << size;
  }
  EXPECT_EQ(client.ask(whole).results().size(), 1U);
  EXPECT_EQ(status_number(daemon_, "/server/frames_refused/protocol-error"), before + whole.size());
}

}  // namespace
}  // namespace hotkv::testing
