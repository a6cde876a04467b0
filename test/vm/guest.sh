#!/usr/bin/env bash
# Jobs under a real cgroup v2. Runs once, as root, in the virtual machine that run.sh boots.
set -u
# shellcheck source=test/packages/check.sh
. /root/check.sh
export CONTROLPLANE_ADMIN_TOKEN_FILE=/var/lib/cp/admin-token LC_ALL=C
config=/etc/agentd/agentd.yaml
unit=/sys/fs/cgroup/system.slice/agentd.service
trace=/sys/kernel/tracing
# A machine that is emulated on a busy one is slow: what takes a second may take a minute.
soon=300

mock() { controlplane-mock "$@"; }
prop() { systemctl show -P "$1" agentd; }
# submit TYPE SCRIPT [FLAG…]: prints the job's id.
submit() {
	local type=$1 script=$2
	shift 2
	mock submit --type "$type" --payload "$(jq -n --arg s "$script" '{script: $s}')" --max-attempts 1 "$@"
}
job_is() { mock job "$1" --json | jq -e "$2" || { mock job "$1" --json | jq -c '{status, reason, attempts}' && false; }; }
ended() { eventually $soon job_is "$1" '([.status] | inside(["succeeded", "failed", "cancelled", "timedOut"])) and .attempts[-1].logsComplete'; }
# outcome JOB FILTER: how its attempt ended. An outcome that doesn't come is told as well.
outcome() {
	ended "$1" >/dev/null || echo "it hasn't ended within $soon s"
	job_is "$1" "$2"
}
# says TYPE SCRIPT: runs it as a job and prints what it printed.
says() {
	local id
	id=$(submit "$1" "$2") && ended "$id" >/dev/null
	mock logs "$id" --stream out
}
# limits TYPE: those that a job of that type reads in its own cgroup, on one line.
limits() {
	says "$1" 'cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && cat memory.max memory.swap.max memory.oom.group pids.max cpu.max' | tr '\n' ' '
}
printed() { eventually $soon job_is "$1" ".attempts[-1].logNext >= ${2:-1}" >/dev/null; }
job_cgroups() { find $unit -mindepth 1 -type d -name 'job-*'; }
no_job_cgroups() { eventually $soon equals '' job_cgroups; }
same_agent() { equals "$pid 0" echo "$(prop MainPID) $(prop NRestarts)"; }
# An agent that is being started again has the status of the one before.
working() { eventually $soon equals active prop ActiveState && eventually $soon matches '^polling' prop StatusText; }

# What a limit is tried on: sh runs the payload's script, as in the type shell, but within limits.
write_config() {
	grep -E '^(#|server:)' $config >$config.new
	cat >>$config.new <<-Y
		max_jobs: 4
		drain: {timeout: 2s, grace: 2s, flush: 5s}
		handlers:
		  - {type: shell}
		  - type: small
		    command: [/bin/sh, -c, 'script=\$(jq -r .script) && exec /bin/sh -c "\$script"']
		    grace: 2s
		    limits: {memory: $1, cpus: 0.25, pids: 20}
	Y
	mv $config.new $config
	chmod 644 $config
}

install_and_link() {
	check "cgroup v2 and nothing else" equals cgroup2fs stat -fc %T /sys/fs/cgroup
	check "install" dpkg -i /root/agentd_1.0.0-1_amd64.deb /root/agentd-controlplane-mock_1.0.0-1_amd64.deb
	systemd-run --quiet --unit=cp controlplane-mock serve --store redka:/var/lib/cp --lease-ttl 5m --log-format json
	check "control plane" eventually $soon mock agents
	(umask 077 && mock token >/root/token)
	check "link" agentd link --server http://127.0.0.1:7070 --token-file /root/token
	write_config 64MiB
	check "start" systemctl start agentd
	check "polls" working
	pid=$(prop MainPID)
}

