// The stack machine of pickle, reduced to data.
#include "model/importers/unpickler.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "model/importers/json_file.h"
#include "model/importers/pickle_names.h"

namespace duet::model {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMostTensorArguments = 7;

class Interpreter {
 public:
  Interpreter(std::string_view where, std::span<const std::byte> stream)
      : where_(where),
        bytes_(reinterpret_cast<const char*>(stream.data()), std::min(stream.size(), kMaxPickleBytes)),
        cut_(stream.size() > kMaxPickleBytes) {
    for (Kind kind : {Kind::kNone, Kind::kFalse, Kind::kTrue, Kind::kTuple})  // shared: they never change
      pickle_.values.push_back({kind, 0, {}, {}});
  }

  Result<Pickle> run() {
    while (true) {
      opcode_at_ = position_;
      opcode_ = "";
      DUET_ASSIGN(uint64_t opcode, number(1));
      if (opcode == '.') break;  // STOP
      DUET_TRY(step(static_cast<uint8_t>(opcode)));
    }
    DUET_ASSIGN(pickle_.root, pop());
    pickle_.bytes = position_;
    return std::move(pickle_);
  }

 private:
  enum Shared : uint32_t { kSharedNone, kSharedFalse, kSharedTrue, kSharedTuple };
  static constexpr uint32_t kEmptyMemo = UINT32_MAX;

  using Handler = Status (Interpreter::*)(size_t);

  struct Opcode {
    uint8_t code;
    const char* name;
    Handler handler;
    size_t argument = 0;  // of the handler: bytes of a length or number that follows, or values to take
  };
  static const Opcode kOpcodes[];

  Status step(uint8_t code);

  // ---- the stream ----

  Result<std::string_view> take(uint64_t count) {
    if (count > bytes_.size() - position_) {
      if (cut_) return fail("it is longer than {} bytes, which no state dict needs", kMaxPickleBytes);
      return fail("it ends in the middle: {} bytes wanted at byte {} of {}", count, position_, bytes_.size());
    }
    std::string_view taken = bytes_.substr(position_, count);
    position_ += count;
    return taken;
  }

  Status skip(size_t count) {
    DUET_TRY(take(count));
    return {};
  }

  Result<uint64_t> number(size_t count) {  // unsigned, little-endian
    static_assert(std::endian::native == std::endian::little);
    DUET_ASSIGN(std::string_view taken, take(count));
    uint64_t value = 0;
    std::memcpy(&value, taken.data(), count);
    return value;
  }

  Result<std::string_view> line() {
    size_t end = bytes_.find('\n', position_);
    if (end == std::string_view::npos) return take(bytes_.size() - position_ + 1);  // the error
    DUET_ASSIGN(std::string_view taken, take(end + 1 - position_));
    return taken.substr(0, taken.size() - 1);
  }

  Status protocol(size_t version_bytes) {
    DUET_ASSIGN(uint64_t version, number(version_bytes));
    if (version > 5) return fail(ErrorCode::kUnsupported, "pickle protocol {}, expected at most 5", version);
    return {};
  }

  // ---- the stack ----

  void push(PickleValue value) {
    stack_.push_back(static_cast<uint32_t>(pickle_.values.size()));
    pickle_.values.push_back(std::move(value));
  }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  Result<uint32_t> pop() {
    if (stack_.size() <= floor()) return fail("no value is left on the stack");
    uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }

