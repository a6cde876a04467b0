#!/usr/bin/env bash
# Fuzzes the module's Fuzz functions, one after the other. usage: test/fuzz.sh TIME [REGEX of names]
set -euo pipefail
cd "$(dirname "$0")/.."
each=${1:?how long each, e.g. 10s}
which=${2:-.}
n=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT
# One run; a finding always names the input that it wrote. Without one, a failure at the end of the time
# is the fuzzing engine's own (it reports its deadline as a failure when a worker is slow to stop).
fuzz() { go test -run '^$' -fuzz "^$2\$" -fuzztime "$each" -fuzzminimizetime 10x "./$1" >"$out" 2>&1; }
while IFS=: read -r file func; do
	[[ $func =~ $which ]] || continue
	n=$((n + 1))
	pkg=$(dirname "$file")
	printf 'fuzz %s %s %s\n' "$each" "$pkg" "$func"
	if ! fuzz "$pkg" "$func"; then
		if grep -q 'Failing input written' "$out" || ! grep -q 'context deadline exceeded' "$out" || ! fuzz "$pkg" "$func"; then
			cat "$out"
			exit 1
		fi
	fi
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's/func //; s/^\.\///' | sort)
[ "$n" -gt 0 ] || { echo "no fuzz function is called like $which" >&2; exit 1; }
printf '%d fuzz targets, no finding\n' "$n"
