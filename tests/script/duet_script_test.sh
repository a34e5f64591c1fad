#!/bin/sh
# Tests of the root script `duet` in a made-up clone, with stand-ins for every program that builds or installs.
# Needs no network, compiler, terminal or root. Usage: duet_script_test.sh PATH_OF_DUET
# shellcheck disable=SC2016  # the stand-ins and `fails` read $variables later
set -u
script=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset CI CMAKE_BUILD_PARALLEL_LEVEL
failures=0

# --- Stand-ins. What they find depends on files in $work: configured, installed, sudo_works, user_id.
tools=$work/tools
clone="$work/a clone"
mkdir "$tools"
for tool in sh env find cat mkdir rm mv date tail grep awk nproc sed dirname readlink flock tty touch sleep chmod head; do
  path=$(command -v "$tool") && ln -s "$path" "$tools/$tool"
done
stand_in() { # NAME, body on stdin
  { printf '#!/bin/sh\nwork="%s"\nprintf "%%s\\n" "%s $*" >>"$work/calls"\n' "$work" "$1"; cat; } >"$tools/$1"
  chmod +x "$tools/$1"
}
stand_in cmake <<'BODY'
echo "chatter of cmake"
cat >/dev/null # would eat the program's input if the script let it
case $1 in
  --preset)
    [ -e "$work/installed" ] || exit 1
    mkdir -p build/release/bin && echo DUET_BUILD_TESTS:BOOL=OFF >build/release/CMakeCache.txt ;;
  --build)
    [ -e "$work/compiles" ] || { echo "error: no such thing"; exit 2; }
    [ ! -e "$work/slow" ] || sleep 1
    mkdir -p build/release/bin
    cp_from="$work/program"
    cat "$cp_from" >build/release/bin/duet && chmod +x build/release/bin/duet ;;
esac
BODY
stand_in ctest <<'BODY'
echo "100% tests passed"
exit 8
BODY
stand_in dpkg-query <<'BODY'
[ -e "$work/installed" ] && printf installed || exit 1
BODY
stand_in apt-get <<'BODY'
echo "chatter of apt-get"
case "$*" in *install*) [ -e "$work/apt_works" ] && touch "$work/installed" ;; esac
BODY
stand_in id <<'BODY'
cat "$work/user_id"
BODY
cat >"$work/program" <<'BODY'
#!/bin/sh
# The program: shows its process, folder, input and arguments, one in a line.
[ "${1-}" = exit ] && exit "$2"
[ "${1-}" = pid ] && { echo "$$"; exit; }
[ "${1-}" = input ] && { cat; exit; }
[ "${1-}" = folder ] && { cd -P . && pwd; exit; }
printf '[%s]\n' "$@"
BODY

fresh_clone() { # an unbuilt clone on a machine where all is installed, root as the user
  rm -rf "$clone" "$work/calls" "$work/slow" "$work/apt_works"
  mkdir -p "$clone/memory" "$clone/tests" "$clone/docs"
  touch "$clone/CMakeLists.txt" "$clone/CMakePresets.json" "$clone/VERSION" "$clone/memory/CMakeLists.txt"
  touch "$clone/memory/a.cc" "$clone/memory/b.cc" "$clone/tests/CMakeLists.txt"
  cat "$script" >"$clone/duet" && chmod +x "$clone/duet"
  touch "$work/installed" "$work/compiles" "$work/calls"
  echo 0 >"$work/user_id"
}
built_clone() {
  fresh_clone
  duet >/dev/null
  : >"$work/calls"
}

# duet ARGS...: runs the script without a terminal; its messages go to $work/messages.
duet() { PATH=$tools HOME=$work "$clone/duet" "$@" 2>"$work/messages" </dev/null; }
calls() { grep -c "^$1" "$work/calls"; }
expect() { # DESCRIPTION GOT WANTED
  [ "$2" = "$3" ] && return
  failures=$((failures + 1))
  printf 'FAILED: %s\n  got:    %s\n  wanted: %s\n' "$1" "$2" "$3"
  sed 's/^/  | /' "$work/messages"
}
expect_message() { # DESCRIPTION PATTERN
  grep -q -e "$2" "$work/messages" || expect "$1" "no such message" "$2"
}
later() { sleep 0.05; } # so that the clock of the file system moves on

# --- Running
fresh_clone
expect 'the first run prints the program'"'"'s output and nothing else on stdout' "$(duet translate Hi)" '[translate]
[Hi]'
expect_message 'the first run says that it builds' 'first run: building'
expect 'the second run builds nothing' "$(: >"$work/calls"; duet x >/dev/null; cat "$work/calls" "$work/messages")" ''

built_clone
expect 'arguments arrive as they were given' "$(duet 'two words' '' '*' '$HOME' '-n' 'a\tb' 'line
break')" '[two words]
[]
[*]
[$HOME]
[-n]
[a\tb]
[line
break]'
duet exit 37
expect 'the exit code is the program'"'"'s' $? 37
expect 'the program runs in the folder of the caller' "$(cd / && duet folder)" /
ln -s "$clone/duet" "$work/link"
expect 'the script works through a symlink' "$(cd / && PATH=$tools "$work/link" x 2>&1)" '[x]'
expect 'the script works from its own folder' "$(cd "$clone" && PATH=$tools ./duet x 2>&1)" '[x]'
expect 'input reaches the program' "$(echo text | PATH=$tools "$clone/duet" input 2>&1)" text
PATH=$tools "$clone/duet" pid >"$work/pid" 2>&1 &
wait $!
expect 'the program takes the place of the script, so that signals reach it' "$(cat "$work/pid")" $!
fresh_clone
expect 'building leaves the input to the program' "$(echo text | PATH=$tools "$clone/duet" input 2>"$work/messages")" text

