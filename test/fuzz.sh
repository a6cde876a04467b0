#!/usr/bin/env bash
# Fuzzes every Fuzz function of the module, one after the other. usage: test/fuzz.sh 10s
set -euo pipefail
cd "$(dirname "$0")/.."
each=${1:?how long each, e.g. 10s}
n=0
while IFS=: read -r file func; do
	n=$((n + 1))
	printf 'fuzz %s %s %s\n' "$each" "$(dirname "$file")" "$func"
	go test -run '^$' -fuzz "^$func\$" -fuzztime "$each" "./$(dirname "$file")" >/tmp/fuzz.$$ 2>&1 || {
		cat /tmp/fuzz.$$
		rm -f /tmp/fuzz.$$
		exit 1
	}
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's/func //; s/^\.\///')
rm -f /tmp/fuzz.$$
[ "$n" -gt 0 ] || { echo 'no fuzz functions found' >&2; exit 1; }
printf '%d fuzz targets, no finding\n' "$n"
