# ha-sidecar: `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/ha-sidecar/ha-sidecar/internal/version.version=$(VERSION)
PROGRAMS := ha-sidecar simdriver virtualnode
GO := go
GOSRC := $(shell git ls-files '*.go' go.mod go.sum 2>/dev/null)
KUBERNETES_VERSION := 1.37.2

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-zA-Z_-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build
.PHONY: build
build: $(addprefix $(BIN)/,$(PROGRAMS)) $(BIN)/localcluster ## Build ha-sidecar, simdriver, virtualnode and localcluster into bin/, 10 to 20 min at first

$(addprefix $(BIN)/,$(PROGRAMS)): $(BIN)/%: $(GOSRC)
	@echo "building $@"
	@CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/$*

$(BIN)/demo $(BIN)/writer $(BIN)/failoverbench: $(BIN)/%: $(GOSRC)
	@echo "building $@"
	@CGO_ENABLED=0 $(GO) build -o $@ ./test/$*

$(BIN)/benchattach $(BIN)/benchprovision $(BIN)/benchcache: $(BIN)/bench%: $(GOSRC)
	@echo "building $@"
	@cd test/bench && CGO_ENABLED=0 $(GO) build -o ../../$@ ./$*

$(BIN)/csi-attacher $(BIN)/csi-provisioner: $(BIN)/csi-%: test/bench/peers/%/go.mod test/bench/peers/%/go.sum
	@echo "building $@ (once; minutes the first time)"
	@cd test/bench/peers/$* && CGO_ENABLED=0 $(GO) build -o ../../../../$@ $$(awk '$$1 == "tool" {print $$2; exit}' go.mod)

$(BIN)/localcluster: $(shell git ls-files localcluster 2>/dev/null)
	@echo "building $@: Kubernetes $(KUBERNETES_VERSION), about 10 minutes on two cores the first time, seconds after that"
	@./localcluster/build.sh $(CURDIR)/$@

$(BIN)/helm $(BIN)/golangci-lint $(BIN)/gotestsum: tools/go.mod tools/go.sum
	@echo "building $@ (once; minutes the first time)"
	@cd tools && CGO_ENABLED=0 $(GO) build -o ../$@ $$(awk '$$1 ~ "/$(@F)$$" {print $$1; exit}' go.mod)

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN) demo-out bench-out

##@ Run
RIG := build $(BIN)/helm $(BIN)/writer
.PHONY: demo
demo: $(RIG) $(BIN)/demo ## Run the main job on a real control plane, 1 min; KEEP=1 leaves it up (root, /dev/fuse)
	@$(BIN)/demo $(if $(KEEP),--keep)

##@ Test
PKGS ?= ./...
TESTFLAGS ?=
.PHONY: test
test: $(RIG) $(BIN)/gotestsum unit e2e test-localcluster test-bench chart guards-sample ## Set up and pass all tests, 15 min (root, /dev/fuse, a C compiler)

.PHONY: unit
unit: $(RIG) $(BIN)/gotestsum ## Tests of the packages, csi-sanity among them (as test); PKGS=./pkg/x TESTFLAGS="-run TestX"
	$(BIN)/gotestsum --format pkgname-and-test-fails --jsonfile $(BIN)/unit.json -- -race $(TESTFLAGS) $$($(GO) list $(PKGS) | grep -v /test/)

.PHONY: e2e
e2e: $(RIG) $(BIN)/csi-attacher $(BIN)/gotestsum ## Tests of behaviour on a real control plane, of the chart and the docs (as test)
	$(BIN)/gotestsum --format testname --jsonfile $(BIN)/e2e.json -- -race -p 2 -timeout 30m $(TESTFLAGS) ./test/...

.PHONY: test-localcluster
test-localcluster: $(BIN)/gotestsum ## Tests of localcluster
	cd localcluster && CGO_ENABLED=0 ../$(BIN)/gotestsum --format pkgname --jsonfile ../$(BIN)/localcluster.json -- $(TESTFLAGS) ./internal/...

