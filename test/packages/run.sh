#!/usr/bin/env bash
# Tests the packages: builds them in two versions, lints them, and lives an agent's life with them in booted Debian systems.
# usage: DISTS="bookworm trixie rpm" test/packages/run.sh (root; installs what it needs; the network only for that and for the
# root file systems, which stay in .cache/)
set -uo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/test/packages
dists=${DISTS:-bookworm}
work=$(mktemp -d /var/tmp/agentd-packages.XXXXXX)
# shellcheck source=test/packages/check.sh
. "$here/check.sh"
# shellcheck source=test/packages/nspawn.sh
. "$here/nspawn.sh"
# shellcheck source=test/packages/lifecycle.sh
. "$here/lifecycle.sh"
# shellcheck source=test/packages/operator.sh
. "$here/operator.sh"
# shellcheck source=test/packages/rpm.sh
. "$here/rpm.sh"

cleanup() {
	local p
	for p in "$work"/*.pid; do
		[ -e "$p" ] && shut "$(basename "$p" .pid)"
	done
	[ -n "${KEEP:-}" ] && echo "kept: $work" || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

setup() {
	local tool missing=
	for tool in mmdebstrap systemd-nspawn lintian rpmlint rpm bwrap cpio promtool jq curl readelf; do
		command -v "$tool" >/dev/null || missing+=" $tool"
	done
	[ -n "$missing" ] || return 0
	test/apt.sh mmdebstrap systemd-container lintian rpmlint rpm python3-magic bubblewrap cpio zstd prometheus jq curl binutils
}

# rootfs NAME DIST PACKAGES: .cache/rootfs-NAME.tar
rootfs() {
	mkdir -p .cache
	[ -s ".cache/rootfs-$1.tar" ] && return
	mmdebstrap --variant=minbase --include="$3" "$2" ".cache/new-$1.tar" && mv ".cache/new-$1.tar" ".cache/rootfs-$1.tar"
}

# A build whose poll loop hangs, alone, once /run/agentd/hang is there: made from the sources by an overlay,
# so that no such thing stands in them. A loop counts as deaf after a second, so that the test is short.
hanging() {
	mkdir -p "$work/hang"
	sed 's|a.pulse.beat("poll", lookAgain)|a.pulse.beat("poll", lookAgain); if os.Remove("/run/agentd/hang") == nil { select {} }|; s|^import (|import (\n\t"os"|' \
		agent/poll.go >"$work/hang/poll.go"
	sed 's|^const slack = .*|const slack = time.Second|' agent/live.go >"$work/hang/live.go"
	jq -n --arg p "$PWD/agent/poll.go" --arg q "$work/hang/poll.go" --arg l "$PWD/agent/live.go" --arg m "$work/hang/live.go" \
		'{Replace: {($p): $q, ($l): $m}}' >"$work/hang/overlay.json"
	CGO_ENABLED=0 go build -trimpath -buildmode=pie -overlay "$work/hang/overlay.json" -o "$work/hang/agentd" ./cmd/agentd
}

# rpmlint unpacks packages by `cpio -id`, and the names in these are absolute: outside of a read-only sandbox, and without
# the option that makes names relative, it would install the package over this machine.
rpmlint_safely() {
	mkdir -p "$work/shim" "$work/scratch"
	printf '#!/bin/sh\nexec /usr/bin/cpio --no-absolute-filenames "$@"\n' >"$work/shim/cpio"
	chmod +x "$work/shim/cpio"
	PATH=$work/shim:$PATH bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /run --bind "$work/scratch" "$work/scratch" \
		--setenv TMPDIR "$work/scratch" rpmlint -c packaging/rpmlint.toml "$1"
}

static_pie() { file_type=$(readelf -hd "$1") && grep -q 'Type: *DYN' <<<"$file_type" && ! grep -q NEEDED <<<"$file_type"; }

# The score, and a reason in the unit for everything that costs points.
exposure() {
	local said score name
	said=$(systemd-analyze security --offline=true --no-pager systemd/agentd.service)
	score=$(sed -n 's/.*exposure level for [^:]*: \([0-9.]*\).*/\1/p' <<<"$said")
	echo "exposure $score"
	awk -v s="$score" 'BEGIN { exit !(s != "" && s <= 2.6) }' || return 1
	for name in $(sed -n 's/^✗ \([A-Za-z]*=\).*/\1/p' <<<"$said" | sort -u); do
		grep -q "^#.* $name" systemd/agentd.service || { echo "no reason for $name" && return 1; }
	done
}

lint() {
	local f
	for f in "$work"/dist/1.0.0/*.deb; do
		check "lintian $(basename "$f")" lintian --allow-root --fail-on error,warning "$f"
	done
	for f in "$work"/dist/1.0.0/*.rpm; do
		check "rpmlint $(basename "$f")" matches ' 0 errors, 0 warnings' rpmlint_safely "$f"
	done
	check "promtool check rules" promtool check rules packaging/alerts.yaml
	check "systemd-analyze security <= 2.6, with reasons for the rest" exposure
	mkdir -p "$work/deb" && dpkg-deb -x "$work/dist/1.0.0/agentd_1.0.0-1_amd64.deb" "$work/deb"
	check "the binary is a static PIE" static_pie "$work/deb/usr/bin/agentd"
	check "a man page for every command" test -s "$work/deb/usr/share/man/man1/agentd-spool-cat.1.gz" -a -s "$work/deb/usr/share/man/man5/agentd.yaml.5.gz"
	check "checksums hold" sh -c "cd '$work/dist/1.0.0' && sha256sum --quiet -c SHA256SUMS"
	check "nothing of it is on this machine" test ! -e /etc/agentd -a ! -e /usr/lib/systemd/system/agentd.service
}

built() {
	for v in 1.0.0 1.1.0; do
		check "packages of $v are built" env DIST="$work/dist/$v" packaging/build.sh "$v" amd64
	done
	check "the same commit gives the same bytes" sh -c "DIST='$work/dist/again' packaging/build.sh 1.0.0 amd64 >/dev/null && diff '$work/dist/1.0.0/SHA256SUMS' '$work/dist/again/SHA256SUMS'"
	check "a build with a loop that hangs" hanging
}

# What can't be tried here is a failure, never a success.
[ "$(id -u)" = 0 ] || { echo "FAIL this needs root" && exit 1; }
[ -n "$v2" ] || { echo "FAIL no cgroup v2 is mounted, and systemd in a container needs one" && exit 1; }
setup || exit 1
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
if [ -n "${REUSE:-}" ]; then # the packages of a run before, kept by KEEP=1
	cp -r "$REUSE/dist" "$REUSE/hang" "$work/"
else
	built
fi
[ $failed = 0 ] || exit 1
[ -n "${NOLINT:-}" ] || lint
for d in $dists; do
	case $d in
	rpm) rpm_lifecycle ;;
	*) deb_lifecycle "$d" ;;
	esac
done
check "no cgroup is left" not ls -d "$v2/$cgroup"-*
echo "$failed failed"
[ $failed = 0 ]
