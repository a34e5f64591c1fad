#include "tests/runner/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

extern char** environ;

namespace duet::runner {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

struct Channel {
  int ours = -1, theirs = -1;
};

Channel pipe_channel(bool child_reads) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) give_up("pipe2");
  Channel channel = child_reads ? Channel{ends[1], ends[0]} : Channel{ends[0], ends[1]};
  ::fcntl(channel.ours, F_SETFL, ::fcntl(channel.ours, F_GETFL) | O_NONBLOCK);
  return channel;
}

Channel terminal_channel() {
  Channel channel;
  if (::openpty(&channel.ours, &channel.theirs, nullptr, nullptr, nullptr) != 0) give_up("openpty");
  for (int fd : {channel.ours, channel.theirs}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::fcntl(channel.ours, F_SETFL, ::fcntl(channel.ours, F_GETFL) | O_NONBLOCK);
  return channel;
}

Channel file_channel(const std::string& path, int flags) {
  int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) give_up(path.c_str());
  return {-1, fd};
}

// Between fork() and exec(): system calls only.
void give_descriptor(int fd, int as, bool none) {
  if (none)
    ::close(as);
  else if (::dup2(fd, as) < 0)
    ::_exit(126);
}

}  // namespace

RunningCommand::RunningCommand(const std::vector<std::string>& argv, CommandOptions options)
    : options_(std::move(options)), start_(now()) {
  ::signal(SIGPIPE, SIG_IGN);
  Channel in = options_.terminal_in        ? terminal_channel()
               : !options_.in_path.empty() ? file_channel(options_.in_path, O_RDONLY)
                                           : pipe_channel(true);
  Channel out = options_.terminal_out        ? terminal_channel()
                : !options_.out_path.empty() ? file_channel(options_.out_path, O_WRONLY)
                                             : pipe_channel(false);
  Channel err = options_.terminal_err ? terminal_channel() : pipe_channel(false);
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable) {
    std::string text = *variable;
    if (!options_.environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : options_.environment) variables.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);

  pid_ = ::fork();
  if (pid_ < 0) give_up("fork");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGINT, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (!options_.directory.empty() && ::chdir(options_.directory.c_str()) != 0) ::_exit(126);
    give_descriptor(in.theirs, STDIN_FILENO, options_.close_in);
    give_descriptor(out.theirs, STDOUT_FILENO, options_.close_out);
    give_descriptor(err.theirs, STDERR_FILENO, false);
    for (const auto& [resource, value] : options_.resource_limits) {
      struct rlimit limit {
        value, value
      };
      if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) ::_exit(126);
    }
    ::execvpe(arguments[0], arguments.data(), environment.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
  for (int fd : {in.theirs, out.theirs, err.theirs}) ::close(fd);
  in_ = in.ours;
  out_ = out.ours;
  err_ = err.ours;
}

RunningCommand::~RunningCommand() {
  if (!ended_) {
    ::kill(-pid_, SIGKILL);
    reap(true);
  }
  for (int fd : {in_, out_, err_})
    if (fd >= 0) ::close(fd);
}

double RunningCommand::seconds() const { return now() - start_; }

double RunningCommand::cpu_seconds() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  unsigned long user = 0, system = 0;
  size_t at = text.rfind(')');
  if (at == std::string::npos) return 0;
  std::sscanf(text.c_str() + at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void RunningCommand::look_at_memory() {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:"))
      result_.peak_rss_bytes =
          std::max<uint64_t>(result_.peak_rss_bytes, std::strtoull(line.c_str() + 6, nullptr, 10) * 1024);
}

void RunningCommand::reap(bool wait) {
  if (ended_) return;
  int status = 0;
  struct rusage usage {};
  if (::wait4(pid_, &status, wait ? 0 : WNOHANG, &usage) != pid_) return;
  ended_ = true;
  result_.seconds = seconds();
  auto time = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  result_.cpu_seconds = time(usage.ru_utime) + time(usage.ru_stime);
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
}

bool RunningCommand::pump(double seconds) {
  struct pollfd watched[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  int* fds[2] = {&out_, &err_};
  std::string* texts[2] = {&result_.out, &result_.err};
  look_at_memory();
  ::poll(watched, 2, static_cast<int>(std::clamp(seconds, 0.0, 0.01) * 1000));
  for (int i = 0; i < 2; ++i) {
    if (*fds[i] < 0 || watched[i].revents == 0) continue;
    char chunk[65536];
    ssize_t n = ::read(*fds[i], chunk, sizeof chunk);
    if (n > 0) texts[i]->append(chunk, static_cast<size_t>(n));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {  // a terminal ends with EIO
      ::close(*fds[i]);
      *fds[i] = -1;
    }
  }
  reap(false);
  return !ended_ || out_ >= 0 || err_ >= 0;
}

bool RunningCommand::write(std::string_view bytes) {
  double deadline = start_ + options_.timeout_seconds;
  while (!bytes.empty() && now() < deadline) {
    ssize_t n = ::write(in_, bytes.data(), bytes.size());
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (n < 0 && !pump(0.01)) return false;
    if (n > 0) pump(0);
  }
  return bytes.empty();
}

void RunningCommand::close_in() {
  if (in_ >= 0 && options_.terminal_in) {
    char end_of_input = 4;  // Ctrl-D; the terminal itself must stay
    [[maybe_unused]] ssize_t n = ::write(in_, &end_of_input, 1);
    return;
  }
  if (in_ >= 0) ::close(in_);
  in_ = -1;
}

void RunningCommand::close_out() {
  if (out_ >= 0) ::close(out_);
  out_ = -1;
}

bool RunningCommand::wait_for(const std::string& stream, std::string_view text, double seconds) {
  double deadline = now() + seconds;
  while (stream.find(text) == std::string::npos) {
    if (now() > deadline) return false;
    if (!pump(0.01)) return stream.find(text) != std::string::npos;
  }
  return true;
}

bool RunningCommand::wait_for_out(std::string_view text, double seconds) {
  return wait_for(result_.out, text, seconds);
}
bool RunningCommand::wait_for_err(std::string_view text, double seconds) {
  return wait_for(result_.err, text, seconds);
}

void RunningCommand::send_signal(int number) {
  if (!ended_) ::kill(pid_, number);
}

CommandResult RunningCommand::finish() {
  close_in();
  double grace = 0;  // what it left running may hold its pipes open
  while (pump(0.01)) {
    if (ended_ && grace == 0) grace = now() + 1;
    if (ended_ && now() > grace) break;
    if (!ended_ && now() > start_ + options_.timeout_seconds && !result_.timed_out) {
      result_.timed_out = true;
      ::kill(-pid_, SIGKILL);
    }
  }
  return result_;
}

CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options) {
  RunningCommand command(argv, options);
  if (options.in_path.empty() && !options.close_in) command.write(options.in);
  return command.finish();
}

std::string duet_path() { return DUET_PROGRAM; }

CommandResult run_duet(std::vector<std::string> arguments, const CommandOptions& options) {
  arguments.insert(arguments.begin(), duet_path());
  return run_command(arguments, options);
}

std::string shell_quote(std::string_view text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace duet::runner
