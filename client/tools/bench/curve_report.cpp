#include "client/tools/bench/curve_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <initializer_list>
#include <optional>

#include "client/tools/text_table.hpp"

namespace hotkv::bench {
namespace {

constexpr std::uint64_t kRows = 100;

std::string format(const char* form, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* form, ...) {
  std::array<char, 512> text{};
  std::va_list arguments;
  va_start(arguments, form);
  std::vsnprintf(text.data(), text.size(), form, arguments);
  va_end(arguments);
  return text.data();
}

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// ---- the picture --------------------------------------------------------------------------------

// 1, 2 or 5 times a power of ten: the step that puts about five ticks on an axis of this length.
double tick_step(double length) {
  const double power = std::pow(10, std::floor(std::log10(length / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (length / (factor * power) <= 6) return factor * power;
  }
  return 10 * power;
}

class Chart {
 public:
  Chart(double x_max, double y_max) : x_max_(x_max), y_max_(y_max) {}

  [[nodiscard]] double x(double value) const { return kLeft + value / x_max_ * kWidth; }
  [[nodiscard]] double y(double value) const { return kTop + kHeight - value / y_max_ * kHeight; }

  [[nodiscard]] std::string axes(const std::string& title, const char* x_name,
                                 const char* y_name) const {
    std::string svg = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" "
        "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        kLeft + kWidth + kRight, kTop + kHeight + kBottom);
    svg += format("<text x=\"%d\" y=\"24\" font-size=\"16\">", kLeft) + title + "</text>\n";
    for (double tick = 0; tick <= x_max_ * 1.0001; tick += tick_step(x_max_)) {
      svg += line(x(tick), kTop, x(tick), kTop + kHeight) +
             text(x(tick), kTop + kHeight + 18, "middle", format("%g", tick));
    }
    for (double tick = 0; tick <= y_max_ * 1.0001; tick += tick_step(y_max_)) {
      svg += line(kLeft, y(tick), kLeft + kWidth, y(tick)) +
             text(kLeft - 8, y(tick) + 4, "end", format("%g", tick));
    }
    svg += text(kLeft + kWidth / 2.0, kTop + kHeight + 40, "middle", x_name);
    svg += format("<text transform=\"translate(18,%d) rotate(-90)\" text-anchor=\"middle\">",
                  kTop + kHeight / 2) +
           y_name + "</text>\n";
    return svg;
  }

  [[nodiscard]] static std::string text(double x, double y, const char* anchor,
                                        const std::string& words) {
    return format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor) + words +
           "</text>\n";
  }

  static constexpr int kLeft = 70, kTop = 40, kWidth = 640, kHeight = 320, kRight = 30,
                       kBottom = 60;

 private:
  static std::string line(double x1, double y1, double x2, double y2) {
    return format("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x1,
                  y1, x2, y2);
  }

  double x_max_, y_max_;
};

std::string xml_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      default: escaped += static_cast<unsigned char>(c) < 0x20 ? '?' : c;  // no XML has those
    }
  }
  return escaped;
}

}  // namespace

std::string text_of(const CurveReport& report) {
  const ReuseCurve& curve = report.curve;
  tools::TextTable table({"OF WHAT CAN BE REUSED", "MEMORY", "TOKENS", "OF ALL BLOCKS"});
  for (const std::uint64_t share : {50u, 80u, 90u, 95u, 99u, 100u}) {
    // Rounded up: at least that share.
    const std::uint64_t memory = curve.memory_for((curve.most().blocks * share + 99) / 100);
    table.add({format("%llu %%", static_cast<unsigned long long>(share)),
               tools::human_bytes(report.bytes_of(memory)),
               std::to_string(memory * TraceRequest::kBlockTokens),
               format("%.2f %%", percent(curve.at(memory).blocks, curve.prompt_blocks()))});
  }
  std::string text = table.text() + "The largest prompt takes " +
                     tools::human_bytes(report.bytes_of(curve.largest_prompt())) +
                     ": below that the curve is not what a daemon does.\n";
  if (report.measured.empty()) return text;
  tools::TextTable measured({"MEASURED WITH", "BLOCKS REUSED", "EXPECTED"});
  for (const auto& point : report.measured) {
    measured.add({tools::human_bytes(report.bytes_of(point.memory_blocks)),
                  std::to_string(point.reuse.blocks),
                  std::to_string(curve.at(point.memory_blocks).blocks)});
  }
  return text + "\n" + measured.text();
}

std::string csv_of(const CurveReport& report) {
  struct Row {
    std::uint64_t memory_blocks;
    std::optional<std::uint64_t> measured;
  };
  const ReuseCurve& curve = report.curve;
  std::vector<Row> rows;
  for (std::uint64_t i = 0; i <= kRows; ++i) {
    rows.push_back({(curve.enough_blocks() * i + kRows - 1) / kRows, std::nullopt});
  }
  for (const auto& point : report.measured) {
    rows.push_back({point.memory_blocks, point.reuse.blocks});
  }
  std::ranges::stable_sort(rows, {}, &Row::memory_blocks);
  std::string csv =
      "memory_bytes,memory_tokens,blocks_reused,reuse_percent,requests_reusing,"
      "measured_blocks_reused\n";
  for (const Row& row : rows) {
    const auto reuse = curve.at(row.memory_blocks);
    csv += std::to_string(report.bytes_of(row.memory_blocks)) + "," +
           std::to_string(row.memory_blocks * TraceRequest::kBlockTokens) + "," +
           std::to_string(reuse.blocks) + "," +
           format("%.3f", percent(reuse.blocks, curve.prompt_blocks())) + "," +
           std::to_string(reuse.requests) + "," +
           (row.measured ? std::to_string(*row.measured) : "") + "\n";
  }
  return csv;
}

std::string svg_of(const CurveReport& report) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  constexpr double kMargin = 1.05;
  const ReuseCurve& curve = report.curve;
  const auto gib = [&](std::uint64_t blocks) {
    return static_cast<double>(report.bytes_of(blocks)) / kGib;
  };
  const auto share = [&](std::uint64_t blocks) { return percent(blocks, curve.prompt_blocks()); };
  const Chart chart(std::max(gib(curve.enough_blocks()) * kMargin, 1e-9),
                    std::max(share(curve.most().blocks) * kMargin, 1e-9));
  std::string svg = chart.axes(
      "Reuse against memory: " + xml_escaped(report.title),
      ("memory for K and V in GiB, at " + std::to_string(report.bytes_per_token) + " bytes a token")
          .c_str(),
      "blocks of all prompts found cached, in %");
  svg += "<polyline fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\" points=\"";
  constexpr std::uint64_t kPoints = 400;
  for (std::uint64_t i = 0; i <= kPoints; ++i) {
    const std::uint64_t memory = curve.enough_blocks() * i / kPoints;
    svg += format("%.1f,%.1f ", chart.x(gib(memory)), chart.y(share(curve.at(memory).blocks)));
  }
  svg += "\"/>\n";
  for (const auto& point : report.measured) {
    svg += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"#d62728\"/>\n",
                  chart.x(gib(point.memory_blocks)), chart.y(share(point.reuse.blocks)));
  }
  const int legend = Chart::kTop + Chart::kHeight - 40;
  svg += Chart::text(Chart::kLeft + Chart::kWidth - 10, legend, "end",
                     "line: one pass over the trace");
  if (!report.measured.empty()) {
    svg += Chart::text(Chart::kLeft + Chart::kWidth - 10, legend + 18, "end",
                       "dots: replayed against a daemon");
  }
  return svg + "</svg>\n";
}

}  // namespace hotkv::bench
