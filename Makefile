# Copyright The Tenure Authors
# SPDX-License-Identifier: Apache-2.0

ifeq ($(filter oneshell,$(.FEATURES)),)
$(error GNU make 4 is needed; on macOS it is called gmake)
endif

# What the environment says must not change what is built or checked. VCS
# stamping is off because the version comes from `git describe`.
export GOFLAGS := -buildvcs=false
export GOWORK :=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Every module of go.work: a new one is in all targets without a change here.
MODULES = $(or $(shell go list -m -f '{{.Dir}}'),$(error go list -m found no modules))
ALL = $(addsuffix /...,$(MODULES))

VERSION = $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
SIM_FAULTS ?= 1000000
TIMEOUT ?= 20m
N ?= 500
SEED ?=
ROUNDS ?= 100
CLUSTERS ?= 2
SERVERS ?= 1

# The lint is built once per version of it and of Go, from the versions that
# test/tools pins.
LINT_VERSION := $(shell awk '$$1 == "github.com/golangci/golangci-lint/v2" { print $$2 }' test/tools/go.mod)
LINT = $${XDG_CACHE_HOME:-$$HOME/.cache}/tenure/golangci-lint-$(LINT_VERSION)-$$(go env GOVERSION)/golangci-lint

# What check runs, in this order; quick ones first.
PHASES := check-format check-tidy check-rules build check-darwin lint parts test check-clusters check-stores check-sim mutants check-model

# The real servers that check runs; make testbed builds them all.
PARTS := azurite etcd fake-gcs-server kube-apiserver kube-controller-manager kube-scheduler kwok versitygw

.PHONY: help check fix test lint sim mutants model chaos e2e stores bench build run clusters up down clean deps testbed lint-tool check-e2e $(PHASES)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

check: deps ## all that CI runs; goes on after a failure and ends with a table
	@failed=; table=; \
	for phase in $(PHASES); do \
		printf '\n=== %s\n' "$$phase"; \
		begin=$$SECONDS result=ok; \
		$(MAKE) "$$phase" || { result=FAILED; failed="$$failed $$phase"; }; \
		table+=$$(printf '%-14s %5d s  %s' "$$phase" $$((SECONDS - begin)) "$$result")$$'\n'; \
	done; \
	printf '\n=== check\n%s%-14s %5d s\n' "$$table" all $$SECONDS; \
	if [ -n "$$failed" ]; then echo "make check: failed:$$failed" >&2; exit 1; fi

fix: ## format, tidy every module, write generated files and golden lists
	gofmt -s -w .
	@for m in $(MODULES); do test/tools/tidy.sh "$$m"; done
	go test -count=1 ./test/rules -run 'TestLinks$$|TestGenerated$$' -update

test: parts ## unit tests of every module with the race detector
	@packages=$$(go list $(ALL) | grep -v '/test/'); \
	go test -race -timeout $(TIMEOUT) $$packages

lint: lint-tool ## golangci-lint on every module
	@for m in $(MODULES); do \
		(cd "$$m" && "$(LINT)" run --config $(CURDIR)/.golangci.yml ./...) || failed=1; \
	done; [ -z "$${failed:-}" ]

sim: ## the simulator, long: a million faults (SIM_FAULTS=n for another number)
	go test ./internal/sim -run 'TestSim$$' -count=1 -v -timeout 60m -sim.faults=$(SIM_FAULTS)

mutants: ## planted mistakes that the tests must find
	go test -tags mutant ./internal/sim ./operator/probe -run TestMutants -count=1 -timeout $(TIMEOUT)

model: ## the model of the election, large
	TENURE_MODEL=large go test ./test/model -count=1 -timeout 60m -v

chaos: ## random faults at real processes (N=500 of them, SEED= of an earlier run), and 100 frozen leaders
	TENURE_CHAOS_FAULTS=$(N) TENURE_CHAOS_SEED=$(SEED) TENURE_CHAOS_ROUNDS=$(ROUNDS) \
		go test ./cmd/tenure -run 'TestChaos$$|TestFrozenLeader$$' -count=1 -timeout 120m -v

