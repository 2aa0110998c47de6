# Release binaries, dist/armtrace-x86_64 and dist/armtrace-aarch64, and what each is made of, dist/armtrace-*.cdx.json, on
# a machine of either architecture.

.PHONY: dist sbom packages kubernetes dist-x86_64 dist-aarch64

dist: dist-x86_64 dist-aarch64 sbom ## static release binaries for both architectures, and their bills of materials, in dist/

sbom:
	packaging/sbom

dist-x86_64 dist-aarch64: dist-%:
	packaging/dist $*

packages: dist ## .deb and .rpm of both, in dist/
	packaging/packages

kubernetes: ## checks packaging/kubernetes against the schemas of Kubernetes, with kubectl and kubernetes-validate
	kubectl kustomize packaging/kubernetes | kubernetes-validate --strict /dev/stdin
