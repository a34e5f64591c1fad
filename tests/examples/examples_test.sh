#!/bin/sh
# The examples, run as their first lines say. usage: examples_test.sh BIN_DIRECTORY PROGRAM
set -u
bin=$1 program=$2
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
failures=0
fail() { printf 'FAILED: %s\n' "$*"; failures=$((failures + 1)); }

# expect_lines FILE LINE...: FILE has exactly these lines.
expect_lines() {
  file=$1; shift
  printf '%s\n' "$@" >wanted
  diff -u wanted "$file" || fail "$file differs"
}

"$bin/stateful_cache" >out 2>log || fail "stateful_cache ends with $?"
sed -E 's/^I [0-9:.]+ duet:[a-z_.]+:[0-9]+\] //' log >plan
expect_lines plan \
  'Allocated normal buffer for method et_module_init, memory id 0, size 0' \
  'Allocated shared buffer for method et_module_init, memory id 1, size 1664' \
  'Reusing normal buffer for method set_cache, memory id 0, size 0' \
  'Reusing shared buffer for method set_cache, memory id 1, size 1664' \
  'Reusing normal buffer for method get_cache, memory id 0, size 0' \
  'Reusing shared buffer for method get_cache, memory id 1, size 1664'
expect_lines out 'version 3' \
  '11 rows are refused: method set_cache: input k has shape [11, 20]: n is 11, expected 1 to 10' 'Test passed'
[ -s stateful_cache.duet ] || fail 'stateful_cache saved nothing'

"$bin/running_mean" "$directory/mean.duet" >out 2>log || fail "running_mean ends with $?"
[ "$(tail -n 1 out)" = 'Test passed' ] || fail "running_mean: $(cat out)"
[ "$(grep -c '^after 4 s:  15.2539  17.2031   0.5388  -1.9492$' out)" = 2 ] || fail "running_mean: $(cat out)"
[ -s mean.duet ] || fail 'running_mean saved nothing'

"$bin/step_decoding" "$program" 'Hello World' >out 2>log || fail "step_decoding ends with $?"
[ "$(tail -n 1 out)" = 'Bonjour le monde.' ] || fail "step_decoding: $(cat out)"
[ "$(wc -l <out)" = 6 ] || fail "step_decoding shows five steps and a text: $(cat out)"
"$bin/step_decoding" mean.duet 'Hello' >out 2>log && fail 'step_decoding takes a program that does not translate'

printf 'Good morning. How are you?\n\nHello.\n' >in
"$bin/translate_embedded" "$program" <in >out 2>log || fail "translate_embedded ends with $?"
expect_lines out 'Bonjour. Comment vas-tu ?' '' 'Bonjour.'
[ ! -s log ] || fail "translate_embedded logs: $(cat log)"

[ $failures = 0 ] && echo 'all examples do what they say'
exit $failures
