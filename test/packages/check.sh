# shellcheck shell=bash
# What the tests in shell say and wait with; sourced by run.sh and inside the virtual machine of test/vm.

failed=0

# check WHAT CMD… says whether CMD succeeded, and what it said if not.
check() {
	local what=$1 out
	shift
	if out=$("$@" 2>&1); then
		echo "PASS $what"
	else
		failed=$((failed + 1))
		echo "FAIL $what"
		printf '%s\n' "$out" | tail -n 25 | sed 's/^/     /'
	fi
}

# equals WANT CMD…: CMD prints exactly WANT.
equals() {
	local want=$1 got
	shift
	got=$("$@") || true
	[ "$got" = "$want" ] || { echo "got '$got', want '$want'" && return 1; }
}

# matches REGEXP CMD…: what CMD prints matches.
matches() {
	local want=$1 got
	shift
	got=$("$@" 2>&1) || true
	[[ $got =~ $want ]] || { echo "got '$got', want a match of $want" && return 1; }
}

# eventually SECONDS CMD…
eventually() {
	local until=$((SECONDS + $1)) out
	shift
	until out=$("$@" 2>&1); do
		[ $SECONDS -lt $until ] || { printf '%s\n' "$out" && return 1; }
		sleep 0.4
	done
}

not() { ! "$@"; }