  Result<std::vector<uint32_t>> pop(size_t count) {
    if (stack_.size() - floor() < count) return fail("{} values wanted, fewer are on the stack", count);
    std::vector<uint32_t> popped(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return popped;
  }

  Result<std::vector<uint32_t>> pop_to_mark() {
    if (marks_.empty()) return fail("no mark is on the stack");
    auto popped = pop(stack_.size() - marks_.back());
    marks_.pop_back();
    return popped;
  }

  Result<PickleValue*> top() {
    if (stack_.size() <= floor()) return fail("no value is on the stack");
    return &pickle_.values[stack_.back()];
  }

  Status mark(size_t) {
    marks_.push_back(stack_.size());
    return {};
  }

  // ---- plain values ----

  template <uint32_t index>
  Status shared(size_t) {
    stack_.push_back(index);
    return {};
  }

  template <Kind kind>
  Status empty(size_t) {
    push({kind, 0, {}, {}});
    return {};
  }

  Status integer(size_t bytes) {
    DUET_ASSIGN(uint64_t value, number(bytes));
    int64_t signed_value = bytes == 4 ? int64_t{static_cast<int32_t>(value)} : static_cast<int64_t>(value);
    push({Kind::kInteger, signed_value, {}, {}});
    return {};
  }

  Status long_integer(size_t length_bytes) {
    DUET_ASSIGN(uint64_t count, number(length_bytes));
    DUET_ASSIGN(std::string_view digits, take(count));
    if (count > 8) {
      push({Kind::kLongInteger, 0, digits, {}});
      return {};
    }
    bool negative = !digits.empty() && static_cast<int8_t>(digits.back()) < 0;
    int64_t value = negative ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push({Kind::kInteger, value, {}, {}});
    return {};
  }

  Status string(size_t length_bytes) {
    DUET_ASSIGN(uint64_t length, number(length_bytes));
    DUET_ASSIGN(std::string_view text, take(length));
    push({Kind::kString, 0, text, {}});
    return {};
  }

  // ---- containers ----

  Status tuple(size_t count) {
    DUET_ASSIGN(std::vector<uint32_t> items, pop(count));
    push({Kind::kTuple, 0, {}, std::move(items)});
    return {};
  }

  Status tuple_to_mark(size_t) {
    DUET_ASSIGN(std::vector<uint32_t> items, pop_to_mark());
    push({Kind::kTuple, 0, {}, std::move(items)});
    return {};
  }

  template <Kind kind>
  Status add(size_t count) {
    DUET_ASSIGN(std::vector<uint32_t> items, pop(count));
    return add_items(kind, items);
  }

  template <Kind kind>
  Status add_to_mark(size_t) {
    DUET_ASSIGN(std::vector<uint32_t> items, pop_to_mark());
    return add_items(kind, items);
  }

  Status add_items(Kind kind, const std::vector<uint32_t>& items) {
    DUET_ASSIGN(PickleValue * container, top());
    if (container->kind != kind)
      return fail("it adds to {}, expected {}", describe(*container),
                  kind == Kind::kList ? "a list" : "a dict");
    if (kind == Kind::kDict && items.size() % 2 != 0) return fail("it adds a key without a value to a dict");
    container->items.insert(container->items.end(), items.begin(), items.end());
    return {};
  }

  // ---- the memo ----

  Status put(size_t index_bytes) {
    DUET_ASSIGN(uint64_t index, number(index_bytes));
    return put_at(index);
  }

  // Picklers count from 0, so that a stream has more bytes than memo places.
  Status put_at(uint64_t index) {
    if (index >= bytes_.size())
      return fail("memo place {}, expected fewer than the pickle's {} bytes", index, bytes_.size());
    DUET_TRY(top());
    if (index >= memo_.size()) memo_.resize(index + 1, kEmptyMemo);
    if (memo_[index] == kEmptyMemo) ++memoized_;
    memo_[index] = stack_.back();
    return {};
  }

  Status memoize(size_t) { return put_at(memoized_); }

  Status get(size_t index_bytes) {
    DUET_ASSIGN(uint64_t index, number(index_bytes));
    if (index >= memo_.size() || memo_[index] == kEmptyMemo) return fail("memo place {} is empty", index);
    stack_.push_back(memo_[index]);
    return {};
  }

  // ---- names and calls, as data ----

  Status global(size_t) {
    DUET_ASSIGN(std::string_view module, line());
    DUET_ASSIGN(std::string_view name, line());
    return push_global(module, name);
  }

  Status stack_global(size_t count) {
    DUET_ASSIGN(std::vector<uint32_t> names, pop(count));
    const PickleValue &module = pickle_[names[0]], &name = pickle_[names[1]];
    if (module.kind != Kind::kString || name.kind != Kind::kString)
      return fail("a global is named by {} and {}, expected texts", describe(module), describe(name));
    return push_global(module.text, name.text);
  }

  Status push_global(std::string_view module, std::string_view name) {
    std::string_view known = known_global(module, name);
    if (!known.empty()) {
      push({Kind::kGlobal, 0, known, {}});
      return {};
    }
    return fail(
        ErrorCode::kUnsupported,
        "it names {}, expected only what a state dict needs ({}, {}, torch.FloatStorage and its like); "
        "nothing was executed",
        in_plain(fmt::format("{}.{}", module, name)), kOrderedDict, kRebuildTensor);
  }

  Status persistent_id(size_t) {
    DUET_ASSIGN(uint32_t id, pop());
    push({Kind::kPersistentId, 0, {}, {id}});
    return {};
  }

  Status reduce(size_t count) {
    DUET_ASSIGN(std::vector<uint32_t> call, pop(count));
    const PickleValue &callable = pickle_[call[0]], &arguments = pickle_[call[1]];
    if (callable.kind != Kind::kGlobal || arguments.kind != Kind::kTuple)
      return fail("it calls {} with {}, expected a global with a tuple", describe(callable),
                  describe(arguments));
    const std::vector<uint32_t>& items = arguments.items;
    if (callable.text == kOrderedDict && items.empty()) {
      push({Kind::kDict, 0, {}, {}});
    } else if (callable.text == kRebuildTensor && items.size() <= kMostTensorArguments) {  // they are copied
      push({Kind::kTensor, 0, {}, items});
    } else if (callable.text == kRebuildParameter && !items.empty()) {
      stack_.push_back(items[0]);  // a parameter is its tensor
    } else if (callable.text == kTorchSize && items.size() == 1) {
      stack_.push_back(items[0]);  // a size is its tuple
    } else {
      return fail(ErrorCode::kUnsupported, "it calls {} with {} arguments, which no state dict needs",
                  callable.text, items.size());
    }
    return {};
  }

  // A module's state dict carries an attribute `_metadata`, versions of its modules: not needed.
  Status build(size_t) {
    DUET_TRY(pop());
    DUET_ASSIGN(PickleValue * object, top());
    if (object->kind != Kind::kDict)
      return fail(ErrorCode::kUnsupported, "it sets attributes of {}, expected a dict", describe(*object));
    return {};
  }

  // ---- errors ----

  // A name without quotes, as far as it can be shown so.
  static std::string in_plain(const std::string& name) {
    std::string quoted = in_quotes(name);
    return quoted == '"' + name + '"' ? name : quoted;
  }

  template <class... Args>
  tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) const {
    return failure(code, "{}: the pickle, at byte {}{}{}: {}", where_, opcode_at_, *opcode_ ? ", " : "",
                   opcode_, fmt::format(format, std::forward<Args>(args)...));
  }

  template <class... Args>
  tl::unexpected<Error> fail(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorCode::kBadInput, format, std::forward<Args>(args)...);
  }

  std::string_view where_;
  std::string_view bytes_;
  bool cut_;  // the stream goes on behind bytes_
  size_t position_ = 0;
  size_t opcode_at_ = 0;
  const char* opcode_ = "";  // its name, when it is a known one
  Pickle pickle_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::vector<uint32_t> memo_;
  uint64_t memoized_ = 0;
};

const Interpreter::Opcode Interpreter::kOpcodes[] = {
    {0x80, "PROTO", &Interpreter::protocol, 1},
    {0x95, "FRAME", &Interpreter::skip, 8},
    {'(', "MARK", &Interpreter::mark},
    {'N', "NONE", &Interpreter::shared<kSharedNone>},
    {0x89, "NEWFALSE", &Interpreter::shared<kSharedFalse>},
    {0x88, "NEWTRUE", &Interpreter::shared<kSharedTrue>},
    {'K', "BININT1", &Interpreter::integer, 1},
    {'M', "BININT2", &Interpreter::integer, 2},
    {'J', "BININT", &Interpreter::integer, 4},
    {0x8a, "LONG1", &Interpreter::long_integer, 1},
    {'U', "SHORT_BINSTRING", &Interpreter::string, 1},
    {'T', "BINSTRING", &Interpreter::string, 4},
    {0x8c, "SHORT_BINUNICODE", &Interpreter::string, 1},
    {'X', "BINUNICODE", &Interpreter::string, 4},
    {0x8d, "BINUNICODE8", &Interpreter::string, 8},
    {')', "EMPTY_TUPLE", &Interpreter::shared<kSharedTuple>},
    {'t', "TUPLE", &Interpreter::tuple_to_mark},
    {0x85, "TUPLE1", &Interpreter::tuple, 1},
    {0x86, "TUPLE2", &Interpreter::tuple, 2},
    {0x87, "TUPLE3", &Interpreter::tuple, 3},
    {']', "EMPTY_LIST", &Interpreter::empty<Kind::kList>},
    {'a', "APPEND", &Interpreter::add<Kind::kList>, 1},
    {'e', "APPENDS", &Interpreter::add_to_mark<Kind::kList>},
    {'}', "EMPTY_DICT", &Interpreter::empty<Kind::kDict>},
    {'s', "SETITEM", &Interpreter::add<Kind::kDict>, 2},
    {'u', "SETITEMS", &Interpreter::add_to_mark<Kind::kDict>},
    {'q', "BINPUT", &Interpreter::put, 1},
    {'r', "LONG_BINPUT", &Interpreter::put, 4},
    {0x94, "MEMOIZE", &Interpreter::memoize},
    {'h', "BINGET", &Interpreter::get, 1},
    {'j', "LONG_BINGET", &Interpreter::get, 4},
    {'c', "GLOBAL", &Interpreter::global},
    {0x93, "STACK_GLOBAL", &Interpreter::stack_global, 2},
    {'Q', "BINPERSID", &Interpreter::persistent_id},
    {'R', "REDUCE", &Interpreter::reduce, 2},
    {'b', "BUILD", &Interpreter::build},
};