.PHONY: test-bench
test-bench: $(BIN)/gotestsum ## Tests of test/bench: our caches against Kubernetes' own, and the benches themselves
	cd test/bench && CGO_ENABLED=0 ../../$(BIN)/gotestsum --format pkgname --jsonfile ../../$(BIN)/bench.json -- $(TESTFLAGS) ./...

.PHONY: guards
guards: $(RIG) ## Take each safety guard out and see its test fail, 20 min (a C compiler)
	./test/guards/run.sh

.PHONY: faults
faults: $(RIG) ## Kill ha-sidecar at every write and call of an attach, a detach and a fence, 12 min (root, /dev/fuse, a C compiler)
	$(GO) test -race -v -timeout 1h ./test/faults -all -out $(CURDIR)/bench-out

.PHONY: guards-sample
guards-sample: $(RIG)
	./test/guards/run.sh --sample

.PHONY: bench-failover
bench-failover: $(RIG) $(BIN)/failoverbench ## Measure failovers beside kube-controller-manager's floor, 6 min (root, /dev/fuse)
	@$(BIN)/failoverbench --out bench-out

.PHONY: bench-attach
bench-attach: $(RIG) $(BIN)/csi-attacher $(BIN)/benchattach ## Measure attach and detach beside external-attacher, 25 min
	@$(BIN)/benchattach --out bench-out

.PHONY: bench-provision
bench-provision: $(BIN)/ha-sidecar $(BIN)/localcluster $(BIN)/csi-provisioner $(BIN)/benchprovision ## Measure provisioning beside external-provisioner, 80 min; ONLY=TUNED,MEMORY SIDES=ours,peer leave some out
	@$(BIN)/benchprovision --out bench-out $(if $(ONLY),--only=$(ONLY)) $(if $(SIDES),--sides=$(SIDES))

.PHONY: bench-cache
bench-cache: $(BIN)/benchcache ## Measure the caches beside those of Kubernetes, 2 min
	@$(BIN)/benchcache --out bench-out

##@ Verify
.PHONY: lint
lint: $(BIN)/golangci-lint ## Lint, and check formatting and generated files
	CGO_ENABLED=0 $(BIN)/golangci-lint run --allow-parallel-runners ./...
	cd localcluster && CGO_ENABLED=0 $(GO) vet ./...
	cd test/bench && CGO_ENABLED=0 $(GO) vet ./...
	./hack/verify.sh

.PHONY: chart
chart: $(BIN)/helm ## Lint the chart and check that the rendered manifests are current
	$(BIN)/helm lint --strict deploy/kubernetes/ha-sidecar --values deploy/kubernetes/example-values.yaml
	$(BIN)/helm lint --strict deploy/kubernetes/ha-sidecar --values deploy/kubernetes/example-node-values.yaml
	@./hack/render.sh | diff -u deploy/kubernetes/ha-sidecar.yaml - || { echo "deploy/kubernetes/ha-sidecar.yaml is stale: run make generate"; exit 1; }
	@./hack/render.sh example-node-values.yaml | diff -u deploy/kubernetes/ha-sidecar-node.yaml - || { echo "deploy/kubernetes/ha-sidecar-node.yaml is stale: run make generate"; exit 1; }

.PHONY: generate
generate: $(BIN)/helm $(BIN)/ha-sidecar ## Render the manifests and the reference of flags, and copy the CRDs of snapshots
	./hack/render.sh > deploy/kubernetes/ha-sidecar.yaml
	./hack/render.sh example-node-values.yaml > deploy/kubernetes/ha-sidecar-node.yaml
	./hack/flags.sh > docs/flags.md
	./hack/snapshot-crds.sh test/rig/crds

##@ Image
.PHONY: image
image: $(BIN)/ha-sidecar ## Build the image with buildah and run its version command; IMAGE=name:tag (root)
	./hack/image.sh
