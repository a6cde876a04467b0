# shellcheck shell=bash
# What docs/operating.md tells an operator to do, done; sourced by run.sh.

spool_dir() { inside "$n" find /var/lib/agentd -printf '%p %s %T@ %u %m\n' | sort; }

# readable JOB HOW: root reads what is left of the job's log on the host, and changes nothing. The first line has been shipped.
readable() {
	local job=$1 how=$2 before
	before=$(spool_dir)
	check "$n: spool ls, $how" matches "$job" inside "$n" agentd spool ls
	check "$n: spool cat, $how" equals "$(seq 2 3000)" inside "$n" agentd spool cat "$job" --stream out
	check "$n: spool stat, $how" inside "$n" agentd spool stat
	check "$n: spool verify, $how" inside "$n" agentd spool verify
	check "$n: spool export, $how" inside "$n" agentd spool export -o /root/logs.tar.zst
	check "$n: ... and read from there" equals "$(seq 2 3000)" inside "$n" agentd spool cat --from /root/logs.tar.zst "$job" --stream out
	[ "$how" = running ] || check "$n: ... which changed nothing" equals "$before" spool_dir
}

outage() {
	local job
	job=$(submit "echo 1; $held; seq 2 3000")
	printed "$job" >/dev/null
	plane_down
	let_go
	check "$n: an outage: the job goes on" eventually 30 matches $'\n3000$' inside "$n" agentd spool cat "$job"
	check "$n: ... status says so" matches 'control plane not reachable' inside "$n" agentd status
	check "$n: ... status --check fails" not inside "$n" agentd status --check
	check "$n: ... StatusText has it in words" eventually 20 matches '^polling; 0 jobs; 1 outcome waiting; [0-9]+ kB waiting; control plane not reachable' prop StatusText
	hold
	readable "$job" running
	check "$n: spool cat -f goes on" equals "$(seq 2 3000)" inside "$n" timeout 3 agentd spool cat "$job" -f --stream out
	sys stop agentd
	readable "$job" stopped
	sys start agentd
	eventually 20 active >/dev/null
	sys kill -s KILL agentd
	sys stop agentd
	readable "$job" crashed
	sys start agentd
	plane_up
	check "$n: the outage is over: outcome and log arrive" job_becomes 60 "$job" '.status == "succeeded" and .attempts[-1].logsComplete and (.attempts | length) == 1'
	check "$n: ... every line once" counts "$job" 3000 1
	check "$n: ... status --check" eventually 30 inside "$n" agentd status --check
}

drain() {
	local job
	job=$(submit "echo 1; $held; echo 2")
	printed "$job" >/dev/null
	sleep 3 && let_go &
	check "$n: drain --wait" matches 'drained' inside "$n" agentd drain --wait
	wait $!
	hold
	check "$n: ... had waited" job_is "$job" '.status == "succeeded" and .attempts[-1].logsComplete'
	job=$(submit 'echo 1')
	check "$n: ... and takes no jobs" eventually 5 matches '^drained' prop StatusText
	check "$n: ... this one waits" job_is "$job" '.status == "pending"'
	inside "$n" agentd drain --off >/dev/null
	check "$n: drain --off" job_becomes 30 "$job" '.status == "succeeded"'
}

# The state directory is lost: a token that is bound to the id gives it back.
lost_state() {
	sys stop agentd
	inside "$n" rm -rf /var/lib/agentd
	mock token --agent-id "$id" | inside "$n" sh -c 'umask 077; cat >/root/token'
	check "$n: the state is lost: link --agent-id" equals "$id" inside "$n" agentd link --agent-id "$id" --token-file /root/token
	check "$n: ... start" sys start agentd
	check "$n: ... a job runs" runs_a_job
	check "$n: ... and all of it is the agent's" equals '' inside "$n" find /var/lib/agentd ! -user agentd
}

move() {
	local there='--url http://127.0.0.1:7170 --admin-token-file /var/lib/cp2/admin-token' job
	inside "$n" systemd-run --quiet --unit=cp2 --collect controlplane-mock serve --listen 127.0.0.1:7170 --store redka:/var/lib/cp2 --log-format json
	# shellcheck disable=SC2086
	eventually 20 mock agents $there >/dev/null
	# shellcheck disable=SC2086
	mock token $there | inside "$n" sh -c 'umask 077; cat >/root/token'
	check "$n: move to another server: drain" inside "$n" agentd drain --wait
	sys stop agentd
	inside "$n" sed -i 's|^server:.*|server: http://127.0.0.1:7170|' $config
	check "$n: ... link --force" matches '^ag_' inside "$n" agentd link --force --server http://127.0.0.1:7170 --token-file /root/token
	check "$n: ... start" sys start agentd
	# shellcheck disable=SC2086
	job=$(mock submit --type shell --payload '{"script": "echo 1"}' $there)
	# shellcheck disable=SC2086
	check "$n: ... a job runs there" eventually 30 matches '"status": *"succeeded"' mock job "$job" --json $there
	sys stop cp2
}
