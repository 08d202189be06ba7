#!/usr/bin/env bash
# Tries the manifests on a kind cluster of this machine: needs docker, kind, kubectl and the internet, and 8 GB.
# Ends with a job that has trained on a worker which Ray's autoscaler has started. `kind delete cluster --name accordion` removes all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ -f deploy/docker/ray.Dockerfile ]] || { echo "try.sh builds the images: run it in a checkout of the project" >&2; exit 1; }
for tool in docker kind kubectl; do
  command -v "$tool" >/dev/null || { echo "$tool is missing; install it first" >&2; exit 1; }
done
kuberay=${KUBERAY:-v1.6.2}
here=deploy/k8s/overlays/kind

docker build -f deploy/docker/service.Dockerfile -t accordion-service:0.1.0 .
docker build -f deploy/docker/ray.Dockerfile -t accordion-ray:0.1.0 .
kind get clusters | grep -qx accordion || kind create cluster --name accordion
kind load docker-image --name accordion accordion-service:0.1.0 accordion-ray:0.1.0
kubectl create --save-config -k "https://github.com/ray-project/kuberay/ray-operator/config/default?ref=$kuberay" || true
[[ -f $here/secrets.env ]] || (umask 077; deploy/k8s/make_secrets.sh > "$here/secrets.env")
kubectl apply -k "$here"
kubectl -n accordion rollout status --timeout=10m statefulset/postgres deployment/accordion-api deployment/accordion-scheduler
kubectl -n accordion port-forward service/accordion-api 8080:80 &
forward=$!
trap 'kill $forward' EXIT
export ACCORDION_URL=http://localhost:8080
ACCORDION_TOKEN=$(sed -n 's/^admin-token=//p' "$here/secrets.env")
export ACCORDION_TOKEN
until curl -sf "$ACCORDION_URL/readyz" >/dev/null; do sleep 5; done
accordion submit deploy/jobs/digits.yaml --follow