enforcement() {
	local witness job
	check "all three controllers are found" matches '"limits": *\["memory", *"pids", *"cpu"\]' journalctl -q -u agentd --no-pager -g 'job supervision was set up'
	check "the agent is in a leaf of its own" equals '0::/system.slice/agentd.service/agent' cat "/proc/$pid/cgroup"
	check "a job without limits has none" equals 'max max 1 max max 100000 ' limits shell
	check "a job with limits has them" equals '67108864 0 1 20 25000 100000 ' limits small

	witness=$(submit shell 'echo here; sleep 100000')
	printed "$witness"
	job=$(submit small 'echo before; tail /dev/zero; echo after')
	check "memory: a job over its limit fails, out of memory" outcome "$job" '.status == "failed" and (.attempts[-1].error | startswith("out of memory: "))'
	check "... by the limit of its own cgroup" matches 'oom_memcg=/system.slice/agentd.service/job-' journalctl -q -k --no-pager -g oom-kill
	check "... and as a whole: nothing of it goes on" equals before mock logs "$job" --stream out
	check "... its log says so, too" matches 'out of memory' mock logs "$job" --stream agent
	job=$(submit small 'tail /dev/zero & wait; echo survived')
	check "... also when a child of it ate the memory" outcome "$job" '.status == "failed" and (.attempts[-1].error | startswith("out of memory: "))'
	check "... what the kernel keeps of files doesn't count" equals 'done' says small 'dd if=/dev/zero of=f bs=1M count=100 status=none && cat f >/dev/null && echo done'

	job=$(submit small 'i=0; while [ $i -lt 40 ]; do sleep 60 & i=$((i+1)); done; echo all')
	check "pids: a job over its limit can't fork" outcome "$job" '.status == "failed" and (.attempts[-1].error | startswith("out of memory") | not)'
	check "... and sees why" matches '[Cc]annot fork' mock logs "$job" --stream err
	job=$(submit small 'echo 1; while :; do sh -c "while :; do setsid sleep 0.2 & done" 2>/dev/null; done')
	printed "$job"
	mock cancel "$job" >/dev/null
	check "... a storm of forks is cancelled" outcome "$job" '.status == "cancelled"'
	check "... and leaves no cgroup" eventually $soon equals 1 sh -c "find $unit -name 'job-*' | wc -l"

	check "cpu: two busy loops get a quarter of a core" cpu small 50 350
	check "... and without a limit more than that" cpu shell 400 4000
	check "the agent lived through all of it" same_agent
	check "... and so did the job beside" job_is "$witness" '.status == "running"'
	mock cancel "$witness" >/dev/null
	check "... till it was cancelled" outcome "$witness" '.status == "cancelled"'
}

