#include "client/tools/bench/kv_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "client/tools/bench/kv_pattern.hpp"

namespace hotkv::bench {
namespace {

// Calls `visit(row, mark)` for the rows [first, end) of the `tokens` rows in one layer's piece.
template <class Byte, class Visit>
void each_row(std::span<Byte> rows, std::uint32_t tokens, std::uint32_t first, std::uint32_t end,
              RowMark mark, Visit visit) {
  const std::size_t row_bytes = rows.size() / tokens;
  for (std::uint32_t i = first; i < end; ++i) {
    RowMark row_mark = mark;
    row_mark.position += i;
    visit(rows.subspan(i * row_bytes, row_bytes), row_mark);
  }
}

// The same for tokens [first, end) of a View or a Writer; `mark` is the one of its token 0.
template <class Rows, class Visit>
void each_row_of(Rows& rows, std::uint32_t first, std::uint32_t end, RowMark mark, Visit visit) {
  for (mark.layer = rows.layers().first; mark.layer <= rows.layers().last; ++mark.layer) {
    RowMark piece_mark = mark;
    std::uint32_t begin = 0;  // of the piece, among the tokens of `rows`
    for (std::size_t piece = 0; piece < rows.piece_count(); ++piece) {
      const std::uint32_t tokens = rows.piece_tokens(piece).value();
      const std::uint32_t from = std::clamp(first, begin, begin + tokens) - begin;
      const std::uint32_t to = std::clamp(end, begin, begin + tokens) - begin;
      piece_mark.position = mark.position + begin;
      piece_mark.half = Half::keys;
      each_row(rows.keys(mark.layer, piece), tokens, from, to, piece_mark, visit);
      piece_mark.half = Half::values;
      each_row(rows.values(mark.layer, piece), tokens, from, to, piece_mark, visit);
      begin += tokens;
    }
  }
}

}  // namespace

void fill_tokens(Writer& writer, std::string_view session, std::uint64_t epoch, std::uint32_t first,
                 std::uint32_t end, std::uint32_t version) {
  const RowMark mark{session, epoch, writer.position().value(), 0, Half::keys, version};
  each_row_of(writer, first, end, mark, fill_row);
}

std::uint64_t wrong_bytes_of(const View& view, std::string_view session, std::uint64_t epoch) {
  std::uint64_t wrong = 0;
  const RowMark mark{session, epoch, 0, 0, Half::keys};
  each_row_of(view, 0, view.length().value(), mark,
              [&](std::span<const std::byte> row, const RowMark& row_mark) {
                wrong += wrong_bytes(row, row_mark);
              });
  return wrong;
}

}  // namespace hotkv::bench
