#!/usr/bin/env bash
# Installs what the tests use beside Go, by Debian package name. As root it does so by itself; else it says what is missing.
set -euo pipefail
missing=()
need() { # command or file, package
	command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || missing+=("$2")
}
pg=$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | head -1 || true)
[ -n "$pg" ] || command -v initdb >/dev/null 2>&1 || missing+=(postgresql)
need cc gcc
need git git
need ip iproute2
need iptables iptables
need mkfs.ext4 e2fsprogs
need nginx nginx-light
need haproxy haproxy
need setpriv util-linux
need zstd zstd
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	printf 'The tests need these Debian packages (or your system'\''s like of them): %s\n' "${missing[*]}" >&2
	exit 1
fi
exec "$(dirname "$0")/apt.sh" "${missing[@]}"
