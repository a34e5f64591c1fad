// What `duet call` shows of each call: outputs, the shared buffers that the method wrote in place, all of the
// session's state; as lines and as files. Thing NAME of call I (from 0) of METHOD is METHOD.I.NAME, a shared
// buffer METHOD.I.state.NAME.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory/error.h"
#include "model/session.h"
#include "runner/text_output.h"

namespace duet::runner {

struct ResultOptions {
  std::string print = "abridged";  // none, abridged, all
  std::string directory;           // for files; "" for none
  std::string format = "npy";      // npy, bin
  bool list_state = false;
};

// The shared buffers that operators of a method write to, by index, each once.
std::vector<uint32_t> written_buffers(const model::Method& method);

// A name as a part of a file's name: letters, digits, '_', '-' and '.' stay, anything else is '_', a leading
// '.' too; at most 60 characters.
std::string file_name_part(const std::string& name);

class CallResults {
 public:
  // Makes the directory. REQUIRES: the session outlives this. Errors: kIo.
  static Result<CallResults> open(model::Session& session, const ResultOptions& options);

  // The next call's results. Errors: kIo. When nobody reads the lines any more, files are still written.
  Status add(const model::Method& method, std::span<const model::TensorView> outputs);
  Status finish();
  bool has_reader() const { return has_reader_; }  // of the lines

 private:
  CallResults(model::Session& session, const ResultOptions& options, TextOutput output)
      : session_(&session), options_(options), output_(std::move(output)) {}
  Status show(std::string_view text);
  Status unless_closed(Status status);  // notes that the reader has gone
  Status add_tensor(const std::string& call, const std::string& name, const model::TensorView& tensor);
  Status write_file(const std::string& call, const std::string& name, const model::TensorView& tensor);
  std::string state_table(const std::string& call);

  model::Session* session_;
  ResultOptions options_;
  TextOutput output_;
  size_t calls_ = 0;
  bool has_reader_ = true;
  std::set<std::string> files_;
};

}  // namespace duet::runner
