# make demo    the main job on real programs, in a few minutes
# make test    everything that has to hold; what .ci/run runs
# make lint    formatting, clippy, licences, documentation
# make build   target/release/corewise
# make audit   cargo-deny, with RustSec's advisories (network; cargo install cargo-deny)
# make clean   removes what was built and made

CARGO ?= cargo

.PHONY: all build setup demo test lint unit audit clean

all: build

setup:
	scripts/setup --build

build: setup
	$(CARGO) build --release --locked -p corewise -p corewise-shim -p corewise-hooks -p corewise-race

demo:
	scripts/setup
	$(CARGO) build --release --locked -p corewise -p corewise-shim -p corewise-hooks -p corewise-race
	scripts/demo

test: lint unit

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --locked -p corewise-lab --test dependencies
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# The preloaded libraries: their tests need them, and cargo does not build them for them.
unit: setup
	$(CARGO) build --locked -p corewise-shim -p corewise-hooks -p corewise-race
	$(CARGO) test --workspace --locked

audit:
	$(CARGO) deny check advisories bans licenses sources

clean:
	$(CARGO) clean
	rm -rf .inputs .venv
