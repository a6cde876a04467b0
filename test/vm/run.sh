#!/usr/bin/env bash
# Boots a Debian of its own in a virtual machine, where cgroup v2 has all its controllers and a systemd manages them, installs the
# deb there and shows that limits are enforced, that nothing of a job is left and that the agent survives: guest.sh does it.
# Without KVM it is slow: a quarter of an hour, and twice that on a busy machine.
# usage: [STEPS="install_and_link …"] test/vm/run.sh (root; installs what it needs; the network only for that and for the root file system, which stays in .cache/)
set -euo pipefail
cd "$(dirname "$0")/../.."
# Far more than it takes: what hangs is to be told, not waited for.
patience=${PATIENCE:-45m}
work=$(mktemp -d /var/tmp/agentd-vm.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

setup() {
	local tool missing=
	for tool in mmdebstrap qemu-system-x86_64 mke2fs; do
		command -v "$tool" >/dev/null || missing+=" $tool"
	done
	[ -n "$missing" ] || return 0
	test/apt.sh mmdebstrap qemu-system-x86 e2fsprogs
}

setup
DIST="$work/dist" packaging/build.sh 1.0.0 amd64 >/dev/null
mkdir -p .cache "$work/root"
if [ ! -s .cache/rootfs-vm.tar ]; then
	mmdebstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,passwd,linux-image-cloud-amd64,udev,kmod,jq \
		bookworm .cache/new-vm.tar
	mv .cache/new-vm.tar .cache/rootfs-vm.tar
fi
tar -xf .cache/rootfs-vm.tar -C "$work/root"
cp "$work"/dist/agentd*_1.0.0-1_amd64.deb test/packages/check.sh test/vm/guest.sh "$work/root/root/"
echo "${STEPS:-install_and_link enforcement trees changes oom leave}" >"$work/root/root/steps"
cat >"$work/root/etc/systemd/system/guest.service" <<'U'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /root/guest.sh
ExecStopPost=/bin/systemctl --no-block poweroff
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
[Install]
WantedBy=multi-user.target
U
ln -s ../guest.service "$work/root/etc/systemd/system/multi-user.target.wants/guest.service"
mke2fs -q -t ext4 -d "$work/root" "$work/disk.img" 3G >/dev/null
cp "$work"/root/boot/vmlinuz-* "$work/vmlinuz"
cp "$work"/root/boot/initrd.img-* "$work/initrd"
rm -rf "$work/root"

# KVM is left alone: nested, it isn't to be trusted everywhere. A getty would hang up the console that the guest's words come by,
# and the kernel's would cut into them.
timeout "$patience" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nographic -no-reboot -nic none \
	-kernel "$work/vmlinuz" -initrd "$work/initrd" -drive "file=$work/disk.img,if=virtio,format=raw,cache=unsafe" \
	-append "root=/dev/vda rw console=ttyS0 loglevel=1 systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service" </dev/null |
	sed -u 's,\r$,,' | tee "$work/console" || true
grep -q '^T-END ' "$work/console" || { echo "FAIL the guest didn't come to its end (within $patience)" && exit 1; }
grep -qx 'T-END 0 failed' "$work/console"
