#!/bin/sh
# Duet installed, and used from there by a project outside: with find_package, and with pkg-config.
# usage: install_test.sh BUILD_DIRECTORY EXAMPLES_DIRECTORY CXX
set -u
build=$1 examples=$2 cxx=$3
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
fail() { printf 'FAILED: %s\n' "$*"; exit 1; }
prefix=$directory/usr

cmake --install "$build" --prefix "$prefix" >"$directory/log" 2>&1 || { cat "$directory/log"; fail 'cmake --install'; }
[ "$("$prefix/bin/duet" translate -q Hello.)" = Bonjour. ] || fail 'the installed duet finds its model'
program=$prefix/share/duet/tatoeba-en-fr.duet

# A project of somebody else: a copy of the example, with nothing of these sources around it.
cp -r "$examples/translate_embedded" "$directory/outside" || fail 'no example'
cd "$directory/outside" || exit 1
cmake -S . -B build -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" >log 2>&1 || { cat log; fail 'find_package(duet)'; }
cmake --build build >log 2>&1 || { cat log; fail 'build with find_package'; }
[ "$(echo Hello. | build/translate_embedded "$program")" = Bonjour. ] || fail 'the outside program translates'

pc=$(find "$prefix" -name duet.pc) || exit 1
PKG_CONFIG_PATH=${pc%/duet.pc}
export PKG_CONFIG_PATH
# The installed duet.pc names the prefix that the build was configured for.
flags=$(pkg-config --define-variable=prefix="$prefix" --cflags --libs duet) || fail 'pkg-config duet'
# shellcheck disable=SC2086
"$cxx" translate_embedded.cc -o by_pkg_config $flags || fail 'build with pkg-config'
[ "$(echo Hello. | ./by_pkg_config "$program")" = Bonjour. ] || fail 'the program built with pkg-config translates'
echo 'installed, found and used'