stores: ## elections over every lock store under faults, 20 locks and over 200 failovers each, then 100 at the defaults; a report in out/
	@test/testbed/build.sh etcd kube-apiserver versitygw fake-gcs-server azurite >/dev/null
	@mkdir -p out
	TENURE_STORES_LOCKS=$${TENURE_STORES_LOCKS:-20} TENURE_STORES_ROUNDS=$${TENURE_STORES_ROUNDS:-13} \
		TENURE_STORES_HUNDRED=$${TENURE_STORES_HUNDRED:-100} TENURE_STORES_LONG=1 TENURE_STORES_REPORT=$(CURDIR)/out/stores.txt \
		go test ./test/stores -count=1 -timeout 90m -v

bench: ## benchmarks of every module
	go test -run '^$$' -bench . -benchmem -timeout $(TIMEOUT) $(ALL)

build: ## bin/tenure
	@# every package of every module has to build, linked or not
	go build $(ALL)
	go build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/tenure ./cmd/tenure

e2e: parts ## real clusters: each fault once, 60 mixed at client-go's defaults with a report in out/, and planted mistakes
	@mkdir -p out
	TENURE_E2E_FAULTS=$${TENURE_E2E_FAULTS:-60} TENURE_E2E_REPORT=$(CURDIR)/out/e2e.txt \
		go test ./test/e2e -count=1 -parallel 4 -timeout 120m -v
	go test -tags mutant ./test/e2e -run TestMutants -count=1 -timeout 30m -v

run: build ## two copies that elect, and fail over
	examples/run.sh

clusters: parts ## Kubernetes control planes until Ctrl-C (CLUSTERS=2, SERVERS=1 API server in each), with kubeconfigs
	@go build -o bin/clusters ./test/cluster/up
	@exec bin/clusters -n $(CLUSTERS) -servers $(SERVERS) -all

up: ## two clusters with Tenure and an ordinary controller in each; says what to try
	@test/testbed/build.sh kube-apiserver etcd versitygw >/dev/null
	@echo "building Tenure and the controller"
	@mkdir -p bin && go build -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/tenure ./examples/controller ./test/e2e/up
	@bin/up start out/up

down: ## end what make up started
	@go build -o bin/up ./test/e2e/up && bin/up stop out/up

clean: ## remove what was built
	rm -rf bin out

testbed: ## build the real servers that the tests run, once per version
	test/testbed/build.sh all

deps: ## install the programs that the checks need, where that is possible
	@test/tools/deps.sh

check-format:
	@files=$$(gofmt -s -l .); [ -z "$$files" ] || { printf 'not formatted: run make fix:\n%s\n' "$$files" >&2; exit 1; }

check-tidy:
	@for m in $(MODULES); do test/tools/tidy.sh -diff "$$m" || failed=1; done; [ -z "$${failed:-}" ]

# Not from the test cache: it does not see what the go command reads for a test.
check-rules:
	go test -count=1 -timeout 5m ./test/rules

check-darwin:
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build $(ALL)

parts:
	@test/testbed/build.sh $(PARTS) >/dev/null

check-clusters: parts
	go test -race -count=1 -timeout $(TIMEOUT) ./test/testbed/... ./test/cluster/...

check-stores:
	go test ./test/stores -count=1 -timeout $(TIMEOUT)

# Each kind of fault once: all of make e2e but what takes long to build or to run.
check-e2e: parts
	go test ./test/e2e -count=1 -parallel 4 -skip 'TestClocks|TestMixed|TestScale' -timeout 40m

check-sim:
	go test ./internal/sim -run 'TestSim$$' -count=1 -v -timeout $(TIMEOUT) -sim.faults=50000

check-model:
	go test ./test/model -count=1 -timeout $(TIMEOUT)

lint-tool:
	@if [ ! -x "$(LINT)" ]; then \
		echo "building golangci-lint $(LINT_VERSION): takes minutes, once"; \
		mkdir -p "$$(dirname "$(LINT)")"; \
		cd test/tools && GOWORK=off go build -trimpath -o "$(LINT).$$$$" github.com/golangci/golangci-lint/v2/cmd/golangci-lint; \
		mv "$(LINT).$$$$" "$(LINT)"; \
	fi