# cpu TYPE MIN MAX: two busy loops for ten seconds use between MIN and MAX thousandths of a core.
cpu() {
	local used
	used=$(says "$1" 'cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)
		look() { read -r _ used <cpu.stat; read -r up _ </proc/uptime; up=${up%.*}${up#*.}; }
		sh -c "while :; do :; done" & sh -c "while :; do :; done" &
		look; began=$up was=$used; sleep 10; look; echo $(((used-was)/(up-began)/10))')
	echo "used $used thousandths of a core"
	[ -n "$used" ] && [ "$used" -ge "$2" ] && [ "$used" -le "$3" ]
}

# Seven processes, each of which lost its parent, its session or both, and none of which heeds a SIGTERM.
tree='trap "" TERM; sleep 7777 & (sleep 7777 &); setsid sleep 7777 & (setsid sleep 7777 &)
	setsid sh -c "setsid sleep 7777 & env -i sleep 7777" & sleep 1; echo up; sleep 7777'
sleepers() { pgrep -xc -f 'sleep 7777'; }

trees() {
	local job attached killed
	echo 'p:agentd_kill cgroup_kill_write' >$trace/kprobe_events
	echo 1 >$trace/events/kprobes/agentd_kill/enable
	echo 1 >$trace/events/cgroup/cgroup_attach_task/enable
	job=$(submit shell "$tree" --grace 1s)
	printed "$job"
	check "a tree of seven runs" eventually $soon equals 7 sleepers
	check "... all in the job's cgroup" equals 7 sh -c "for p in \$(pgrep -xf 'sleep 7777'); do cat /proc/\$p/cgroup; done | grep -c 'agentd.service/job-'"
	mock cancel "$job" >/dev/null
	check "... is cancelled" outcome "$job" '.status == "cancelled"'
	check "... and nothing of it is left" equals 0 sleepers
	check "... nor a cgroup" no_job_cgroups
	systemd-run --quiet --wait true # somebody whom systemd attaches to a cgroup: the trace would show it
	attached=$(grep -c 'cgroup_attach_task:.*dst_path=/system.slice/run-' $trace/trace)
	check "the trace shows who is moved into a cgroup" test "$attached" -gt 0
	check "... and no job was: it was born there (CLONE_INTO_CGROUP)" not grep -q 'cgroup_attach_task:.*agentd.service/job-' $trace/trace
	killed=$(grep -c agentd_kill: $trace/trace)
	check "the kernel killed it as a whole (cgroup.kill)" test "$killed" -gt 0
	echo 0 >$trace/events/kprobes/agentd_kill/enable
	echo 0 >$trace/events/cgroup/cgroup_attach_task/enable

	job=$(submit shell "$tree")
	printed "$job"
	eventually $soon equals 7 sleepers >/dev/null
	pkill -9 -x job-shim
	check "its supervisor is killed: the job ends" outcome "$job" '.status == "failed" and (.attempts[-1].error | contains("supervisor was killed"))'
	check "... and nothing of it is left" equals 0 sleepers
	job=$(submit shell "$tree")
	printed "$job"
	eventually $soon equals 7 sleepers >/dev/null
	kill -9 "$(prop MainPID)"
	check "the agent is killed: nothing of its job is left" eventually $soon equals 0 sleepers
	check "... and the job is told as lost" outcome "$job" '.status == "lost" or .attempts[-1].state == "lost"'
	check "... nor is a cgroup left" no_job_cgroups
	check "... limits hold after the restart" equals '67108864 0 1 20 25000 100000 ' limits small
	pid=$(prop MainPID)
	systemctl reset-failed agentd
}

changes() {
	check "daemon-reload" systemctl daemon-reload
	check "... takes no controller away" equals '67108864 0 1 20 25000 100000 ' limits small
	write_config 96MiB
	check "reload" systemctl reload agentd
	check "... changes the limits of the next job" equals '100663296 0 1 20 25000 100000 ' limits small
	check "... in the same agent" equals "$pid" prop MainPID
}

oom() {
	local job n
	# The unit's limit is for agent and jobs together.
	systemctl set-property --runtime agentd MemoryMax=250M
	job=$(submit shell 'echo 1; tail /dev/zero; echo 2')
	check "the unit's MemoryMax: the job is killed, out of memory" outcome "$job" '.status == "failed" and (.attempts[-1].error | startswith("out of memory: "))'
	check "... and the agent isn't" equals "$pid" prop MainPID
	systemctl set-property --runtime agentd MemoryMax=infinity
	# Else the kernel would spend minutes on reading programs in again and throwing them away, before it gives up: on an emulated
	# machine long enough for the watchdog. With this it kills once what was used in the last two seconds has no room.
	echo y >/sys/kernel/mm/lru_gen/enabled
	echo 2000 >/sys/kernel/mm/lru_gen/min_ttl_ms
	job=$(submit shell 'echo 1; tail /dev/zero; echo 2')
	check "the whole machine is out of memory: the job is killed" outcome "$job" '.status == "failed" and (.attempts[-1].error | startswith("out of memory: "))'
	check "... and the agent isn't" equals "$pid" prop MainPID

	job=$(submit shell 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done')
	printed "$job" 20
	pid=$(prop MainPID)
	echo 4M >$unit/agent/memory.max
	check "the agent itself is killed for memory" eventually $soon matches "Killed process $pid " journalctl -q -k --no-pager -n 300 -g 'Killed process'
	[ ! -e $unit/agent/memory.max ] || echo max >$unit/agent/memory.max
	check "... it is restarted" working
	check "... as another process" not equals "$pid" prop MainPID
	check "... its job is told as lost, with a complete log" outcome "$job" '.attempts[-1] | .state == "lost" and .logNext >= 20'
	check "... and with the reason" job_is "$job" '.attempts[-1].error | contains("out of memory (OOM)")'
	check "... without a hole" counts_up "$job"
	n=$(says shell 'seq 1000' | tail -n 1)
	check "... and a job runs" equals 1000 echo "$n"
}
counts_up() { mock logs "$1" --stream out | awk '$0 != NR { print "line " NR " is " $0; bad = 1 } END { exit bad || NR == 0 }'; }

leave() {
	check "stop" systemctl stop agentd
	check "... ends well" equals success prop Result
	check "... and leaves no cgroup" test ! -e $unit
	check "nothing failed on the way" equals '' systemctl --failed --no-legend
}

read -r steps </root/steps
for step in $steps; do
	was=$failed
	$step
	echo "     $step: $SECONDS s"
	[ $failed = "$was" ] || journalctl -q --no-pager -u agentd -n 20 | cut -c1-300 | sed 's/^/     | /'
done
echo "T-END $failed failed"
