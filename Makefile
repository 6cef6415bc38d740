# What a fresh checkout can do. Go, make and git are enough; Python 3 with pip fetches the XLA plugin, without which everything runs on
# the slow pure-Go backend. A C compiler is only used for the race detector.

GO        ?= go
MODEL      = tests/testdata/shapes-flux1/model
PROMPT    ?= a red circle on a blue background
FUZZTIME  ?= 5s
LONG_FUZZTIME ?= 60s

# Tools are pinned here and run from their source; they are no part of go.mod.
GOFUMPT     = $(GO) run mvdan.cc/gofumpt@v0.12.0
STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Release files are built for these without a C compiler.
PLATFORMS = linux/amd64 linux/arm64 darwin/arm64 windows/amd64

export CGO_ENABLED = 0

.PHONY: demo test check check-long bench bench-regions build plugin format lint tidy cross race race-long fuzz clean

# The Go backend's matrix product is an order of magnitude faster with vector instructions, which Go has as an experiment on amd64.
SIMD := $(if $(filter amd64,$(shell $(GO) env GOARCH)),GOEXPERIMENT=simd)

build:
	$(SIMD) $(GO) build -o precast ./cmd/precast

# plugin installs the plugin for the CPU, pinned by its hash; one that is there needs no network. Failing is no error: the Go backend serves.
plugin: build
	@./precast plugin install cpu >/dev/null || echo 'no XLA plugin for the CPU: the slow pure-Go backend is used'

demo: build plugin
	@./precast run $(MODEL) --prompt "$(PROMPT)" --height 64 --width 64 --num-inference-steps 12 --max-sequence-length 16 --seed 1000 -o demo.png
	@echo "the picture is $(CURDIR)/demo.png"

test: plugin
	$(GO) test -timeout 20m ./...

check: format lint tidy cross plugin
	$(GO) test -timeout 20m ./...
	@$(MAKE) --no-print-directory race fuzz

# Everything: all goldens on both backends with whole and with split programs, the race detector over all of it, longer fuzzing.
check-long: format lint tidy cross plugin
	PRECAST_TEST_LONG=1 $(GO) test -timeout 90m ./...
	@$(MAKE) --no-print-directory race-long
	@$(MAKE) --no-print-directory fuzz FUZZTIME=$(LONG_FUZZTIME)

bench: build plugin
	tests/bench/run.sh

# Compile time, load time and steps of each --regions by the number of blocks; it writes its own checkpoints (4 GB) and needs no Python.
bench-regions: build plugin
	$(SIMD) $(GO) build -o tests/bench/.build/regions ./tests/bench/regions
	tests/bench/.build/regions

format:
	@files=$$($(GOFUMPT) -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted (gofumpt -w):"; echo "$$files"; exit 1; fi

lint:
	$(GO) vet ./...
	$(STATICCHECK) ./...

# Goldens and generated text are held by tests, which fail on what is out of date or has no test any more; go.mod is held here.
tidy:
	$(GO) mod tidy -diff

cross:
	@for p in $(PLATFORMS); do \
		echo "build $$p"; GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) build ./... || exit 1; \
	done

# The packages with goroutines of their own; race-long takes all.
RACE_PACKAGES = . ./cache ./backends/plugin ./backends/pjrt ./backends/gobackend ./graph/pipelines ./graph/checkpoint
RACE_FLAGS    = -short
# gomlx's matrix product computes pointers one element past its slices, which the pointer checks that come with -race stop at.
RACE_GCFLAGS  = github.com/gomlx/compute/...=-d=checkptr=0

race:
	@if command -v "$${CC:-cc}" >/dev/null 2>&1; then \
		echo "race detector: $(RACE_PACKAGES)"; CGO_ENABLED=1 $(GO) test -race $(RACE_FLAGS) -gcflags="$(RACE_GCFLAGS)" -timeout 60m $(RACE_PACKAGES); \
	else \
		echo 'race detector: not run, it needs a C compiler and there is none'; \
	fi

race-long:
	@$(MAKE) --no-print-directory race RACE_PACKAGES=./... RACE_FLAGS=

# Each fuzz target for FUZZTIME; what they find is written below the package's testdata/fuzz and then fails every test run.
fuzz:
	@grep -rl --include=*_test.go '^func Fuzz' . | xargs -n 1 dirname | sort -u | while read -r dir; do \
		for name in $$(grep -h '^func Fuzz' $$dir/*_test.go | sed 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/'); do \
			echo "fuzz $$dir $$name"; \
			$(GO) test $$dir -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) || exit 1; \
		done; \
	done

clean:
	rm -f precast demo.png