# --- When to build
for change in 'touch memory/a.cc' 'touch memory/new.cc' 'rm memory/b.cc' 'touch CMakeLists.txt' 'rm build/release/bin/duet'; do
  built_clone
  later
  (cd "$clone" && eval "$change")
  expect "a build follows: $change" "$(duet x; calls 'cmake --build')" '[x]
1'
  expect "and only one: $change" "$(duet x; calls 'cmake --build')" '[x]
1'
done
for change in 'touch docs/page.md' 'touch tests/CMakeLists.txt' 'touch output.txt'; do
  built_clone
  later
  (cd "$clone" && eval "$change")
  expect "no build follows: $change" "$(duet x; calls 'cmake --build')" '[x]
0'
done

fresh_clone
touch "$work/slow"
PATH=$tools "$clone/duet" one >"$work/one" 2>&1 &
PATH=$tools "$clone/duet" two >"$work/two" 2>&1 &
wait
expect 'of two first runs one builds' "$(calls 'cmake --build')" 1
expect 'and both run' "$(tail -qn 1 "$work/one" "$work/two")" '[one]
[two]'

# --- When building fails
fresh_clone
rm "$work/compiles"
expect 'a failed build prints nothing on stdout' "$(duet x)" ''
duet x
expect 'a failed build is an error' $? 1
expect_message 'a failed build shows the log' 'no such thing'
expect_message 'and says where it is' "the whole log: $clone/build/release/duet-build.log"
expect 'a failed build is tried once' "$(calls 'cmake --build')" 2 # the two runs above
touch "$work/compiles"
expect 'the next run builds' "$(duet x)" '[x]'

built_clone
touch "$clone/build/release/duet-stamp.new" # a build that was killed
rm "$work/compiles" "$clone/build/release/duet-stamp"
duet x
expect 'after a killed build, a failing one is repeated from scratch' "$(calls 'cmake --build.*--target clean')" 1

# --- Packages
fresh_clone
rm "$work/installed"
touch "$work/apt_works"
expect 'root gets the packages installed' "$(duet x)" '[x]'
expect 'and no package lists are fetched when they are there' "$(calls 'apt-get.* update')" 0
expect_message 'and it is said' 'installing them'

fresh_clone
rm "$work/installed"
duet x
expect 'packages that cannot be installed are an error' $? 1
expect_message 'and apt-get is quoted' 'chatter of apt-get'

fresh_clone
rm "$work/installed"
echo 1000 >"$work/user_id"
expect 'a user without sudo gets nothing on stdout' "$(duet x)" ''
duet x
expect 'a user without sudo gets an error' $? 1
expect_message 'that says what to install' 'apt-get install -y --no-install-recommends g++ cmake'
expect 'and nothing was installed' "$(calls apt-get)" 0
stand_in sudo <<'BODY'
exec "$@"
BODY
duet x
expect 'without a terminal sudo is not used either' "$? $(calls sudo)" '1 0'
if command -v script >/dev/null && command -v setsid >/dev/null; then # both are always there on Debian
  answer_on_terminal() { # ANSWER COMMAND: with a terminal of its own; its output
    (sleep 0.3; echo "$1"; sleep 1) | script -qec "PATH='$tools' HOME='$work' $2" /dev/null | tr '\r' '\n' >"$work/messages"
  }
  touch "$work/apt_works"
  answer_on_terminal n "'$clone/duet' x"
  expect 'on a terminal, "no" installs nothing' "$(calls sudo)" 0
  expect_message 'and says what to install' 'apt-get install -y'
  answer_on_terminal y "$(command -v setsid) -w '$clone/duet' x"
  expect_message 'a terminal that cannot be asked is none' 'apt-get install -y'
  answer_on_terminal y "'$clone/duet' x"
  expect 'on a terminal, "yes" installs with sudo' "$(calls sudo)" 1
  expect_message 'and goes on' '^\[x\]'
  rm -r "$work/installed" "$clone/build"
fi
rm "$tools/sudo" "$tools/dpkg-query"
duet x
expect 'a system without dpkg gets an error' $? 1
expect_message 'that lists the libraries' 'SentencePiece'
touch "$work/installed"
expect 'and runs when all is there' "$(duet x)" '[x]'

# --- Tests
built_clone
expect './duet test prints what ctest prints' "$(duet test -R 'a b')" '100% tests passed'
duet test -R 'a b' >/dev/null
expect 'and ends as ctest ends' $? 8
expect 'and passes arguments to it' "$(grep '^ctest' "$work/calls" | tail -n 1)" 'ctest --preset release -R a b'
: >"$work/calls"
CI=true duet test >/dev/null
expect 'in CI the sanitizers run first' "$(grep -o '^ctest --preset [^ ]*' "$work/calls")" 'ctest --preset asan-ubsan
ctest --preset tsan
ctest --preset release'

[ $failures = 0 ] && echo 'all passed'
exit $((failures != 0))
