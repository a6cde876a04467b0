#!/usr/bin/env bash
# Builds the deb and rpm packages of both commands for amd64 and arm64 into dist/, reproducibly: the same
# commit and VERSION give the same bytes. usage: packaging/build.sh VERSION [ARCH…]
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?version, e.g. 1.0.0}
shift
archs=("${@:-amd64}")
[ $# -gt 0 ] || archs=(amd64 arm64)
# The commit's own time stands for "now" in everything that is built.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y packaging/build.sh)}
export SOURCE_DATE_EPOCH VERSION=$version
MTIME=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
export MTIME
mkdir -p dist bin
nfpm=bin/nfpm
go build -modfile=internal/tools/go.mod -o "$nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
ldflags="-s -w -X agentd/internal/version.version=$version"

# Man pages and completions come from the commands themselves, run on this machine.
native=$(mktemp -d)
trap 'rm -rf "$native"' EXIT
CGO_ENABLED=0 go build -trimpath -ldflags "$ldflags" -o "$native/" ./cmd/agentd ./cmd/controlplane-mock

for ARCH in "${archs[@]}"; do
	export ARCH STAGE=dist/stage-$ARCH
	rm -rf "$STAGE"
	mkdir -p "$STAGE/man" "$STAGE/man-mock" "$STAGE/completion"
	CGO_ENABLED=0 GOARCH=$ARCH go build -trimpath -buildmode=pie -ldflags "$ldflags" -o "$STAGE/" ./cmd/agentd ./cmd/controlplane-mock
	"$native/agentd" man "$STAGE/man"
	"$native/controlplane-mock" man "$STAGE/man-mock"
	gzip -9n "$STAGE"/man/* "$STAGE"/man-mock/*
	for c in agentd controlplane-mock; do
		for sh in bash zsh fish; do
			"$native/$c" completion "$sh" >"$STAGE/completion/$c.$sh"
		done
	done
	cat >"$STAGE/changelog.yaml" <<Y
- semver: $version-1
  date: $MTIME
  packager: agentd maintainers <maintainers@agentd.example>
  changes:
    - note: Release $version; see docs/ for what changed
Y
	for p in agentd controlplane-mock; do
		for kind in deb rpm; do
			"$nfpm" package -f "packaging/nfpm-$p.yaml" -p "$kind" -t dist/
		done
	done
	rm -rf "$STAGE"
done
# The modules that the binaries are made of, as the toolchain recorded them: a software bill of materials.
go run ./packaging/sbom -version "$version" "$native/agentd" >"dist/agentd-$version.cdx.json"
go run ./packaging/sbom -version "$version" "$native/controlplane-mock" >"dist/agentd-controlplane-mock-$version.cdx.json"
(cd dist && sha256sum ./*"$version"* >SHA256SUMS)
ls -l dist