Status Interpreter::step(uint8_t code) {
  for (const Opcode& opcode : kOpcodes)
    if (opcode.code == code) {
      opcode_ = opcode.name;
      return (this->*opcode.handler)(opcode.argument);
    }
  if (const char* refused = refused_opcode(code))
    return fail(ErrorCode::kUnsupported, "it uses opcode {}, which no state dict needs; nothing was executed",
                refused);
  return fail("0x{:02x} is no opcode", code);
}

}  // namespace

std::string describe(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kFalse:
      return "False";
    case Kind::kTrue:
      return "True";
    case Kind::kInteger:
      return fmt::format("the integer {}", value.integer);
    case Kind::kLongInteger:
      return fmt::format("an integer of {} bytes", value.text.size());
    case Kind::kString:
      return fmt::format("the text {}", in_quotes(value.text));
    case Kind::kGlobal:
      return std::string(value.text);
    case Kind::kTuple:
      return fmt::format("a tuple of {}", value.items.size());
    case Kind::kList:
      return fmt::format("a list of {}", value.items.size());
    case Kind::kDict:
      return fmt::format("a dict of {}", value.items.size() / 2);
    case Kind::kPersistentId:
      return "a persistent id";
    case Kind::kTensor:
      return "a tensor";
  }
  return "";
}

Result<Pickle> unpickle(std::string_view where, std::span<const std::byte> stream) {
  return Interpreter(where, stream).run();
}

}  // namespace duet::model
