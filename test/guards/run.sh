#!/usr/bin/env bash
# Takes the guards of the product code out, one by one, and expects the named
# test to fail each time: a guard that no test misses is not guarded.
#
#   run.sh              all guards
#   run.sh --sample     one of them, in seconds
#   run.sh NAME...      those whose patch is NAME.patch
#
# Each patch begins with lines that say what it takes out:
#
#   # guard: what the code does for safety
#   # test: ./pkg/attach TestX      fails without it; may be repeated
#   # expect: crash                 only where the failure is the process's end
#
# Nothing is touched in the working tree: a copy of it is patched. A patch that
# does not apply or compile counts as one that survived, and so does a test that
# ends in anything but a failed assertion, unless the patch expects a crash.
set -euo pipefail
cd "$(dirname "$0")/../.."
guards=$PWD/test/guards
sample=W1-attach-exclusion
go=${GO:-go}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

case "${1:-}" in
"") names=$(cd "$guards" && printf '%s\n' *.patch) ;;
--sample) names=$sample ;;
*) names=$(printf '%s\n' "$@") ;;
esac
patches=()
for name in $names; do
  patches+=("$guards/${name%.patch}.patch")
done

# header KEY PATCH prints the values of a header.
header() { sed -n "/^--- /q; s/^# $1: *//p" "$2"; }

# The code as it is here, uncommitted changes and all.
copy_code() {
  git ls-files -z --cached --others --exclude-standard -- go.mod go.sum cmd internal pkg |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --create --null --files-from=- | tar --extract --directory="$copy/code"
  git init --quiet "$copy/code"
}

# build PACKAGE compiles its tests to $copy/test.
build() {
  rm -f "$copy/test"
  (cd "$copy/code" && CGO_ENABLED=1 "$go" test -race -vet=off -ldflags="-s -w" -c -o "$copy/test" "$1") >"$copy/log" 2>&1
}

# run_test PACKAGE REGEXP runs what build compiled.
run_test() {
  (cd "$copy/code/$1" && "$copy/test" -test.v -test.count=1 -test.timeout=1m -test.run="$2") >"$copy/log" 2>&1
}

# show_log prints what a person needs of the last log.
show_log() {
  { grep -E '^ *(--- FAIL|[a-z0-9_]+_test\.go:|panic:)' "$copy/log" | head -n 15 || true; tail -n 10 "$copy/log"; } | sed 's/^/    /' >&2
}

# Without this a test that fails for another reason, or does not exist, would
# pass for one that misses its guard.
check_tests_pass() {
  local package tests test
  while read -r package; do
    tests=$(for patch in "${patches[@]}"; do header test "$patch"; done |
      awk -v p="$package" '$1 == p {print $2}' | sort -u)
    if ! build "$package" || ! run_test "$package" "^($(paste -sd'|' <<<"$tests"))\$"; then
      echo "$package: the tests fail although no guard is out" >&2
      show_log
      exit 1
    fi
    for test in $tests; do
      if ! grep -q "^--- PASS: $test " "$copy/log"; then
        echo "$package: there is no test $test, or it was skipped" >&2
        exit 1
      fi
    done
  done < <(for patch in "${patches[@]}"; do header test "$patch"; done | awk '{print $1}' | sort -u)
}

# missed PACKAGE TEST EXPECT sets verdict to what came of the test without its guard.
missed() {
  if ! build "$1"; then verdict="does not compile"; return 1; fi
  if run_test "$1" "^$2\$"; then verdict="$2 passes without it"; return 1; fi
  if grep -q '^panic: test timed out' "$copy/log"; then verdict="$2 hangs without it"; return 1; fi
  if [ "$3" = crash ]; then
    if ! grep -q '^panic: ' "$copy/log"; then verdict="$2 does not crash without it"; return 1; fi
  elif ! grep -q "^--- FAIL: $2 " "$copy/log" || grep -q '^panic: ' "$copy/log"; then
    verdict="$2 ends without a failed assertion"; return 1
  fi
}

# take_out PATCH sets verdict, and fails unless every test of the patch does.
take_out() {
  local package test tests
  tests=$(header test "$1")
  if [ -z "$tests" ] || [ -z "$(header guard "$1")" ]; then verdict="names no guard or no test"; return 1; fi
  if ! git -C "$copy/code" apply -C1 "$1" >"$copy/log" 2>&1; then verdict="does not apply"; return 1; fi
  local failed=0
  while read -r package test; do
    missed "$package" "$test" "$(header expect "$1")" || { failed=1; break; }
  done <<<"$tests"
  git -C "$copy/code" apply -C1 --reverse "$1"
  [ "$failed" = 0 ] || return 1
  verdict=$(awk '{printf "%s%s %s", (NR > 1 ? ", " : ""), $1, $2}' <<<"$tests")
}

mkdir "$copy/code"
copy_code
for patch in "${patches[@]}"; do
  [ -f "$patch" ] || { echo "there is no $patch" >&2; exit 1; }
done
check_tests_pass

caught=0 survived=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  if take_out "$patch"; then
    caught=$((caught + 1))
    printf 'caught    %-32s %s (%s)\n' "$name" "$(header guard "$patch")" "$verdict"
  else
    survived=$((survived + 1))
    printf 'SURVIVED  %-32s %s (%s)\n' "$name" "$(header guard "$patch")" "$verdict"
    show_log
  fi
done
echo "$((caught + survived)) guards: $caught caught, $survived survived"
[ "$survived" = 0 ]
