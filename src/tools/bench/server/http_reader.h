// HttpReader: reads one HTTP answer after the other as their bytes arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lathe {

/// Understands Content-Length, chunks, and bodies that end with the connection.
class HttpReader {
 public:
  /// Reads bytes of one answer and appends the decoded ones to `body`. False: they are not HTTP.
  bool read(std::string_view bytes, std::string& body);
  /// The connection has closed. False: it closed before the answer's end.
  bool closed();

  bool begun() const { return begun_; }
  bool done() const { return state_ == State::done; }
  /// Once done: whether another request may follow on the connection.
  bool keeps() const { return keeps_; }
  int status() const { return status_; }
  /// Prepares for the next answer.
  void reset() { *this = {}; }

 private:
  enum class State { head, sized, until_close, chunk_size, chunk, chunk_end, trailer, done };
  bool read_head(std::string_view head);
  bool next_line(std::string& line);

  State state_ = State::head;
  bool begun_ = false;
  bool keeps_ = true;
  int status_ = 0;
  std::size_t left_ = 0;  // bytes of the body or of its chunk
  std::string in_;        // not decoded yet
};

}  // namespace lathe
