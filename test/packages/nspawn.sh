# shellcheck shell=bash
# Boots systemd in a container by systemd-nspawn, without machined and on hosts whose cgroups are hybrid; sourced by run.sh.
# boot ROOT NAME · inside NAME CMD… · shut NAME

v2=$(findmnt -nt cgroup2 -o TARGET | head -1)
cgroup=agentd-test-$$

boot() {
	local root=$1 name=$2 state= i
	# A cgroup of its own: containers that are started from the root cgroup would share theirs.
	mkdir -p "$v2/$cgroup-$name"
	setsid bash -c "echo \$\$ >'$v2/$cgroup-$name/cgroup.procs'; echo \$\$ >'$work/$name.pid'
		SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 exec systemd-nspawn --quiet --boot --private-network --register=no --keep-unit \
			--console=pipe --kill-signal=SIGRTMIN+3 -M '$name' -D '$root'" </dev/null >>"$work/$name.console" 2>&1 &
	for i in $(seq 240); do
		state=$(inside "$name" systemctl is-system-running 2>/dev/null)
		case $state in running | degraded) echo "$state" && return 0 ;; esac
		sleep 0.5
	done
	echo "boot of $name: ${state:-nothing}" >&2
	return 1
}

leader() { pgrep -P "$(cat "$work/$1.pid" 2>/dev/null || echo 0)" | head -1; }

inside() {
	local name=$1 pid
	shift
	pid=$(leader "$name")
	[ -n "$pid" ] || return 1
	nsenter -t "$pid" -a -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C \
		DEBIAN_FRONTEND=noninteractive CONTROLPLANE_ADMIN_TOKEN_FILE=/var/lib/cp/admin-token "$@"
}

shut() {
	local name=$1 pid i h
	pid=$(cat "$work/$name.pid" 2>/dev/null) || return 0
	kill -TERM "$pid" 2>/dev/null
	for i in $(seq 900); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	kill -0 "$pid" 2>/dev/null && kill -KILL "$pid"
	rm -f "$work/$name.pid"
	for h in "$v2" /sys/fs/cgroup/systemd; do
		[ -d "$h/$cgroup-$name" ] && find "$h/$cgroup-$name" -depth -type d -exec rmdir {} + 2>/dev/null
	done
	[ ! -d "$v2/$cgroup-$name" ]
}
