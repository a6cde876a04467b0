#!/usr/bin/env bash
# Installs Debian packages by name, as root, without starting the services that they bring. usage: test/apt.sh PACKAGE…
set -euo pipefail
printf 'installing %s\n' "$*"
export DEBIAN_FRONTEND=noninteractive
# policy-rc.d: the tests start their own servers; the packages' services stay off.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
	trap 'rm -f '$policy EXIT
fi
apt-get -qq update
apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >/dev/null
