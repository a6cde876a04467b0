# agentd: everything that is built, tested and measured. `make help` lists the targets.
#
# Only Go 1.26, make, git and a C compiler (for the race detector) are needed; targets install
# what else they use by Debian package name, or build it from the pinned versions in internal/tools.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.0.0)
LDFLAGS := -s -w -X agentd/internal/version.version=$(VERSION)
GO      := go
TOOL    := $(GO) tool -modfile=internal/tools/go.mod
PKG     ?= ./...
FUZZTIME ?= 10s
FUZZ    ?= .

.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build bin/agentd and bin/controlplane-mock: static, pure Go
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/agentd ./cmd/controlplane-mock

.PHONY: demo
demo: build ## Watch three real jobs run under leases with their logs arriving, checked line by line
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./test/demo
	CGO_ENABLED=0 $(GO) test -c -o bin/demo-tests/ ./agent/protocol ./leasekeeper ./internal/tree
	bin/demo --bin bin

.PHONY: setup
setup: ## Install what the tests use beside Go (Debian packages by name, as root)
	test/setup.sh

.PHONY: test
test: setup lint unit ## Everything a change must pass: lint, unit and integration tests (fuzz seeds among them)

.PHONY: unit
unit: build ## Unit and integration tests with the race detector, in random order (PKG=./spool/... for some)
	$(TOOL) gotestsum --format pkgname-and-test-fails --format-hide-empty-pkg -- -race -shuffle=on -timeout 15m $(PKG)

.PHONY: lint
lint: ## go vet, go fix, golangci-lint (gosec among them) and a check that go.mod is tidy
	$(GO) vet ./...
	test -z "$$($(GO) fix -diff ./... 2>&1 | tee /dev/stderr)"
	$(GO) mod tidy -diff
	$(TOOL) golangci-lint run

.PHONY: fuzz
fuzz: ## Fuzz every decoder for FUZZTIME each (10s), or those whose names match FUZZ
	test/fuzz.sh $(FUZZTIME) '$(FUZZ)'

.PHONY: bench
bench: build ## Measure speed and memory, as ratios side by side in one run
	$(GO) build -trimpath -o bin/ ./test/bench
	bin/bench --bin bin

.PHONY: simulate
simulate: ## Simulate 100,000 agents on eight instances, and what happens to them (SIM="--scenario sweep" for more)
	$(GO) run ./test/simulation --agents 100000 --instances 8 $(SIM)

.PHONY: soak
soak: build ## The field trials at their full sizes (an hour, 20 GB of disk)
	AGENTD_SOAK=1 $(GO) test -timeout 120m -count=1 $(PKG)

.PHONY: packages
packages: ## Build deb and rpm of both commands for amd64 and arm64 into dist/, reproducibly (VERSION=1.0.0)
	packaging/build.sh '$(VERSION)'

DISTS ?= bookworm
.PHONY: test-packages
test-packages: ## Lint the packages and live an agent's life with them in booted systems (root; DISTS="bookworm trixie rpm")
	DISTS='$(DISTS)' test/packages/run.sh

.PHONY: test-vm
test-vm: ## Enforce jobs' limits under a real cgroup v2, in a virtual machine (root; slow)
	test/vm/run.sh

.PHONY: vuln
vuln: ## govulncheck (needs its database, which is not reachable everywhere)
	$(TOOL) govulncheck ./...

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist
