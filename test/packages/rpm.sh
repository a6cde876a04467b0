# shellcheck shell=bash
# The rpm by dnf, in a Debian that has both: this tests the package and its scriptlets, not another distribution's SELinux
# policy or presets. What Debian has under other names (systemd, shadow-utils, /bin/sh) a stub package provides.

dnf() { inside "$n" dnf -y -q --releasever=1 "$@"; }

stub() {
	cat >"$work/stub.yaml" <<-'Y'
		name: distro-stub
		arch: amd64
		version: 1.0.0
		release: "1"
		maintainer: test <test@agentd.example>
		description: what Debian provides itself
		provides: [systemd, shadow-utils, ca-certificates, /bin/sh]
	Y
	bin/nfpm package -f "$work/stub.yaml" -p rpm -t "$1/"
}

rpm_upgrade() {
	local job
	job=$(submit 'echo 1; sleep 6; echo 2')
	printed "$job" >/dev/null
	check "$n: upgrade during a job" dnf upgrade agentd
	check "$n: ... the new version runs" eventually 10 matches 'version": "1.1.0' inside "$n" agentd status --json
	check "$n: ... the job succeeded, with its log" job_becomes 30 "$job" '.status == "succeeded" and .attempts[-1].logsComplete and (.attempts | length) == 1'
	check "$n: ... the config was kept" inside "$n" grep -q '^handlers' $config
}

rpm_lifecycle() {
	local id='' v
	n=rpm
	check "$n: root file system" rootfs "$n" bookworm systemd,systemd-sysv,dbus,procps,passwd,rpm,dnf,createrepo-c || return
	mkdir -p "$work/$n" && tar -xf ".cache/rootfs-$n.tar" -C "$work/$n" && mkdir -p "$work/$n/srv/repo" "$work/$n/etc/yum.repos.d"
	for v in 1.0.0 1.1.0; do
		cp "$work/dist/$v/"*"-$v-1.x86_64.rpm" "$work/$n/srv/repo/"
	done
	check "$n: stub of the distribution" stub "$work/$n/root"
	printf '[t]\nname=t\nbaseurl=file:///srv/repo\ngpgcheck=0\n' >"$work/$n/etc/yum.repos.d/t.repo"
	boot "$work/$n" "$n" >/dev/null || { check "$n: boots" false && return; }
	check "$n: stub installs" inside "$n" rpm -i --nodeps /root/distro-stub-1.0.0-1.x86_64.rpm
	check "$n: repository" inside "$n" createrepo_c -q /srv/repo
	check "$n: install by dnf" dnf install agentd-1.0.0 agentd-controlplane-mock-1.0.0
	check "$n: rpm -V" inside "$n" rpm -V agentd
	check "$n: starts nothing" equals inactive prop ActiveState
	check "$n: the state directory is the agent's" equals 'agentd:agentd 750' inside "$n" stat -c '%U:%G %a' /var/lib/agentd
	check "$n: control plane" plane_up
	mock token | inside "$n" sh -c 'umask 077; cat >/root/token'
	check "$n: link" inside "$n" agentd link --server http://127.0.0.1:7070 --token-file /root/token
	write_config "$handlers"
	check "$n: enable and start" sys enable --now agentd
	check "$n: a job runs" runs_a_job
	rpm_upgrade
	check "$n: erase" dnf remove agentd
	check "$n: ... stops it" not active
	check "$n: ... keeps state and the edited config" inside "$n" test -s /var/lib/agentd/identity.json -a -s $config.rpmsave
	check "$n: shuts down" shut "$n"
}
