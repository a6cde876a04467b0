#!/usr/bin/env bash
# Builds the deb and rpm packages of both commands for amd64 and arm64 into dist/, reproducibly: the same
# commit and VERSION give the same bytes. usage: packaging/build.sh VERSION [ARCH…]
# OVERLAY names a `go build -overlay` file, for builds that tests are made with.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?version, e.g. 1.0.0}
shift
version=${version#v}
# A commit is no version that package managers can order; one that is older than any release is.
[[ $version =~ ^[0-9]+\.[0-9] ]] || version=0.0.0-git.${version//[^A-Za-z0-9]/.}
archs=("$@")
[ $# -gt 0 ] || archs=(amd64 arm64)
dist=${DIST:-dist}
# The commit's own time stands for "now" in everything that is built.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y packaging/build.sh)}
export SOURCE_DATE_EPOCH VERSION=$version
MTIME=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
export MTIME
mkdir -p "$dist" bin
go build -modfile=internal/tools/go.mod -o bin/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
nfpm=$PWD/bin/nfpm

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile() { # ARCH DIR: a static PIE; buildvcs is off so that only VERSION says which build it is
	mkdir -p "$2"
	CGO_ENABLED=0 GOARCH=$1 go build -trimpath -buildvcs=false -buildmode=pie ${OVERLAY:+-overlay "$OVERLAY"} \
		-ldflags "-s -w -X agentd/internal/version.version=$version" -o "$2/" ./cmd/agentd ./cmd/controlplane-mock
}

# Man pages and completions come from the commands themselves, run on this machine.
native=$(go env GOHOSTARCH)
compile "$native" "$work/$native"
docs=$work/docs
mkdir -p "$docs/completion" "$docs/man/agentd/man1" "$docs/man/agentd/man5" "$docs/man/controlplane-mock/man1"
for c in agentd controlplane-mock; do
	"$work/$native/$c" man "$docs/man/$c/man1"
	for sh in bash zsh fish; do
		"$work/$native/$c" completion "$sh" >"$docs/completion/$c.$sh"
	done
done
go run github.com/cpuguy83/go-md2man/v2 -in packaging/agentd.yaml.5.md -out "$docs/man/agentd/man5/agentd.yaml.5"
find "$docs/man" -type f -exec gzip -9n {} +
cat >"$work/changelog.yaml" <<Y
- semver: $version-1
  date: $MTIME
  packager: agentd maintainers <maintainers@agentd.example>
  deb: {urgency: medium, distributions: [stable]}
  changes:
    - note: Release $version; see docs/ for what changed
Y

# configure does what nfpm doesn't: variables in the key changelog, and globs where rpm wants files marked as doc.
configure() { # PACKAGE
	local line page page_line
	while IFS= read -r line; do
		case $line in
		changelog:*) echo "changelog: $work/changelog.yaml" ;;
		*'*.gz'*'type: doc'*)
			for page in "$docs/man/$1/man1"/*.gz; do
				page=${page##*/}
				page_line=${line/'*.gz'/$page}
				echo "${page_line/'man1/,'/man1/$page,}"
			done
			;;
		*) echo "$line" ;;
		esac
	done <"packaging/nfpm-$1.yaml"
}

for ARCH in "${archs[@]}"; do
	[ "$ARCH" = "$native" ] || compile "$ARCH" "$work/$ARCH"
	export ARCH BIN=$work/$ARCH DOCS=$docs
	for p in agentd controlplane-mock; do
		configure "$p" >"$work/$p.yaml"
		for kind in deb rpm; do
			"$nfpm" package -f "$work/$p.yaml" -p "$kind" -t "$dist/"
		done
	done
done
# The modules that the binaries are made of, as the toolchain recorded them: a software bill of materials.
go run ./packaging/sbom -version "$version" "$work/$native/agentd" >"$dist/agentd-$version.cdx.json"
go run ./packaging/sbom -version "$version" "$work/$native/controlplane-mock" >"$dist/agentd-controlplane-mock-$version.cdx.json"
(cd "$dist" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS && cat SHA256SUMS)
