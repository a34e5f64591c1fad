// Runs a program as a user's shell would and looks at all that a user could see: exit code, signal, stdout,
// stderr, time and memory. For tests of the command line.
//
//   auto result = run_duet({"translate", "-q"}, {.in = "Hello.\n"});
//   EXPECT_EQ(result.exit_code, 0) << result.err;
//
// RunningCommand is for what happens in between: input that comes late, signals, terminals.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace duet::runner {

struct CommandOptions {
  std::string in = {};        // bytes for its stdin, which then ends
  std::string in_path = {};   // its stdin is this file instead
  std::string out_path = {};  // its stdout is this file instead (it must exist: /dev/full, ...)
  bool close_in = false, close_out = false;                              // it has no such descriptor at all
  bool terminal_in = false, terminal_out = false, terminal_err = false;  // a pseudo-terminal of its own
  std::string directory = {};                                            // where it runs; empty: here
  std::map<std::string, std::string> environment = {};                   // besides this process's own
  std::vector<std::pair<int, rlim_t>> resource_limits = {};  // setrlimit(): {RLIMIT_AS, bytes}, ...
  double timeout_seconds = 60;                               // then it is killed
};

struct CommandResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;      // that signal
  bool timed_out = false;
  std::string out, err;         // what it wrote; a terminal's line ends are CR LF
  double seconds = 0;           // wall time
  double cpu_seconds = 0;       // user and system
  uint64_t peak_rss_bytes = 0;  // the highest seen, looked at every 10 ms
};

class RunningCommand {
 public:
  // argv[0] is looked up in PATH. Aborts the test process when it cannot start. Of options.in nothing is
  // written yet.
  RunningCommand(const std::vector<std::string>& argv, CommandOptions options = {});
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;
  ~RunningCommand();  // kills it if it still runs

  pid_t pid() const { return pid_; }
  // Bytes for its stdin; false when it does not take them within the time-out or reads no more.
  bool write(std::string_view bytes);
  void close_in();
  void close_out();  // nobody reads its stdout any more
  // Waits until stdout (stderr) contains `text`; false when it ended or `seconds` passed without.
  bool wait_for_out(std::string_view text, double seconds);
  bool wait_for_err(std::string_view text, double seconds);
  void send_signal(int number);
  double seconds() const;      // since the start
  double cpu_seconds() const;  // so far
  const std::string& out() const { return result_.out; }
  const std::string& err() const { return result_.err; }
  // Ends its stdin, waits for its end (or the time-out) and collects everything.
  CommandResult finish();

 private:
  bool pump(double seconds);  // reads what is there, waiting at most so long; false: all has ended
  bool wait_for(const std::string& stream, std::string_view text, double seconds);
  void look_at_memory();
  void reap(bool wait);

  CommandOptions options_;
  CommandResult result_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int in_ = -1, out_ = -1, err_ = -1;
  double start_ = 0;
};

CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options = {});

// The duet that this build made (its shipped model beside it), with these arguments.
CommandResult run_duet(std::vector<std::string> arguments, const CommandOptions& options = {});
std::string duet_path();

// "'it'\''s'": for commands given to sh -c.
std::string shell_quote(std::string_view text);

}  // namespace duet::runner
