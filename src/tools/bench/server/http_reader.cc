#include "tools/bench/server/http_reader.h"

#include <algorithm>
#include <charconv>

namespace lathe {
namespace {

constexpr std::size_t kMostHead = 64 << 10;

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

}  // namespace

bool HttpReader::read_head(std::string_view head) {
  if (!head.starts_with("HTTP/1.") || head.size() < 12) return false;
  const std::string_view code = head.substr(9, 3);
  if (std::from_chars(code.begin(), code.end(), status_).ec != std::errc()) return false;
  keeps_ = head.starts_with("HTTP/1.1");
  state_ = State::until_close;
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos;) {
    const std::size_t end = std::min(head.find("\r\n", at + 2), head.size());
    const std::string line = lower_case(head.substr(at + 2, end - at - 2));
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos) {
      std::string_view value = std::string_view(line).substr(colon + 1);
      value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
      const std::string_view name = std::string_view(line).substr(0, colon);
      if (name == "connection") keeps_ = value != "close" && keeps_;
      if (name == "transfer-encoding" && value == "chunked") state_ = State::chunk_size;
      if (name == "content-length" && state_ != State::chunk_size) {
        state_ = State::sized;
        if (std::from_chars(value.begin(), value.end(), left_).ec != std::errc()) return false;
      }
    }
    at = end == head.size() ? std::string_view::npos : end;
  }
  if (state_ == State::sized && left_ == 0) state_ = State::done;
  if (state_ == State::until_close) keeps_ = false;
  return true;
}

bool HttpReader::next_line(std::string& line) {
  const std::size_t end = in_.find("\r\n");
  if (end == std::string::npos) return false;
  line = in_.substr(0, end);
  in_.erase(0, end + 2);
  return true;
}

bool HttpReader::read(std::string_view bytes, std::string& body) {
  begun_ = begun_ || !bytes.empty();
  in_ += bytes;
  std::string line;
  for (;;) {
    switch (state_) {
      case State::head: {
        const std::size_t end = in_.find("\r\n\r\n");
        if (end == std::string::npos) return in_.size() < kMostHead;
        const std::string head = in_.substr(0, end);
        in_.erase(0, end + 4);
        if (!read_head(head)) return false;
        break;
      }
      case State::sized:
      case State::chunk: {
        const std::size_t n = std::min(left_, in_.size());
        body.append(in_, 0, n);
        in_.erase(0, n);
        left_ -= n;
        if (left_ > 0) return true;
        state_ = state_ == State::sized ? State::done : State::chunk_end;
        break;
      }
      case State::until_close:
        body += in_;
        in_.clear();
        return true;
      case State::chunk_size: {
        if (!next_line(line)) return in_.size() < kMostHead;
        const auto read = std::from_chars(line.data(), line.data() + line.size(), left_, 16);
        if (read.ec != std::errc()) return false;
        state_ = left_ == 0 ? State::trailer : State::chunk;
        break;
      }
      case State::chunk_end:
        if (!next_line(line)) return in_.size() < kMostHead;
        if (!line.empty()) return false;
        state_ = State::chunk_size;
        break;
      case State::trailer:
        if (!next_line(line)) return in_.size() < kMostHead;
        if (line.empty()) state_ = State::done;
        break;
      case State::done:
        return in_.empty();
    }
  }
}

bool HttpReader::closed() {
  if (state_ == State::until_close) state_ = State::done;
  return state_ == State::done;
}

}  // namespace lathe
