# shellcheck shell=bash
# An agent's life in a booted Debian, with the reference control plane on loopback inside; sourced by run.sh.

config=/etc/agentd/agentd.yaml

sys() { inside "$n" systemctl "$@"; }
mock() { inside "$n" controlplane-mock "$@"; }
prop() { sys show -P "$1" agentd; }
# props A B…: their values, joined by slashes.
props() {
	local p out=
	for p in "$@"; do out+=/$(prop "$p"); done
	echo "${out#/}"
}
active() { equals active prop ActiveState; }

plane_up() {
	inside "$n" systemd-run --quiet --unit=cp --collect controlplane-mock serve --store redka:/var/lib/cp --lease-ttl 10s --log-format json &&
		eventually 20 mock agents
}
plane_down() { sys stop cp; }

# write_config MORE: the server line as `agentd link` wrote it stays.
write_config() {
	inside "$n" sh -c "grep -E '^(#|server:)' $config >$config.new; cat >>$config.new; mv $config.new $config; chmod 644 $config" <<<"$1"
}
handlers='handlers: [{type: shell}]
drain: {timeout: 25s, grace: 2s, flush: 5s}'

# submit SCRIPT [FLAG…]: prints the job's id.
submit() {
	local script=$1
	shift
	mock submit --type shell --payload "$(jq -n --arg s "$script" '{script: $s}')" "$@"
}
job_is() { mock job "$1" --json | jq -e "$2"; }
job_becomes() { eventually "$1" job_is "$2" "$3"; }
printed() { job_becomes 20 "$1" ".attempts[-1].logNext >= ${2:-1}"; }
# counts JOB LAST ATTEMPT: the log is the numbers 1 to LAST, each once, in order.
counts() { equals "$(seq "$2")" mock logs "$1" --attempt "$3" --stream out; }
# counts_up JOB ATTEMPT: the log is numbers from 1 on, without a hole.
counts_up() { mock logs "$1" --attempt "$2" --stream out | awk '$0 != NR { print "line " NR " is " $0; bad = 1 } END { exit bad || NR == 0 }'; }

# Jobs that wait to be let go, so that it doesn't matter how slow this machine is.
held='until [ -e /var/lib/agentd/go ]; do sleep 0.2; done'
let_go() { inside "$n" touch /var/lib/agentd/go; }
hold() { inside "$n" rm -f /var/lib/agentd/go; }

runs_a_job() {
	local id
	id=$(submit 'seq 100') && job_becomes 30 "$id" '.status == "succeeded" and .attempts[-1].logsComplete' && counts "$id" 100 1
}

install_unlinked() {
	check "$n: install without a token" inside "$n" dpkg -i /root/1.0.0/agentd.deb /root/1.0.0/mock.deb
	check "$n: enabled" equals enabled sys is-enabled agentd
	check "$n: rests, since its condition isn't met" equals 'inactive/no/success' props ActiveState ConditionResult Result
	check "$n: the state directory is the agent's" equals 'agentd:agentd 750' inside "$n" stat -c '%U:%G %a' /var/lib/agentd
	check "$n: the config is inert and valid but for the server" matches 'server: ' inside "$n" agentd check
	check "$n: units verify" verify
}

# What isn't about our unit (this is a minimal system without man) doesn't count.
verify() {
	local out
	out=$(inside "$n" systemd-analyze verify --man=no /usr/lib/systemd/system/agentd.service 2>&1) || { echo "$out" && return 1; }
	! grep agentd <<<"$out"
}

link_and_start() {
	check "$n: control plane" plane_up
	mock token | inside "$n" sh -c 'umask 077; cat >/root/token'
	check "$n: link" matches 'systemctl enable --now agentd' inside "$n" agentd link --server http://127.0.0.1:7070 --token-file /root/token
	check "$n: link keeps the comments and names the server" inside "$n" grep -qx 'server: "\?http://127.0.0.1:7070"\?' $config
	check "$n: ... comments" inside "$n" grep -q '^# Job types' $config
	check "$n: the identity is the agent's" equals 'agentd 600' inside "$n" stat -c '%U %a' /var/lib/agentd/identity.json
	id=$(inside "$n" agentd link --server http://127.0.0.1:7070 2>/dev/null)
	check "$n: link again says who it is" matches '^ag_' echo "$id"
	check "$n: link starts nothing" equals inactive prop ActiveState
	write_config "$handlers"
	check "$n: start" sys start agentd
	check "$n: Type=notify, watched" equals 'notify/30s' props Type WatchdogUSec
	check "$n: StatusText" eventually 15 matches '^polling; 0 jobs$' prop StatusText
	check "$n: a job runs" runs_a_job
	check "$n: in a cgroup of its own, as agentd" job_cgroup
	check "$n: status --check" inside "$n" agentd status --check
	check "$n: metrics on the socket" metrics
}

job_cgroup() {
	local id
	id=$(submit 'cat /proc/self/cgroup; id -un') && job_becomes 30 "$id" '.status == "succeeded" and .attempts[-1].logsComplete' || return 1
	matches 'agentd.service/job-.*agentd' mock logs "$id"
}

# Every metric that an alert is about is served.
metrics() {
	local name served
	served=$(curl -s --unix-socket "/proc/$(leader "$n")/root/run/agentd/agentd.sock" http://agentd/metrics)
	for name in $(sed -n 's/.*expr: *//p' packaging/alerts.yaml | grep -o 'agentd_[a-z_]*' | sort -u); do
		grep -q "^# TYPE $name " <<<"$served" || { echo "not served: $name" && return 1; }
	done
}

crash() {
	local job pid
	job=$(submit 'i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; sleep 0.02; done' --max-attempts 1)
	printed "$job" 20 >/dev/null
	pid=$(prop MainPID)
	inside "$n" kill -9 "$pid"
	check "$n: kill -9: restarted" eventually 30 equals 1/active props NRestarts ActiveState
	check "$n: ... the attempt is lost, its log complete" job_becomes 30 "$job" '.attempts[-1] | .state == "lost" and .logsComplete and .logNext >= 20'
	check "$n: ... without a hole" counts_up "$job" 1
	check "$n: ... for a reason that is told" job_is "$job" '.attempts[-1].error == "the agent was killed (SIGKILL) while the job ran"'
	check "$n: ... and a job runs" runs_a_job
	crash_and_stop
}

# What is in memory only outlives a crash that isn't followed by a restart, too.
crash_and_stop() {
	local job
	job=$(submit 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done' --max-attempts 1)
	printed "$job" 20 >/dev/null
	plane_down
	sys kill -s KILL --kill-whom=main agentd
	sys stop agentd
	plane_up
	check "$n: kill -9, and a stop before the restart: start" sys start agentd
	check "$n: ... the attempt is lost, its log complete" job_becomes 30 "$job" '.attempts[-1] | .state == "lost" and .logsComplete and .logNext >= 20'
	check "$n: ... without a hole" counts_up "$job" 1
}

watchdog() {
	inside "$n" mkdir -p /run/systemd/system/agentd.service.d
	inside "$n" sh -c 'cat >/run/systemd/system/agentd.service.d/hang.conf' <<-'C'
		[Service]
		ExecStart=
		ExecStart=/opt/agentd-hang run
		WatchdogSec=6s
		RestartSec=1s
	C
	sys daemon-reload
	sys reset-failed agentd
	check "$n: start a build that can hang" sys restart agentd
	eventually 20 matches '^polling' prop StatusText >/dev/null
	inside "$n" touch /run/agentd/hang
	inside "$n" chown agentd: /run/agentd/hang
	submit 'echo 1' >/dev/null
	check "$n: watchdog: a loop hangs, systemd restarts the agent" eventually 60 matches '^1$' prop NRestarts
	check "$n: ... for that reason" matches "watchdog" inside "$n" journalctl --no-pager -q -u agentd -n 4000 -g 'Failed with result .watchdog|stopped feeding the watchdog'
	inside "$n" rm -r /run/systemd/system/agentd.service.d
	sys daemon-reload
	check "$n: ... and the real one runs again" sys restart agentd
	check "$n: ... a job runs" runs_a_job
}

reload() {
	local job
	job=$(submit 'echo 1; sleep 6; echo 2')
	printed "$job" >/dev/null
	write_config "$handlers
max_jobs: 3
labels: {zone: b}"
	check "$n: reload" sys reload agentd
	check "$n: ... is in force when it returns" max_jobs 3
	write_config "$handlers
max_jobs: 4
nonsense: 1"
	check "$n: reload of a bad config fails" not sys reload agentd
	check "$n: ... says why" matches 'nonsense' inside "$n" journalctl --no-pager -q -u agentd -n 30
	check "$n: ... and the old one stays in force" max_jobs 3
	check "$n: ... with the agent running" active
	check "$n: ... and the job untouched" job_becomes 20 "$job" '.status == "succeeded" and (.attempts | length) == 1'
	check "$n: start with a bad config fails" not sys restart agentd
	sleep 6 # longer than RestartSec
	check "$n: ... once, by exit code 78" equals failed/78/0 props ActiveState ExecMainStatus NRestarts
	write_config "$handlers"
	sys reset-failed agentd
	check "$n: ... and works when it is mended" sys restart agentd
	eventually 20 matches '^polling' prop StatusText >/dev/null
}
max_jobs() { inside "$n" agentd status --json | jq -e ".maxJobs == $1"; }

stops() {
	local job began
	# Longer than TimeoutStopSec: the agent asks for more time while it drains.
	inside "$n" mkdir -p /run/systemd/system/agentd.service.d
	inside "$n" sh -c 'printf "[Service]\nTimeoutStopSec=6s\n" >/run/systemd/system/agentd.service.d/stop.conf'
	sys daemon-reload
	job=$(submit "echo 1; $held; echo 2")
	printed "$job" >/dev/null
	began=$SECONDS
	sleep 12 && let_go &
	check "$n: stop" sys stop agentd
	check "$n: ... waits for a job, longer than TimeoutStopSec" test $((SECONDS - began)) -ge 9
	hold
	check "$n: ... and ends well" equals success prop Result
	check "$n: ... with the job done and its log there" job_is "$job" '.status == "succeeded" and .attempts[-1].logsComplete'
	inside "$n" rm -r /run/systemd/system/agentd.service.d
	sys daemon-reload
	sys start agentd
	job=$(submit 'trap "" TERM; echo 1; while :; do sleep 1; done' --max-attempts 1)
	printed "$job" >/dev/null
	sys stop --no-block agentd
	eventually 10 matches '^stopping' prop StatusText >/dev/null
	sys kill -s TERM --kill-whom=main agentd
	began=$SECONDS
	check "$n: a second stop doesn't wait" eventually 12 equals inactive prop ActiveState
	check "$n: ... nor fails" equals success prop Result
	sys start agentd
	check "$n: ... and what it cut short is told" job_becomes 30 "$job" '.attempts[-1].state == "lost"'
}

upgrade() {
	local job
	job=$(submit "seq 2000; $held; seq 2001 4000")
	printed "$job" 2000 >/dev/null
	plane_down
	sleep 8 && let_go &
	check "$n: upgrade during a job, with a backlog and no control plane" inside "$n" dpkg -i /root/1.1.0/agentd.deb
	wait $!
	hold
	check "$n: ... the new version runs" matches 'version": "1.1.0' inside "$n" agentd status --json
	check "$n: ... the config was kept" inside "$n" grep -q '^handlers' $config
	check "$n: ... StatusText tells what waits" matches 'waiting' prop StatusText
	check "$n: ... control plane is back" plane_up
	check "$n: ... the job had succeeded, its log arrives" job_becomes 60 "$job" '.status == "succeeded" and .attempts[-1].logsComplete'
	check "$n: ... every line once" counts "$job" 4000 1
	check "$n: downgrade" inside "$n" dpkg -i /root/1.0.0/agentd.deb
	check "$n: ... the old version runs" eventually 10 matches 'version": "1.0.0' inside "$n" agentd status --json
	check "$n: ... a job runs" runs_a_job
	sys stop agentd
	check "$n: upgrade of a stopped agent" inside "$n" dpkg -i /root/1.1.0/agentd.deb
	check "$n: ... leaves it stopped" equals inactive prop ActiveState
	sys start agentd
}

outage_reboot() {
	local job
	job=$(submit "echo 1; $held; seq 2 20000")
	printed "$job" >/dev/null
	plane_down
	let_go
	eventually 20 matches $'\n20000$' inside "$n" agentd spool cat "$job" >/dev/null
	hold
	check "$n: reboot in an outage: down" shut "$n"
	check "$n: ... up" boot "$work/$n" "$n"
	check "$n: ... ready without a control plane" eventually 10 active
	check "$n: ... its log is in the spool" matches "$job" inside "$n" agentd spool ls
	check "$n: ... and can be read there" matches '20000' inside "$n" agentd spool cat "$job"
	check "$n: ... control plane is back" plane_up
	check "$n: ... the log arrives" job_becomes 90 "$job" '.attempts[0].logsComplete'
	check "$n: ... every line once" counts_up "$job" 1
}

# The drop-ins that docs/operating.md tells to use do what it says, and the unit by itself doesn't allow it.
drop_ins() {
	check "$n: jobs gain no privileges" equals 1 says 'sed -n "s/NoNewPrivs:[^0-9]*//p" /proc/self/status'
	check "$n: jobs mount nothing" not says 'unshare -Urm mount -t tmpfs none /mnt && echo mounted'
	drop_in 1
	check "$n: with the first drop-in they make containers" equals mounted says 'unshare -Urm mount -t tmpfs none /mnt && echo mounted'
	drop_in 2
	check "$n: with the second they may gain privileges" equals 0 says 'sed -n "s/NoNewPrivs:[^0-9]*//p" /proc/self/status'
	inside "$n" rm -r /run/systemd/system/agentd.service.d
	sys daemon-reload
	sys restart agentd
}
drop_in() {
	inside "$n" mkdir -p /run/systemd/system/agentd.service.d
	awk -v want="$1" '/^```ini/ { k++; on = 1; next } /^```/ { on = 0 } on && k == want' docs/operating.md |
		inside "$n" sh -c 'cat >/run/systemd/system/agentd.service.d/jobs.conf'
	sys daemon-reload
	sys restart agentd
}
# says SCRIPT: runs it as a job and prints what it printed; fails if it fails.
says() {
	local id
	id=$(submit "$1" --max-attempts 1) && job_becomes 30 "$id" '.status == "succeeded" or .status == "failed"' >/dev/null || return 1
	job_becomes 10 "$id" '.attempts[-1].logsComplete' >/dev/null
	mock logs "$id" --stream out
	job_is "$id" '.status == "succeeded"' >/dev/null
}

removal() {
	check "$n: remove" inside "$n" dpkg -r agentd
	check "$n: ... stops it" not active
	check "$n: ... keeps state and config" inside "$n" test -s /var/lib/agentd/identity.json -a -s $config
	check "$n: reinstall" inside "$n" dpkg -i /root/1.1.0/agentd.deb
	check "$n: ... it runs again" eventually 10 active
	check "$n: ... as who it was" equals "$id" inside "$n" agentd link
	check "$n: ... a job runs" runs_a_job
	check "$n: purge" inside "$n" dpkg -P agentd
	check "$n: ... leaves nothing" inside "$n" sh -c '! ls -d /etc/agentd /var/lib/agentd /run/agentd /usr/bin/agentd /etc/systemd/system/*/agentd.service /etc/systemd/system/agentd.service 2>/dev/null'
	check "$n: ... but the user" inside "$n" getent passwd agentd
}

# The other way to link: the token where the unit looks for it.
token_in_place() {
	check "$n: install once more" inside "$n" dpkg -i /root/1.1.0/agentd.deb
	mock token | inside "$n" sh -c 'umask 077; cat >/etc/agentd/token'
	inside "$n" sed -i 's|^#server:.*|server: http://127.0.0.1:7070|' $config
	write_config "$handlers"
	check "$n: a token in /etc/agentd/token links at the start" sys start agentd
	check "$n: ... a job runs" runs_a_job
	inside "$n" rm /etc/agentd/token
	check "$n: ... and isn't needed any more" sys restart agentd
	check "$n: ... a job runs" runs_a_job
}

leave() {
	check "$n: nothing failed on the way" equals '' sys --failed --no-legend
	check "$n: purge of both" inside "$n" dpkg -P agentd agentd-controlplane-mock
}

deb_lifecycle() {
	local id='' v
	n=$1
	check "$n: root file system" rootfs "$n" "$n" systemd,systemd-sysv,dbus,libpam-systemd,procps || return
	mkdir -p "$work/$n" && tar -xf ".cache/rootfs-$n.tar" -C "$work/$n"
	for v in 1.0.0 1.1.0; do
		mkdir -p "$work/$n/root/$v"
		cp "$work/dist/$v/agentd_$v-1_amd64.deb" "$work/$n/root/$v/agentd.deb"
		cp "$work/dist/$v/agentd-controlplane-mock_$v-1_amd64.deb" "$work/$n/root/$v/mock.deb"
	done
	install -m 755 "$work/hang/agentd" "$work/$n/opt/agentd-hang"
	boot "$work/$n" "$n" >/dev/null || { check "$n: boots" false && return; }
	local step
	for step in ${STEPS:-install_unlinked link_and_start crash watchdog reload drop_ins stops outage drain upgrade outage_reboot lost_state removal token_in_place move leave}; do
		local before=$failed
		$step
		[ "$failed" = "$before" ] || inside "$n" journalctl --no-pager -q -u agentd -n "${TAIL:-15}" | cut -c1-400 | sed 's/^/     | /'
	done
	check "$n: shuts down" shut "$n"
}
